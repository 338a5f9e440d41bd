//! Strict limits: everything at once, and a steady flow of a fifth more than fits.

use std::time::Duration;

use tidegate_rehearsal::{Latency, Limit, Server, Stats};

use super::client::{self, Kind, Work};
use super::once;
use crate::harness::{BASELINE, Goal, Line};

const MILLISECOND: &str = "polling, 1 ms, pause after 429";
const SECONDS: &str = "polling, 0.1-2 s";

const AMOUNT: u64 = 100;
const WINDOW: Duration = Duration::from_secs(6);
const WINDOWS: u64 = 4;

pub(super) fn lines() -> Vec<Line> {
    let burst = pair("burst", Duration::ZERO);
    let spread = pair("spread", WINDOW / u32::try_from(AMOUNT * 6 / 5).expect("a small number"));
    burst.into_iter().chain(spread).collect()
}

/// Refused, and not used, of the same runs.
fn pair(name: &str, every: Duration) -> [Line; 2] {
    let mut refused = Line::new(format!("strict provider, {name}: refused of {}", AMOUNT * WINDOWS), "requests")
        .goal(Goal::Below { limit: 0.5, aim: 0.0 })
        .rounds_max(1)
        .note(format!("{AMOUNT} in any {} s, answers after 20 to 60 ms, 50 at once", WINDOW.as_secs()));
    let mut unused = Line::new(format!("strict provider, {name}: quota not used"), "%")
        .goal(Goal::Below { limit: 2.0, aim: 1.0 })
        .rounds_max(1)
        .note("how much longer than a perfect client, from the first request to the last");
    for (contestant, kind) in [(BASELINE, Kind::Gate), (SECONDS, Kind::Seconds), (MILLISECOND, Kind::Millisecond)] {
        let run = once(move || rehearse(kind, every));
        let again = run.clone();
        refused = refused.contestant_if(contestant, move || Ok(run()?.refused.total() as f64));
        unused = unused.contestant_if(contestant, move || {
            let share = again()?.used_share().ok_or("the limit bound nobody")?;
            // The server knows of one ideal: everything is there from the start.
            let took = ideal(Duration::ZERO) / share;
            Ok((1.0 - ideal(every) / took) * 100.0)
        });
    }
    [refused, unused]
}

/// How many seconds a perfect client takes from its first request to its last, if their turns come `every` so often.
fn ideal(every: Duration) -> f64 {
    let mut sent: Vec<f64> = Vec::new();
    for number in 0..AMOUNT * WINDOWS {
        let fits = match number.checked_sub(AMOUNT) {
            Some(before) => sent[before as usize] + WINDOW.as_secs_f64(),
            None => 0.0,
        };
        sent.push(fits.max(every.as_secs_f64() * number as f64));
    }
    sent.last().copied().unwrap_or(0.0)
}

fn rehearse(kind: Kind, every: Duration) -> Result<Stats, String> {
    let server = Server::builder()
        .rpm(Limit::new(AMOUNT).per(WINDOW))
        .latency(Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60)))
        .seed(1)
        .start_in_thread()
        .map_err(|error| error.to_string())?;
    let work =
        Work { kind, requests: AMOUNT * WINDOWS, every, concurrency: 50, amount: AMOUNT, window: WINDOW, warm_up: 0 };
    client::send(&server.base_url(), work)?;
    Ok(server.stats())
}
