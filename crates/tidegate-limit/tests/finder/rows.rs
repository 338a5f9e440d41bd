//! One row per kind of server: how much longer than the ideal a run takes, and how many of its requests are refused.
//!
//! Means of eleven seeds: some rows have two likely outcomes, so that a median would jump between them. Each row names the
//! means of the design's reference over 21 seeds; a tenth more time is allowed, and a quarter more refusals. What lies
//! above 1.3 times the ideal is known and accepted: a cap with short answers, a delay that is rounded up to a whole
//! window, another client that does not adapt, paces whose slots are as short as the jitter of the wire.

use std::collections::VecDeque;

use crate::random::Random;
use crate::run::Setting;
use crate::servers::{Latency, Limit, Says, Server};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=11;

/// The most time ÷ ideal, and the most refusals in percent.
#[derive(Clone, Copy)]
struct Bounds {
    time: f64,
    refused: f64,
}

fn at_most(time: f64, refused: f64) -> Bounds {
    Bounds { time, refused }
}

/// A tenth above the reference's time, a quarter above its refusals.
fn reference(time: f64, refused: f64) -> Bounds {
    at_most(1.1 * time, 1.25 * refused + 0.5)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Measures a row, and says how it missed its bounds.
fn check(name: &str, setting: &Setting, ideal: Option<f64>, bounds: Bounds) -> Result<(), String> {
    let (mut times, mut refused) = (Vec::new(), Vec::new());
    let mut found = String::new();
    for seed in SEEDS {
        let outcome = setting.run(seed);
        if outcome.served < setting.requests {
            return Err(format!("{name}, seed {seed}: only {} served", outcome.served));
        }
        times.push(outcome.seconds / ideal.unwrap_or_else(|| setting.ideal(seed)));
        refused.push(100.0 * outcome.refused as f64 / setting.requests as f64);
        found = outcome.found.to_string();
    }
    let (time, refused) = (mean(&times), mean(&refused));
    println!("| {name} | {time:.2} | {refused:.1} % | {found} |");
    if time > bounds.time || refused > bounds.refused {
        let Bounds { time: time_max, refused: refused_max } = bounds;
        return Err(format!(
            "{name}: {time:.2} of the ideal time (at most {time_max:.2}), {refused:.1} % refused (at most {refused_max:.1})"
        ));
    }
    Ok(())
}

type Row = (&'static str, usize, Server, Bounds);

fn check_all(rows: impl IntoIterator<Item = Row>) {
    let missed = rows.into_iter().filter_map(|(name, requests, server, bounds)| {
        check(name, &Setting::new(server, requests), None, bounds).err()
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn fixed(limits: impl IntoIterator<Item = Limit>, seconds: f64) -> Server {
    Server { latency: Latency::Fixed(seconds), ..Server::new(limits) }
}

fn slow(limits: impl IntoIterator<Item = Limit>) -> Server {
    Server { latency: Latency::Slow, ..Server::new(limits) }
}

fn changing(limits: impl IntoIterator<Item = Limit>, at: f64, factor: f64) -> Server {
    Server { changes: VecDeque::from([(at, factor)]), ..Server::new(limits) }
}

#[test]
fn servers_that_the_algorithm_was_tuned_for() {
    check_all([
        ("10 per 1 s", 600, Server::new([Limit::sliding(10, 1.0)]), reference(1.06, 4.4)),
        ("10 per 1 s, slow answers", 600, slow([Limit::sliding(10, 1.0)]), reference(1.07, 4.2)),
        ("600 per 6 s", 3_000, Server::new([Limit::sliding(600, 6.0)]), reference(1.10, 1.1)),
        ("600 per 60 s", 3_000, slow([Limit::sliding(600, 60.0)]), reference(1.02, 0.9)),
        ("60 per 60 s", 300, slow([Limit::sliding(60, 60.0)]), reference(1.00, 8.2)),
        ("600 per calendar minute", 3_000, slow([Limit::calendar(600, 60.0, 20.0)]), reference(1.05, 2.7)),
        ("token bucket 10/s, burst 50", 900, Server::new([Limit::bucket(10.0, 50.0)]), reference(1.01, 5.1)),
        ("GCRA 10/s, no burst", 600, Server::new([Limit::bucket(10.0, 1.0)]), reference(1.29, 3.9)),
        ("20 in flight, 0.2 s", 2_000, fixed([Limit::cap(20)], 0.2), reference(1.27, 3.9)),
        ("20 in flight, slow answers", 2_000, slow([Limit::cap(20)]), reference(1.05, 5.8)),
        ("20 workers, queue", 2_000, Server { workers: Some(20), ..fixed([], 0.2) }, reference(1.10, 0.0)),
        ("no limit", 3_000, slow([]), reference(1.13, 0.0)),
        (
            "10 per 1 s and 300 per 60 s",
            1_200,
            Server::new([Limit::sliding(10, 1.0), Limit::sliding(300, 60.0)]),
            reference(1.10, 7.3),
        ),
        (
            "600 per 60 s and 20 in flight",
            2_400,
            fixed([Limit::sliding(600, 60.0), Limit::cap(20)], 0.2),
            reference(1.05, 3.9),
        ),
        ("10 per 1 s, halves at 30 s", 600, changing([Limit::sliding(10, 1.0)], 30.0, 0.5), reference(1.15, 6.7)),
        ("10 per 1 s, doubles at 30 s", 900, changing([Limit::sliding(10, 1.0)], 30.0, 2.0), reference(1.21, 3.2)),
        (
            "600 per 60 s, doubles at 100 s",
            4_200,
            Server { latency: Latency::Slow, ..changing([Limit::sliding(600, 60.0)], 100.0, 2.0) },
            reference(1.03, 1.8),
        ),
        (
            "20 in flight, halves at 10 s",
            2_000,
            Server { latency: Latency::Fixed(0.2), ..changing([Limit::cap(20)], 10.0, 0.5) },
            reference(1.39, 5.7),
        ),
        (
            "100 per 1 s, refused count",
            3_000,
            Server { counts_refused: true, ..Server::new([Limit::sliding(100, 1.0)]) },
            reference(1.23, 2.7),
        ),
        (
            "60 per minute, refused count",
            300,
            Server { counts_refused: true, ..Server::new([Limit::calendar(60, 60.0, 20.0)]) },
            reference(1.00, 16.3),
        ),
        (
            "60 per 60 s, Retry-After",
            300,
            Server { says: Says::RetryAfter, ..Server::new([Limit::sliding(60, 60.0)]) },
            reference(1.01, 3.0),
        ),
        (
            "10 per 1 s, Retry-After",
            600,
            Server { says: Says::RetryAfter, ..Server::new([Limit::sliding(10, 1.0)]) },
            reference(1.31, 3.5),
        ),
        (
            "20 in flight, Retry-After",
            2_000,
            Server { says: Says::RetryAfter, ..fixed([Limit::cap(20)], 0.2) },
            reference(1.32, 4.0),
        ),
        (
            "600 per 60 s, limit in the refusal",
            3_000,
            Server { says: Says::Limit, ..Server::new([Limit::sliding(600, 60.0)]) },
            reference(1.06, 2.7),
        ),
        (
            "600 per 6 s, outage of 12 s",
            3_000,
            Server { outage: Some((7.0, 19.0)), ..Server::new([Limit::sliding(600, 6.0)]) },
            reference(1.25, 1.1),
        ),
        ("no limit, outage of 60 s", 3_000, Server { outage: Some((5.0, 65.0)), ..slow([]) }, reference(1.12, 0.0)),
    ]);
}

#[test]
fn servers_that_it_was_not_tuned_for() {
    check_all([
        ("50 per 10 s", 500, slow([Limit::sliding(50, 10.0)]), reference(1.01, 5.2)),
        ("13 per 7 s", 130, slow([Limit::sliding(13, 7.0)]), reference(1.06, 12.4)),
        ("200 per 25 s", 1_000, slow([Limit::sliding(200, 25.0)]), reference(1.04, 3.2)),
        ("2,000 per 60 s", 8_000, slow([Limit::sliding(2_000, 60.0)]), reference(1.03, 0.4)),
        ("1 per 1 s", 100, Server::new([Limit::sliding(1, 1.0)]), reference(1.06, 25.8)),
        ("5 per 1 s, answers of 3 s", 300, fixed([Limit::sliding(5, 1.0)], 3.0), reference(1.32, 4.9)),
        ("30 per calendar minute from second 55", 150, slow([Limit::calendar(30, 60.0, 55.0)]), reference(1.01, 45.2)),
        ("100 in flight", 5_000, slow([Limit::cap(100)]), reference(1.06, 4.6)),
        ("3 in flight", 300, fixed([Limit::cap(3)], 1.0), reference(1.03, 15.5)),
        ("1 in flight", 100, fixed([Limit::cap(1)], 0.5), reference(1.06, 20.5)),
        ("bucket 3/s, burst 20", 400, slow([Limit::bucket(3.0, 20.0)]), reference(1.04, 13.3)),
        ("bucket 50/s, burst 1,000", 4_000, slow([Limit::bucket(50.0, 1_000.0)]), reference(1.00, 10.2)),
        ("GCRA 2/s", 200, slow([Limit::bucket(2.0, 1.0)]), reference(1.21, 10.2)),
        ("GCRA 100/s, burst 10", 3_000, Server::new([Limit::bucket(100.0, 10.0)]), reference(1.18, 3.3)),
        (
            "1,000 per 60 s and 60 per 1 s and 40 in flight",
            4_000,
            slow([Limit::sliding(1_000, 60.0), Limit::sliding(60, 1.0), Limit::cap(40)]),
            reference(1.03, 6.2),
        ),
    ]);
}

/// Each with a wire of 50 to 150 ms there and 50 to 100 ms back.
#[test]
fn servers_far_away() {
    for (name, requests, limit, bounds) in [
        ("10 per 1 s, far", 600, Limit::sliding(10, 1.0), reference(1.27, 3.2)),
        ("600 per 60 s, far", 3_000, Limit::sliding(600, 60.0), reference(1.04, 1.6)),
        ("20 in flight, far", 2_000, Limit::cap(20), reference(1.15, 4.6)),
    ] {
        let setting = Setting { there: (0.05, 0.15), back: (0.05, 0.10), ..Setting::new(slow([limit]), requests) };
        check(name, &setting, None, bounds).unwrap();
    }
}

#[test]
fn limits_that_are_stated_too_high() {
    for stated in [606, 660, 1_200] {
        let setting =
            Setting { stated: Some((stated, 6.0)), ..Setting::new(Server::new([Limit::sliding(600, 6.0)]), 3_000) };
        check(
            &format!("600 per 6 s, stated {stated}"),
            &setting,
            None,
            Bounds { refused: 5.0, ..reference(1.10, 0.0) },
        )
        .unwrap();
    }
}

#[test]
fn limits_of_tokens_that_were_not_stated() {
    let mut random = Random::new(5);
    let tokens: Vec<u64> = (0..1_000).map(|_| random.log_normal(400.0, 0.8).clamp(20.0, 4_000.0) as u64).collect();
    for (name, limit, bounds) in [
        ("60,000 tokens per 6 s", Limit::sliding(60_000, 6.0), reference(1.21, 7.5)),
        ("bucket of 10,000 tokens/s", Limit::bucket(10_000.0, 60_000.0), reference(1.01, 12.8)),
    ] {
        let server = Server { counts_tokens: true, ..slow([limit]) };
        let setting = Setting { tokens: tokens.clone(), ..Setting::new(server, 1_000) };
        check(name, &setting, None, bounds).unwrap();
    }
}

#[test]
fn another_client_takes_half_and_does_not_adapt() {
    let others = (0..300).flat_map(|burst| (0..50).map(move |k| f64::from(burst) * 10.0 + f64::from(k) / 10.0));
    let server = Server { others: others.collect(), ..Server::new([Limit::sliding(10, 1.0)]) };
    check("10 per 1 s, other client", &Setting::new(server, 600), Some(120.0), reference(1.44, 26.2)).unwrap();
}
