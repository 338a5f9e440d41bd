//! A gate that finds limits that were not stated, in virtual time: the real gate, the real listener, and servers that count
//! on arrival.

#[allow(dead_code, reason = "the servers of the simulator; not all of them are needed here")]
#[path = "finder/random.rs"]
mod random;
#[allow(dead_code, reason = "the servers of the simulator; not all of them are needed here")]
#[path = "finder/servers.rs"]
mod servers;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_limit::feedback::{Listener, Provider, Verdict};
use tidegate_limit::{Cost, FoundState, Gate, Limit, Snapshot, Window};
use tidegate_loop::{EventLoop, LoopHandle, gather_all, sleep, spawn};

use random::Random;
use servers::{Answer, Latency, Limit as ServerLimit, Says, Server};

fn now() -> Instant {
    LoopHandle::current().time()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

struct Seen {
    seconds: f64,
    refused: u64,
    failed: u64,
    stats: Snapshot,
}

/// Sends `requests` through a gate with these limits; each is tried until it is served.
fn send_all(server: Server, limits: Vec<Limit>, requests: usize, seed: u64) -> Seen {
    EventLoop::simulated(seed)
        .run_until_complete(async move {
            let gate = Gate::builder().limits(limits).build().unwrap();
            let listener = Rc::new(Listener::new(&gate, Provider::OpenAi));
            let server = Rc::new(RefCell::new((server, Random::new(seed))));
            let (refused, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let began = now();
            let tasks: Vec<_> = (0..requests)
                .map(|_| {
                    let (gate, listener, server) = (gate.clone(), Rc::clone(&listener), Rc::clone(&server));
                    let (refused, failed) = (Rc::clone(&refused), Rc::clone(&failed));
                    spawn(async move {
                        while let Some(wait) = attempt(&gate, &listener, &server, began, &refused, &failed).await {
                            sleep(wait).await;
                        }
                    })
                })
                .collect();
            for done in gather_all(tasks).await {
                done.unwrap();
            }
            let seconds = (now() - began).as_secs_f64();
            Seen { seconds, refused: refused.get(), failed: failed.get(), stats: gate.stats() }
        })
        .unwrap()
}

/// One attempt. Returns how long to wait for the next, if it takes one.
async fn attempt(
    gate: &Gate,
    listener: &Listener,
    server: &RefCell<(Server, Random)>,
    began: Instant,
    refused: &Cell<u64>,
    failed: &Cell<u64>,
) -> Option<Duration> {
    let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
    let sent = listener.now();
    lease.sent();
    let there = server.borrow_mut().1.uniform((0.010, 0.030));
    sleep(seconds(there)).await;
    let arrived = (now() - began).as_secs_f64();
    let answer = {
        let (server, random) = &mut *server.borrow_mut();
        server.arrive(arrived, 1, random)
    };
    let back = server.borrow_mut().1.uniform((0.005, 0.015));
    let (status, headers) = match answer {
        Answer::Served { at } => {
            sleep(seconds(at - arrived)).await;
            server.borrow_mut().0.end();
            (200, vec![])
        }
        Answer::Refused { retry_after, .. } => {
            refused.set(refused.get() + 1);
            (429, retry_after.map(|after| ("retry-after", after.to_string())).into_iter().collect())
        }
        Answer::Failed => {
            failed.set(failed.get() + 1);
            sleep(seconds(back)).await;
            lease.failed();
            return Some(Duration::ZERO);
        }
    };
    sleep(seconds(back)).await;
    lease.answered();
    let feedback = listener.on_answer(sent, status, &headers, b"");
    let report = listener.report(&mut lease, &feedback);
    (feedback.verdict != Verdict::Proceed).then(|| report.wait.unwrap_or_default())
}

fn two_hundred() -> Vec<Limit> {
    vec![Limit::concurrency("global", 200)]
}

/// The goal: at most 1.3 times the ideal, at most 5 % or 25 requests refused.
fn is_near_ideal(seen: &Seen, requests: u64, ideal: f64) {
    let Seen { seconds, refused, .. } = seen;
    assert!(*seconds <= 1.3 * ideal, "{seconds} s instead of {ideal} s");
    assert!(*refused <= (requests / 20).max(25), "{refused} refused");
}

#[test]
fn ten_per_second_not_stated() {
    let seen = send_all(Server::new([ServerLimit::sliding(10, 1.0)]), two_hundred(), 600, 1);
    is_near_ideal(&seen, 600, 59.0);
    assert_eq!(seen.stats.found.unwrap().to_string(), "10 requests per second");
}

#[test]
fn six_hundred_per_minute_not_stated() {
    let seen = send_all(Server::new([ServerLimit::sliding(600, 60.0)]), two_hundred(), 1_500, 1);
    is_near_ideal(&seen, 1_500, 120.0);
    assert_eq!(seen.stats.found.unwrap().to_string(), "600 requests per minute");
}

#[test]
fn twenty_in_flight_not_stated() {
    let server = Server { latency: Latency::Slow, ..Server::new([ServerLimit::cap(20)]) };
    let seen = send_all(server, two_hundred(), 1_000, 1);
    is_near_ideal(&seen, 1_000, 56.0);
    let found = seen.stats.found.unwrap();
    assert!((19..=22).contains(&found.in_flight.unwrap()), "{found}");
}

#[test]
fn twenty_in_flight_with_a_date() {
    let server = Server { latency: Latency::Slow, says: Says::RetryAfter, ..Server::new([ServerLimit::cap(20)]) };
    let seen = send_all(server, two_hundred(), 1_000, 2);
    is_near_ideal(&seen, 1_000, 56.0);
    assert!(seen.stats.found.unwrap().in_flight.is_some_and(|cap| (19..=22).contains(&cap)));
}

#[test]
fn no_limit_at_all_is_found_to_be_none() {
    let seen = send_all(Server { latency: Latency::Slow, ..Server::new([]) }, two_hundred(), 2_000, 1);
    assert_eq!((seen.refused, seen.stats.found.unwrap().to_string()), (0, "no limit".into()));
    assert_eq!(seen.stats.peak, 200);
}

#[test]
fn a_rate_that_is_stated_is_trusted_from_the_first_request_on() {
    let stated =
        |amount| vec![Limit::concurrency("global", 200), Limit::rpm(amount).window(Window::strict(seconds(6.0)))];
    let server = || Server::new([ServerLimit::sliding(600, 6.0)]);
    // Four windows, after the first 600 were sent: three rounds of 200 in flight, with 50 ms of service and the wire.
    let ideal = 24.0 + 3.0 * 0.09;
    // Requests arrive closer together than they left, by up to 20 ms, and in virtual time there is no margin.
    let exact = send_all(server(), stated(600), 3_000, 1);
    assert!(ideal / exact.seconds >= 0.97, "{} s", exact.seconds);
    let too_high = send_all(server(), stated(1_200), 3_000, 1);
    is_near_ideal(&too_high, 3_000, ideal);
}

#[test]
fn an_outage_is_waited_out_and_nothing_is_lost() {
    let server = |outage| Server { outage, latency: Latency::Fixed(0.2), ..Server::new([]) };
    let without = send_all(server(None), two_hundred(), 3_000, 1).seconds;
    for length in [12.0, 60.0, 3_600.0] {
        let seen = send_all(server(Some((3.0, 3.0 + length))), two_hundred(), 3_000, 1);
        // The first attempt after its end is late by an eighth of it, and then the ramp begins anew.
        let late = (length / 8.0_f64).min(30.0);
        assert!(seen.seconds <= length + late + 2.0 * without, "{} s with an outage of {length} s", seen.seconds);
        // Those in flight when it began, and their successors until the last answer from before; then one at a time: four
        // per second for 2 s, at intervals that grow by an eighth up to 30 s, and then twice per minute.
        let probes = 8.0 + (length.min(240.0) / 2.0).ln() / 1.125_f64.ln() + (length - 240.0).max(0.0) / 30.0;
        assert!((seen.failed as f64) < 400.0 + probes, "{} failed, {probes} probes expected", seen.failed);
    }
}

#[test]
fn a_server_that_refuses_for_an_hour_is_asked_seldom_and_served_from_then_on() {
    let used_up = ServerLimit::Calendar { limit: 50.0, window: 3_600.0, phase: 0.0, current: 0.0, used: 50.0 };
    let seen = send_all(Server::new([used_up]), two_hundred(), 50, 1);
    assert!(seen.refused < 100, "{} refused", seen.refused);
    assert!((3_600.0..3_700.0).contains(&seen.seconds), "{} s", seen.seconds);
    assert_eq!(seen.stats.found.unwrap().state, FoundState::Open);
}
