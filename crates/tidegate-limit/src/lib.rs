//! The gate: layered limits, decided at once and waited for exactly.
//!
//! A request to an LLM API is bounded by many things: the slots of its file, the slots of the process, requests a
//! minute, tokens a minute, requests a day. They are one decision here. Nobody holds a slot while it waits for tokens,
//! nothing is counted for who is refused, and who waits is woken at the instant there is room, not at the next poll.

#![forbid(unsafe_code)]

pub mod adaptive;
mod backoff;
mod builder;
mod cost;
mod enter;
mod error;
pub mod feedback;
mod gate;
mod hold;
pub mod journal;
mod lease;
mod ledger;
mod limit;
mod limits;
mod line;
mod margin;
mod moment;
#[cfg(feature = "tidegate-loop")]
mod on_tidegate;
#[cfg(feature = "tokio")]
mod on_tokio;
mod pump;
mod scope;
mod slot;
mod stats;
#[cfg(feature = "sqlite")]
pub mod store;
mod timer;
mod window;

pub use backoff::Backoff;
pub use builder::Builder;
pub use cost::{Cost, Dimension};
pub use enter::Enter;
pub use error::{ConfigError, EnterError, TryEnterError, UnknownLimit};
pub use gate::Gate;
pub use lease::Lease;
pub use limit::{Limit, Oversize, Start, Window};
pub use limits::{Booking, Denied, LimitId, Limits, Until};
pub use moment::Moment;
#[cfg(feature = "tidegate-loop")]
pub use on_tidegate::LoopTimer;
#[cfg(feature = "tokio")]
pub use on_tokio::TokioTimer;
pub use pump::SkipAhead;
pub use scope::Scope;
pub use stats::{LimitSnapshot, ScopeSnapshot, Snapshot};
pub use timer::{ThreadTimer, Timer};
