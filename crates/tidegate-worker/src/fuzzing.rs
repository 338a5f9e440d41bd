//! What the fuzz targets call; see `fuzz/` at the root of the repository.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::broker::TaskError;
use crate::codec::celery::{self, Chords, Status};
use crate::cron::{Cron, Schedule};
use crate::task::Envelope;

pub use crate::process::fuzz_frames as frames;
pub use crate::rabbit::fuzz_glob as glob;

/// A message of Celery's: the first line is its headers, the rest its body. Whatever it says, it is a task with what follows
/// it, or refused.
pub fn celery(data: &[u8]) {
    let line = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let headers: BTreeMap<String, Value> = serde_json::from_slice(&data[..line]).unwrap_or_default();
    let mut envelope = Envelope::new("celery", data.get(line + 1..).unwrap_or_default().to_vec());
    envelope.headers = headers;
    let _ = celery::times(&envelope.headers);
    let Ok(message) = celery::read(&envelope, 0) else { return };
    let now = Timestamp::UNIX_EPOCH;
    let error = TaskError { kind: "E".to_owned(), message: "m".to_owned(), traceback: None };
    let value = json!([1, "x"]);
    for status in [Status::Success(&value), Status::Failure(&error), Status::Retry(&error), Status::Revoked("expired")]
    {
        for chords in [Chords::Counted, Chords::Refused] {
            let following = message.following(status, now, chords);
            for task in following.tasks {
                // What is published is read by workers like this one.
                celery::read(&task, 0).unwrap_or_else(|error| panic!("{}: {task:?}", error.message));
            }
        }
    }
}

/// A schedule, or a cron expression: refused, or its occurrences are in order.
pub fn cron(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let start: Timestamp = "2026-10-24T22:59:59.5Z".parse().expect("a time");
    if let Ok(schedule) = text.parse::<Schedule>() {
        in_order(start, |after| schedule.next(after));
    }
    if let Ok(cron) = text.parse::<Cron>() {
        in_order(start, |after| cron.next(after, &TimeZone::UTC));
        let zone = TimeZone::get("Europe/Berlin").expect("it is built in");
        in_order(start, |after| cron.next(after, &zone));
        in_order(Timestamp::MAX, |after| cron.next(after, &zone));
    }
}

fn in_order(start: Timestamp, next: impl Fn(Timestamp) -> Option<Timestamp>) {
    let mut after = start;
    for _ in 0..4 {
        let Some(found) = next(after) else { return };
        assert!(found > after, "{found} is not after {after}");
        after = found;
    }
}
