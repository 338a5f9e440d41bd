//! Plans, JSONL batches, and both against the strict local server.

mod answers;
#[path = "../common/clock.rs"]
mod clock;
mod jsonl;
mod plan;
mod support;
