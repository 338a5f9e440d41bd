//! The attacks of a web page, over real connections.

use std::time::Duration;

use tidegate_web::{Audit, BindError, Options, Token};

use crate::support::{Wire, ask, loopback, on_loop, reply, serve, small_site};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const SECURE: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action \
         'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
];

#[test]
fn every_answer_carries_the_headers_errors_included() {
    on_loop(async {
        let site = serve(small_site(), loopback()).await;
        let cases = [
            ("GET /names", 200),
            ("GET /", 303),
            ("GET /nothing", 404),
            ("DELETE /names", 405),
            ("GET /api/v1/nothing", 404),
            ("GET /api/v1/openapi.json", 200),
            ("GET /assets/x/style.css", 200),
            ("GET /assets/x/none.css", 404),
            ("GET /live?on=none", 404),
            ("POST /theme", 415),
        ];
        for (line, status) in cases {
            let reply = ask(site.address, line, &[], "").await;
            assert_eq!(reply.status, status, "{line}: {}", reply.head);
            for (name, value) in SECURE {
                assert_eq!(reply.header(name), Some(value), "{line}");
            }
        }
        let refused = ask(site.address, "GET /names", &[("host", "evil.example")], "").await;
        assert_eq!((refused.status, refused.header("x-frame-options")), (403, Some("DENY")));
        assert!(!refused.body.contains("Names"), "a refusal shows nothing of the site");
    });
}

#[test]
fn a_rebound_name_and_a_post_of_another_site_reach_no_handler() {
    on_loop(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.jsonl");
        let site = serve(small_site(), Options { audit: Audit::to_file(&log).unwrap(), ..loopback() }).await;
        let own = format!("http://{}", site.address);
        for headers in [
            &[FORM, ("host", "evil.example")][..],
            &[FORM, ("origin", "http://evil.example")],
            &[FORM, ("origin", "null")],
            &[FORM, ("sec-fetch-site", "cross-site")],
            &[FORM, ("sec-fetch-site", "same-site"), ("origin", &own)],
        ] {
            let reply = ask(site.address, "POST /names", headers, "name=a").await;
            assert_eq!(reply.status, 403, "{headers:?}");
        }
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "");
        let headers = [FORM, ("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
        let reply = ask(site.address, "POST /names", &headers, "name=a%22%0Ab").await;
        assert_eq!((reply.status, reply.header("location")), (303, Some("/names")));
        let line = std::fs::read_to_string(&log).unwrap();
        assert_eq!(line.lines().count(), 1, "a line break in a name makes no second line: {line}");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["action"], &line["detail"]), (&"add a name".into(), &"name a\"\nb".into()));
        assert_eq!((&line["who"], &line["status"]), (&"local".into(), &303.into()));
    });
}

