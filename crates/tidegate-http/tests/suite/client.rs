//! What a request looks like on the wire, and what comes back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use axum::Router;
use axum::routing::{any, get, post};
use http::{HeaderMap, HeaderValue, Request};
use tidegate_http::{Body, Client, Error};

use crate::support::{answer, client, on_loop, plain, read_head, running, scripted};

/// The heads of the requests a client sends, each answered with `ok`.
async fn heads() -> (String, Rc<RefCell<Vec<String>>>) {
    let heads: Rc<RefCell<Vec<String>>> = Rc::default();
    let seen = heads.clone();
    let address = scripted(move |_, stream| {
        let seen = seen.clone();
        async move {
            loop {
                let head = read_head(&stream).await;
                if head.is_empty() {
                    return;
                }
                seen.borrow_mut().push(head);
                stream.write_all(&answer("ok")).await.unwrap();
            }
        }
    })
    .await;
    (format!("http://{address}"), heads)
}

#[test]
fn status_headers_and_body_come_back() {
    on_loop(async {
        let app = Router::new()
            .route("/teapot", get(|| async { (http::StatusCode::IM_A_TEAPOT, [("x-kind", "black")], "tea") }));
        let server = running(app).await;
        let response = client().get(&format!("{}/teapot", server.url)).await.unwrap();
        assert_eq!(response.status(), 418);
        assert_eq!(response.headers()["x-kind"], "black");
        assert_eq!(response.into_body().text().await.unwrap(), "tea");
    });
}

#[test]
fn request_goes_out_in_origin_form_with_a_host() {
    on_loop(async {
        let (url, heads) = heads().await;
        client().get(&format!("{url}/path?query=1")).await.unwrap();
        let head = heads.borrow()[0].to_ascii_lowercase();
        assert!(head.starts_with("get /path?query=1 http/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nhost: {}\r\n", url.trim_start_matches("http://"))), "{head}");
        assert!(head.contains("\r\naccept-encoding: gzip\r\n") && head.contains("\r\nuser-agent: tidegate/"), "{head}");
    });
}

#[test]
fn requests_to_servers_in_turn_reach_each_by_its_own_name() {
    on_loop(async {
        let ((one, at_one), (other, at_other)) = (heads().await, heads().await);
        let client = client();
        for path in ["/1", "?2", "/3"] {
            client.get(&format!("{one}{path}")).await.unwrap();
            client.get(&format!("{other}{path}")).await.unwrap();
            // The same server by another spelling.
            client.get(&format!("{}{path}", one.replace("http://", "HTTP://me@"))).await.unwrap();
        }
        for (url, heads, paths) in [(&one, at_one, 6), (&other, at_other, 3)] {
            let heads = heads.borrow();
            assert_eq!(heads.len(), paths);
            let host = format!("\r\nhost: {}\r\n", url.trim_start_matches("http://"));
            assert!(heads.iter().all(|head| head.to_ascii_lowercase().contains(&host)), "{heads:?}");
            assert_eq!(
                heads.iter().filter(|head| head.starts_with("GET /?2 HTTP/1.1")).count(),
                paths / 3,
                "{heads:?}"
            );
            assert_eq!(heads.iter().filter(|head| head.contains("uthorization: ")).count(), paths - 3, "{heads:?}");
        }
    });
}

#[test]
fn headers_of_the_request_are_left_as_they_are() {
    on_loop(async {
        let (url, heads) = heads().await;
        let request = Request::get(&url)
            .header("host", "other.example")
            .header("user-agent", "mine")
            .header("accept", "text/plain")
            .header("accept-encoding", "br");
        client().request(request.body(()).unwrap()).await.unwrap();
        let head = heads.borrow()[0].to_ascii_lowercase();
        for line in ["host: other.example", "user-agent: mine", "accept: text/plain", "accept-encoding: br"] {
            assert_eq!(head.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line} in {head}");
        }
    });
}

#[test]
fn one_connection_serves_request_after_request() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = client();
        for _ in 0..20 {
            client.get(&server.url).await.unwrap().into_body().bytes().await.unwrap();
        }
        let stats = client.stats();
        assert_eq!((stats.total, stats.reused, stats.idle, stats.in_use), (1, 19, 1, 0));
        assert_eq!((server.handle.stats().accepted, server.handle.stats().requests), (1, 20));
    });
}

