//! How a loop is reached from other threads: its id, the mailbox that goes with it, and, in `waker.rs`, wakers that are
//! names.

pub(crate) mod inbox;
pub(crate) mod name;
mod shim;
pub(crate) mod waker;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use inbox::{Inbox, Posted};
use name::{Generation, LOOPS_MAX, Name};
use rustix::event::{EventfdFlags, eventfd};

/// A message from another thread.
pub(crate) enum Message {
    Wake(Name),
    Call(Box<dyn FnOnce() + Send>, &'static Location<'static>),
}

/// A loop's address for other threads. Leaked on first use of its id and reused with it: a waker may outlive its
/// loop by any time, and what it reaches for must still be there, its eventfd above all (a late write must not
/// hit a descriptor that was closed and is used for something else).
pub(crate) struct Mailbox {
    pub(crate) inbox: Inbox<Message>,
    /// Written while the loop sleeps at its selector, watched edge-triggered by its selector, never read.
    pub(crate) bell: OwnedFd,
    /// A signal has come that this loop has a handler or listener for.
    pub(crate) signalled: AtomicBool,
    id: u16,
}

impl Mailbox {
    /// Leaves a message for the loop of that serial, or for whichever lives here, and rings if it sleeps; gives it back
    /// if there is none.
    pub(crate) fn post(&self, owner: Option<u32>, message: Message) -> Result<(), Message> {
        // The lock is released before the bell rings: the loop would wake up only to wait for it.
        if self.inbox.post(owner, message)? == Posted::Ring {
            self.ring();
        }
        Ok(())
    }

    /// Makes the loop look around, and rings if it sleeps. Atomics and at most one call: a signal handler may call it.
    pub(crate) fn nudge(&self) {
        if self.inbox.nudge() == Posted::Ring {
            self.ring();
        }
    }

    fn ring(&self) {
        // The only way this fails is a counter at its limit, which has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

static MAILBOXES: [AtomicPtr<Mailbox>; LOOPS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; LOOPS_MAX];

/// Ids free for reuse, the longest free first, and how many loops there have been.
struct Ids {
    free: VecDeque<u16>,
    unused: u16,
    loops: u32,
}

fn ids() -> &'static Mutex<Ids> {
    static IDS: OnceLock<Mutex<Ids>> = OnceLock::new();
    IDS.get_or_init(|| Mutex::new(Ids { free: VecDeque::new(), unused: 0, loops: 0 }))
}

/// A loop's claim on its id and mailbox.
pub(crate) struct Registration {
    pub(crate) id: u16,
    /// Tells this loop from others that had or will have its id.
    pub(crate) serial: u32,
    pub(crate) first_generation: Generation,
    pub(crate) mailbox: &'static Mailbox,
}

impl Registration {
    pub(crate) fn new() -> io::Result<Registration> {
        let mut ids = ids().lock().unwrap();
        let reused = ids.free.pop_front();
        let id = match reused {
            Some(id) => id,
            None if (ids.unused as usize) < LOOPS_MAX => ids.unused,
            None => {
                return Err(io::Error::other(format!("{LOOPS_MAX} event loops are open already; close one first")));
            }
        };
        let known = MAILBOXES[id as usize].load(Ordering::Acquire);
        let mailbox: &'static Mailbox = if known.is_null() {
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            let fresh: &'static Mailbox =
                Box::leak(Box::new(Mailbox { inbox: Inbox::new(), bell, signalled: AtomicBool::new(false), id }));
            MAILBOXES[id as usize].store(ptr::from_ref(fresh).cast_mut(), Ordering::Release);
            fresh
        } else {
            mailbox(id).expect("just seen")
        };
        if reused.is_none() {
            ids.unused += 1;
        }
        ids.loops = ids.loops.wrapping_add(1);
        let serial = ids.loops;
        mailbox.inbox.open(serial);
        Ok(Registration { id, serial, first_generation: Generation::first(serial), mailbox })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.mailbox.inbox.close());
        ids().lock().unwrap().free.push_back(self.mailbox.id);
    }
}

fn mailbox(id: u16) -> Option<&'static Mailbox> {
    let known = MAILBOXES[id as usize].load(Ordering::Acquire);
    // SAFETY: a non-null entry comes from `Box::leak` in `Registration::new` and is never freed or replaced; only
    // shared references to it are ever made.
    unsafe { known.as_ref() }
}

/// Tells a loop that a signal has come for it. A signal handler may call it.
pub(crate) fn signal_loop(id: u16) {
    if let Some(mailbox) = mailbox(id) {
        mailbox.signalled.store(true, Ordering::SeqCst);
        mailbox.nudge();
    }
}
