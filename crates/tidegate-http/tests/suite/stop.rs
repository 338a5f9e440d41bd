//! Stopping in order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate_http::Stopped;
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{spawn, yield_now};
use tidegate_sync::Event;

use crate::support::{Running, advance, client, on_loop, read_to_end, running, running_with, until, with_still_clock};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// A handler that waits for a word.
fn held(go: &Arc<Event>) -> Router {
    let go = go.clone();
    let handler = move || {
        let go = go.clone();
        async move {
            go.wait().await;
            "finished"
        }
    };
    Router::new().route("/", get(handler))
}

async fn stopped(server: Running) -> Stopped {
    server.task.await.unwrap().unwrap()
}

#[test]
fn request_under_way_is_finished_and_its_connection_closed() {
    on_loop(async {
        let go = Arc::new(Event::new());
        let server = running(held(&go)).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        server.handle.stop();
        server.handle.stop();
        assert!(server.handle.is_stopping());
        for _ in 0..200 {
            yield_now().await;
        }
        assert!(!server.task.is_finished());
        go.set();
        let answer = String::from_utf8(read_to_end(&stream).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("finished"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
        let report = stopped(server).await;
        assert_eq!((report.accepted, report.requests, report.finished, report.cut), (1, 1, 1, 0));
    });
}

#[test]
fn response_that_a_slow_peer_has_not_read_yet_is_sent_to_its_end() {
    on_loop(async {
        const LENGTH: usize = 16 << 20;
        let body = bytes::Bytes::from(vec![b'x'; LENGTH]);
        let server = running(Router::new().route("/", get(|| async { body }))).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        server.handle.stop();
        for _ in 0..2000 {
            yield_now().await;
        }
        assert!(!server.task.is_finished());
        let answer = read_to_end(&stream).await;
        let head = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert_eq!(answer.len() - head, LENGTH);
        let report = stopped(server).await;
        assert_eq!((report.finished, report.cut), (1, 0));
    });
}

#[test]
fn nothing_more_is_accepted() {
    on_loop(async {
        let go = Arc::new(Event::new());
        let server = running(held(&go)).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        server.handle.stop();
        until(|| std::net::TcpStream::connect(server.address).is_err()).await;
        assert!(!server.task.is_finished());
        go.set();
        assert_eq!(stopped(server).await.requests, 1);
        // The port is free at once.
        TcpListener::bind(stream.peer_addr().unwrap()).await.unwrap();
    });
}

#[test]
fn idle_and_silent_connections_are_closed_at_once() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = client();
        client.get(&server.url).await.unwrap().into_body().bytes().await.unwrap();
        let silent = TcpStream::connect(server.address).await.unwrap();
        until(|| server.handle.stats().open == 2).await;
        server.handle.stop();
        let report = stopped(server).await;
        assert_eq!((report.finished, report.cut), (2, 0));
        assert_eq!(read_to_end(&silent).await, b"");
        until(|| client.stats().open == 0).await;
    });
}

#[test]
fn request_that_waits_in_the_backlog_is_served() {
    on_loop(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tidegate_http::serve(listener, Router::new().route("/", get(|| async { "served" })));
        let handle = server.handle();
        let stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        // Stopped before it has accepted a connection.
        handle.stop();
        let report = server.run().await.unwrap();
        assert_eq!((report.requests, report.finished, report.cut), (1, 1, 0));
        assert!(String::from_utf8(read_to_end(&stream).await).unwrap().ends_with("served"));
    });
}

#[test]
fn what_is_left_after_the_grace_is_cut() {
    with_still_clock(async {
        let go = Arc::new(Event::new());
        let server = running_with(held(&go), |server| server.grace(Duration::from_secs(10))).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        server.handle.stop();
        for _ in 0..200 {
            yield_now().await;
        }
        advance(9);
        for _ in 0..200 {
            yield_now().await;
        }
        assert!(!server.task.is_finished());
        advance(1);
        let report = stopped(server).await;
        assert_eq!((report.finished, report.cut, report.took), (0, 1, Duration::from_secs(10)));
        assert_eq!(read_to_end(&stream).await, b"");
    });
}

#[test]
fn server_that_is_dropped_closes_everything() {
    on_loop(async {
        let go = Arc::new(Event::new());
        let server = running(held(&go)).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        until(|| server.handle.stats().requests == 1).await;
        server.task.cancel();
        assert_eq!(read_to_end(&stream).await, b"");
        assert_eq!(server.handle.stats().open, 0);
        assert!(std::net::TcpStream::connect(server.address).is_err());
    });
}

#[test]
fn another_thread_can_stop_it() {
    on_loop(async {
        let server = running(Router::new()).await;
        let handle = server.handle.clone();
        let thread = std::thread::spawn(move || handle.stop());
        assert_eq!(stopped(server).await.accepted, 0);
        thread.join().unwrap();
    });
}

#[test]
fn a_thousand_requests_under_way_are_all_finished() {
    on_loop(async {
        let go = Arc::new(Event::new());
        let server = running(held(&go)).await;
        let client = crate::support::plain().connections_per_host(1000).build().unwrap();
        let tasks: Vec<_> = (0..1000)
            .map(|_| {
                let (client, url) = (client.clone(), server.url.clone());
                spawn(async move { client.get(&url).await.unwrap().into_body().text().await.unwrap() })
            })
            .collect();
        until(|| server.handle.stats().requests == 1000).await;
        server.handle.stop();
        go.set();
        for task in tasks {
            assert_eq!(task.await.unwrap(), "finished");
        }
        let report = stopped(server).await;
        assert_eq!((report.requests, report.finished, report.cut), (1000, 1000, 0));
    });
}
