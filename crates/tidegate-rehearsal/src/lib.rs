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
//! Called by the tests and benches of whatever talks to an LLM API, and by people who want to see what a job would do
//! before it costs money. It leaves out models, streaming, and everything that would need one. Answers are made from the
//! prompt: the same prompt, the same answer.
//!
//! # What it judges
//! A request arrives when its last byte is there. All limits let it in, or none has counted it. `/rehearsal/stats` (and
//! [`Handle::stats`]) says who was refused by what, the worst window, the peak of concurrency, how much of the quota was
//! used, and what was asked twice; `?log=N` adds the last requests one by one. The book-keeping is its own, plain and
//! exact: it is there to find faults in cleverer ones.
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
