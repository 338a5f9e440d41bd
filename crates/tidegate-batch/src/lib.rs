//! Documents and requests through an LLM API, within its quotas.

#![forbid(unsafe_code)]
