//! What other threads hand to a loop: a locked list, one flag that says it is not empty, and one that says the
//! loop sleeps, so that nobody rings for a loop that is awake. The models in `tidegate-models` compile this very
//! file against loom's types; that is why it takes them from `crate::sync`.

use crate::sync::{AtomicBool, Mutex, Ordering};

pub(crate) struct Inbox<M> {
    state: Mutex<State<M>>,
    /// Set after a push, cleared before a take: true whenever there is something to take that the next `take`
    /// is not already under way to find.
    posted: AtomicBool,
    /// True from just before the loop sleeps until somebody rings or the loop is up again.
    asleep: AtomicBool,
}

struct State<M> {
    messages: Vec<M>,
    /// The loop whose inbox this is, for the time being; `None`: closed.
    owner: Option<u32>,
}

/// What the poster has to do next.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a loop that sleeps must be rung for"]
pub(crate) enum Posted {
    /// The loop is awake and will look.
    Seen,
    /// The loop sleeps: ring its bell. Exactly one poster a sleep is told so.
    Ring,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> Self {
        Inbox {
            state: Mutex::new(State { messages: Vec::new(), owner: None }),
            posted: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
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

    /// Makes the loop look around though there is no message. Only atomics: a signal handler may call it.
    pub(crate) fn nudge(&self) -> Posted {
        // The store and the load below and those of `before_sleep` form a pair in which each side writes its own
        // flag and then reads the other's: in every order at least one of them sees the other.
        self.posted.store(true, Ordering::SeqCst);
        let ring = self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst);
        if ring { Posted::Ring } else { Posted::Seen }
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
    pub(crate) fn before_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.posted.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// The loop is up again, for whatever reason.
    pub(crate) fn after_sleep(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
