//! The server against curl.

use std::fs;
use std::path::Path;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, put};
use tidegate_http::{ServerHandle, Stopped, serve, server_config};
use tidegate_loop::JoinHandle;
use tidegate_loop::net::TcpListener;

use crate::support::{HUNDRED_MB, Made, Peak, Scratch, matches, on_loop, output, pattern};

struct Served {
    scratch: Scratch,
    base: String,
    handle: ServerHandle,
    task: JoinHandle<std::io::Result<Stopped>>,
}

/// Reads a body to its end; says how long it was, or where it went wrong.
async fn check(body: Body) -> String {
    let mut body = body;
    let mut at = 0;
    loop {
        let frame = std::future::poll_fn(|cx| http_body::Body::poll_frame(std::pin::Pin::new(&mut body), cx)).await;
        match frame {
            None => return format!("{at} right"),
            Some(Err(error)) => return format!("broke off at {at}: {error}"),
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    if !matches(at, &piece) {
                        return format!("wrong after {at}");
                    }
                    at += piece.len();
                }
            }
        }
    }
}

fn router() -> Router {
    let sized = || async {
        let body = Body::from_stream(Made { at: 0, end: HUNDRED_MB });
        ([("content-length", HUNDRED_MB.to_string())], body)
    };
    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/chunked", get(|| async { Body::from_stream(Made { at: 0, end: HUNDRED_MB }) }))
        .route("/sized", get(sized))
        .route("/check", put(check).post(check))
}

async fn served(tls: bool) -> Served {
    let scratch = Scratch::new();
    scratch.write_certificates();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = serve(listener, router());
    if tls {
        server = server.tls(server_config(scratch.file("cert.pem"), scratch.file("key.pem")).unwrap());
    }
    let handle = server.handle();
    let base = format!("{}://localhost:{port}", if tls { "https" } else { "http" });
    Served { scratch, base, handle, task: tidegate_loop::spawn(server.run()) }
}

impl Served {
    /// What curl prints; it must succeed.
    async fn curl(&self, arguments: &[&str]) -> String {
        let ca = self.scratch.file("ca.pem");
        let mut all = ["-sS", "--fail", "--noproxy", "*", "--cacert"].map(str::to_owned).to_vec();
        all.push(ca.to_str().unwrap().to_owned());
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let output = output("curl", all).await;
        assert!(output.status.success(), "curl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn stop(self) -> Stopped {
        self.handle.stop();
        self.task.await.unwrap().unwrap()
    }
}

fn assert_pattern(file: &Path) {
    let data = fs::read(file).unwrap();
    assert!(data.len() == HUNDRED_MB && matches(0, &data));
}

#[test]
fn curl_keeps_its_connection() {
    on_loop(async {
        for tls in [false, true] {
            let server = served(tls).await;
            let url = server.url("/");
            let format = "%{http_version} %{num_connects}\n";
            let out = server.curl(&["-w", format, &url, &url, &url]).await;
            assert_eq!(out, "hello\n1.1 1\nhello\n1.1 0\nhello\n1.1 0\n");
            assert_eq!((server.handle.stats().accepted, server.handle.stats().requests), (1, 3));
            assert_eq!(server.stop().await.cut, 0);
        }
    });
}

#[test]
fn curl_of_the_old_kind_is_served_too() {
    on_loop(async {
        let server = served(false).await;
        let out = server.curl(&["--http1.0", "-w", "%{http_version}", &server.url("/")]).await;
        assert_eq!(out, "hello\n1");
        let out = server.curl(&["-I", &server.url("/")]).await;
        assert!(out.starts_with("HTTP/1.1 200 OK") && out.contains("content-length: 6"), "{out}");
    });
}

#[test]
fn hundred_megabytes_go_to_curl_in_bounded_memory() {
    on_loop(async {
        for tls in [false, true] {
            for (path, header) in [("/sized", "content-length: 100000000"), ("/chunked", "transfer-encoding: chunked")]
            {
                let server = served(tls).await;
                server.curl(&[&server.url("/")]).await;
                let (file, heads) = (server.scratch.file("got"), server.scratch.file("heads"));
                let peak = Peak::start();
                let (file_name, heads_name) = (file.to_str().unwrap(), heads.to_str().unwrap());
                server.curl(&["-D", heads_name, "-o", file_name, &server.url(path)]).await;
                peak.assert_bounded(&format!("to curl, {}{path}", server.base));
                assert_pattern(&file);
                let heads = fs::read_to_string(heads).unwrap();
                assert!(heads.contains(header), "{heads}");
            }
        }
    });
}

#[test]
fn hundred_megabytes_come_from_curl_in_bounded_memory() {
    on_loop(async {
        for tls in [false, true] {
            for chunked in [false, true] {
                let server = served(tls).await;
                server.curl(&[&server.url("/")]).await;
                let file = server.scratch.file("data");
                fs::write(&file, pattern(0, HUNDRED_MB)).unwrap();
                let peak = Peak::start();
                let mut arguments = vec!["-T", file.to_str().unwrap()];
                if chunked {
                    arguments.extend(["-H", "Transfer-Encoding: chunked"]);
                }
                let url = server.url("/check");
                arguments.push(&url);
                assert_eq!(server.curl(&arguments).await, format!("{HUNDRED_MB} right"));
                peak.assert_bounded(&format!("from curl, {}, chunked={chunked}", server.base));
            }
        }
    });
}

#[test]
fn curl_that_asks_first_is_told_to_go_on() {
    on_loop(async {
        let server = served(false).await;
        let file = server.scratch.file("data");
        fs::write(&file, pattern(0, 2_000_000)).unwrap();
        let data = format!("@{}", file.display());
        let url = server.url("/check");
        let arguments = ["-H", "Expect: 100-continue", "--expect100-timeout", "600", "--data-binary", &data, &url];
        assert_eq!(server.curl(&arguments).await, "2000000 right");
    });
}

#[test]
fn curl_that_goes_midway_leaves_nothing_behind() {
    on_loop(async {
        let server = served(false).await;
        // It gives up when the pipe it writes to is closed.
        let script = format!(
            "curl -sS --noproxy '*' '{}' 2>/dev/null | head -c 1000; exit ${{PIPESTATUS[0]}}",
            server.url("/chunked")
        );
        let got = output("bash", vec!["-c".to_owned(), script]).await;
        assert_eq!(got.stdout.len(), 1000);
        assert!(!got.status.success());
        while server.handle.stats().open > 0 {
            tidegate_loop::yield_now().await;
        }
        assert_eq!(server.curl(&[&server.url("/")]).await, "hello\n");
    });
}
