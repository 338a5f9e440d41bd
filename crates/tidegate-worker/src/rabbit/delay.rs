//! Delays inside the broker: a ladder of queues that a task climbs down until it is due.
//!
//! Rung n holds a message for `UNIT << n`. A delay is written in binary into the routing key, one word per rung; exchange n looks
//! at the words below n and sends the message to the rung of the highest 1, or to its target if there is none. So any delay is
//! the sum of a few waits, each queue has one TTL for all its messages (a queue with mixed TTLs would hold the short ones behind
//! the long ones), and nothing waits in a worker. The exchanges are shared by all task queues. The rungs belong to one task
//! queue, so that they can be counted and purged, and so that a task queue that takes nothing holds up no other.
//!
//! The key ends with the name of the target, the queue that the task goes to when it is due: `tidegate.due.QUEUE`, which workers
//! consume beside the task queue, or the task queue itself where workers of other frameworks consume it (`QueueKind::target`).
//! The first has no length limit. The second may refuse a due task, which RabbitMQ then repeats every 180 seconds.
//!
//! Rungs are quorum queues that dead-letter at least once, whatever the kind of the task queue: a message leaves its rung when
//! the next queue has confirmed it. That needs `reject-publish` and RabbitMQ 3.10; older brokers get classic rungs, which lose
//! messages when the broker is killed.
//!
//! Each ladder has an exchange without bindings, its mark, which is made before its first rung. It says that rungs were made, so
//! that those that were deleted are restored, whichever they are. To look at all rungs would close a channel for each that is
//! missing, 24 times for a queue that has no ladder.
//!
//! Version 0.1.0 used classic rungs `QUEUE.delay.n` that ended in the task queue. Their bindings are left as they are, so they
//! drain by themselves; nothing is written to them.

use std::time::Duration;

use tidegate_amqp::{Exchange, Queue};

/// Delays are rounded up to a multiple of this.
pub(super) const UNIT: Duration = Duration::from_millis(10);

/// Together the rungs hold a message for nearly two days. A task that is due later comes back to a worker in between, which
/// publishes it again.
pub(super) const LEVELS: u32 = 24;

const UNITS_MAX: u64 = (1 << LEVELS) - 1;

/// The first RabbitMQ whose quorum queues dead-letter at least once.
const AT_LEAST_ONCE_SINCE: (u32, u32) = (3, 10);

/// What the rungs of a ladder are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rungs {
    /// Quorum queues that keep a message until the next queue has confirmed it.
    AtLeastOnce,
    /// Classic queues: a killed broker, or a next queue that is missing, loses messages.
    AtMostOnce,
}

impl Rungs {
    /// The best that a broker of this version has; a version that cannot be read counts as new.
    pub(super) fn of_version(version: Option<&str>) -> Rungs {
        let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
        let mut parts = version.unwrap_or_default().split('.');
        match (number(parts.next()), number(parts.next())) {
            (Some(major), Some(minor)) if (major, minor) < AT_LEAST_ONCE_SINCE => Rungs::AtMostOnce,
            _ => Rungs::AtLeastOnce,
        }
    }

    fn queue(self, name: String) -> Queue {
        match self {
            Rungs::AtLeastOnce => Queue::durable(name)
                .argument("x-queue-type", "quorum")
                .argument("x-dead-letter-strategy", "at-least-once")
                .argument("x-overflow", "reject-publish"),
            Rungs::AtMostOnce => Queue::durable(name),
        }
    }
}

/// Looks at the words below `level`; the highest one is where delays enter.
fn exchange(level: u32) -> String {
    format!("tidegate.delay2.{level}")
}

/// A rung of the task queue's ladder. The name does not start with that of the task queue: a policy for `^mail` must not match
/// the rungs of `mail`, because an overflow policy ends at-least-once dead-lettering.
pub(super) fn rung_name(queue: &str, level: u32) -> String {
    format!("tidegate.delay2.{queue}.{level}")
}

