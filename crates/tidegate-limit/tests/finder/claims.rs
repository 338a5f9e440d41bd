//! What holds in between: how small the first burst is, how soon a change is followed, that every request is served.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_limit::{Found, FoundWindow};

use crate::random::Random;
use crate::run::Setting;
use crate::servers::{Latency, Limit, Says, Server};

#[test]
fn eight_requests_are_sent_before_the_first_is_answered() {
    for seed in 0..10 {
        let mut run = Setting::new(Server::new([Limit::sliding(10, 1.0)]), 600).start(seed);
        run.until(0.06);
        assert_eq!(run.sent_at.len(), 8, "seed {seed}");
    }
}

#[test]
fn a_limit_that_halves_is_followed_within_ten_seconds() {
    for seed in 0..10 {
        let server = Server { changes: VecDeque::from([(30.0, 0.5)]), ..Server::new([Limit::sliding(10, 1.0)]) };
        let mut run = Setting::new(server, 2_000).start(seed);
        run.until(70.0);
        let within = |times: &[f64], from: f64, to: f64| times.iter().filter(|t| from <= **t && **t < to).count();
        let refused = within(&run.refused_at, 30.0, 40.0);
        assert!(refused <= 30, "seed {seed}: {refused} refused");
        let served = within(&run.served_at, 45.0, 65.0);
        assert!(served >= 60, "seed {seed}: {served} served in 20 s of 5 per second");
    }
}

#[test]
fn a_server_that_refuses_for_ever_is_asked_fewer_than_a_hundred_times_an_hour() {
    let mut run = Setting::new(Server::new([Limit::cap(0)]), 500).start(1);
    run.until(3_600.0);
    assert!(run.outcome.refused < 100, "{}", run.outcome.refused);
}

#[test]
fn what_is_remembered_saves_the_search() {
    let window = FoundWindow { amount: 10, length: Duration::from_millis(1_020), is_pace: false };
    let remembered = Some(Found { window: Some(window), ..Found::default() });
    let setting = Setting { remembered, ..Setting::new(Server::new([Limit::sliding(10, 1.0)]), 600) };
    for seed in 0..5 {
        let outcome = setting.run(seed);
        assert!(outcome.seconds <= 1.15 * 59.0 && outcome.refused <= 25, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn every_request_is_served_by_any_server_that_serves_at_all() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut limits = Vec::new();
        for _ in 0..(1.0 + 2.0 * random.unit()) as usize {
            let amount = random.log_normal(20.0, 1.2).clamp(1.0, 500.0) as u64;
            let length = random.log_normal(3.0, 1.0).clamp(0.2, 30.0);
            limits.push(match (4.0 * random.unit()) as usize {
                0 => Limit::sliding(amount, length),
                1 => Limit::calendar(amount, length, length / 2.0),
                2 => Limit::bucket(amount as f64, 1.0 + 5.0 * random.unit()),
                _ => Limit::cap(amount),
            });
        }
        let latency = if random.unit() < 0.5 { Latency::Slow } else { Latency::Fixed(random.uniform((0.01, 1.0))) };
        let says = if random.unit() < 0.3 { Says::RetryAfter } else { Says::Nothing };
        let outage = (random.unit() < 0.2).then_some((3.0, 20.0));
        let server = Server { latency, says, outage, ..Server::new(limits) };
        let outcome = Setting::new(server.clone(), 200).run(seed);
        assert_eq!(outcome.served, 200, "seed {seed}: {server:?}");
    }
}
