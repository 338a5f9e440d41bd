//! Which request gets which connection, and when.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::Request;
use tidegate_http::Timeouts;
use tidegate_loop::net::TcpStream;
use tidegate_loop::spawn;

use crate::support::{advance, answer, client, on_loop, plain, read_head, running, scripted, until, with_still_clock};

/// A peer that records the path of each request and answers only on the test's command.
#[derive(Clone, Default)]
struct Held {
    paths: Rc<RefCell<Vec<String>>>,
    open: Rc<RefCell<Vec<Option<Rc<TcpStream>>>>>,
}

impl Held {
    async fn start(&self) -> String {
        let held = self.clone();
        let address = scripted(move |_, stream| {
            let held = held.clone();
            async move {
                let stream = Rc::new(stream);
                loop {
                    let head = read_head(&stream).await;
                    let Some(path) = head.split(' ').nth(1) else { return };
                    held.paths.borrow_mut().push(path.trim_start_matches('/').to_owned());
                    held.open.borrow_mut().push(Some(stream.clone()));
                }
            }
        })
        .await;
        format!("http://{address}")
    }

    fn seen(&self) -> Vec<String> {
        self.paths.borrow().clone()
    }

    /// Answers the request that came in as number `at`.
    async fn answer(&self, at: usize) {
        let stream = self.open.borrow_mut()[at].take().expect("answered once");
        stream.write_all(&answer("ok")).await.unwrap();
    }
}

#[test]
fn limit_holds_and_waiting_requests_are_served_in_order() {
    on_loop(async {
        let held = Held::default();
        let url = held.start().await;
        let client = plain().connections_per_host(2).build().unwrap();
        let mut tasks = Vec::new();
        for number in 0..6 {
            let (client, url) = (client.clone(), format!("{url}/{number}"));
            tasks.push(spawn(async move { client.get(&url).await.unwrap().into_body().text().await.unwrap() }));
        }
        until(|| held.seen().len() == 2).await;
        let stats = client.stats();
        assert_eq!((stats.in_use, stats.waiting, stats.open, stats.idle), (2, 4, 2, 0));
        for at in 0..6usize {
            assert_eq!(held.seen().len(), (at + 2).min(6), "two at once, never more");
            held.answer(at).await;
            until(|| held.seen().len() >= (at + 3).min(6)).await;
        }
        for task in tasks {
            assert_eq!(task.await.unwrap(), "ok");
        }
        // The first two set out together; from then on it is the order of arrival.
        assert_eq!(held.seen()[2..], ["2", "3", "4", "5"]);
        let stats = client.stats();
        assert_eq!((stats.total, stats.reused, stats.waiting, stats.in_use, stats.idle), (2, 4, 0, 0, 2));
    });
}

#[test]
fn one_that_leaves_the_line_leaves_no_trace() {
    on_loop(async {
        let held = Held::default();
        let url = held.start().await;
        let client = plain().connections_per_host(1).build().unwrap();
        let request = |path: &str| {
            let (client, url) = (client.clone(), format!("{url}/{path}"));
            spawn(async move { client.get(&url).await.unwrap().into_body().text().await.unwrap() })
        };
        let first = request("first");
        until(|| held.seen().len() == 1).await;
        let (second, third) = (request("second"), request("third"));
        until(|| client.stats().waiting == 2).await;
        second.cancel();
        until(|| client.stats().waiting == 1).await;
        held.answer(0).await;
        first.await.unwrap();
        until(|| held.seen().len() == 2).await;
        assert_eq!(held.seen()[1], "third");
        held.answer(1).await;
        third.await.unwrap();
        assert_eq!((client.stats().in_use, client.stats().idle), (0, 1));
    });
}

#[test]
fn cancelled_request_frees_its_slot_and_closes_its_connection() {
    on_loop(async {
        let held = Held::default();
        let url = held.start().await;
        let client = plain().connections_per_host(1).build().unwrap();
        let task = {
            let (client, url) = (client.clone(), url.clone());
            spawn(async move { client.get(&url).await.map(|_| ()) })
        };
        until(|| held.seen().len() == 1).await;
        task.cancel();
        assert!(task.await.is_err());
        assert_eq!(client.stats().open, 0);
        let next = {
            let (client, url) = (client.clone(), format!("{url}/next"));
            spawn(async move { client.get(&url).await.unwrap().status() })
        };
        until(|| held.seen().len() == 2).await;
        held.answer(1).await;
        assert_eq!(next.await.unwrap(), 200);
        assert_eq!(client.stats().total, 2);
    });
}

