//! A strict local LLM server, for rehearsals and tests.

#![forbid(unsafe_code)]
