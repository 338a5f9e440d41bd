//! Bodies: streamed, measured, packed, damaged.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, Request};
use tidegate_http::{Body, Error};
use tidegate_loop::yield_now;

use crate::support::{Pieces, client, on_loop, pieces, plain, read_head, running, scripted, until, with_still_clock};

fn echo() -> Router {
    Router::new().route("/", post(|body: axum::body::Body| async { body })).layer(DefaultBodyLimit::disable())
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Answers with `body`, packed already.
fn packed(body: Vec<u8>) -> Router {
    let body = Bytes::from(body);
    Router::new().route("/", get(|| async { ([("content-encoding", "gzip")], body) }))
}

#[test]
fn stream_goes_out_and_comes_back_in_chunks() {
    on_loop(async {
        let server = running(echo()).await;
        let client = client();
        let body = Body::stream(pieces(&["one ", "two ", "three"]));
        let response = client.request(Request::post(&server.url).body(body).unwrap()).await.unwrap();
        assert_eq!(response.headers()["transfer-encoding"], "chunked");
        assert_eq!(response.into_body().text().await.unwrap(), "one two three");
        assert_eq!(client.stats().idle, 1);
    });
}

#[test]
fn stream_that_does_not_keep_to_its_length_fails_the_request() {
    on_loop(async {
        let server = running(echo()).await;
        for length in [4, 100] {
            let body = Body::sized_stream(length, pieces(&["more than four"]));
            let response = client().request(Request::post(&server.url).body(body).unwrap()).await;
            // The head may have been answered before the stream went wrong.
            let error = match response {
                Err(error) => error,
                Ok(response) => response.into_body().bytes().await.unwrap_err(),
            };
            assert!(matches!(error, Error::Body { .. } | Error::Closed { .. }), "{length}: {error:?}");
        }
    });
}

#[test]
fn failing_stream_tells_its_own_reason() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            crate::support::read_to_end(&stream).await;
        })
        .await;
        struct Failing;
        impl futures_core::Stream for Failing {
            type Item = Result<Bytes, std::io::Error>;
            fn poll_next(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                std::task::Poll::Ready(Some(Err(std::io::Error::other("the disk is gone"))))
            }
        }
        let request = Request::post(format!("http://{address}/")).body(Body::stream(Failing)).unwrap();
        let error = client().request(request).await.unwrap_err();
        assert!(matches!(&error, Error::Body { reason, .. } if reason.contains("the disk is gone")), "{error:?}");
    });
}

#[test]
fn response_is_produced_no_faster_than_it_is_read() {
    on_loop(async {
        let made = Arc::new(AtomicU64::new(0));
        let count = made.clone();
        let endless = move || {
            let count = count.clone();
            let stream = Pieces(move || {
                count.fetch_add(64 * 1024, Relaxed);
                Some(Bytes::from(vec![b'x'; 64 * 1024]))
            });
            async { axum::body::Body::from_stream(stream) }
        };
        let server = running(Router::new().route("/", get(endless))).await;
        let mut body = client().get(&server.url).await.unwrap().into_body();
        let mut read = 0;
        for _ in 0..1000 {
            read += body.chunk().await.unwrap().unwrap().len() as u64;
        }
        // The buffers of both kernels and of both ends lie between them.
        let ahead = made.load(Relaxed) - read;
        assert!(ahead < 32 << 20, "{ahead} bytes were made ahead of {read} read");
        drop(body);
        until(|| server.handle.stats().open == 0).await;
    });
}

#[test]
fn request_is_produced_no_faster_than_it_is_taken() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            std::future::pending::<()>().await;
        })
        .await;
        let made = Rc::new(Cell::new(0u64));
        let count = made.clone();
        let body = Body::stream(Pieces(move || {
            count.set(count.get() + 64 * 1024);
            Some(Bytes::from(vec![b'x'; 64 * 1024]))
        }));
        let request = Request::post(format!("http://{address}/")).body(body).unwrap();
        let task = tidegate_loop::spawn(async move { client().request(request).await.map(|_| ()) });
        let mut last = u64::MAX;
        // Until nothing more is made for a good many turns.
        let mut still = 0;
        while still < 2000 {
            yield_now().await;
            still = if made.get() == last { still + 1 } else { 0 };
            last = made.get();
        }
        assert!(last > 0 && last < 32 << 20, "{last} bytes were made for a peer that takes none");
        task.cancel();
    });
}

#[test]
fn last_byte_frees_the_connection_before_the_end_is_read() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "all" }))).await;
        let client = client();
        let mut body = client.get(&server.url).await.unwrap().into_body();
        assert_eq!(body.chunk().await.unwrap().unwrap(), "all");
        until(|| client.stats().idle == 1).await;
        assert_eq!(body.chunk().await.unwrap(), None);
    });
}

#[test]
fn body_dropped_half_read_closes_its_connection() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await.unwrap();
            assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
        })
        .await;
        let client = client();
        let mut body = client.get(&format!("http://{address}/")).await.unwrap().into_body();
        assert_eq!(body.chunk().await.unwrap().unwrap(), "half");
        assert_eq!(client.stats().in_use, 1);
        drop(body);
        assert_eq!((client.stats().in_use, client.stats().idle), (0, 0));
    });
}