/// The exchange that says that a task queue has a ladder. Its name differs from that of each level's exchange, whatever the name
/// of the queue.
pub(super) fn mark_name(queue: &str) -> String {
    format!("tidegate.delayed.{queue}")
}

pub(super) fn mark(queue: &str) -> Exchange {
    Exchange::durable(mark_name(queue), "direct")
}

/// A rung of a ladder that version 0.1.0 made.
pub(super) fn old_rung_name(queue: &str, level: u32) -> String {
    format!("{queue}.delay.{level}")
}

/// Where the tasks of a queue wait once they are due. Workers consume it beside the task queue.
pub(super) fn due_name(queue: &str) -> String {
    format!("tidegate.due.{queue}")
}

fn words(word: &str, count: u32) -> String {
    format!("{word}.").repeat(count as usize)
}

/// Exchange and routing key for a message that waits this long before it goes to the target.
pub(super) fn route(target: &str, delay: Duration) -> (String, String) {
    let units = delay.as_nanos().div_ceil(UNIT.as_nanos()).clamp(1, UNITS_MAX.into()) as u64;
    let bits: String = (0..LEVELS).rev().map(|level| if units >> level & 1 == 1 { "1." } else { "0." }).collect();
    (exchange(LEVELS), format!("{bits}{target}"))
}

/// What all ladders share.
pub(super) fn exchanges() -> Vec<Exchange> {
    (0..=LEVELS).map(|level| Exchange::durable(exchange(level), "topic")).collect()
}

/// A queue bound to an exchange.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) queue: String,
    pub(super) exchange: String,
    pub(super) key: String,
}

/// The bindings that lead due tasks from each exchange to their target.
pub(super) fn due_bindings(target: &str) -> Vec<Binding> {
    let binding = |from| Binding {
        queue: target.to_owned(),
        exchange: exchange(from),
        key: format!("{}{}{target}", words("*", LEVELS - from), words("0", from)),
    };
    (0..=LEVELS).map(binding).collect()
}

/// A task queue's rungs, from the lowest, and their bindings for tasks of one target.
pub(super) fn ladder(queue: &str, target: &str, rungs: Rungs) -> (Vec<Queue>, Vec<Binding>) {
    let rung = |level| {
        rungs
            .queue(rung_name(queue, level))
            .argument("x-message-ttl", (UNIT.as_millis() as i64) << level)
            .argument("x-dead-letter-exchange", exchange(level).as_str())
    };
    // The zeros are spelled out: each step is one binding, which costs the broker a quarter of a chain of exchanges.
    let binding = |from: u32, level: u32| {
        let (passed, zeros, below) = (words("*", LEVELS - from), words("0", from - 1 - level), words("*", level));
        let key = format!("{passed}{zeros}1.{below}{target}");
        Binding { queue: rung_name(queue, level), exchange: exchange(from), key }
    };
    let bindings = (0..=LEVELS).flat_map(|from| (0..from).map(move |level| binding(from, level)));
    ((0..LEVELS).map(rung).collect(), bindings.collect())
}

