//! Before anybody is let in: whether there is a Redis, whether it lets us, and whether the others mean the same limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_loop::timeout;

use super::SharedGate;
use super::spec::{micros, state_key};
use crate::error::{CallError, ConnectError};
use crate::wire::{Command, Value};

const TEXT: &str = include_str!("agree.lua");

/// As long as the state itself is kept when nobody uses it.
const KEPT: Duration = Duration::from_secs(8 * 24 * 3600);

/// Others may be between two calls; after this, or a window if that is longer, there are none.
const OTHERS_COUNT: Duration = Duration::from_secs(60);

/// Why a shared gate cannot be used as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgreeError {
    /// There is no connection, and the time for one is over; or there never will be one.
    Connect(ConnectError),
    /// Redis did not answer in time, or refused.
    Call(CallError),
    /// It answers connections, but not this.
    Silent {
        /// Where.
        address: String,
        /// For how long.
        waited: Duration,
    },
    /// Machines that use a gate of this name now mean other limits.
    OtherLimits {
        /// The gate's name.
        gate: Arc<str>,
        /// What they mean.
        there: String,
        /// What is meant here.
        here: String,
    },
}

impl fmt::Display for AgreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgreeError::Connect(error) => error.fmt(f),
            AgreeError::Call(error) => error.fmt(f),
            AgreeError::Silent { address, waited } => write!(f, "{address} has not answered for {waited:?}"),
            AgreeError::OtherLimits { gate, there, here } => write!(
                f,
                "others share limits under the name {gate:?} that are not these. There: {there}. Here: {here}. State the same \
                 limits, choose another name, or wait until the others have been gone for a minute"
            ),
        }
    }
}

impl std::error::Error for AgreeError {}

impl SharedGate {
    /// Makes sure that Redis can be used and that all machines mean the same limits under this name: the first states them,
    /// and they hold until nobody has used them for a minute (or for the longest window, but for days). Waits for a
    /// connection for `patience` at most.
    ///
    /// # Errors
    /// [`AgreeError`], with the way out.
    ///
    /// # Cancel safety
    /// Safe: it can be done again.
    pub async fn agree(&self, patience: Duration) -> Result<(), AgreeError> {
        let shared = &self.handle.shared;
        let (here, others_count) = {
            let core = shared.core.borrow();
            (core.spec.describe(), core.spec.longest_window().max(OTHERS_COUNT))
        };
        let asking = async {
            shared.client.ready().await.map_err(AgreeError::Connect)?;
            let command = Command::new("EVAL")
                .arg(TEXT)
                .arg_int(1)
                .arg(state_key(&shared.name))
                .arg(&here)
                .arg_int(micros(others_count) as i64)
                .arg_int(KEPT.as_millis() as i64);
            shared.client.call(command).await.map_err(AgreeError::Call)
        };
        let answer = match timeout(patience, asking).await {
            Ok(answer) => answer?,
            Err(_) => {
                return Err(match shared.client.fault() {
                    Some(fault) => AgreeError::Connect(fault),
                    None => AgreeError::Silent { address: shared.client.address().to_owned(), waited: patience },
                });
            }
        };
        match answer {
            Value::Bytes(there) if !there.is_empty() => Err(AgreeError::OtherLimits {
                gate: shared.name.clone(),
                there: String::from_utf8_lossy(&there).into_owned(),
                here,
            }),
            _ => Ok(()),
        }
    }
}
