use std::time::Duration;

use http::HeaderValue;

use super::*;

const TOKEN: &str = "abcdefghijklmnopqrstuvwxyz";

fn guard(address: &str, token: bool) -> Guard {
    let token = token.then(|| Token::new(TOKEN).unwrap());
    Guard::new(address.parse().unwrap(), Vec::new(), token, false)
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

/// The status of a refusal; 200 for one that passes, 303 for a sign-in.
fn status(guard: &Guard, method: Method, target: &str, pairs: &[(&'static str, &str)]) -> u16 {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = headers(pairs);
    let head = Head { method: &method, path, query, headers: &headers, peer: IpAddr::from([192, 0, 2, 1]) };
    match guard.decide(&head, Instant::now()) {
        Verdict::Pass { .. } => 200,
        Verdict::SignIn { .. } => 303,
        Verdict::Refuse(failure) => failure.status.as_u16(),
    }
}

#[test]
fn a_rebound_name_is_refused() {
    let local = guard("127.0.0.1:7433", false);
    for host in ["127.0.0.1:7433", "localhost:7433", "LOCALHOST", "[::1]:7433", "127.9.9.9"] {
        assert_eq!(status(&local, Method::GET, "/", &[("host", host)]), 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:7433",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:127.0.0.1",
        "192.0.2.7",
        "",
        ":7433",
        "localhost:7433:1",
        "[::1].evil.example",
        "[::1",
        "user@localhost",
    ] {
        assert_eq!(status(&local, Method::GET, "/", &[("host", host)]), 403, "{host}");
    }
    assert_eq!(status(&local, Method::GET, "/", &[]), 403, "no host");
    assert_eq!(status(&local, Method::GET, "/", &[("host", "localhost"), ("host", "evil.example")]), 403);
}

#[test]
fn a_server_on_the_network_answers_to_addresses_and_to_the_names_it_was_given() {
    let token = Some(Token::new(TOKEN).unwrap());
    let open = Guard::new("0.0.0.0:7433".parse().unwrap(), vec!["tide.lan".into()], token, false);
    let bearer = ("authorization", "Bearer abcdefghijklmnopqrstuvwxyz");
    for (host, expected) in [("192.0.2.7:7433", 200), ("tide.lan:7433", 200), ("Tide.Lan", 200), ("evil.example", 403)]
    {
        assert_eq!(status(&open, Method::GET, "/", &[("host", host), bearer]), expected, "{host}");
    }
}

#[test]
fn a_post_of_another_site_is_refused() {
    let local = guard("127.0.0.1:7433", false);
    let host = ("host", "127.0.0.1:7433");
    let post = |pairs: &[(&'static str, &str)]| status(&local, Method::POST, "/limits", &[&[host], pairs].concat());
    assert_eq!(post(&[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:7433")]), 200);
    assert_eq!(post(&[]), 200, "curl");
    for site in ["cross-site", "same-site", "none", "?"] {
        assert_eq!(post(&[("sec-fetch-site", site)]), 403, "{site}");
    }
    for origin in ["null", "http://evil.example", "http://127.0.0.1:7434", "https://127.0.0.1:7433.evil.example", ""] {
        assert_eq!(post(&[("origin", origin)]), 403, "{origin}");
        assert_eq!(post(&[("origin", origin), ("sec-fetch-site", "same-origin")]), 403, "{origin}");
    }
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        assert_eq!(status(&local, method, "/limits", &[host, ("sec-fetch-site", "cross-site")]), 403);
    }
}

#[test]
fn another_site_may_link_to_a_page_but_not_embed_or_read_it() {
    let local = guard("127.0.0.1:7433", false);
    let get = |mode: &str, dest: &str| {
        let pairs = [
            ("host", "localhost"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", mode),
            ("sec-fetch-dest", dest),
        ];
        status(&local, Method::GET, "/api/v1/limits", &pairs)
    };
    assert_eq!(get("navigate", "document"), 200);
    assert_eq!(get("navigate", "iframe"), 403);
    assert_eq!(get("no-cors", "script"), 403);
    assert_eq!(get("no-cors", "image"), 403);
    assert_eq!(get("cors", "empty"), 403);
}

#[test]
fn without_its_token_a_server_shows_style_and_the_sign_in_page_alone() {
    let guard = guard("192.0.2.7:7433", true);
    let host = ("host", "192.0.2.7:7433");
    for path in ["/", "/limits", "/api/v1/limits", "/live", "/assetsx", "/none"] {
        assert_eq!(status(&guard, Method::GET, path, &[host]), 401, "{path}");
        assert_eq!(status(&guard, Method::POST, path, &[host]), 401, "{path}");
    }
    assert_eq!(status(&guard, Method::GET, "/assets/1/style.css", &[host]), 200);
    assert_eq!(status(&guard, Method::POST, "/login", &[host]), 200);
    assert_eq!(status(&guard, Method::GET, "/limits?token=abcdefghijklmnopqrstuvwxyz&u=a", &[host]), 303);
    assert_eq!(status(&guard, Method::GET, "/limits?token=abcdefghijklmnopqrstuvwxy", &[host]), 401);
    assert_eq!(status(&guard, Method::GET, "/", &[host, ("authorization", "bearer abcdefghijklmnopqrstuvwxyz")]), 200);
    assert_eq!(status(&guard, Method::GET, "/", &[host, ("authorization", "Basic abcdefghijklmnopqrstuvwxyz")]), 401);
}

#[test]
fn the_link_signs_in_and_leaves_the_address() {
    let guard = guard("192.0.2.7:7433", true);
    let host = headers(&[("host", "192.0.2.7:7433")]);
    let head = Head {
        method: &Method::GET,
        path: "/limits",
        query: "a=1&token=abcdefghijklmnopqrstuvwxyz",
        headers: &host,
        peer: IpAddr::from([192, 0, 2, 1]),
    };
    let Verdict::SignIn { cookie, to } = guard.decide(&head, Instant::now()) else { panic!("not signed in") };
    assert_eq!(to, "/limits?a=1");
    assert!(cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN), "{cookie}");
    let session = cookie.split(';').next().unwrap();
    let pairs = [("host", "192.0.2.7:7433"), ("cookie", session)];
    assert_eq!(status(&guard, Method::GET, "/limits", &pairs), 200);
    assert_eq!(status(&guard, Method::POST, "/limits", &pairs), 200);
    let wrong = format!("{}0", &session[..session.len() - 1]);
    assert_eq!(status(&guard, Method::GET, "/limits", &[pairs[0], ("cookie", &wrong)]), 401);
}

#[test]
fn guessing_is_locked_and_does_not_lock_out_who_has_the_token_or_has_signed_in() {
    let guard = guard("192.0.2.7:7433", true);
    let host = ("host", "192.0.2.7:7433");
    let guess = |token: &str| {
        let pairs = headers(&[host, ("authorization", &format!("Bearer {token}"))]);
        let peer = IpAddr::from([192, 0, 2, 1]);
        let head = Head { method: &Method::GET, path: "/", query: "", headers: &pairs, peer };
        match guard.decide(&head, Instant::now()) {
            Verdict::Refuse(failure) => (failure.status.as_u16(), failure.retry_after.is_some()),
            _ => (200, false),
        }
    };
    for i in 0..5 {
        assert_eq!(guess(&format!("wrong-{i}")), (401, false));
    }
    assert_eq!(guess("wrong-6"), (429, true));
    assert_eq!(guess(TOKEN), (200, false), "behind a proxy all have one address");
    assert_eq!(guess("wrong-7"), (429, true), "which forgives nothing");
    assert_eq!(guess(&TOKEN[1..]), (429, true));
    assert_eq!(status(&guard, Method::GET, &format!("/?token={TOKEN}"), &[host]), 303);
    assert!(guard.sign_in(TOKEN, IpAddr::from([192, 0, 2, 1]), Instant::now()).is_ok());
    assert_eq!(status(&guard, Method::GET, "/?token=wrong", &[host]), 429, "one count for every way in");
    let session = guard.token.as_ref().unwrap().cookie(7433);
    let session = session.split(';').next().unwrap().to_owned();
    assert_eq!(status(&guard, Method::GET, "/", &[host, ("cookie", &session)]), 200);
    let later = Instant::now() + Duration::from_secs(60);
    let Err(failure) = guard.sign_in("wrong", IpAddr::from([192, 0, 2, 1]), later) else { panic!("signed in") };
    assert_eq!(failure.status, StatusCode::UNAUTHORIZED, "waiting forgives");
}

#[test]
fn read_only_refuses_every_change_but_the_visitors_colours() {
    let guard = Guard::new("127.0.0.1:7433".parse().unwrap(), Vec::new(), None, true);
    let host = ("host", "localhost");
    assert_eq!(status(&guard, Method::GET, "/limits", &[host]), 200);
    assert_eq!(status(&guard, Method::POST, "/limits", &[host]), 403);
    assert_eq!(status(&guard, Method::DELETE, "/api/v1/jobs/1", &[host]), 403);
    assert_eq!(status(&guard, Method::POST, "/theme", &[host]), 200);
}

#[test]
fn weak_tokens_are_refused() {
    assert!(matches!(Token::new("short"), Err(TokenError::Weak)));
    assert!(matches!(Token::new("with space and more characters"), Err(TokenError::Weak)));
    assert!(Token::new("abcdefghijklmnop").is_ok());
}
