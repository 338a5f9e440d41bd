//! One task a key, by a queue that stands for the key: it is made by whoever takes the key, its dead-letter key names the task,
//! and it expires by itself. A second taker asks for the same queue with another name in it, which the broker refuses, saying
//! whose it is: one request, atomic, and nothing to keep in step.

use tidegate_amqp::{Connection, Error, Queue};

use super::link::of_request;
use crate::broker::BrokerError;
use crate::task::{TaskId, Unique};

/// The broker's own limit for an expiry.
const HOLD_MS_MAX: u128 = (1 << 32) - 1;

const HOLDER: &str = "x-dead-letter-routing-key";

/// Keys may be longer than a queue's name, so it is named by a digest: two of FNV's, from different starts.
fn name(key: &str) -> String {
    let digest =
        |start: u64| key.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("tidegate.unique.{:016x}{:016x}", digest(0xcbf2_9ce4_8422_2325), digest(0x6c62_272e_07bb_0142))
}

fn claim(unique: &Unique, id: &TaskId) -> Queue {
    let hold = unique.hold.as_millis().clamp(1, HOLD_MS_MAX) as i64;
    Queue::durable(name(&unique.key))
        .argument("x-expires", hold)
        .argument("x-dead-letter-exchange", "")
        .argument(HOLDER, id.as_str())
}

/// Takes the key; or says who has it.
pub(super) async fn take(connection: &Connection, unique: &Unique, id: &TaskId) -> Result<Option<TaskId>, BrokerError> {
    let taken = connection.declare(&claim(unique, id)).await;
    connection.try_recv_all();
    let Err(error) = taken else { return Ok(None) };
    let Error::Refused { refusal, .. } = &error else { return Err(of_request(&error)) };
    match refusal.difference() {
        Some(difference) if difference.argument == HOLDER => Ok(Some(TaskId::from(difference.current.as_str()))),
        // Held for another time than we would hold it for; whose it is the broker does not get to say.
        Some(_) => holder_whatever_the_hold(connection, unique, id, &difference_hold(refusal)).await,
        None => Err(of_request(&error)),
    }
}

/// The expiry that the other one asked for.
fn difference_hold(refusal: &tidegate_amqp::Refusal) -> Option<i64> {
    refusal.difference()?.current.parse().ok()
}

async fn holder_whatever_the_hold(
    connection: &Connection,
    unique: &Unique,
    id: &TaskId,
    hold: &Option<i64>,
) -> Result<Option<TaskId>, BrokerError> {
    let Some(hold) = hold else { return Ok(Some(id.clone())) };
    let asked = claim(unique, id).argument("x-expires", *hold);
    let taken = connection.declare(&asked).await;
    connection.try_recv_all();
    match taken {
        // It expired in between, and is ours now.
        Ok(_) => Ok(None),
        Err(Error::Refused { refusal, .. }) => {
            let holder = refusal.difference().filter(|difference| difference.argument == HOLDER);
            Ok(Some(holder.map_or_else(|| id.clone(), |difference| TaskId::from(difference.current.as_str()))))
        }
        Err(error) => Err(of_request(&error)),
    }
}

/// Lets go of the key if the task still has it.
pub(super) async fn release(connection: &Connection, unique: &Unique, id: &TaskId) -> Result<(), BrokerError> {
    if take(connection, unique, id).await?.is_none() {
        connection.delete(&name(&unique.key)).await.map_err(|error| of_request(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_have_names_of_their_own() {
        let long = "k".repeat(10_000);
        let names: std::collections::HashSet<String> = ["", "a", "b", "ab", &long].map(name).into();
        assert_eq!(names.len(), 5);
        assert!(names.iter().all(|name| name.len() == 48));
    }
}
