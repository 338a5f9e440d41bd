//! A strict local LLM server, for rehearsals and tests: OpenAI's, Gemini's and Anthropic's shapes, limits that are kept to
//! the nanosecond, latency, and failures on demand.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_rehearsal::{Latency, Limit, Server};
//!
//! let server = Server::builder()
//!     .rpm(Limit::new(100).per(Duration::from_secs(2)))
//!     .latency(Latency::Uniform(Duration::from_millis(50), Duration::from_millis(200)))
//!     .concurrency(200)
//!     .seed(7)
//!     .start_in_thread()
//!     .unwrap();
//! println!("curl {}/rehearsal/stats", server.base_url());
//! assert_eq!(server.stats().arrived, 0);
//! ```
//!
//! Used by tests and benches of programs that call an LLM API, and to rehearse a job before it costs money. There is no
//! model and no streaming. Answers are made from the prompt: the same prompt gets the same answer.
//!
//! # What it judges
//! A request arrives with its last byte. Either all limits admit it, or none has counted it. `/rehearsal/stats` (and
//! [`Handle::stats`]) has the refusals by limit, the fullest window, the peak of concurrency, the share of the quota that
//! was used, and the requests that were sent twice; `?log=N` adds the last N requests. The counting shares no code with the
//! gate and is simple and exact, because it has to find faults in the gate.
//!
//! # Where to read
//! `window.rs` counts one limit, `ledger.rs` decides over all of them and remembers; both are plain values with the time as
//! an argument. `dialect/` is what requests, answers and refusals look like. `server.rs` puts HTTP around it.

#![forbid(unsafe_code)]

mod builder;
mod dialect;
mod error;
mod fault;
mod latency;
mod ledger;
mod server;
mod stats;
mod text;
mod window;

pub use builder::Builder;
pub use error::{ParseError, StartError};
pub use fault::{Counting, Fault, Faults, Refusals};
pub use latency::Latency;
pub use server::{Handle, Server};
pub use stats::{Entry, LimitStats, Refused, Stats};
pub use window::{Limit, Window};
