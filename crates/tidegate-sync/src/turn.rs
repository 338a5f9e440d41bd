//! Waiting in line without allocating: a [`Turn`] is the part of a future that waits. While it waits, the list of its
//! [`Home`] is linked through it. The rules that its `unsafe` rests on are in `list.rs`.

use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::list::{List, Node, Status, Verdict};
use super::lock::Lock;

/// The primitive that a turn waits at.
///
/// # Safety
/// For one value of `Self`, `lock` and `list` lead to the same list at every call, even after the value was moved, and
/// that list never leaves the state behind that lock.
pub(super) unsafe trait Home {
    /// The state behind the lock, the list included.
    type State;
    /// What a waiter asks for, or brings; read by the thread that serves it.
    type Payload;

    fn lock(&self) -> &Lock<Self::State>;

    fn list(state: &mut Self::State) -> &mut List<Self::Payload>;

    /// Called, without the lock, when a turn that had joined the line is dropped unfinished.
    fn left(&self, payload: &mut Self::Payload, left: Left);
}

/// The state of a turn that was dropped before its owner had seen the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It was waiting; it has been taken out of the line.
    InLine,
    /// It was granted; what it was granted has to be passed on.
    Granted,
}

/// The waiting part of a future: not in line, in line, or served.
pub(super) struct Turn<H: Home> {
    /// `None` once the future has finished.
    home: Option<H>,
    node: Node<H::Payload>,
}

impl<H: Home> Turn<H> {
    #[inline]
    pub(super) fn new(home: H, payload: H::Payload) -> Self {
        Self { home: Some(home), node: Node::new(payload) }
    }

    /// # Panics
    /// If the turn has finished: its future was polled after completion.
    #[inline]
    pub(super) fn home(&self) -> &H {
        self.home.as_ref().expect("polled after completion")
    }

    /// Returns whether the turn has not joined the line yet.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.node.status() == Status::Idle
    }

    /// Before the first step: if the turn has not joined the line, calls `attempt`, and finishes the turn if that returns
    /// a result.
    ///
    /// # Panics
    /// If the turn has finished.
    #[inline(always)]
    pub(super) fn at_once<R>(
        self: Pin<&mut Self>,
        attempt: impl FnOnce(&H, &mut H::Payload) -> Option<R>,
    ) -> Option<R> {
        if !self.is_idle() {
            return None;
        }
        let home = self.home();
        // SAFETY: an idle node belongs to its owner, which is mutably borrowed.
        let done = unsafe { self.node.payload(|payload| attempt(home, payload)) };
        if done.is_some() {
            // SAFETY: as in `finish`. The turn is still idle: only `arrive` changes that, and `self` is borrowed here.
            unsafe { self.get_unchecked_mut() }.home = None;
        }
        done
    }

    /// First step: calls `decide` under the lock, and joins the line if that returns `None`.
    ///
    /// # Panics
    /// If the turn is not idle.
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
            // SAFETY: an idle node belongs to its owner, which is borrowed.
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

    /// Second step, for a turn that has joined the line: returns the verdict if it has been served, which takes no lock.
    /// Otherwise it stays in line with the waker of `cx`.
    ///
    /// # Panics
    /// If the turn is idle.
    #[inline]
    pub(super) fn poll_served(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        match self.node.status() {
            Status::Idle => panic!("not in line yet"),
            Status::Waiting => self.stay(cx),
            Status::Served(verdict) => Poll::Ready(verdict),
        }
    }

    /// Replaces the waker, if it has changed, of a turn that is polled again while it waits.
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
                // SAFETY: a waiting node is in the list of its home, whose lock is held.
                unsafe { node.waker(register) }
            });
            match settled {
                Some(step) => return step,
                // Cloning calls foreign code, so it takes place without the lock, and then a second round.
                None => fresh = Some(cx.waker().clone()),
            }
        }
    }

    /// Passes the payload to `with`.
    ///
    /// # Panics
    /// If the turn is in line: the payload then belongs to the list.
    #[inline]
    pub(super) fn payload<R>(self: Pin<&mut Self>, with: impl FnOnce(&mut H::Payload) -> R) -> R {
        assert!(self.node.status() != Status::Waiting, "the payload of a node in line belongs to the list");
        // SAFETY: the node is in no list, so it belongs to its owner, which is mutably borrowed.
        unsafe { self.node.payload(with) }
    }

    /// Finishes the turn: from now on the caller owns what was granted.
    ///
    /// # Panics
    /// If the turn is in line or has finished.
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

/// Drops an unfinished turn that had joined the line: takes it out of the line and calls [`Home::left`].
#[cold]
fn abandon<H: Home>(home: &H, node: &Node<H::Payload>) {
    let mut waker = None;
    let mut status = node.status();
    if status == Status::Waiting {
        status = home.lock().quietly(|state| {
            let status = node.status();
            if status == Status::Waiting {
                // SAFETY: a waiting node is in the list of its home, whose lock is held.
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
    // SAFETY: the node is in no list, so it belongs to its owner, which is dropping it (rule 3).
    unsafe { node.payload(|payload| home.left(payload, left)) };
}
