//! The server with peers that behave, and with those that do not.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use bytes::Bytes;
use tidegate_http::{ConnectInfo, local};
use tidegate_loop::net::TcpStream;
use tidegate_loop::{LoopHandle, OnLoop, spawn, yield_now};

use crate::support::{
    Pieces, Running, advance, client, on_loop, read_head, read_to_end, running, running_with, until, with_still_clock,
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

async fn connected(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).await.unwrap();
    until(|| server.handle.stats().open > 0).await;
    stream
}

/// Reads one response with a `Content-Length`.
async fn response(stream: &TcpStream) -> String {
    let head = read_head(stream).await;
    let length = head
        .to_ascii_lowercase()
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split("\r\n").next()?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn handlers_see_whom_they_serve() {
    on_loop(async {
        let app = Router::new().route("/", get(|ConnectInfo(peer): ConnectInfo| async move { peer.to_string() }));
        let server = running(app).await;
        let stream = connected(&server).await;
        stream.write_all(GET).await.unwrap();
        assert_eq!(response(&stream).await, stream.local_addr().unwrap().to_string());
    });
}

#[test]
fn requests_sent_in_one_go_are_answered_in_order() {
    on_loop(async {
        let app = Router::new().route(
            "/{n}",
            get(|axum::extract::Path(n): axum::extract::Path<u32>| async move {
                yield_now().await;
                n.to_string()
            }),
        );
        let server = running(app).await;
        let stream = connected(&server).await;
        let all: String = (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
        stream.write_all(all.as_bytes()).await.unwrap();
        for n in 0..50 {
            assert_eq!(response(&stream).await, n.to_string());
        }
        assert_eq!(server.handle.stats().requests, 50);
    });
}

#[test]
fn handler_may_use_what_is_not_send() {
    on_loop(async {
        let inner = running(hello()).await;
        let visits = Rc::new(Cell::new(0));
        let state = Arc::new(OnLoop::new((client(), inner.url.clone(), visits.clone())));
        let handler = move || {
            let (client, url, visits) = state.with(Clone::clone).unwrap();
            local(async move {
                visits.set(visits.get() + 1);
                client.get(&url).await.unwrap().into_body().text().await.unwrap()
            })
        };
        let outer = running(Router::new().route("/", get(handler))).await;
        assert_eq!(client().get(&outer.url).await.unwrap().into_body().text().await.unwrap(), "hello");
        assert_eq!(visits.get(), 1);
    });
}

#[test]
fn panic_in_a_handler_ends_its_connection_and_no_other() {
    on_loop(async {
        let app = hello().route(
            "/panic",
            get(|| async {
                if true {
                    panic!("on purpose")
                }
            }),
        );
        let server = running(app).await;
        let reports = Rc::new(Cell::new(0));
        let count = reports.clone();
        LoopHandle::current().set_exception_handler(move |_| count.set(count.get() + 1));
        let client = client();
        assert!(client.get(&format!("{}/panic", server.url)).await.is_err());
        assert_eq!(client.get(&server.url).await.unwrap().status(), 200);
        until(|| server.handle.stats().open == 1).await;
        assert_eq!(reports.get(), 1);
    });
}

#[test]
fn connections_beyond_the_limit_wait_for_one_to_leave() {
    on_loop(async {
        let server = running_with(hello(), |server| server.connections(1)).await;
        let first = connected(&server).await;
        first.write_all(GET).await.unwrap();
        assert_eq!(response(&first).await, "hello");
        let second = TcpStream::connect(server.address).await.unwrap();
        second.write_all(GET).await.unwrap();
        let answered = spawn(async move { response(&second).await });
        for _ in 0..1000 {
            yield_now().await;
        }
        assert_eq!(server.handle.stats().accepted, 1);
        assert!(!answered.is_finished());
        drop(first);
        assert_eq!(answered.await.unwrap(), "hello");
    });
}

/// Sees that the server hangs up when `seconds` have passed, and not before.
async fn hangs_up_after(server: &Running, seconds: u64) {
    let settle = async || {
        for _ in 0..200 {
            yield_now().await;
        }
    };
    settle().await;
    advance(seconds - 1);
    settle().await;
    assert_eq!((server.handle.stats().open, server.handle.stats().timed_out), (1, 0));
    advance(1);
    until(|| server.handle.stats().open == 0).await;
    assert_eq!(server.handle.stats().timed_out, 1);
}

fn limited(header: u64, idle: u64, stall: u64) -> impl FnOnce(tidegate_http::Server) -> tidegate_http::Server {
    move |server| {
        server
            .header_timeout(Duration::from_secs(header))
            .idle_timeout(Duration::from_secs(idle))
            .stall_timeout(Duration::from_secs(stall))
    }
}

#[test]
fn peer_that_says_nothing_is_hung_up_on() {
    with_still_clock(async {
        let server = running_with(hello(), limited(5, 500, 500)).await;
        let _stream = connected(&server).await;
        hangs_up_after(&server, 5).await;
    });
}

#[test]
fn head_in_drips_is_hung_up_on_though_something_always_comes() {
    with_still_clock(async {
        let server = running_with(hello(), limited(5, 500, 500)).await;
        let stream = connected(&server).await;
        for byte in ["G", "E", "T", " "] {
            stream.write_all(byte.as_bytes()).await.unwrap();
            for _ in 0..200 {
                yield_now().await;
            }
            advance(1);
        }
        assert_eq!(server.handle.stats().timed_out, 0);
        advance(1);
        until(|| server.handle.stats().open == 0).await;
        assert_eq!(server.handle.stats().timed_out, 1);
    });
}

#[test]
fn idle_connection_is_closed_after_its_time_which_starts_anew_with_each_request() {
    with_still_clock(async {
        let server = running_with(hello(), limited(500, 60, 500)).await;
        let stream = connected(&server).await;
        for _ in 0..3 {
            advance(59);
            stream.write_all(GET).await.unwrap();
            assert_eq!(response(&stream).await, "hello");
        }
        hangs_up_after(&server, 60).await;
    });
}

#[test]
fn body_that_does_not_come_is_not_waited_for_for_ever() {
    with_still_clock(async {
        let app = Router::new().route("/", post(|body: Bytes| async move { body }));
        let server = running_with(app, limited(500, 500, 7)).await;
        let stream = connected(&server).await;
        stream.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        hangs_up_after(&server, 7).await;
    });
}

/// A byte every six seconds is within the time-out for stalls.
#[test]
fn body_in_drips_is_hung_up_on_though_something_always_comes() {
    with_still_clock(async {
        let app = Router::new().route("/", post(|body: Bytes| async move { body }));
        let limits = |server| limited(500, 500, 7)(server).body_timeout(Duration::from_secs(60));
        let server = running_with(app, limits).await;
        let stream = connected(&server).await;
        // Otherwise the kernel keeps a byte until the one before is acknowledged, which takes real time.
        stream.set_nodelay(true).unwrap();
        let drip = async |bytes: &[u8]| {
            stream.write_all(bytes).await.unwrap();
            for _ in 0..200 {
                yield_now().await;
            }
            advance(6);
            for _ in 0..200 {
                yield_now().await;
            }
        };
        // A body that comes in time leaves the next one its whole time.
        drip(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n").await;
        for byte in b"hell" {
            drip(&[*byte]).await;
        }
        stream.write_all(b"o").await.unwrap();
        assert_eq!(response(&stream).await, "hello");
        drip(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n").await;
        for _ in 0..8 {
            drip(b"x").await;
        }
        assert_eq!((server.handle.stats().open, server.handle.stats().timed_out), (1, 0));
        drip(b"x").await;
        until(|| server.handle.stats().open == 0).await;
        assert_eq!(server.handle.stats().timed_out, 1);
    });
}

#[test]
fn peer_that_does_not_read_is_hung_up_on() {
    with_still_clock(async {
        let endless = || async { axum::body::Body::from_stream(Pieces(|| Some(Bytes::from(vec![0; 64 * 1024])))) };
        let server = running_with(Router::new().route("/", get(endless)), limited(500, 500, 7)).await;
        let stream = connected(&server).await;
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        // Until the kernel's buffers are full.
        let mut steps = (0, 0);
        while steps.1 < 100 {
            let before = LoopHandle::current().metrics().steps;
            for _ in 0..100 {
                yield_now().await;
            }
            // Ours, and the one that keeps the loop from giving up.
            let others = LoopHandle::current().metrics().steps - before;
            steps = (others, if others <= 202 { steps.1 + 1 } else { 0 });
        }
        hangs_up_after(&server, 7).await;
    });
}

#[test]
fn handler_may_take_as_long_as_it_likes() {
    with_still_clock(async {
        let go = Arc::new(tidegate_sync::Event::new());
        let gate = go.clone();
        let slow = move || {
            let gate = gate.clone();
            async move {
                gate.wait().await;
                "at last"
            }
        };
        let server = running_with(Router::new().route("/", get(slow)), limited(1, 1, 1)).await;
        let stream = connected(&server).await;
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        advance(10_000);
        for _ in 0..200 {
            yield_now().await;
        }
        go.set();
        assert_eq!(response(&stream).await, "at last");
    });
}

#[test]
fn handler_that_pauses_within_a_body_is_not_the_peers_fault() {
    with_still_clock(async {
        let go = Arc::new(tidegate_sync::Event::new());
        let gate = go.clone();
        let slow = move |body: axum::body::Body| {
            let gate = gate.clone();
            async move {
                gate.wait().await;
                axum::body::to_bytes(body, usize::MAX).await.unwrap().len().to_string()
            }
        };
        let app = Router::new().route("/", post(slow)).layer(DefaultBodyLimit::disable());
        let server = running_with(app, limited(500, 500, 5)).await;
        let stream = Rc::new(connected(&server).await);
        let sender = stream.clone();
        spawn(async move {
            sender.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
            sender.write_all(&vec![b'x'; 1_000_000]).await.unwrap();
        });
        until(|| server.handle.stats().requests == 1).await;
        for _ in 0..200 {
            yield_now().await;
        }
        advance(1000);
        for _ in 0..200 {
            yield_now().await;
        }
        go.set();
        assert_eq!(response(&stream).await, "1000000");
    });
}

#[test]
fn nonsense_is_answered_with_bad_request_and_hung_up_on() {
    on_loop(async {
        let server = running(hello()).await;
        let stream = connected(&server).await;
        stream.write_all(b"what is this\r\n\r\n").await.unwrap();
        let answer = String::from_utf8(read_to_end(&stream).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        until(|| server.handle.stats().open == 0).await;
        assert_eq!(server.handle.stats().requests, 0);
    });
}

#[test]
fn handler_is_dropped_when_its_peer_goes() {
    on_loop(async {
        struct Flag(Arc<std::sync::atomic::AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = dropped.clone();
        let never = move || {
            let flag = Flag(flag.clone());
            async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            }
        };
        let server = running(Router::new().route("/", get(never))).await;
        let stream = connected(&server).await;
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        drop(stream);
        until(|| dropped.load(std::sync::atomic::Ordering::Relaxed)).await;
        until(|| server.handle.stats().open == 0).await;
    });
}
