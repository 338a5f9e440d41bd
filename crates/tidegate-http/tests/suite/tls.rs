//! HTTPS on the loop at both ends; certificates good and bad.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Poll;

use axum::Router;
use axum::routing::{get, post};
use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsAcceptor;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tidegate_http::{Body, Client, Error, Roots, TlsFault, server_config};
use tidegate_loop::net::TcpStream;

use crate::support::{Running, client, on_loop, plain, running, running_with, scripted, until};

/// A directory of its own, gone with it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-http-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An authority, and a server's certificate by it.
pub(crate) struct Certificates {
    scratch: Scratch,
}

impl Certificates {
    pub(crate) fn new(names: &[&str]) -> Certificates {
        Certificates::with(names, |_| ())
    }

    pub(crate) fn with(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Certificates {
        let scratch = Scratch::new();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Authorities are distinguished by their names.
        params.distinguished_name.push(DnType::CommonName, scratch.path().to_str().unwrap());
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &authority).unwrap();
        let write = |name: &str, pem: String| std::fs::write(scratch.path().join(name), pem).unwrap();
        write("ca.pem", authority.pem());
        write("cert.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        Certificates { scratch }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    pub(crate) async fn serve(&self, router: Router) -> Running {
        let dir = self.scratch.path();
        let config = server_config(dir.join("cert.pem"), dir.join("key.pem")).unwrap();
        let mut running = running_with(router, |server| server.tls(config)).await;
        running.url = running.url.replace("http://", "https://");
        running
    }

    /// Takes TLS off, and passes what is inside to `to`.
    pub(crate) async fn terminate(&self, to: &str) -> SocketAddr {
        let dir = self.scratch.path();
        let acceptor = TlsAcceptor::from(server_config(dir.join("cert.pem"), dir.join("key.pem")).unwrap());
        let to: SocketAddr = to.parse().unwrap();
        scripted(move |_, stream| {
            let acceptor = acceptor.clone();
            async move {
                let mut near = acceptor.accept(stream).await.unwrap();
                let far = TcpStream::connect(to).await.unwrap();
                let (mut up, mut down) = (vec![0; 4096], vec![0; 4096]);
                // One direction at a time would do for no protocol; both are looked at in each turn.
                loop {
                    let mut moved: Option<(bool, usize)> = None;
                    poll_fn(|cx| {
                        if let Poll::Ready(read) = Pin::new(&mut near).poll_read(cx, &mut up) {
                            moved = Some((true, read.unwrap_or(0)));
                            return Poll::Ready(());
                        }
                        if let Poll::Ready(read) = far.poll_read(cx, &mut down) {
                            moved = Some((false, read.unwrap_or(0)));
                            return Poll::Ready(());
                        }
                        Poll::Pending
                    })
                    .await;
                    match moved {
                        None | Some((_, 0)) => return,
                        Some((true, n)) => far.write_all(&up[..n]).await.unwrap(),
                        Some((false, n)) => {
                            let mut rest = &down[..n];
                            while !rest.is_empty() {
                                let n = poll_fn(|cx| Pin::new(&mut near).poll_write(cx, rest)).await.unwrap();
                                rest = &rest[n..];
                            }
                            poll_fn(|cx| Pin::new(&mut near).poll_flush(cx)).await.unwrap();
                        }
                    }
                }
            }
        })
        .await
    }

    pub(crate) fn client(&self) -> Client {
        plain().roots(Roots::None).ca_file(self.ca()).build().unwrap()
    }
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "secret" })).route("/", post(|body: axum::body::Body| async { body }))
}

async fn fault(certificates: &Certificates, client: &Client) -> (TlsFault, String) {
    let server = certificates.serve(app()).await;
    let error = client.get(&server.url).await.unwrap_err();
    assert!(error.is_before_sending());
    let text = error.to_string();
    let Error::Tls { host, fault, .. } = error else { panic!("{error:?}") };
    assert_eq!(host, "127.0.0.1");
    assert!(text.starts_with("127.0.0.1 cannot be trusted: "), "{text}");
    (fault, text)
}