#[test]
fn responses_without_a_body_free_their_connection_at_once() {
    on_loop(async {
        let app = Router::new().route("/", any(|| async { http::StatusCode::NO_CONTENT }));
        let server = running(app).await;
        let client = client();
        for method in ["HEAD", "GET", "DELETE"] {
            let request = Request::builder().method(method).uri(&server.url).body(()).unwrap();
            let _response = client.request(request).await.unwrap();
            assert_eq!((client.stats().idle, client.stats().in_use), (1, 0), "{method}");
        }
        assert_eq!(client.stats().total, 1);
    });
}

#[test]
fn json_goes_out_and_comes_back() {
    on_loop(async {
        async fn turn(headers: HeaderMap, body: String) -> ([(&'static str, HeaderValue); 1], String) {
            ([("x-sent-as", headers["content-type"].clone())], body)
        }
        let server = running(Router::new().route("/", post(turn))).await;
        let value = BTreeMap::from([("a", 1), ("b", 2)]);
        let response = client().post_json(&server.url, &value).await.unwrap();
        assert_eq!(response.headers()["x-sent-as"], "application/json");
        let back: BTreeMap<String, i32> = response.into_body().json().await.unwrap();
        assert_eq!(back["b"], 2);

        let response = client().post_json(&server.url, "text").await.unwrap();
        let error = response.into_body().json::<Vec<u8>>().await.unwrap_err();
        assert!(matches!(&error, Error::Json { host, .. } if server.url.ends_with(host.as_str())), "{error}");
    });
}

#[test]
fn user_and_password_of_a_url_become_a_header_and_are_never_shown() {
    on_loop(async {
        let (url, heads) = heads().await;
        let with_user = url.replace("http://", "http://me:s3cret@");
        client().get(&with_user).await.unwrap();
        assert!(heads.borrow()[0].to_ascii_lowercase().contains("authorization: basic "));
        assert!(!heads.borrow()[0].contains("s3cret"));

        let nobody = client().get("http://me:s3cret@127.0.0.1:1/").await.unwrap_err();
        assert!(!format!("{nobody} {nobody:?}").contains("s3cret"), "{nobody:?}");
    });
}

#[test]
fn secrets_among_the_headers_are_marked_both_ways() {
    on_loop(async {
        let app = Router::new().route("/", get(|| async { [("set-cookie", "id=s3cret")] }));
        let server = running(app).await;
        let response = client().get(&server.url).await.unwrap();
        assert!(response.headers()["set-cookie"].is_sensitive());
        assert!(!format!("{:?}", response.headers()).contains("s3cret"));

        let request = Request::get("http://127.0.0.1:1/").header("authorization", "Bearer s3cret").body(()).unwrap();
        let error = client().request(request).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    });
}

#[test]
fn connection_refused_is_reported_with_the_address() {
    on_loop(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = client().get(&format!("http://{address}/")).await.unwrap_err();
        assert!(matches!(&error, Error::Connect { address: tried, source, .. }
            if *tried == address.to_string() && source.kind() == std::io::ErrorKind::ConnectionRefused));
        assert!(error.is_before_sending());
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    });
}

#[test]
fn name_that_does_not_exist_is_told_by_name() {
    on_loop(async {
        let error = client().get("http://no-such-host.invalid/").await.unwrap_err();
        assert!(matches!(&error, Error::Resolve { host, .. } if host == "no-such-host.invalid"), "{error:?}");
    });
}

#[test]
fn what_is_not_http_is_told_as_such() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await.unwrap();
        })
        .await;
        let error = client().get(&format!("http://{address}/")).await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
        assert!(error.to_string().starts_with(&address.to_string()), "{error}");
    });
}

#[test]
fn client_outlives_a_loop_and_connects_anew_on_the_next() {
    let client = plain().build().unwrap();
    for round in 1..=2 {
        let client: Client = client.clone();
        on_loop(async move {
            let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
            assert_eq!(client.get(&server.url).await.unwrap().into_body().text().await.unwrap(), "ok");
            assert_eq!(client.stats().total, round);
        });
    }
    assert_eq!(client.stats().in_use, 0);
}

#[test]
fn body_of_known_length_tells_it_and_a_stream_goes_in_chunks() {
    on_loop(async {
        let (url, heads) = heads().await;
        let stream = Body::stream(crate::support::pieces(&[]));
        client().request(Request::post(&url).body(stream).unwrap()).await.unwrap();
        client().request(Request::post(&url).body("four").unwrap()).await.unwrap();
        let heads = heads.borrow().concat().to_ascii_lowercase();
        assert_eq!(heads.matches("post / http/1.1").count(), 2, "{heads}");
        assert_eq!(heads.matches("\r\ntransfer-encoding: chunked\r\n").count(), 1, "{heads}");
        assert_eq!(heads.matches("\r\ncontent-length: 4\r\n").count(), 1, "{heads}");
    });
}
