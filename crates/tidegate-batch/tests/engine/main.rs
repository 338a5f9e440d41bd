//! The engine of runs, in virtual time and against the strict mock server: pausing, stopping, live limits, asking again, and
//! what readers see of it.

mod live_limits;
mod readers;
mod steering;
mod support;
