//! Wakers as names, and how a name finds its loop: on the loop's own thread through a thread-local, from any other
//! thread through its mailbox.

use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::kernel::current;
use crate::mailbox::name::Name;
use crate::mailbox::{Message, mailbox};
use crate::task::cancel;

/// Wakes the task of that name, wherever it lives. A name that is stale, or whose loop is gone, does nothing.
#[inline]
pub(crate) fn wake(name: Name) {
    if !current::wake_here(name) {
        wake_remote(name);
    }
}

#[cold]
fn wake_remote(name: Name) {
    if current::wake_idle(name) {
        return;
    }
    if let Some(mailbox) = mailbox(name.loop_id()) {
        // Refused means closed: the task has ended with its loop.
        let _ = mailbox.post(None, Message::Wake(name));
    }
}

/// The waker of that name. The data pointer carries the name itself and points nowhere.
#[inline]
pub(crate) fn waker_of(name: Name) -> Waker {
    // SAFETY: the vtable's functions treat the data as a number and never as an address, so the contract of
    // `RawWaker` (thread safety, clones that outlive the original, one drop a clone) holds trivially: there is
    // nothing shared, nothing counted and nothing to free. What a clone notes is in the thread's own loop.
    unsafe { Waker::from_raw(raw(name)) }
}

#[inline]
fn raw(name: Name) -> RawWaker {
    RawWaker::new(ptr::without_provenance(name.bits() as usize), &VTABLE)
}

#[inline]
fn name_in(data: *const ()) -> Option<Name> {
    Name::from_bits(data.addr() as u64)
}

fn wake_data(data: *const ()) {
    if let Some(name) = name_in(data) {
        wake(name);
    }
}

/// The name a waker carries, if it is a waker of this crate.
#[inline]
pub(crate) fn name_of(waker: &Waker) -> Option<Name> {
    if ptr::eq(waker.vtable(), &VTABLE) { name_in(waker.data()) } else { None }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    // Nothing is counted. The loop only notes that code outside of it keeps the waker of its current task.
    |data| {
        if let Some(name) = name_in(data) {
            cancel::waker_kept(name);
        }
        RawWaker::new(data, &VTABLE)
    },
    wake_data,
    wake_data,
    |_| {},
);
