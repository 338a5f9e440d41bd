//! Plans, JSONL batches, and both against the strict local server.

mod plan;
