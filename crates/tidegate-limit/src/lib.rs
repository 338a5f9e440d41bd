//! The gate: layered limits, decided at once and waited for exactly.
//!
//! A request to an LLM API is bounded by many things: the slots of its file, the slots of the process, requests a
//! minute, tokens a minute, requests a day. They are one decision here. Nobody holds a slot while it waits for tokens,
//! nothing is counted for who is refused, and who waits is woken at the instant there is room, not at the next poll.

#![forbid(unsafe_code)]

mod backoff;
pub mod feedback;

pub use backoff::Backoff;