#[test]
fn body_cut_off_by_the_peer_is_an_error_not_an_end() {
    on_loop(async {
        let heads: [&[u8]; 2] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        ];
        for head in heads {
            let address = scripted(move |_, stream| async move {
                read_head(&stream).await;
                stream.write_all(head).await.unwrap();
            })
            .await;
            let body = client().get(&format!("http://{address}/")).await.unwrap().into_body();
            let error = body.bytes().await.unwrap_err();
            assert!(matches!(&error, Error::Body { host, .. } if *host == address.to_string()), "{error:?}");
        }
    });
}

#[test]
fn answer_before_the_request_is_all_sent_does_not_leave_its_rest_in_the_way() {
    // Without time passing: the connection is not waited for, it is closed.
    with_still_clock(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            // The connection stays open, and nothing more is read.
            std::future::pending::<()>().await;
        })
        .await;
        let client = client();
        let body = Body::stream(Pieces(|| Some(Bytes::from(vec![0; 64 * 1024]))));
        let request = Request::post(format!("http://{address}/")).body(body).unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(response.status(), 413);
        assert_eq!(response.into_body().text().await.unwrap(), "no");
        for _ in 0..1000 {
            yield_now().await;
        }
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn gzip_is_unpacked_and_its_headers_go() {
    on_loop(async {
        let text = "a long text, ".repeat(10_000);
        let server = running(packed(gzip(text.as_bytes()))).await;
        let response = client().get(&server.url).await.unwrap();
        assert!(!response.headers().contains_key("content-encoding"));
        assert!(!response.headers().contains_key("content-length"));
        assert_eq!(response.into_body().text().await.unwrap(), text);
    });
}

#[test]
fn gzip_that_was_not_asked_for_here_is_left_alone() {
    on_loop(async {
        let server = running(packed(gzip(b"text"))).await;
        let request = || Request::get(&server.url);
        let own = request().header("accept-encoding", "gzip").body(()).unwrap();
        for (client, request) in [(client(), own), (plain().gzip(false).build().unwrap(), request().body(()).unwrap())]
        {
            let response = client.request(request).await.unwrap();
            assert_eq!(response.headers()["content-encoding"], "gzip");
            assert_eq!(response.into_body().bytes().await.unwrap(), gzip(b"text"));
        }
    });
}

#[test]
fn packed_response_to_head_is_no_error() {
    on_loop(async {
        let server = running(packed(gzip(b"text"))).await;
        let client = client();
        let response = client.request(Request::head(&server.url).body(()).unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-encoding"], "gzip");
        assert_eq!(response.into_body().bytes().await.unwrap(), "");
        assert_eq!(client.stats().idle, 1);
    });
}

#[test]
fn damaged_or_truncated_gzip_is_an_error() {
    on_loop(async {
        let good = gzip("text ".repeat(1000).as_bytes());
        let truncated = good[..good.len() - 3].to_vec();
        let mut damaged = good.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0xff;
        for bad in [truncated, damaged, b"not gzip at all".to_vec()] {
            let server = running(packed(bad)).await;
            let error = client().get(&server.url).await.unwrap().into_body().bytes().await.unwrap_err();
            assert!(matches!(error, Error::Body { .. }), "{error:?}");
        }
    });
}

#[test]
fn gzip_bomb_comes_in_small_pieces_and_cannot_be_collected() {
    on_loop(async {
        let bomb = gzip(&vec![0; 80 << 20]);
        // Packed it is below the limit that refuses it unpacked; how far below depends on which zlib packs it.
        assert!(bomb.len() < 1 << 20);
        let server = running(packed(bomb)).await;
        let mut body = client().get(&server.url).await.unwrap().into_body();
        for _ in 0..100 {
            assert!(body.chunk().await.unwrap().unwrap().len() <= 32 * 1024);
        }
        let body = client().get(&server.url).await.unwrap().into_body();
        let error = body.bytes_up_to(1 << 20).await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { limit: 1_048_576, .. }), "{error:?}");
        assert!(error.to_string().contains("1048576"), "{error}");
    });
}

#[test]
fn announced_length_beyond_the_limit_is_refused_before_reading() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        let body = client().get(&format!("http://{address}/")).await.unwrap().into_body();
        assert!(matches!(body.text().await, Err(Error::TooLarge { .. })));
    });
}

#[test]
fn response_of_one_request_can_be_the_body_of_the_next() {
    on_loop(async {
        let source = running(packed(gzip(b"passed on"))).await;
        let sink = running(echo()).await;
        let client = client();
        let body = client.get(&source.url).await.unwrap().into_body();
        let response = client.request(Request::post(&sink.url).body(body).unwrap()).await.unwrap();
        assert_eq!(response.into_body().text().await.unwrap(), "passed on");
        assert_eq!(client.stats().idle, 2);
    });
}

#[test]
fn body_up_to_the_close_ends_with_it() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end").await.unwrap();
        })
        .await;
        let client = client();
        let body = client.get(&format!("http://{address}/")).await.unwrap().into_body();
        assert_eq!(body.text().await.unwrap(), "until the end");
        until(|| client.stats().open == 0).await;
    });
}

#[test]
fn headers_arrive_though_the_body_has_not_begun() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-early: yes\r\n\r\n").await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
        })
        .await;
        let response = client().get(&format!("http://{address}/")).await.unwrap();
        let headers: &HeaderMap = response.headers();
        assert_eq!(headers["x-early"], "yes");
    });
}
