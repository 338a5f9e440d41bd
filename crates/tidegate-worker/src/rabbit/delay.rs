//! Waiting inside the broker: a ladder of queues a task climbs down until it is due.
//!
//! Level n holds a message for `UNIT << n`, then passes it on to level n-1. A delay is written in binary into the routing key,
//! one word a level: at level n a 1 leads into that level's queue, a 0 straight on to the next. So any delay is the sum of a
//! few waits, every queue has one time for all that is in it (a queue of mixed times would hold the short ones behind the
//! long), and nothing waits in a worker. The exchanges are everybody's, the queues are each task queue's own, so that they can
//! be counted and purged.

use std::time::Duration;

use tidegate_amqp::{Exchange, Queue};

/// What delays are rounded up to.
pub(super) const UNIT: Duration = Duration::from_millis(10);

/// Together they hold a message for nearly two days; what is due later comes back to a worker in between, who sends it round
/// again.
pub(super) const LEVELS: u32 = 24;

const UNITS_MAX: u64 = (1 << LEVELS) - 1;

const DUE: &str = "tidegate.due";

fn exchange(level: u32) -> String {
    format!("tidegate.delay.{level}")
}

/// Where a level leads to.
fn below(level: u32) -> String {
    level.checked_sub(1).map_or_else(|| DUE.to_owned(), exchange)
}

fn words(word: &str, count: u32) -> String {
    format!("{word}.").repeat(count as usize)
}

/// A level's queue.
pub(super) fn queue_name(queue: &str, level: u32) -> String {
    format!("{queue}.delay.{level}")
}

/// Exchange and routing key for a message that waits this long.
pub(super) fn route(queue: &str, delay: Duration) -> (String, String) {
    let units = delay.as_nanos().div_ceil(UNIT.as_nanos()).clamp(1, UNITS_MAX.into()) as u64;
    let bits: String = (0..LEVELS).rev().map(|level| if units >> level & 1 == 1 { "1." } else { "0." }).collect();
    (exchange(units.ilog2()), format!("{bits}{queue}"))
}

/// What everybody's ladders share: the exchanges, and which leads to which by which key.
pub(super) fn exchanges() -> (Vec<Exchange>, Vec<(String, String, String)>) {
    let mut declared = vec![Exchange::durable(DUE, "topic")];
    let mut bound = Vec::new();
    for level in 0..LEVELS {
        declared.push(Exchange::durable(exchange(level), "topic"));
        let skip = format!("{}0.#", words("*", LEVELS - 1 - level));
        bound.push((below(level), exchange(level), skip));
    }
    (declared, bound)
}

/// One level of a ladder, and the exchange and key it is bound by.
pub(super) struct Step {
    pub(super) queue: Queue,
    pub(super) exchange: String,
    pub(super) key: String,
}

/// A task queue's ladder, from the bottom; and the exchange and key the task queue itself is bound by.
pub(super) fn ladder(queue: &str) -> (Vec<Step>, (String, String)) {
    let steps = (0..LEVELS).map(|level| {
        let wait = UNIT.as_millis() as i64;
        let step = Queue::durable(queue_name(queue, level))
            .argument("x-message-ttl", wait << level)
            .argument("x-dead-letter-exchange", below(level).as_str());
        let key = format!("{}1.{}{queue}", words("*", LEVELS - 1 - level), words("*", level));
        Step { queue: step, exchange: exchange(level), key }
    });
    (steps.collect(), (DUE.to_owned(), format!("{}{queue}", words("*", LEVELS))))
}

/// Why a queue of this name can have no ladder.
pub(super) fn unfit(queue: &str) -> Option<&'static str> {
    if queue.contains(['*', '#']) {
        return Some("a name with * or # cannot be told from a pattern");
    }
    // The key is the name behind a word of two bytes a level, and AMQP's keys have 255 bytes.
    (queue.len() + 2 * LEVELS as usize > 255).then_some("a name this long leaves no room for the delay")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a topic pattern matches a key.
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            (["#", rest @ ..], _) => (0..=key.len()).any(|skip| matches(rest, &key[skip..])),
            ([], []) => true,
            ([word, pattern @ ..], [own, key @ ..]) => (*word == "*" || word == own) && matches(pattern, key),
            _ => false,
        }
    }

    fn fits(pattern: &str, key: &str) -> bool {
        matches(&pattern.split('.').collect::<Vec<_>>(), &key.split('.').collect::<Vec<_>>())
    }

    /// Follows a message as the broker would; how long it waits, and through how many queues.
    fn follow(queue: &str, delay: Duration) -> (Duration, u32) {
        let (mut at, key) = route(queue, delay);
        let (_, bound) = exchanges();
        let (steps, (due, due_key)) = ladder(queue);
        let (mut waited, mut queues) = (Duration::ZERO, 0);
        while at != due {
            let level: u32 = at.rsplit('.').next().unwrap().parse().unwrap();
            let into = steps.iter().any(|step| step.exchange == at && fits(&step.key, &key));
            let past = bound.iter().any(|(_, source, pattern)| *source == at && fits(pattern, &key));
            assert!(into != past, "exactly one way leads on from {at} by {key}");
            if into {
                waited += UNIT * (1 << level);
                queues += 1;
            }
            at = below(level);
        }
        assert!(fits(&due_key, &key));
        (waited, queues)
    }

    #[test]
    fn a_delay_is_waited_out_to_the_unit_and_never_cut_short() {
        for ms in [1, 9, 10, 11, 15, 100, 1_000, 12_345, 60_000, 3_600_000, 86_400_000] {
            let delay = Duration::from_millis(ms);
            let (waited, queues) = follow("mail.high", delay);
            assert!(waited >= delay && waited < delay + UNIT, "{delay:?}: {waited:?}");
            assert!(queues <= LEVELS);
        }
        let (waited, _) = follow("q", Duration::from_secs(30 * 86_400));
        assert_eq!(waited, UNIT * ((1 << LEVELS) - 1));
    }

    #[test]
    fn a_queue_named_like_the_end_of_another_gets_nothing_of_its() {
        let (_, key) = route("mail.high", Duration::from_secs(1));
        let (steps, (_, due_key)) = ladder("high");
        assert!(!fits(&due_key, &key));
        assert!(steps.iter().all(|step| !fits(&step.key, &key)));
    }

    #[test]
    fn names_that_would_be_patterns_or_too_long_are_told() {
        assert!(unfit("a.*").is_some() && unfit(&"x".repeat(250)).is_some());
        assert_eq!(unfit("mail.high"), None);
    }
}