#[test]
fn body_being_read_keeps_its_slot() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "0123456789".repeat(100_000) }))).await;
        let client = plain().connections_per_host(1).build().unwrap();
        let mut body = client.get(&server.url).await.unwrap().into_body();
        body.chunk().await.unwrap().unwrap();
        let next = {
            let (client, url) = (client.clone(), server.url.clone());
            spawn(async move { client.get(&url).await.unwrap().into_body().bytes().await.unwrap().len() })
        };
        until(|| client.stats().waiting == 1).await;
        while body.chunk().await.unwrap().is_some() {}
        assert_eq!(next.await.unwrap(), 1_000_000);
        assert_eq!((client.stats().total, client.stats().reused), (1, 1));
    });
}

#[test]
fn idle_connections_are_closed_when_their_time_is_over() {
    with_still_clock(async {
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = plain().keep_idle(8, Duration::from_secs(20)).build().unwrap();
        client.get(&server.url).await.unwrap().into_body().bytes().await.unwrap();
        advance(19);
        client.get(&server.url).await.unwrap().into_body().bytes().await.unwrap();
        assert_eq!(client.stats().reused, 1);
        advance(19);
        tidegate_loop::yield_now().await;
        assert_eq!(client.stats().idle, 1, "its time counts from its last use");
        advance(1);
        until(|| client.stats().open == 0).await;
        until(|| server.handle.stats().open == 0).await;
    });
}

#[test]
fn no_more_are_kept_than_allowed() {
    on_loop(async {
        let held = Held::default();
        let url = held.start().await;
        let client = plain().keep_idle(2, Duration::from_secs(60)).build().unwrap();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let (client, url) = (client.clone(), url.clone());
                spawn(async move { client.get(&url).await.unwrap().into_body().bytes().await.unwrap() })
            })
            .collect();
        until(|| held.seen().len() == 5).await;
        assert_eq!(client.stats().in_use, 5);
        for at in 0..5 {
            held.answer(at).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!((client.stats().idle, client.stats().open), (2, 2));
    });
}

#[test]
fn connection_closed_by_the_server_while_idle_is_forgotten() {
    on_loop(async {
        let address = scripted(|_, stream| async move {
            read_head(&stream).await;
            stream.write_all(&answer("ok")).await.unwrap();
        })
        .await;
        let client = client();
        client.get(&format!("http://{address}/")).await.unwrap().into_body().bytes().await.unwrap();
        until(|| client.stats().open == 0).await;
    });
}

#[test]
fn dropped_client_closes_what_it_kept() {
    on_loop(async {
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = client();
        client.get(&server.url).await.unwrap().into_body().bytes().await.unwrap();
        assert_eq!(server.handle.stats().open, 1);
        drop(client);
        until(|| server.handle.stats().open == 0).await;
    });
}

#[test]
fn hosts_do_not_share_their_limit() {
    on_loop(async {
        let held = Held::default();
        let busy = held.start().await;
        let server = running(Router::new().route("/", get(|| async { "ok" }))).await;
        let client = plain().connections_per_host(1).build().unwrap();
        let waiting = {
            let client = client.clone();
            spawn(async move { client.get(&busy).await.map(|_| ()) })
        };
        until(|| held.seen().len() == 1).await;
        assert_eq!(client.get(&server.url).await.unwrap().status(), 200);
        waiting.cancel();
    });
}

#[test]
fn waiting_for_a_connection_counts_towards_the_total_limit() {
    with_still_clock(async {
        let held = Held::default();
        let url = held.start().await;
        let client = plain().connections_per_host(1).build().unwrap();
        let first = {
            let (client, url) = (client.clone(), url.clone());
            spawn(async move { client.get(&url).await.map(|_| ()) })
        };
        until(|| held.seen().len() == 1).await;
        let impatient = Timeouts { total: Some(Duration::from_secs(5)), ..Timeouts::default() };
        let second = {
            let (client, url) = (client.clone(), url.clone());
            let request = Request::get(url).extension(impatient).body(()).unwrap();
            spawn(async move { client.request(request).await.map(|_| ()) })
        };
        until(|| client.stats().waiting == 1).await;
        advance(5);
        let error = second.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("not done within 5s"), "{error}");
        assert_eq!((client.stats().waiting, held.seen().len()), (0, 1));
        first.cancel();
    });
}
