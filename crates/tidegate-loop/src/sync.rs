//! The shared-memory types `inbox.rs` is written against; the models substitute loom's.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