#[test]
fn html_in_a_name_is_text_and_a_path_in_a_name_is_a_name() {
    on_loop(async {
        let site = serve(small_site(), loopback()).await;
        let evil = "/names/%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%20onx=%27";
        let reply = ask(site.address, &format!("GET {evil}"), &[], "").await;
        assert_eq!(reply.status, 200);
        assert!(reply.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{}", reply.body);
        assert!(!reply.body.contains("<script>alert") && !reply.body.contains("\" onx='"), "{}", reply.body);
        let reply = ask(site.address, "GET /names/..%2f..%2fetc%2fpasswd", &[], "").await;
        assert!(reply.body.contains("<h1>../../etc/passwd</h1>"), "{}", reply.body);
        for path in ["/assets/x/..%2f..%2fCargo.toml", "/assets/x/%2e%2e/lib.rs", "/assets/../../etc/passwd"] {
            assert_eq!(ask(site.address, &format!("GET {path}"), &[], "").await.status, 404, "{path}");
        }
    });
}

#[test]
fn an_oversized_form_is_refused_by_its_length_and_while_it_comes() {
    on_loop(async {
        let site = serve(small_site(), loopback()).await;
        let stated = [FORM, ("content-length", "70000")];
        let mut wire = Wire::open(site.address).await;
        let head = format!(
            "POST /names HTTP/1.1\r\nhost: {}\r\n{}: {}\r\ncontent-length: 70000\r\n\r\n",
            site.address, stated[0].0, stated[0].1
        );
        wire.send(head.as_bytes()).await;
        assert!(wire.read_until(|text| text.contains("\r\n\r\n")).await.starts_with("HTTP/1.1 413"));
        let mut wire = Wire::open(site.address).await;
        let head = format!(
            "POST /names HTTP/1.1\r\nhost: {}\r\n{}: {}\r\ntransfer-encoding: chunked\r\n\r\n",
            site.address, FORM.0, FORM.1
        );
        wire.send(head.as_bytes()).await;
        let chunk = format!("1000\r\n{}\r\n", "a".repeat(0x1000));
        for _ in 0..20 {
            wire.send(chunk.as_bytes()).await;
        }
        assert!(wire.read_until(|text| text.contains("\r\n\r\n")).await.starts_with("HTTP/1.1 413"));
    });
}

#[test]
fn a_body_that_comes_byte_by_byte_is_cut() {
    on_loop(async {
        let options = Options { body_timeout: Duration::from_millis(200), ..loopback() };
        let site = serve(small_site(), options).await;
        let mut wire = Wire::open(site.address).await;
        let head = format!(
            "POST /names HTTP/1.1\r\nhost: {}\r\n{}: {}\r\ncontent-length: 9\r\n\r\nn",
            site.address, FORM.0, FORM.1
        );
        wire.send(head.as_bytes()).await;
        // The rest never comes: the server ends it.
        let text = wire.read_until(|text| text.contains("\r\n\r\n")).await;
        assert!(text.is_empty() || reply(&text).status >= 400, "{text}");
    });
}

#[test]
fn a_network_address_needs_a_token_and_the_link_signs_in() {
    on_loop(async {
        let open = Options::new("0.0.0.0:0".parse().unwrap());
        assert!(matches!(small_site().bind(open).await, Err(BindError::NeedsToken { .. })));
        let token = Token::new("a-token-of-some-length").unwrap();
        let site = serve(small_site(), Options { token: Some(token), ..loopback() }).await;
        let page = ask(site.address, "GET /names", &[], "").await;
        assert_eq!(page.status, 401);
        assert!(page.body.contains("name=\"token\"") && !page.body.contains("Names"), "{}", page.body);
        let signed = ask(site.address, "GET /names?token=a-token-of-some-length", &[], "").await;
        assert_eq!((signed.status, signed.header("location")), (303, Some("/names")));
        let cookie = signed.header("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains("a-token"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        assert_eq!(ask(site.address, "GET /names", &[("cookie", cookie)], "").await.status, 200);
        assert_eq!(ask(site.address, "POST /names", &[("cookie", cookie), FORM], "name=a").await.status, 303);
        let form = ask(site.address, "POST /login", &[FORM], "token=a-token-of-some-length&back=//evil.example").await;
        assert_eq!((form.status, form.header("location")), (303, Some("/")));
        let bearer = ("authorization", "Bearer a-token-of-some-length");
        assert_eq!(ask(site.address, "GET /api/v1/openapi.json", &[bearer], "").await.status, 200);
        for _ in 0..5 {
            assert_eq!(ask(site.address, "POST /login", &[FORM], "token=wrong").await.status, 401);
        }
        let wrong = ("authorization", "Bearer a-token-of-some-lengti");
        let locked = ask(site.address, "GET /api/v1/openapi.json", &[wrong], "").await;
        assert_eq!(locked.status, 429);
        assert!(locked.header("retry-after").is_some());
        assert_eq!(ask(site.address, "GET /api/v1/openapi.json", &[bearer], "").await.status, 200);
        assert_eq!(ask(site.address, "POST /login", &[FORM], "token=a-token-of-some-length").await.status, 303);
        assert_eq!(ask(site.address, "POST /login", &[FORM], "token=wrong").await.status, 429);
        assert_eq!(ask(site.address, "GET /names", &[("cookie", cookie)], "").await.status, 200);
    });
}

#[test]
fn a_read_only_site_has_no_buttons_and_refuses_posts() {
    on_loop(async {
        let site = serve(small_site(), Options { read_only: true, ..loopback() }).await;
        let page = ask(site.address, "GET /names/a", &[], "").await;
        assert!(!page.body.contains("<button>Act"), "{}", page.body);
        assert_eq!(ask(site.address, "POST /names", &[FORM], "name=a").await.status, 403);
        let theme = ask(site.address, "POST /theme", &[FORM], "theme=dark&back=/names").await;
        assert_eq!(theme.status, 303);
        let cookie = theme.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let page = ask(site.address, "GET /names", &[("cookie", &cookie)], "").await;
        assert!(page.body.contains("<html lang=\"en\" data-theme=\"dark\""), "in the first bytes");
    });
}
