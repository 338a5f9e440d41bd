//! The server under wrk.

use axum::Router;
use axum::routing::get;
use tidegate_http::{serve, server_config};
use tidegate_loop::net::TcpListener;

use crate::support::{Scratch, on_loop, output};

const CONNECTIONS: u64 = 1000;

#[test]
fn a_thousand_connections_are_held_without_an_error() {
    on_loop(async {
        for tls in [false, true] {
            let scratch = Scratch::new();
            scratch.write_certificates();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut server = serve(listener, Router::new().route("/", get(|| async { "hello" })));
            if tls {
                server = server.tls(server_config(scratch.file("cert.pem"), scratch.file("key.pem")).unwrap());
            }
            let handle = server.handle();
            let running = tidegate_loop::spawn(server.run());
            let url = format!("{}://{address}/", if tls { "https" } else { "http" });
            // A thousand handshakes without optimisation take a while.
            let time = if tls { "-d15s" } else { "-d3s" };
            let arguments = ["-t2", "-c1000", time, "--timeout", "60s", &url].map(str::to_owned).to_vec();
            let got = output("wrk", arguments).await;
            let text = String::from_utf8_lossy(&got.stdout).into_owned();
            assert!(got.status.success() && text.contains("Requests/sec"), "{text}");
            assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
            let stats = handle.stats();
            println!("{url}: {} requests on {} connections", stats.requests, stats.accepted);
            assert!(stats.accepted >= CONNECTIONS, "{stats:?}");
            assert!(stats.requests > 0, "{stats:?}");
            // wrk tries the address once, without a word, before it begins.
            assert!(stats.handshakes_failed <= 1 && stats.timed_out == 0, "{stats:?}");
            handle.stop();
            assert_eq!(running.await.unwrap().unwrap().cut, 0);
        }
    });
}
