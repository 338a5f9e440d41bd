//! Checks that all brokers make, with the same messages.

use crate::broker::BrokerError;
use crate::task::Envelope;

/// The highest priority.
pub(crate) const PRIORITY_MAX: u8 = 9;

/// Longest name of a queue or id. Longer ones are mistakes, and RabbitMQ's limit is the same.
const NAME_BYTES_MAX: usize = 255;

/// Default limit for bodies: 16 MiB.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Refuses the whole batch for the first envelope that can't be stored.
pub(crate) fn check(batch: &[Envelope], body_bytes_max: usize) -> Result<(), BrokerError> {
    batch.iter().try_for_each(|envelope| one(envelope, body_bytes_max))
}

fn one(envelope: &Envelope, body_bytes_max: usize) -> Result<(), BrokerError> {
    let refused = |message: String| Err(BrokerError::Refused { message });
    queue_name(&envelope.queue)?;
    if !is_name(envelope.id.as_str()) {
        return refused(format!(
            "the task id {:?} cannot be used: 1 to {NAME_BYTES_MAX} bytes without control characters",
            shortened(envelope.id.as_str())
        ));
    }
    if envelope.priority > PRIORITY_MAX {
        return refused(format!(
            "task {}: priority {} is out of range; 0 to {PRIORITY_MAX}, higher first",
            envelope.id, envelope.priority
        ));
    }
    if envelope.body.len() > body_bytes_max {
        return refused(format!(
            "task {}: its body of {} is above the limit of {}; pass large data by reference (a file, a URL), or raise the \
             broker's limit (--max-body)",
            envelope.id,
            bytes(envelope.body.len()),
            bytes(body_bytes_max)
        ));
    }
    Ok(())
}

/// Refuses names that no queue can have.
pub(crate) fn queue_name(name: &str) -> Result<(), BrokerError> {
    if is_name(name) {
        return Ok(());
    }
    let message = format!(
        "the queue name {:?} cannot be used: 1 to {NAME_BYTES_MAX} bytes without control characters",
        shortened(name)
    );
    Err(BrokerError::Refused { message })
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

fn bytes(count: usize) -> String {
    if count >= 10 << 20 { format!("{} MiB", count >> 20) } else { format!("{count} bytes") }
}
