//! Waiting in line without allocating: a [`Turn`] is the part of a future that waits, and while it
//! waits the list of its [`Home`] runs through it. The rules its `unsafe` rests on are in `list.rs`.

use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::list::{List, Node, Status, Verdict};
use super::lock::Lock;

/// Where a turn waits.
///
/// # Safety
/// For one value of `Self`, `lock` and `list` lead to the same list at every call, wherever the
/// value has been moved to, and that list never leaves the state behind that lock.
pub(super) unsafe trait Home {
    /// What the lock guards.
    type State;
    /// What a waiter leaves in the line for those who serve it.
    type Payload;

    fn lock(&self) -> &Lock<Self::State>;

    fn list(state: &mut Self::State) -> &mut List<Self::Payload>;

    /// A turn that had joined the line was dropped unfinished. Called outside the lock.
    fn left(&self, payload: &mut Self::Payload, left: Left);
}

/// How a turn stood when it was dropped before its owner had seen the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Still waiting; it is out of the line now.
    InLine,
    /// Already granted: whatever it was granted has to be passed on.
    Granted,
}

/// The waiting part of a future: not in line, in line, or served.
pub(super) struct Turn<H: Home> {
    /// Gone once the future has finished.
    home: Option<H>,
    node: Node<H::Payload>,
}

impl<H: Home> Turn<H> {
    #[inline]
    pub(super) fn new(home: H, payload: H::Payload) -> Self {
        Self { home: Some(home), node: Node::new(payload) }
    }

    /// # Panics
    /// After [`finish`](Self::finish): a future was polled after its completion.
    #[inline]
    pub(super) fn home(&self) -> &H {
        self.home.as_ref().expect("polled after completion")
    }

    /// Not yet in line, nor served.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.node.status() == Status::Idle
    }

    /// Before the first step: lets a turn that has not joined the line `attempt` to do without, and ends it if that works.
    ///
    /// # Panics
    /// After it has been finished.
    #[inline(always)]
    pub(super) fn at_once<R>(
        self: Pin<&mut Self>,
        attempt: impl FnOnce(&H, &mut H::Payload) -> Option<R>,
    ) -> Option<R> {
        if !self.is_idle() {
            return None;
        }
        let home = self.home();
        // SAFETY: an idle node belongs to its owner, whom we have borrowed mutably.
        let done = unsafe { self.node.payload(|payload| attempt(home, payload)) };
        if done.is_some() {
            // SAFETY: as in `finish`; and the turn is idle still, since only `arrive` changes that, and `self` is here.
            unsafe { self.get_unchecked_mut() }.home = None;
        }
        done
    }

    /// First step: `decide`s under the lock, and joins the line if that says `None`.
    ///
    /// # Panics
    /// If it is not idle.
    pub(super) fn arrive<R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        decide: impl FnOnce(&H, &mut H::State, &mut H::Payload) -> Option<R>,
    ) -> Option<R> {
        assert!(self.is_idle(), "in line already");
        let home = self.home();
        let node = &self.node;
        // Cloned before the lock and, if it is not needed, dropped after it.
        let mut waker = Some(cx.waker().clone());
        home.lock().quietly(|state| {
            // SAFETY: an idle node belongs to its owner, whom we have borrowed.
            let decided = unsafe { node.payload(|payload| decide(home, state, payload)) };
            if decided.is_none()
                && let Some(waker) = waker.take()
            {
                // SAFETY: idle, and pinned with `self`; `drop` unlinks it.
                unsafe { H::list(state).append(NonNull::from(node), waker) };
            }
            decided
        })
    }

    /// Second step, for a turn that has joined the line: whether it has been served. If it has,
    /// that takes no lock.
    ///
    /// # Panics
    /// If it is idle.
    #[inline]
    pub(super) fn poll_served(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        match self.node.status() {
            Status::Idle => panic!("not in line yet"),
            Status::Waiting => self.stay(cx),
            Status::Served(verdict) => Poll::Ready(verdict),
        }
    }

    /// Polled again while waiting: the waker may have changed.
    fn stay(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        let node = &self.node;
        let mut fresh = None;
        loop {
            let settled = self.home().lock().quietly(|_state| {
                if let Status::Served(verdict) = node.status() {
                    return Some(Poll::Ready(verdict));
                }
                let register = |current: &mut _| {
                    if cx.waker().will_wake(current) {
                        return Some(Poll::Pending);
                    }
                    // The old one is dropped with `fresh`, outside the lock.
                    std::mem::swap(current, fresh.as_mut()?);
                    Some(Poll::Pending)
                };
                // SAFETY: waiting means in the list of its home, whose lock we hold.
                unsafe { node.waker(register) }
            });
            match settled {
                Some(step) => return step,
                // Cloning is foreign code, so it takes a second visit.
                None => fresh = Some(cx.waker().clone()),
            }
        }
    }

    /// Reaches what was left for those who serve the line, when nobody else can.
    ///
    /// # Panics
    /// While the turn is in line.
    #[inline]
    pub(super) fn payload<R>(self: Pin<&mut Self>, with: impl FnOnce(&mut H::Payload) -> R) -> R {
        assert!(self.node.status() != Status::Waiting, "the payload is with the line");
        // SAFETY: not in a list, so it belongs to its owner, who is borrowed mutably.
        unsafe { self.node.payload(with) }
    }

    /// Ends the turn: whatever was granted is now the caller's business.
    ///
    /// # Panics
    /// While the turn is in line, and after it has been finished.
    #[inline]
    pub(super) fn finish(self: Pin<&mut Self>) -> H {
        assert!(self.node.status() != Status::Waiting, "finished while in line");
        // SAFETY: only `home` is moved out, and it is not pinned: no `Pin` to it is ever made.
        unsafe { self.get_unchecked_mut() }.home.take().expect("polled after completion")
    }
}

impl<H: Home> Drop for Turn<H> {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && self.node.status() != Status::Idle
        {
            abandon(home, &self.node);
        }
    }
}

/// A turn that joined the line is dropped unfinished: it leaves no trace in the line, and its home
/// hears of it.
#[cold]
fn abandon<H: Home>(home: &H, node: &Node<H::Payload>) {
    let mut waker = None;
    let mut status = node.status();
    if status == Status::Waiting {
        status = home.lock().quietly(|state| {
            let status = node.status();
            if status == Status::Waiting {
                // SAFETY: waiting means in the list of its home, whose lock we hold.
                waker = Some(unsafe { H::list(state).unlink(NonNull::from(node)) });
            }
            status
        });
    }
    drop(waker);
    let left = match status {
        Status::Waiting => Left::InLine,
        Status::Served(Verdict::Granted) => Left::Granted,
        Status::Served(Verdict::Refused) | Status::Idle => return,
    };
    // SAFETY: out of the list, so the node belongs to its owner, who is dropping it (rule 3).
    unsafe { node.payload(|payload| home.left(payload, left)) };
}
