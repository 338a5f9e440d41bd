//! Peers that keep one waiting. The clock stands still until the test moves it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tidegate_http::{Body, Client, Error, Timeouts, Wait};
use tidegate_loop::{JoinHandle, spawn, yield_now};

use crate::support::{Pieces, advance, plain, read_head, scripted, until, with_still_clock};

fn limited(timeouts: Timeouts) -> Client {
    plain().timeouts(timeouts).build().unwrap()
}

const NONE: Timeouts = Timeouts { connect: None, read: None, total: None };

fn seconds(n: u64) -> Option<Duration> {
    Some(Duration::from_secs(n))
}

/// A peer that says `first`, signals, and falls silent.
async fn silent_after(first: &'static [u8]) -> (String, Rc<Cell<bool>>) {
    let silent = Rc::new(Cell::new(false));
    let signal = silent.clone();
    let address = scripted(move |_, stream| {
        let signal = signal.clone();
        async move {
            read_head(&stream).await;
            stream.write_all(first).await.unwrap();
            signal.set(true);
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "the client hangs up");
        }
    })
    .await;
    (format!("http://{address}/"), silent)
}

fn fetch(client: &Client, url: &str) -> JoinHandle<Result<Bytes, Error>> {
    let (client, url) = (client.clone(), url.to_owned());
    spawn(async move { client.get(&url).await?.into_body().bytes().await })
}

async fn assert_timeout(task: JoinHandle<Result<Bytes, Error>>, wanted: Wait, after: u64) {
    match task.await.unwrap() {
        Err(Error::Timeout { which, after: limit, host, .. }) => {
            assert_eq!((which, limit), (wanted, Duration::from_secs(after)));
            assert!(host.starts_with("127.0.0.1"), "{host}");
        }
        other => panic!("{other:?}"),
    }
}

/// Moves the clock to just before a limit, and sees that nothing happens; then beyond.
async fn advance_past<T: 'static>(task: &JoinHandle<T>, limit: u64) {
    for _ in 0..20 {
        yield_now().await;
    }
    advance(limit - 1);
    for _ in 0..20 {
        yield_now().await;
    }
    assert!(!task.is_finished(), "a second too early");
    advance(1);
}

#[test]
fn peer_that_sends_nothing_runs_into_the_read_limit() {
    with_still_clock(async {
        let (url, silent) = silent_after(b"").await;
        let client = limited(Timeouts { read: seconds(30), ..NONE });
        let task = fetch(&client, &url);
        until(|| silent.get()).await;
        advance_past(&task, 30).await;
        assert_timeout(task, Wait::Read, 30).await;
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn peer_that_falls_silent_within_a_body_runs_into_the_read_limit() {
    with_still_clock(async {
        let (url, _) = silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
        let client = limited(Timeouts { read: seconds(30), ..NONE });
        let mut body = client.get(&url).await.unwrap().into_body();
        assert_eq!(body.chunk().await.unwrap().unwrap(), "half");
        let task = spawn(async move { body.bytes().await });
        advance_past(&task, 30).await;
        assert_timeout(task, Wait::Read, 30).await;
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn reader_that_takes_its_time_is_no_silence() {
    with_still_clock(async {
        let (url, _) = silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789").await;
        let client = limited(Timeouts { read: seconds(30), ..NONE });
        let mut body = client.get(&url).await.unwrap().into_body();
        advance(1000);
        assert_eq!(body.chunk().await.unwrap().unwrap(), "0123456789");
    });
}

#[test]
fn peer_that_trickles_is_no_silence_but_runs_into_the_total_limit() {
    with_still_clock(async {
        let sent = Rc::new(Cell::new(0));
        let count = sent.clone();
        let go = Rc::new(Cell::new(0));
        let allowed = go.clone();
        let address = scripted(move |_, stream| {
            let (count, allowed) = (count.clone(), allowed.clone());
            async move {
                read_head(&stream).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
                loop {
                    until(|| allowed.get() > count.get()).await;
                    if stream.write_all(b"x").await.is_err() {
                        return;
                    }
                    count.set(count.get() + 1);
                }
            }
        })
        .await;
        let client = limited(Timeouts { read: seconds(30), total: seconds(100), ..NONE });
        let mut body = client.get(&format!("http://{address}/")).await.unwrap().into_body();
        for round in 1..=4 {
            advance(24);
            go.set(round);
            assert_eq!(body.chunk().await.unwrap().unwrap(), "x");
        }
        advance(4);
        let error = body.chunk().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { which: Wait::Total, .. }), "{error:?}");
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn total_limit_covers_the_wait_for_the_head() {
    with_still_clock(async {
        let (url, silent) = silent_after(b"").await;
        let client = limited(Timeouts { read: seconds(300), total: seconds(7), ..NONE });
        let task = fetch(&client, &url);
        until(|| silent.get()).await;
        advance_past(&task, 7).await;
        assert_timeout(task, Wait::Total, 7).await;
    });
}

#[test]
fn peer_that_never_reads_runs_into_the_read_limit() {
    with_still_clock(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            std::future::pending::<()>().await;
            drop(stream);
        })
        .await;
        let client = limited(Timeouts { read: seconds(30), ..NONE });
        let made = Rc::new(Cell::new(0u64));
        let count = made.clone();
        let body = Body::stream(Pieces(move || {
            count.set(count.get() + 1);
            Some(Bytes::from(vec![0; 64 * 1024]))
        }));
        let request = Request::post(format!("http://{address}/")).body(body).unwrap();
        let task = {
            let client = client.clone();
            spawn(async move { client.request(request).await?.into_body().bytes().await })
        };
        // Until the buffers are full.
        let (mut last, mut still) = (0, 0);
        while still < 2000 {
            yield_now().await;
            still = if made.get() == last { still + 1 } else { 0 };
            last = made.get();
        }
        advance_past(&task, 30).await;
        assert_timeout(task, Wait::Read, 30).await;
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn tls_that_is_never_answered_runs_into_the_connect_limit() {
    with_still_clock(async {
        let greeted = Rc::new(Cell::new(false));
        let signal = greeted.clone();
        let address = scripted(move |_, stream| {
            let signal = signal.clone();
            async move {
                let mut hello = [0; 1024];
                assert!(stream.read(&mut hello).await.unwrap() > 0);
                signal.set(true);
                std::future::pending::<()>().await;
                drop(stream);
            }
        })
        .await;
        let client = limited(Timeouts { connect: seconds(10), ..NONE });
        let task = fetch(&client, &format!("https://{address}/"));
        until(|| greeted.get()).await;
        advance_past(&task, 10).await;
        assert_timeout(task, Wait::Connect, 10).await;
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn limits_of_a_request_replace_the_clients() {
    with_still_clock(async {
        let (url, silent) = silent_after(b"").await;
        let client = limited(Timeouts { read: seconds(1), ..NONE });
        let request = Request::get(&url).extension(Timeouts { read: seconds(50), ..NONE }).body(()).unwrap();
        let task = {
            let client = client.clone();
            spawn(async move { client.request(request).await?.into_body().bytes().await })
        };
        until(|| silent.get()).await;
        advance_past(&task, 50).await;
        assert_timeout(task, Wait::Read, 50).await;
    });
}
