//! What goes wrong on purpose.

use std::time::Duration;

use tidegate_http::{Client, Timeouts};
use tidegate_loop::{spawn, yield_now};
use tidegate_rehearsal::{Fault, Latency, Limit, Server};

use crate::support::{advance_when, ask, on_loop, question, with_still_clock};

/// How long a client waits that gives up.
const PATIENCE: Duration = Duration::from_millis(50);

fn impatient() -> Client {
    let timeouts = Timeouts { total: Some(PATIENCE), ..Timeouts::default() };
    Client::builder().timeouts(timeouts).build().unwrap()
}

#[test]
fn a_script_makes_the_first_requests_fail_as_written() {
    on_loop(async {
        let script = [Fault::Internal, Fault::Unavailable, Fault::Overloaded].map(Some);
        let server = Server::builder().rpm(Limit::new(100)).script(script).start().await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(ask(&server, "?").await.status);
        }
        assert_eq!(seen, [500, 503, 529, 200]);
        let stats = server.stats();
        assert_eq!((stats.failed, stats.answered), (3, 1));
        assert_eq!(stats.limit("rpm").unwrap().total, 2, "a 500 costs quota, an overload does not");
    });
}

#[test]
fn garbage_is_sent_with_a_good_conscience() {
    on_loop(async {
        let server = Server::builder().script([Some(Fault::Garbage); 4]).start().await.unwrap();
        for _ in 0..4 {
            let got = ask(&server, "?").await;
            assert_eq!(got.status, 200);
            assert_eq!(got.header("content-type"), Some("application/json"));
            assert!(got.body["choices"].is_null());
        }
    });
}

#[test]
fn a_dropped_connection_brings_no_answer() {
    on_loop(async {
        let server = Server::builder().script([Some(Fault::Drop)]).start().await.unwrap();
        let url = format!("{}/v1/chat/completions", server.base_url());
        let client = Client::new();
        assert!(client.post_json(&url, &question("?")).await.is_err());
        assert_eq!(client.post_json(&url, &question("?")).await.unwrap().status(), 200, "the server goes on");
    });
}

#[test]
fn silence_lasts_until_the_client_gives_up() {
    with_still_clock(async {
        let server = Server::builder().script([Some(Fault::Silence)]).start().await.unwrap();
        let url = format!("{}/v1/chat/completions", server.base_url());
        let asking = spawn(async move { impatient().post_json(&url, &question("?")).await.is_err() });
        advance_when(&server, |stats| stats.accepted == 1, PATIENCE).await;
        assert!(asking.await.unwrap());
        let stats = server.stats();
        assert_eq!((stats.accepted, stats.answered), (1, 0));
    });
}

#[test]
fn a_stop_lets_go_of_those_who_would_never_be_answered() {
    on_loop(async {
        let server = Server::builder().script([Some(Fault::Silence)]).start().await.unwrap();
        let url = format!("{}/v1/chat/completions", server.base_url());
        let hanging = spawn(async move { Client::new().post_json(&url, &question("?")).await.is_err() });
        while server.stats().in_flight == 0 {
            yield_now().await;
        }
        server.stop().await;
        assert!(hanging.await.unwrap());
        assert_eq!(server.stats().in_flight, 0);
    });
}

#[test]
fn who_goes_away_before_the_answer_is_counted_and_makes_room() {
    with_still_clock(async {
        let slow = Latency::Fixed(Duration::from_secs(3_600));
        let server = Server::builder().latency(slow).concurrency(1).start().await.unwrap();
        let url = format!("{}/v1/chat/completions", server.base_url());
        let asking = spawn(async move { impatient().post_json(&url, &question("?")).await.is_err() });
        advance_when(&server, |stats| stats.in_flight == 1, PATIENCE).await;
        assert!(asking.await.unwrap());
        while server.stats().in_flight > 0 {
            yield_now().await;
        }
        assert_eq!(server.stats().abandoned, 1);
    });
}