#[test]
fn https_works_and_its_connection_is_kept() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1", "localhost"]);
        let server = certificates.serve(app()).await;
        let client = certificates.client();
        for _ in 0..3 {
            assert_eq!(client.get(&server.url).await.unwrap().into_body().text().await.unwrap(), "secret");
        }
        assert_eq!((client.stats().total, client.stats().reused), (1, 2));
        let by_name = server.url.replace("127.0.0.1", "localhost");
        assert_eq!(client.get(&by_name).await.unwrap().status(), 200);
    });
}

#[test]
fn large_bodies_pass_through_tls_both_ways() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1"]);
        let server = certificates.serve(app()).await;
        let data: Vec<u8> = (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let request = http::Request::post(&server.url).body(Body::from(data.clone())).unwrap();
        let response = certificates.client().request(request).await.unwrap();
        assert!(response.into_body().bytes().await.unwrap() == data);
    });
}

#[test]
fn certificate_of_an_unknown_authority_is_refused() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1"]);
        let stranger = Certificates::new(&["127.0.0.1"]).client();
        let (fault, text) = fault(&certificates, &stranger).await;
        assert_eq!(fault, TlsFault::UnknownIssuer);
        assert!(text.contains("SSL_CERT_FILE"), "{text}");
        // And by those of the machine, and of Mozilla.
        for roots in [Roots::Platform, Roots::Webpki] {
            let client = plain().roots(roots).build().unwrap();
            assert_eq!(self::fault(&certificates, &client).await.0, TlsFault::UnknownIssuer);
        }
    });
}

#[test]
fn certificate_for_another_name_is_refused_and_the_name_is_told() {
    on_loop(async {
        let certificates = Certificates::new(&["other.example"]);
        let (fault, text) = fault(&certificates, &certificates.client()).await;
        assert_eq!(fault, TlsFault::WrongName { presented: vec!["other.example".to_owned()] });
        assert!(text.contains("other.example"), "{text}");
    });
}

#[test]
fn certificate_out_of_its_time_is_refused() {
    on_loop(async {
        let expired = Certificates::with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        });
        assert_eq!(fault(&expired, &expired.client()).await.0, TlsFault::Expired);
        let early = Certificates::with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2999, 1, 1);
            params.not_after = date_time_ymd(3000, 1, 1);
        });
        assert_eq!(fault(&early, &early.client()).await.0, TlsFault::NotYetValid);
    });
}

#[test]
fn server_without_tls_is_told_from_one_with_a_bad_certificate() {
    on_loop(async {
        let server = running(app()).await;
        let error = client().get(&server.url.replace("http:", "https:")).await.unwrap_err();
        assert!(matches!(&error, Error::Tls { fault: TlsFault::Other(_), .. }), "{error:?}");
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    });
}

#[test]
fn peer_without_tls_does_not_disturb_a_server_with_it() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1"]);
        let server = certificates.serve(app()).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        until(|| server.handle.stats().handshakes_failed == 1).await;
        until(|| server.handle.stats().open == 0).await;
        assert_eq!(certificates.client().get(&server.url).await.unwrap().status(), 200);
    });
}

#[test]
fn redirection_from_https_to_http_is_not_followed() {
    on_loop(async {
        let certificates = Certificates::new(&["127.0.0.1"]);
        let app = Router::new().route("/", get(|| async { axum::response::Redirect::to("http://127.0.0.1:1/") }));
        let server = certificates.serve(app).await;
        let client = plain().roots(Roots::None).ca_file(certificates.ca()).redirects(3).build().unwrap();
        let error = client.get(&server.url).await.unwrap_err();
        assert!(matches!(&error, Error::Redirect { reason, .. } if reason.contains("https to http")), "{error:?}");
    });
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let scratch = Scratch::new();
    let empty = scratch.path().join("empty.pem");
    std::fs::write(&empty, "nothing in it").unwrap();
    let error = plain().ca_file(&empty).build().unwrap_err();
    assert!(matches!(error, Error::Setup { .. }) && error.to_string().contains("empty.pem"), "{error}");
    let certificates = Certificates::new(&["a"]);
    let cert = certificates.scratch.path().join("cert.pem");
    let error = server_config(&cert, &cert).unwrap_err();
    assert!(error.to_string().starts_with(&format!("the key file {} cannot be used", cert.display())), "{error}");
}
