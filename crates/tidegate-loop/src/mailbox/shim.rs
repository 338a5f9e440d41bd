//! The shared-memory types `inbox.rs` is written against; the models substitute loom's.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::kernel::clock::timespec;

/// Sleeps while the word has that value; it may also end early.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    // Another value, a signal, the end of the time: all of them end the wait, and none is a failure.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, timeout.map(timespec).as_ref());
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}
