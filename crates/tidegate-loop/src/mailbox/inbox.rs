//! What other threads hand to a loop: a locked list, one flag that says it is not empty, and one word that says whether
//! and where the loop sleeps, so that no thread writes to the eventfd of a loop that is awake. A loop that watches no descriptor sleeps on
//! that word: this costs the kernel less than a selector and an eventfd do, and its time-out counts nanoseconds. The
//! models in `tidegate-models` compile this very file against loom's types; that is why it takes them from `super::shim`.

use std::time::Duration;

use super::shim::{AtomicBool, AtomicU32, Mutex, Ordering, wait_while, wake_one};

pub(crate) struct Inbox<M> {
    state: Mutex<InboxState<M>>,
    /// Set after a push, cleared before a take: `true` whenever there is a message that no running `take` will find.
    posted: AtomicBool,
    /// `AWAKE`, or the `Bed` that the loop sleeps in or is about to. Set by the loop in `before_sleep`; reset to `AWAKE` by
    /// the loop in `after_sleep`, or by the first poster, which then has to wake the loop.
    asleep: AtomicU32,
}

const AWAKE: u32 = 0;

/// Where a loop sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Bed {
    /// At its selector, which watches the bell (the mailbox's eventfd).
    Selector = 1,
    /// Here, in [`Inbox::sleep`].
    Inbox = 2,
}

struct InboxState<M> {
    messages: Vec<M>,
    /// The loop whose inbox this is, for the time being; `None`: closed.
    owner: Option<u32>,
}

/// What the poster has to do next.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a loop that sleeps must be rung for"]
pub(crate) enum Posted {
    /// The loop is awake and will look, or has been woken.
    Seen,
    /// The loop sleeps at its selector: ring its bell. Exactly one poster per sleep gets this.
    Ring,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> Self {
        Inbox {
            state: Mutex::new(InboxState { messages: Vec::new(), owner: None }),
            posted: AtomicBool::new(false),
            asleep: AtomicU32::new(AWAKE),
        }
    }

    /// Starts to accept messages for `owner`.
    pub(crate) fn open(&self, owner: u32) {
        self.state.lock().unwrap().owner = Some(owner);
    }

    /// Refuses messages from now on and hands back what was left.
    pub(crate) fn close(&self) -> Vec<M> {
        let mut state = self.state.lock().unwrap();
        state.owner = None;
        std::mem::take(&mut state.messages)
    }

    /// Leaves a message, for any owner or only for `owner`. Returns the message if the inbox is closed or another loop's.
    pub(crate) fn post(&self, owner: Option<u32>, message: M) -> Result<Posted, M> {
        {
            let mut state = self.state.lock().unwrap();
            if state.owner.is_none() || (owner.is_some() && owner != state.owner) {
                return Err(message);
            }
            state.messages.push(message);
        }
        Ok(self.nudge())
    }

    /// Makes the loop look around though there is no message. Atomics and at most one call: a signal handler may call it.
    pub(crate) fn nudge(&self) -> Posted {
        // The store and the load below and those of `before_sleep` form a pair in which each side writes its own
        // flag and then reads the other's: in every order at least one of them sees the other.
        self.posted.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) == AWAKE {
            return Posted::Seen;
        }
        match self.asleep.swap(AWAKE, Ordering::SeqCst) {
            AWAKE => Posted::Seen,
            bed if bed == Bed::Inbox as u32 => {
                wake_one(&self.asleep);
                Posted::Seen
            }
            _ => Posted::Ring,
        }
    }

    /// One relaxed load: all that an empty inbox costs per tick.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted.load(Ordering::Relaxed)
    }

    /// Moves everything posted so far to `into`, in the order it was posted.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        // Cleared first: a message pushed after the take below sets it again, one pushed before it is taken.
        self.posted.store(false, Ordering::SeqCst);
        into.append(&mut self.state.lock().unwrap().messages);
    }

    /// Announces that the loop is about to sleep. Returns `false` if something was posted: do not sleep.
    pub(crate) fn before_sleep(&self, bed: Bed) -> bool {
        self.asleep.store(bed as u32, Ordering::SeqCst);
        if self.posted.load(Ordering::SeqCst) {
            self.after_sleep();
            return false;
        }
        true
    }

    /// Sleeps in [`Bed::Inbox`] until a message is posted, at once if one was posted after `before_sleep`. May end early.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        wait_while(&self.asleep, Bed::Inbox as u32, timeout);
    }

    /// The loop is up again, for whatever reason.
    pub(crate) fn after_sleep(&self) {
        // An exchange and not a store: it reads what a poster wrote, so the next announcement is ordered behind that, and
        // no poster can mistake it for the last one.
        self.asleep.swap(AWAKE, Ordering::SeqCst);
    }
}
