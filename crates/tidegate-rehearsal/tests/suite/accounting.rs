//! What is counted, and that it is the same as what clients saw.

use std::time::Duration;

use tidegate_loop::spawn;
use tidegate_rehearsal::{Latency, Limit, Server};

use crate::support::{advance_when, ask, on_loop, with_still_clock};

#[test]
fn a_crowd_is_let_in_up_to_the_limit_and_not_one_more() {
    on_loop(async {
        let hour = Limit::new(20).per(Duration::from_secs(3_600));
        let server = Server::builder().rpm(hour).start().await.unwrap();
        let crowd: Vec<_> = (0..60)
            .map(|n| {
                let server = server.clone();
                spawn(async move { ask(&server, &format!("question {n}")).await.status })
            })
            .collect();
        let mut seen = Vec::new();
        for one in crowd {
            seen.push(one.await.unwrap());
        }
        assert_eq!(seen.iter().filter(|status| **status == 200).count(), 20);
        assert_eq!(seen.iter().filter(|status| **status == 429).count(), 40);
        let stats = server.stats();
        assert_eq!((stats.answered, stats.refused.rpm, stats.arrived), (20, 40, 60));
        let rpm = stats.limit("rpm").unwrap();
        assert_eq!((rpm.worst_window, rpm.worst_offered, rpm.used), (20, 60, 20));
    });
}

#[test]
fn concurrency_is_capped_and_its_peak_recorded() {
    with_still_clock(async {
        let latency = Duration::from_millis(50);
        let server = Server::builder().concurrency(5).latency(Latency::Fixed(latency)).start().await.unwrap();
        let crowd: Vec<_> = (0..12)
            .map(|n| {
                let server = server.clone();
                spawn(async move { ask(&server, &format!("question {n}")).await.status })
            })
            .collect();
        advance_when(&server, |stats| stats.arrived == 12, latency).await;
        for one in crowd {
            one.await.unwrap();
        }
        let stats = server.stats();
        assert_eq!((stats.in_flight_peak, stats.answered, stats.refused.concurrency), (5, 5, 7));
        let answered = server.log(12).into_iter().filter(|entry| entry.status == Some(200));
        assert!(answered.into_iter().all(|entry| entry.took_us == Some(50_000)));
    });
}

#[test]
fn the_log_says_of_no_answer_that_it_took_less_than_its_latency() {
    on_loop(async {
        let latency = Duration::from_millis(50);
        let server = Server::builder().latency(Latency::Fixed(latency)).start().await.unwrap();
        // To read the second takes the server a while; its latency is counted from before that, and so is the log.
        for text in ["short".to_owned(), "long ".repeat(100_000)] {
            assert_eq!(ask(&server, &text).await.status, 200);
        }
        for entry in server.log(2) {
            assert!(entry.took_us.unwrap() >= 50_000, "{entry:?}");
        }
    });
}

#[test]
fn a_server_that_never_sleeps_answers_and_ends() {
    let server = Server::builder().awake(true).start_in_thread().unwrap();
    on_loop(async move {
        assert_eq!(ask(&server, "Are you awake?").await.status, 200);
        server.stop().await;
        assert!(server.is_stopped());
    });
}

#[test]
fn an_unknown_time_zone_and_a_taken_port_are_told() {
    on_loop(async {
        let limit = Limit::new(1).window("day:Mars/Olympus".parse().unwrap());
        let error = Server::builder().rpd(limit).start().await.unwrap_err();
        assert!(error.to_string().contains("Mars/Olympus"), "{error}");
        let first = Server::builder().start().await.unwrap();
        let error = Server::builder().listen(first.addr()).start_in_thread().unwrap_err();
        assert!(error.to_string().contains(&first.addr().to_string()), "{error}");
    });
}
