//! What a caller is given and gives back: plain values.

use std::time::Duration;

use bytes::Bytes;
use tidegate_limit::Backoff;

use crate::estimate::Estimate;
use crate::question::Usage;

/// A request for the server.
#[derive(Clone, Debug)]
pub struct Call {
    /// The path below the caller's base URL, with its leading slash.
    pub path: String,
    /// The body, JSON.
    pub body: Bytes,
    /// What it will cost, at the most. Once some answers have told what their requests really cost, less is booked.
    pub estimate: Estimate,
    /// What the server counts when it admits the request, though the answer turn out shorter: it is never settled below.
    pub admitted_tokens: u64,
}

impl Call {
    /// A request with that body.
    #[must_use]
    pub fn new(path: impl Into<String>, body: Bytes, estimate: Estimate) -> Call {
        Call { path: path.into(), body, estimate, admitted_tokens: 0 }
    }
}

/// What came back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply<T> {
    /// What the reader made of the body.
    pub value: T,
    /// The answer's status; a success.
    pub status: u16,
    /// What it cost, if the server says so.
    pub usage: Option<Usage>,
    /// Requests that were sent for it, this one included.
    pub attempts: u32,
    /// The server's name for it.
    pub request_id: Option<String>,
    /// From sent to answered, the last time.
    pub took: Duration,
}

/// How often something is tried again, by the class of its error. A refusal by a limit (429) uses up no attempt: the gate
/// finds the limit, and the request waits for its turn.
///
/// Neither does an outage. Once the server has answered, a request that cannot be sent is tried until it can, and while the
/// gate takes the server to be down, time-outs, resets and answers that say that the server is not there (502, 503, 504)
/// do not count. One request that alone fails again and again is an exception: its attempts count. A server that was never
/// reached is not waited for: once a request has used up its attempts, the call fails with
/// [`CallError::Shut`](crate::CallError::Shut).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// For connections that fail, time-outs, servers' faults and overload: delays with full jitter.
    pub backoff: Backoff,
    /// How long an outage is waited for: a server that has answered before and is down now. After that, calls fail with
    /// [`CallError::Shut`](crate::CallError::Shut).
    pub outage_max: Duration,
    /// For answers that make no sense; each of them is paid for.
    pub garbled_max: u32,
}

impl Retries {
    /// How long an outage is waited for, unless set: a night.
    pub const OUTAGE_MAX: Duration = Duration::from_secs(12 * 3600);
}

impl Default for Retries {
    fn default() -> Retries {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).with_retries(5);
        Retries { backoff, outage_max: Retries::OUTAGE_MAX, garbled_max: 2 }
    }
}

/// What a caller has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallerStats {
    /// Requests sent.
    pub sent: u64,
    /// Of those, answered with success.
    pub answered: u64,
    /// Of those, refused by a limit.
    pub throttled: u64,
    /// Of those, failed in a way that passes.
    pub failed: u64,
    /// Tokens that the answers say were counted.
    pub usage: Usage,
}
