//! One schedule: a name, a cron expression in a time zone, and the task it publishes.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::expression::{Cron, CronError};
use crate::json;
use crate::task::Task;

/// What is published when. Written as `NAME: CRON [ZONE] => TASK [queue=QUEUE] [ARGUMENTS]`, the arguments as a JSON array
/// or object; the zone is UTC and the queue `default` unless said.
///
/// ```
/// use tidegate_worker::Schedule;
///
/// let nightly: Schedule = "nightly: 0 3 * * * Europe/Berlin => report.build queue=slow [\"all\"]".parse().unwrap();
/// assert_eq!((nightly.name(), nightly.queue()), ("nightly", "slow"));
/// let now = "2026-07-01T00:00:00Z".parse().unwrap();
/// assert_eq!(nightly.next(now).unwrap().to_string(), "2026-07-01T01:00:00Z");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub(super) name: String,
    cron: Cron,
    zone: TimeZone,
    pub(super) queue: String,
    pub(super) task: Task,
}

impl Schedule {
    /// Its name, by which workers agree that it is the same.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its tasks go.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The next occurrence behind `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.cron.next(after, &self.zone)
    }
}

impl FromStr for Schedule {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Schedule, CronError> {
        let wrong = |why: String| CronError { message: format!("the schedule '{text}' {why}") };
        let form = || wrong("is not of the form 'NAME: CRON [ZONE] => TASK [queue=QUEUE] [ARGUMENTS]'".to_owned());
        let (when, what) = text.split_once("=>").ok_or_else(form)?;
        let (name, when) = when.split_once(':').ok_or_else(form)?;
        let words: Vec<&str> = when.split_whitespace().collect();
        let fields = if words.first().is_some_and(|word| word.starts_with('@')) { 1 } else { 5 };
        if name.trim().is_empty() || words.len() < fields || words.len() > fields + 1 {
            return Err(form());
        }
        let cron = words[..fields].join(" ").parse().map_err(|error: CronError| wrong(format!("is wrong: {error}")))?;
        let zone = words.get(fields).map_or(Ok(TimeZone::UTC), |zone| {
            TimeZone::get(zone).map_err(|_| wrong(format!("names an unknown time zone: {zone}")))
        })?;
        let (task, rest) = split_word(what);
        if task.is_empty() {
            return Err(form());
        }
        let (queue, rest) = match rest.strip_prefix("queue=") {
            Some(rest) => split_word(rest),
            None => ("default", rest),
        };
        let mut task = Task::new(task);
        if !rest.is_empty() {
            match json::from_slice(rest.as_bytes()) {
                Ok(Value::Array(args)) => task.args = args,
                Ok(Value::Object(kwargs)) if !json::is_integer(&kwargs) => task.kwargs = kwargs,
                _ => return Err(wrong(format!("has arguments that are no JSON array or object: {rest}"))),
            }
        }
        Ok(Schedule { name: name.trim().to_owned(), cron, zone, queue: queue.to_owned(), task })
    }
}

/// The first word, and what is behind it.
fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        let plain: Schedule = "tick: @hourly => beat".parse().unwrap();
        assert_eq!((plain.queue.as_str(), plain.task.name.as_str(), plain.zone), ("default", "beat", TimeZone::UTC));
        let keyed: Schedule = "k: */5 * * * * => mail {\"to\": \"ann\"}".parse().unwrap();
        assert_eq!(keyed.task.kwargs["to"], "ann");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let complaint = |text: &str| text.parse::<Schedule>().unwrap_err().message;
        for text in ["nightly", "a: * * * * * b", ": @daily => x", "a: * * * => x", "a: @daily =>"] {
            assert!(complaint(text).contains("is not of the form"), "{text}");
        }
        assert!(complaint("a: 61 * * * * => x").ends_with("is wrong: the minute '61' is not in 0 to 59"));
        assert!(complaint("a: @daily Mars/Olympus => x").contains("unknown time zone: Mars/Olympus"));
        assert!(complaint("a: @daily => x 7").contains("no JSON array or object: 7"));
    }
}
