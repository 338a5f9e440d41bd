//! Plans, JSONL batches, and both against the strict local server.

mod answers;
mod jsonl;
mod plan;
mod support;