/// Why tasks of a queue of this name cannot be delayed.
pub(super) fn unfit(queue: &str) -> Option<&'static str> {
    if queue.contains(['*', '#']) {
        return Some("a name with * or # cannot be told from a pattern");
    }
    // The key is the target behind a word of two bytes per level, and AMQP's keys have 255 bytes.
    (due_name(queue).len() + 2 * LEVELS as usize > 255).then_some("a name this long leaves no room for the delay")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a topic pattern matches a key.
    fn matches(pattern: &str, key: &str) -> bool {
        let (pattern, key): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), key.split('.').collect());
        assert!(!pattern.contains(&"#"), "{pattern:?}");
        pattern.len() == key.len() && pattern.iter().zip(&key).all(|(word, own)| *word == "*" || word == own)
    }

    fn argument(queue: &Queue, name: &str) -> String {
        use tidegate_amqp::types::AMQPValue;
        match queue.arguments.inner().get(name) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            Some(AMQPValue::LongLongInt(number)) => number.to_string(),
            other => panic!("{name} of {}: {other:?}", queue.name),
        }
    }

    /// Follows a message as the broker would; how long it waits, and through how many rungs.
    fn follow(queue: &str, target: &str, delay: Duration) -> (Duration, u32) {
        let (mut at, key) = route(target, delay);
        // Both targets are in use.
        let (rungs, mut bindings) = ladder(queue, &due_name(queue), Rungs::AtLeastOnce);
        bindings.extend(ladder(queue, queue, Rungs::AtLeastOnce).1);
        bindings.extend(due_bindings(&due_name(queue)));
        bindings.extend(due_bindings(queue));
        let (mut waited, mut passed) = (Duration::ZERO, 0);
        loop {
            assert!(exchanges().iter().any(|exchange| exchange.name == at));
            let next: Vec<_> =
                bindings.iter().filter(|binding| binding.exchange == at && matches(&binding.key, &key)).collect();
            assert_eq!(next.len(), 1, "exactly one way leads on from {at} by {key}: {next:?}");
            if next[0].queue == target {
                return (waited, passed);
            }
            let rung = rungs.iter().find(|rung| rung.name == next[0].queue).unwrap();
            waited += Duration::from_millis(argument(rung, "x-message-ttl").parse().unwrap());
            at = argument(rung, "x-dead-letter-exchange");
            passed += 1;
        }
    }

    #[test]
    fn a_delay_is_waited_out_to_the_unit_and_never_cut_short() {
        for target in ["mail.high", &due_name("mail.high")] {
            for ms in [1, 9, 10, 11, 15, 100, 1_000, 12_345, 60_000, 3_600_000, 86_400_000] {
                let delay = Duration::from_millis(ms);
                let (waited, rungs) = follow("mail.high", target, delay);
                assert!(waited >= delay && waited < delay + UNIT, "{delay:?}: {waited:?}");
                assert!(rungs <= LEVELS);
            }
        }
        let (waited, rungs) = follow("q", &due_name("q"), Duration::from_secs(30 * 86_400));
        assert_eq!((waited, rungs), (UNIT * ((1 << LEVELS) - 1), LEVELS));
    }

    #[test]
    fn a_rung_keeps_its_messages_until_the_next_queue_has_them() {
        let (rungs, _) = ladder("mail", "mail", Rungs::AtLeastOnce);
        for rung in rungs {
            assert_eq!(argument(&rung, "x-queue-type"), "quorum");
            // Without the one, RabbitMQ falls back from the other without an error.
            assert_eq!(argument(&rung, "x-overflow"), "reject-publish");
            assert_eq!(argument(&rung, "x-dead-letter-strategy"), "at-least-once");
        }
    }

    #[test]
    fn a_queue_named_like_the_end_of_another_gets_nothing_of_its() {
        let (_, key) = route("mail.high", Duration::from_secs(1));
        let (_, mut bindings) = ladder("high", "high", Rungs::AtLeastOnce);
        bindings.extend(due_bindings("high"));
        assert!(bindings.iter().all(|binding| !matches(&binding.key, &key)));
    }

    #[test]
    fn only_brokers_before_3_10_get_classic_rungs() {
        for old in ["3.9.29", "3.8.0", "2.8"] {
            assert_eq!(Rungs::of_version(Some(old)), Rungs::AtMostOnce, "{old}");
        }
        for new in [Some("3.10.8"), Some("3.13.0-rc.1"), Some("4.0.2"), Some("main"), None] {
            assert_eq!(Rungs::of_version(new), Rungs::AtLeastOnce, "{new:?}");
        }
    }

    #[test]
    fn names_that_would_be_patterns_or_too_long_are_told() {
        assert!(unfit("a.*").is_some() && unfit(&"x".repeat(250)).is_some());
        assert_eq!(unfit("mail.high"), None);
        let longest = "x".repeat(255 - 48 - 13);
        assert_eq!(unfit(&longest), None);
        assert!(rung_name(&longest, LEVELS - 1).len() <= 255 && due_name(&longest).len() <= 255);
    }
}
