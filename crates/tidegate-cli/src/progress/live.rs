//! What a gate shows in a scene.

use std::time::{Duration, SystemTime};

use tidegate_batch::Progress;
use tidegate_limit::{Found, FoundState, LimitSnapshot, Snapshot};

use super::figures::time;
use super::scene::{Blocker, Gauge, Queue};

/// The name of what finds limits.
const FOUND: &str = "found";

/// A search that takes less is not shown: most end within a second.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A server that refuses for this long may do so for ever.
const SUSPICIOUS_AFTER: Duration = Duration::from_secs(300);

/// What is known and done about limits that were not stated, if it is worth a line.
pub(crate) fn found(gate: &Snapshot) -> Option<String> {
    let found = gate.found?;
    match found.state {
        FoundState::Down { down_for, next_in } => {
            Some(format!("no answer for {}; next attempt in {}; nothing is lost", time(down_for), time(next_in)))
        }
        FoundState::Searching { refused_for, probes, .. } if refused_for >= SUSPICIOUS_AFTER => Some(format!(
            "refused for {}, {probes} probes: the quota may be used up or zero; still trying once per minute",
            time(refused_for)
        )),
        FoundState::Searching { refused_for, next_in, .. } if refused_for >= SHOWN_AFTER => {
            Some(format!("refused for {}; one probe at a time, next in {}", time(refused_for), time(next_in)))
        }
        FoundState::Waiting { remaining } if remaining >= SHOWN_AFTER => {
            Some(format!("the server asks to wait {} (Retry-After)", time(remaining)))
        }
        _ => found.is_any().then(|| limits(&found)),
    }
}

/// `found: 600 requests per minute (state it with --rpm 600)`
fn limits(found: &Found) -> String {
    let from = if found.remembered { "from the last run" } else { "found" };
    let mut options = Vec::new();
    if let Some(window) = found.window.filter(|window| !window.is_pace) {
        match window.nominal().as_millis() {
            60_000 => options.push(format!("--rpm {}", window.amount)),
            millis if millis % 1_000 == 0 => options.push(format!("--rpm {}/{}s", window.amount, millis / 1_000)),
            // As measured, which is not how the server's documentation puts it.
            _ => {}
        }
    }
    options.extend(found.in_flight.map(|in_flight| format!("--global-concurrency {in_flight}")));
    match options.is_empty() {
        true => format!("{from}: {found}"),
        false => format!("{from}: {found} (state it with {})", options.join(" ")),
    }
}

pub(crate) fn gauges(gate: &Snapshot) -> Vec<Gauge> {
    gate.limits.iter().filter(|limit| limit.name != FOUND).map(|limit| gauge(limit, gate)).collect()
}

/// What the run's items do at the gate.
pub(crate) fn queue(progress: &Progress, gate: &Snapshot) -> Queue {
    let by_gate = gate.blocked_by.as_ref().map(|name| match name.as_str() {
        "scopes" => Blocker::Files,
        FOUND => Blocker::Found,
        name => Blocker::Limit(name.to_owned()),
    });
    // Pages that wait for this limit are not in the gate's line yet.
    let by_pictures = || (progress.blocked > 0).then(|| Blocker::Limit("pictures of a file".to_owned()));
    Queue { in_flight: progress.in_flight, blocked: progress.blocked, blocked_by: by_gate.or_else(by_pictures) }
}

fn gauge(limit: &LimitSnapshot, gate: &Snapshot) -> Gauge {
    let from_now = |at: Option<SystemTime>| at.and_then(|at| at.duration_since(gate.at).ok());
    Gauge {
        name: limit.name.clone(),
        // What the server says is gone counts as used.
        used: limit.used.max(limit.amount.saturating_sub(limit.remaining)),
        amount: limit.amount,
        back_in: from_now(limit.next_reset),
        held_for: from_now(limit.held_until),
        blocked: limit.blocked,
        blocked_for: limit.blocked_for,
        shut: limit.shut.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limit::{Cost, FoundWindow, Gate, Limit};

    fn line(found: Found) -> Option<String> {
        let gate = Gate::builder().limit(Limit::found()).build().unwrap();
        let mut stats = gate.stats();
        stats.found = Some(found);
        super::found(&stats)
    }

    #[test]
    fn what_was_found_is_said_with_the_option_that_states_it() {
        let window = |amount, millis| FoundWindow { amount, length: Duration::from_millis(millis), is_pace: false };
        let with = |window| Found { window: Some(window), ..Found::default() };
        assert_eq!(line(Found::default()), None);
        assert_eq!(line(with(window(10, 1_020))).unwrap(), "found: 10 requests per second (state it with --rpm 10/1s)");
        assert_eq!(line(with(window(600, 6_030))).unwrap(), "found: 600 requests per 6.03 s");
        let minute = line(with(window(600, 60_100))).unwrap();
        assert_eq!(minute, "found: 600 requests per minute (state it with --rpm 600)");
        let cap = line(Found { in_flight: Some(20), ..Found::default() }).unwrap();
        assert_eq!(cap, "found: 20 requests in flight (state it with --global-concurrency 20)");
        let pace = line(with(FoundWindow { is_pace: true, ..window(8, 500) })).unwrap();
        assert_eq!(pace, "found: about 16 requests per second; no fixed window fits");
        let remembered = line(Found { remembered: true, ..with(window(10, 1_020)) }).unwrap();
        assert_eq!(remembered, "from the last run: 10 requests per second (state it with --rpm 10/1s)");
    }

    #[test]
    fn what_is_waited_for_is_said() {
        let secs = Duration::from_secs;
        let line = |state| line(Found { state, ..Found::default() });
        let searching = |refused_for| FoundState::Searching { refused_for, next_in: secs(12), probes: 31 };
        assert_eq!(line(searching(Duration::from_millis(300))), None);
        assert_eq!(line(searching(secs(34))).unwrap(), "refused for 34 s; one probe at a time, next in 12 s");
        assert!(line(searching(secs(300))).unwrap().contains("31 probes: the quota may be used up or zero"));
        let waiting = line(FoundState::Waiting { remaining: secs(20) }).unwrap();
        assert_eq!(waiting, "the server asks to wait 20 s (Retry-After)");
        let down = line(FoundState::Down { down_for: secs(12), next_in: secs(2) }).unwrap();
        assert_eq!(down, "no answer for 12 s; next attempt in 2 s; nothing is lost");
    }

    #[test]
    fn what_finds_limits_is_not_a_limit_with_a_bar() {
        let gate = Gate::builder().limit(Limit::rpm(60)).limit(Limit::found()).build().unwrap();
        drop(gate.try_enter(gate.unscoped(), Cost::request()));
        assert_eq!(gauges(&gate.stats()).iter().map(|gauge| &*gauge.name).collect::<Vec<_>>(), ["rpm"]);
    }
}
