//! What a worker counts about itself, and how Prometheus reads it. Counting is a few additions a task, so it is always on.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::hash::QuickMap;
use crate::outcome::OutcomeKind;

/// Task names come from outside: beyond this many they are counted together, as `other`.
const NAMES_MAX: usize = 200;

/// Longer names are counted as `other`.
const NAME_BYTES_MAX: usize = 256;

const KINDS: usize = OutcomeKind::ALL.len();

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// The worker's counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: Cell<u64>,
    pub(crate) running: Cell<u64>,
    pub(crate) running_peak: Cell<u64>,
    pub(crate) retried: Cell<u64>,
    pub(crate) returned: Cell<u64>,
    pub(crate) dead: Cell<u64>,
    /// Settlements that came too late: another worker has the task.
    pub(crate) lost: Cell<u64>,
    /// Dropped by the broker because they had waited too long.
    pub(crate) expired: Cell<u64>,
    pub(crate) batches_received: Cell<u64>,
    pub(crate) batches_settled: Cell<u64>,
    pub(crate) broker_errors: Cell<u64>,
    pub(crate) watermark_pauses: Cell<u64>,
    pub(crate) scheduled: Cell<u64>,
    pub(crate) waiting_for_limit: Cell<u64>,
    pub(crate) last_received: Cell<Option<Instant>>,
    pub(crate) last_settled: Cell<Option<Instant>>,
    /// Since when the broker has answered nothing but errors.
    pub(crate) failing_since: Cell<Option<Instant>>,
    by_name: RefCell<QuickMap<Box<str>, [u64; KINDS]>>,
    pub(crate) queued: Histogram,
    pub(crate) ran: Histogram,
}

pub(crate) fn add(cell: &Cell<u64>, by: u64) {
    cell.set(cell.get() + by);
}

impl Counters {
    pub(crate) fn settled(&self, name: &str, kind: OutcomeKind, count: u64) {
        let mut names = self.by_name.borrow_mut();
        if let Some(counts) = names.get_mut(name) {
            counts[kind as usize] += count;
            return;
        }
        let name = if names.len() < NAMES_MAX && name.len() <= NAME_BYTES_MAX { name } else { "other" };
        names.entry(name.into()).or_insert([0; KINDS])[kind as usize] += count;
    }

    pub(crate) fn begun(&self) {
        add(&self.running, 1);
        self.running_peak.set(self.running_peak.get().max(self.running.get()));
    }

    pub(crate) fn ended(&self) {
        self.running.set(self.running.get() - 1);
    }

    /// How many ended in which way, all names together.
    pub(crate) fn by_kind(&self) -> [(OutcomeKind, u64); KINDS] {
        let names = self.by_name.borrow();
        OutcomeKind::ALL.map(|kind| (kind, names.values().map(|counts| counts[kind as usize]).sum()))
    }

    /// How many ended, by name.
    #[cfg(feature = "amqp")]
    pub(crate) fn totals(&self) -> Vec<(String, u64)> {
        let names = self.by_name.borrow();
        let mut totals: Vec<_> = names.iter().map(|(name, counts)| (name.to_string(), counts.iter().sum())).collect();
        totals.sort();
        totals
    }

    /// Prometheus's text, without what only the broker, the mode and the loop know.
    pub(crate) fn write(&self, text: &mut Text) {
        text.counter("tasks_received_total", "Tasks received from the broker.", self.received.get());
        text.gauge("tasks_running", "Tasks that hold a slot now.", self.running.get() as f64);
        text.head(
            "tasks_settled_total",
            "counter",
            "Tasks whose end the broker has confirmed, by handler and outcome.",
        );
        let names = self.by_name.borrow();
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort();
        for (name, counts) in sorted {
            for (kind, count) in OutcomeKind::ALL.into_iter().zip(counts).filter(|(_, count)| **count > 0) {
                let labels = format!("task=\"{}\",outcome=\"{}\"", escaped(name), kind.as_str());
                text.sample("tasks_settled_total", &labels, *count as f64);
            }
        }
        text.counter("tasks_retried_total", "Tasks sent back for another try.", self.retried.get());
        text.counter("tasks_returned_total", "Tasks returned to their queues uncounted.", self.returned.get());
        text.counter("tasks_dead_total", "Tasks kept as dead letters.", self.dead.get());
        text.counter(
            "tasks_lost_total",
            "Settlements that came too late: another worker has the task.",
            self.lost.get(),
        );
        text.counter(
            "tasks_expired_total",
            "Tasks the broker dropped because they waited too long.",
            self.expired.get(),
        );
        text.counter("tasks_scheduled_total", "Tasks published by schedules.", self.scheduled.get());
        text.gauge("tasks_waiting_for_limit", "Tasks that wait at a gate.", self.waiting_for_limit.get() as f64);
        text.counter("receives_total", "Batches received.", self.batches_received.get());
        text.counter("settles_total", "Batches settled, each in one write.", self.batches_settled.get());
        text.counter(
            "broker_errors_total",
            "Errors of the broker, those that were tried again too.",
            self.broker_errors.get(),
        );
        text.counter("watermark_pauses_total", "Times the high-water mark was reached.", self.watermark_pauses.get());
        text.histogram("task_queued_seconds", "From a task's publication to its start.", &self.queued);
        text.histogram("task_run_seconds", "From a task's start to its end.", &self.ran);
    }
}

