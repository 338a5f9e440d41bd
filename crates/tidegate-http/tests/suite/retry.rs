//! The one retry a client makes by itself: on a kept connection that turns out to be dead.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use http::Request;
use tidegate_http::{Body, Client, Error};

use crate::support::{answer, client, on_loop, pieces, read_head, scripted};

/// A peer that answers the first request of its first connection, says `last` to the second and closes; later connections
/// are in order. Counts the requests it saw.
async fn forgetful(last: &'static [u8]) -> (String, Rc<Cell<usize>>) {
    let requests = Rc::new(Cell::new(0));
    let count = requests.clone();
    let address = scripted(move |number, stream| {
        let count = count.clone();
        async move {
            for turn in 0.. {
                if read_head(&stream).await.is_empty() {
                    return;
                }
                count.set(count.get() + 1);
                if number == 0 && turn == 1 {
                    stream.write_all(last).await.unwrap();
                    return;
                }
                stream.write_all(&answer("ok")).await.unwrap();
            }
        }
    })
    .await;
    (format!("http://{address}/"), requests)
}

async fn warmed_up(url: &str) -> Client {
    let client = client();
    client.get(url).await.unwrap().into_body().bytes().await.unwrap();
    assert_eq!(client.stats().idle, 1);
    client
}

#[test]
fn idempotent_request_without_a_byte_of_answer_is_sent_again() {
    on_loop(async {
        let (url, requests) = forgetful(b"").await;
        let client = warmed_up(&url).await;
        let request = Request::put(&url).body("again").unwrap();
        assert_eq!(client.request(request).await.unwrap().into_body().text().await.unwrap(), "ok");
        assert_eq!(requests.get(), 3);
        assert_eq!((client.stats().total, client.stats().in_use), (2, 0));
    });
}

#[test]
fn post_that_may_have_been_carried_out_is_not_sent_again() {
    on_loop(async {
        let (url, requests) = forgetful(b"").await;
        let client = warmed_up(&url).await;
        let error = client.request(Request::post(&url).body("once").unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        assert!(!error.is_before_sending());
        assert_eq!(requests.get(), 2);
        assert_eq!(client.stats().open, 0);
    });
}

#[test]
fn request_answered_by_half_a_head_is_not_sent_again() {
    on_loop(async {
        let (url, requests) = forgetful(b"HTTP/1.1 200").await;
        let client = warmed_up(&url).await;
        let error = client.get(&url).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        assert_eq!(requests.get(), 2);
    });
}

#[test]
fn stream_that_is_gone_is_not_sent_again() {
    on_loop(async {
        let (url, requests) = forgetful(b"").await;
        let client = warmed_up(&url).await;
        let body = Body::stream(pieces(&["once"]));
        let error = client.request(Request::put(&url).body(body).unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        assert_eq!(requests.get(), 2);
    });
}

#[test]
fn fresh_connection_that_fails_is_not_tried_again() {
    on_loop(async {
        let count = Rc::new(Cell::new(0));
        let seen = count.clone();
        let address = scripted(move |_, stream| {
            seen.set(seen.get() + 1);
            async move {
                read_head(&stream).await;
            }
        })
        .await;
        let error = client().get(&format!("http://{address}/")).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn every_dead_connection_is_tried_before_a_fresh_one_is_made() {
    on_loop(async {
        // Kept connections die all at once when a server restarts. Each closes only when it is used again, so the client
        // cannot know before.
        let requests = Rc::new(Cell::new(0));
        let count = requests.clone();
        let address = scripted(move |number, stream| {
            let count = count.clone();
            async move {
                for turn in 0.. {
                    if read_head(&stream).await.is_empty() {
                        return;
                    }
                    count.set(count.get() + 1);
                    if number < 3 && turn == 1 {
                        return;
                    }
                    if turn == 0 && number < 3 {
                        // Together, so that there are three.
                        crate::support::until(|| count.get() >= 3).await;
                    }
                    stream.write_all(&answer("ok")).await.unwrap();
                }
            }
        })
        .await;
        let url = format!("http://{address}/");
        let client = client();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (client, url) = (client.clone(), url.clone());
                tidegate_loop::spawn(async move { client.get(&url).await.unwrap().into_body().bytes().await.unwrap() })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), Bytes::from("ok"));
        }
        assert_eq!(client.stats().idle, 3);
        assert_eq!(client.get(&url).await.unwrap().into_body().text().await.unwrap(), "ok");
        assert_eq!((requests.get(), client.stats().total, client.stats().idle), (7, 4, 1));
    });
}
