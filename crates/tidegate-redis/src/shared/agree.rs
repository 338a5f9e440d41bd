//! Checks before the first admission: Redis can be reached and used, and all machines state the same limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_loop::timeout;

use super::SharedGate;
use super::spec::{micros, state_key};
use crate::error::{CallError, ConnectError};
use crate::wire::{Command, Value};

const TEXT: &str = include_str!("agree.lua");

/// How long the stated limits are kept; as long as the gate's unused state.
const KEPT: Duration = Duration::from_secs(8 * 24 * 3600);

/// Other machines may be between two calls. Without a call for this long (or for the longest window), none is left.
const OTHERS_COUNT: Duration = Duration::from_secs(60);

/// Why a shared gate cannot be used as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgreeError {
    /// There was no connection in time, or there will be none without a change of configuration.
    Connect(ConnectError),
    /// Redis did not answer in time, or refused.
    Call(CallError),
    /// Redis accepts connections and does not answer this call.
    Silent {
        /// The address.
        address: String,
        /// How long the call waited.
        waited: Duration,
    },
    /// Other machines use a gate of this name with other limits.
    OtherLimits {
        /// The gate's name.
        gate: Arc<str>,
        /// The limits of the other machines.
        there: String,
        /// The limits stated here.
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
                "other machines share limits named {gate:?} that differ. There: {there}. Here: {here}. State the same limits, \
                 choose another name, or wait until those machines have been stopped for a minute"
            ),
        }
    }
}

impl std::error::Error for AgreeError {}

impl SharedGate {
    /// Checks that Redis can be used and that all machines state the same limits under this name. The first machine states
    /// them; they hold until no machine has used them for a minute (or for the longest window, days excepted). Waits for a
    /// connection for `patience` at most.
    ///
    /// # Errors
    /// [`AgreeError`], with the way out.
    ///
    /// # Cancel safety
    /// Safe: it can be called again.
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
                there: shared.client.redact(&String::from_utf8_lossy(&there)).into_owned(),
                here,
            }),
            _ => Ok(()),
        }
    }
}