/// Counts by size.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Cell<u64>; BOUNDS.len()],
    count: Cell<u64>,
    sum: Cell<f64>,
}

impl Histogram {
    pub(crate) fn add(&self, value: Duration) {
        let seconds = value.as_secs_f64();
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            add(&self.buckets[bucket], 1);
        }
        add(&self.count, 1);
        self.sum.set(self.sum.get() + seconds);
    }
}

/// Prometheus's text format, version 0.0.4. Every name begins with the same prefix.
#[derive(Debug)]
pub struct Text {
    prefix: &'static str,
    text: String,
}

/// The prefix of a worker's figures.
pub(crate) const PREFIX: &str = "tidegate_worker_";

impl Text {
    /// A page without figures.
    #[must_use]
    pub fn new(prefix: &'static str) -> Text {
        Text { prefix, text: String::new() }
    }

    /// Begins a figure: its kind (`counter`, `gauge`) and what it means.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// Adds a value of the figure begun last. Label values must be escaped: [`escape_label`](crate::escape_label).
    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let (open, close) = if labels.is_empty() { ("", "") } else { ("{", "}") };
        let _ = writeln!(self.text, "{}{name}{open}{labels}{close} {value}", self.prefix);
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", value as f64);
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(&histogram.buckets) {
            below += count.get();
            self.sample(&bucket, &format!("le=\"{bound}\""), below as f64);
        }
        self.sample(&bucket, "le=\"+Inf\"", histogram.count.get() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum.get());
        self.sample(&format!("{name}_count"), "", histogram.count.get() as f64);
    }

    /// Returns the page.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// Returns `text` as the value of a label: a name from outside must not break the line, nor move the cursor of a terminal on
/// which the page is shown.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' => value.push_str("\\\\"),
            '"' => value.push_str("\\\""),
            '\n' => value.push_str("\\n"),
            // Control characters, and those that change the direction of the text around them.
            _ if char.is_control()
                || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}') =>
            {
                let _ = write!(value, "\\\\u{{{:x}}}", u32::from(char));
            }
            _ => value.push(char),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_outside_is_one_label_of_one_line() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
        assert_eq!(escaped("\x1b[2J\u{9b}\u{202e}潮"), "\\\\u{1b}[2J\\\\u{9b}\\\\u{202e}潮");
        let counters = Counters::default();
        counters.settled(&"x".repeat(100_000), OutcomeKind::Rejected, 1);
        let mut text = Text::new(PREFIX);
        counters.write(&mut text);
        assert!(text.finish().contains("{task=\"other\",outcome=\"rejected\"} 1\n"));
    }

    #[test]
    fn outcomes_are_counted_by_name_and_the_names_are_bounded() {
        let counters = Counters::default();
        for n in 0..NAMES_MAX + 50 {
            counters.settled(&format!("task{n}"), OutcomeKind::Success, 1);
        }
        counters.settled("task0", OutcomeKind::Failure, 1);
        let mut text = Text::new(PREFIX);
        counters.write(&mut text);
        let text = text.finish();
        assert!(text.contains("tidegate_worker_tasks_settled_total{task=\"task0\",outcome=\"failure\"} 1\n"), "{text}");
        assert!(
            text.contains("tidegate_worker_tasks_settled_total{task=\"other\",outcome=\"success\"} 50\n"),
            "{text}"
        );
        let kinds = counters.by_kind();
        assert_eq!(kinds[0], (OutcomeKind::Success, NAMES_MAX as u64 + 50));
    }

    #[test]
    fn a_histogram_counts_what_is_below_each_bound() {
        let histogram = Histogram::default();
        for millis in [1, 3, 40, 7_200_000] {
            histogram.add(Duration::from_millis(millis));
        }
        let mut text = Text::new(PREFIX);
        text.histogram("t", "h", &histogram);
        let text = text.finish();
        for line in ["t_bucket{le=\"0.001\"} 1", "t_bucket{le=\"0.005\"} 2", "t_bucket{le=\"3600\"} 3"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains("t_bucket{le=\"+Inf\"} 4\n") && text.contains("t_count 4\n"), "{text}");
    }

    #[test]
    fn a_name_from_outside_cannot_break_a_line() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
