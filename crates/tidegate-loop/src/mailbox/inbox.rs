//! What other threads hand to a loop: a locked list, one flag that says it is not empty, and one word that says whether
//! and where the loop sleeps, so that nobody rings for a loop that is awake. A loop that watches no descriptor sleeps on
//! that word: this costs the kernel less than a selector and an eventfd do, and its time-out counts nanoseconds. The
//! models in `tidegate-models` compile this very file against loom's types; that is why it takes them from `super::shim`.

use std::time::Duration;

use super::shim::{AtomicBool, AtomicU32, Mutex, Ordering, wait_while, wake_one};

pub(crate) struct Inbox<M> {
    state: Mutex<InboxState<M>>,
    /// Set after a push, cleared before a take: true whenever there is something to take that the next `take`
    /// is not already under way to find.
    posted: AtomicBool,
    /// Where it sleeps, from just before that until somebody rings; `AWAKE` from then on, or when it is up again.
    asleep: AtomicU32,
}

const AWAKE: u32 = 0;

/// Where a loop sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Bed {
    /// At its selector, which hears the bell.
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
    /// The loop sleeps at its selector: ring its bell. Exactly one poster a sleep is told so.
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

    /// Leaves a message, for whoever owns the inbox or for `owner` alone; a closed inbox, or another's, gives it back.
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

    /// One relaxed load: what the loop pays a tick while nobody posts.
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

    /// Announces that the loop is about to sleep. False: something was posted, do not sleep.
    pub(crate) fn before_sleep(&self, bed: Bed) -> bool {
        self.asleep.store(bed as u32, Ordering::SeqCst);
        if self.posted.load(Ordering::SeqCst) {
            self.after_sleep();
            return false;
        }
        true
    }

    /// Sleeps in [`Bed::Inbox`] until somebody posts, or has posted since that was announced. It may also end early.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        wait_while(&self.asleep, Bed::Inbox as u32, timeout);
    }

    /// The loop is up again, for whatever reason.
    pub(crate) fn after_sleep(&self) {
        // An exchange, so that it has seen what a poster wrote there: whoever reads the next announcement then cannot
        // take that for what came last.
        self.asleep.swap(AWAKE, Ordering::SeqCst);
    }
}
