//! Requests by way of a proxy: a small one that fetches plain URLs and opens tunnels.

use std::cell::RefCell;
use std::rc::Rc;

use axum::Router;
use axum::routing::get;
use tidegate_http::{Client, Error, Proxies, Roots};
use tidegate_loop::net::TcpStream;
use tidegate_loop::spawn;

use crate::support::{answer, on_loop, plain, read_head, running, scripted};
use crate::tls::Certificates;

/// The heads that came to the proxy.
type Heads = Rc<RefCell<Vec<String>>>;

/// A proxy that opens tunnels, and answers plain requests itself with `by proxy`.
async fn proxy() -> (String, Heads) {
    let heads = Heads::default();
    let seen = heads.clone();
    let address = scripted(move |_, stream| {
        let seen = seen.clone();
        async move {
            loop {
                let head = read_head(&stream).await;
                if head.is_empty() {
                    return;
                }
                seen.borrow_mut().push(head.clone());
                let Some(rest) = head.strip_prefix("CONNECT ") else {
                    stream.write_all(&answer("by proxy")).await.unwrap();
                    continue;
                };
                let to = rest.split(' ').next().unwrap().to_owned();
                if !head.contains("Proxy-Authorization: Basic bWU6c2VjcmV0") && to.ends_with(":8") {
                    stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.unwrap();
                    return;
                }
                let Ok(far) = TcpStream::connect(to.as_str()).await else {
                    stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                    return;
                };
                stream.write_all(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n").await.unwrap();
                let (near, far) = (Rc::new(stream), Rc::new(far));
                spawn(pump(near.clone(), far.clone()));
                pump(far, near).await;
                return;
            }
        }
    })
    .await;
    (format!("http://{address}"), heads)
}

async fn pump(from: Rc<TcpStream>, to: Rc<TcpStream>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn through(proxy: &str, exceptions: &'static str) -> Proxies {
    let proxy = proxy.to_owned();
    Proxies::from_vars(move |name| match name {
        "all_proxy" => Some(proxy.clone()),
        "no_proxy" => Some(exceptions.to_owned()),
        _ => None,
    })
}

fn client_through(proxy: &str) -> Client {
    Client::builder().proxies(through(proxy, "")).build().unwrap()
}

#[test]
fn plain_request_goes_to_the_proxy_whole_with_user_and_password() {
    on_loop(async {
        let (proxy, heads) = proxy().await;
        let client = client_through(&proxy.replace("http://", "http://me:secret@"));
        for _ in 0..2 {
            let response = client.get("http://does-not-resolve.invalid:81/path?x=1").await.unwrap();
            assert_eq!(response.into_body().text().await.unwrap(), "by proxy");
        }
        let heads = heads.borrow();
        assert!(heads[0].starts_with("GET http://does-not-resolve.invalid:81/path?x=1 HTTP/1.1\r\n"), "{}", heads[0]);
        let lower = heads[0].to_ascii_lowercase();
        assert!(lower.contains("\r\nhost: does-not-resolve.invalid:81\r\n"), "{lower}");
        assert!(lower.contains("\r\nproxy-authorization: basic bwu6c2vjcmv0\r\n"), "{lower}");
        assert_eq!(client.stats().total, 1, "the connection to the proxy is kept");
    });
}

#[test]
fn https_goes_through_a_tunnel_that_is_kept() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1"]);
        let server = certificates.serve(Router::new().route("/", get(|| async { "end to end" }))).await;
        let (proxy, heads) = proxy().await;
        let client = plain()
            .proxies(through(&proxy.replace("http://", "http://me:secret@"), ""))
            .roots(Roots::None)
            .ca_file(certificates.ca())
            .build()
            .unwrap();
        for _ in 0..3 {
            assert_eq!(client.get(&server.url).await.unwrap().into_body().text().await.unwrap(), "end to end");
        }
        let heads = heads.borrow();
        assert_eq!(heads.len(), 1);
        assert!(heads[0].starts_with(&format!("CONNECT {} HTTP/1.1\r\n", server.address)), "{}", heads[0]);
        assert!(heads[0].contains("\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{}", heads[0]);
        assert!(!heads[0].contains("GET"));
    });
}

#[test]
fn proxy_may_speak_tls_itself() {
    on_loop(async {
        // A proxy behind a tunnel that ends TLS: the stream to it is TLS, and in it goes another.
        let certificates = Certificates::new(&["127.0.0.1"]);
        let server = certificates.serve(Router::new().route("/", get(|| async { "twice" }))).await;
        let (proxy, heads) = proxy().await;
        let terminator = certificates.terminate(proxy.trim_start_matches("http://")).await;
        let client = plain()
            .proxies(through(&format!("https://{terminator}"), ""))
            .roots(Roots::None)
            .ca_file(certificates.ca())
            .build()
            .unwrap();
        assert_eq!(client.get(&server.url).await.unwrap().into_body().text().await.unwrap(), "twice");
        assert_eq!(heads.borrow().len(), 1);
    });
}

#[test]
fn refusals_of_the_proxy_name_it_and_the_host() {
    on_loop(async {
        let (proxy, _) = proxy().await;
        let shown = proxy.as_str();
        let with_password = proxy.replace("http://", "http://me:wr0ng@");
        let cases = [
            (proxy.clone(), "https://127.0.0.1:8/", "requires a user name and password (407)"),
            (with_password, "https://127.0.0.1:8/", "refused the user name and password (407)"),
            (proxy.clone(), "https://127.0.0.1:1/", "502 Bad Gateway"),
        ];
        for (proxy, url, reason) in cases {
            let error = client_through(&proxy).get(url).await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Proxy { .. }), "{error:?}");
            assert!(text.contains(reason) && text.contains(shown) && text.contains("127.0.0.1"), "{text}");
            assert!(!text.contains("wr0ng"), "{text}");
        }
    });
}

#[test]
fn proxy_that_is_not_there_is_named() {
    on_loop(async {
        let error = client_through("http://127.0.0.1:1").get("http://example.invalid/").await.unwrap_err();
        assert!(matches!(&error, Error::Connect { address, .. } if address == "127.0.0.1:1"), "{error:?}");
    });
}

#[test]
fn proxy_that_talks_nonsense_or_hangs_up_is_an_error_of_the_proxy() {
    on_loop(async {
        let endless = "HTTP/1.1 200 OK\r\nX: ".to_owned() + &"x".repeat(20_000);
        for say in [String::new(), "hello\r\n\r\n".to_owned(), endless] {
            let address = scripted(move |_, stream| {
                let say = say.clone();
                async move {
                    read_head(&stream).await;
                    let _ = stream.write_all(say.as_bytes()).await;
                }
            })
            .await;
            let error = client_through(&format!("http://{address}")).get("https://127.0.0.1:8/").await.unwrap_err();
            assert!(matches!(error, Error::Proxy { .. }), "{error:?}");
        }
    });
}

#[test]
fn exceptions_go_straight() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "straight" }))).await;
        let (proxy, heads) = proxy().await;
        let client = Client::builder().proxies(through(&proxy, "example.com,127.0.0.0/8")).build().unwrap();
        assert_eq!(client.get(&server.url).await.unwrap().into_body().text().await.unwrap(), "straight");
        assert_eq!(heads.borrow().len(), 0);
    });
}

#[test]
fn setting_that_cannot_be_used_fails_only_the_requests_that_need_it() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = Client::builder().proxies(through("socks5://127.0.0.1:1080", "127.0.0.1")).build().unwrap();
        let error = client.get("http://elsewhere.example/").await.unwrap_err();
        assert!(matches!(&error, Error::Proxy { proxy, .. } if proxy == "socks5://127.0.0.1:1080"), "{error:?}");
        assert_eq!(client.get(&server.url).await.unwrap().status(), 200);
    });
}

#[test]
fn a_password_that_the_proxy_repeats_is_not_shown() {
    on_loop(async {
        for form in ["hun/ter2", "hun%2Fter2", "am9lOmh1bi90ZXIy"] {
            let address = scripted(move |_, stream| async move {
                read_head(&stream).await;
                stream.write_all(format!("HTTP/1.1 403 not for {form}\r\n\r\n").as_bytes()).await.unwrap();
            })
            .await;
            let client = client_through(&format!("http://joe:hun%2Fter2@{address}"));
            let error = client.get("https://far.example/").await.unwrap_err();
            for told in [error.to_string(), format!("{error:?}"), format!("{client:?}")] {
                assert!(!told.contains(form), "{told}");
            }
            assert!(error.to_string().contains("403 not for (secret)"), "{error}");
        }
    });
}
