//! A line of waiters, linked through the waiters themselves. Only [`Turn`](super::turn::Turn) uses its unsafe functions;
//! those that the primitives call are safe.
//!
//! The `unsafe` here and in `turn.rs` rests on three rules:
//!
//! 1. *Alive.* A node in a list is pinned, and dropping the turn that contains it takes it out of the list before its
//!    memory is freed. So every pointer in a list is valid.
//! 2. *Locked.* While a node is in a list, its links and its payload are touched only through `&mut List`, which exists
//!    only under the list's lock.
//! 3. *Handed back.* Serving a node takes it out of the list and then, as the very last access,
//!    stores its verdict (release). Its owner reads the verdict (acquire) and from then on owns
//!    the node alone, without the lock.

use std::cell::Cell;
use std::marker::PhantomPinned;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::Waker;

use super::lock::Wakes;
use super::shim::{AtomicU8, UnsafeCell};

/// Whether a node is in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The node has never been in a list; only its owner touches it.
    Idle,
    /// The node is in a list.
    Waiting,
    /// The node was taken out of the list with this verdict; only its owner touches it.
    Served(Verdict),
}

/// The result of waiting, stored in the node when it is taken out of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted,
    Refused,
}

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const REFUSED: u8 = 2;

/// A waiter's entry in a list. The uninitialised links are the last field: placed between the others, the compiler wrote
/// zeros over them when a node was made.
#[repr(C)]
pub(super) struct Node<P> {
    /// Meaningful once `joined` is set.
    status: AtomicU8,
    /// Whether the node has ever been in a list. Read and written by the owner alone, so a future that never waits does
    /// not touch the atomic.
    joined: Cell<bool>,
    /// What the waiter asks for, or brings; read by the thread that serves it.
    payload: UnsafeCell<P>,
    /// Initialised while the node is in a list: a future that never waits does not write them.
    links: UnsafeCell<MaybeUninit<Links<P>>>,
    /// A list may hold pointers to this node, so a `&mut` to what contains it must not be taken for the only access.
    _pinned: PhantomPinned,
}

struct Links<P> {
    prev: Option<NonNull<Node<P>>>,
    next: Option<NonNull<Node<P>>>,
    waker: Waker,
}

// SAFETY: the pointers of a node are followed only under its list's lock (rule 2), and lead to nodes whose payloads are
// `Send` too, since a list holds one type of payload.
unsafe impl<P: Send> Send for Node<P> {}
// SAFETY: other threads reach the atomic status of a shared node; `joined` is written before the node is in a list, and
// read by its owner alone.
unsafe impl<P: Send> Sync for Node<P> {}

impl<P> Node<P> {
    #[inline]
    pub(super) fn new(payload: P) -> Self {
        Self {
            status: AtomicU8::new(WAITING),
            joined: Cell::new(false),
            payload: UnsafeCell::new(payload),
            links: UnsafeCell::new(MaybeUninit::uninit()),
            _pinned: PhantomPinned,
        }
    }

    /// Must be called by the node's owner, or under the lock of the list that the node is in.
    #[inline]
    pub(super) fn status(&self) -> Status {
        if !self.joined.get() {
            return Status::Idle;
        }
        match self.status.load(Acquire) {
            WAITING => Status::Waiting,
            GRANTED => Status::Served(Verdict::Granted),
            _ => Status::Served(Verdict::Refused),
        }
    }

    /// # Safety
    /// No other thread touches the payload meanwhile: the node is in a list whose lock the caller holds, or it is in no
    /// list and the caller is its owner.
    #[inline]
    pub(super) unsafe fn payload<R>(&self, with: impl FnOnce(&mut P) -> R) -> R {
        // SAFETY: exclusive, as the caller promises.
        self.payload.with_mut(|payload| with(unsafe { &mut *payload }))
    }

    /// # Safety
    /// The node is in a list, and the caller holds its lock.
    #[inline]
    unsafe fn links<R>(&self, with: impl FnOnce(&mut Links<P>) -> R) -> R {
        // SAFETY: exclusive by rule 2, and initialised since it was put into the list.
        self.links.with_mut(|links| with(unsafe { (*links).assume_init_mut() }))
    }

    /// # Safety
    /// As for [`links`](Self::links).
    #[inline]
    pub(super) unsafe fn waker<R>(&self, with: impl FnOnce(&mut Waker) -> R) -> R {
        // SAFETY: passed on to the caller.
        unsafe { self.links(|links| with(&mut links.waker)) }
    }
}

/// A line of waiters in the order in which they joined.
pub(super) struct List<P> {
    head: Option<NonNull<Node<P>>>,
    tail: Option<NonNull<Node<P>>>,
    len: usize,
    /// How many waiters that joined after the present head have been served before it.
    overtaken: usize,
}

// SAFETY: the list is a way to its nodes, which are `Send` when their payloads are.
unsafe impl<P: Send> Send for List<P> {}

impl<P> Default for List<P> {
    fn default() -> Self {
        Self { head: None, tail: None, len: 0, overtaken: 0 }
    }
}

impl<P> List<P> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Passes the head's payload to `look`. Returns `None` if the line is empty.
    #[inline]
    pub(super) fn front<R>(&mut self, look: impl FnOnce(&mut P) -> R) -> Option<R> {
        // SAFETY: a node in the list is alive (rule 1), and `&mut self` is exclusive access to it (rule 2).
        self.head.map(|head| unsafe { head.as_ref().payload(look) })
    }

    /// Takes the head, if there is one, out of the line with `verdict`.
    #[inline]
    pub(super) fn serve_front(&mut self, verdict: Verdict, wakes: &mut Wakes) {
        if let Some(head) = self.head {
            // SAFETY: the head is in the list.
            unsafe { self.serve(head, verdict, wakes) };
        }
    }

    /// Takes the head out of the line, granted. The caller wakes the waker after it has released the lock.
    #[inline]
    pub(super) fn grant_front(&mut self) -> Option<Waker> {
        let head = self.head?;
        // SAFETY: the head is in the list, so alive and ours until the store, as in `serve` (rule 3).
        unsafe {
            let waker = self.unlink(head);
            head.as_ref().status.store(GRANTED, Release);
            Some(waker)
        }
    }

    /// Returns whether a waiter `places` behind the head may be served before it, if at most `limit` may ever be.
    #[inline]
    pub(super) fn may_overtake(&self, places: usize, limit: usize) -> bool {
        places <= limit.saturating_sub(self.overtaken)
    }

    /// Counts a later request that was served before the head, if there is one.
    pub(super) fn note_overtaking(&mut self) {
        if !self.is_empty() {
            self.overtaken += 1;
        }
    }

    /// Grants the first waiter behind the head that `fits`, within the `limit` of [`may_overtake`](Self::may_overtake).
    /// Returns `false` if there is none.
    pub(super) fn grant_behind_front(
        &mut self,
        limit: usize,
        mut fits: impl FnMut(&mut P) -> bool,
        wakes: &mut Wakes,
    ) -> bool {
        let mut cursor = self.head;
        for places in 1.. {
            // SAFETY: nodes in the list are alive (rule 1) and ours (rule 2).
            cursor = cursor.and_then(|node| unsafe { node.as_ref().links(|links| links.next) });
            let Some(node) = cursor.filter(|_| self.may_overtake(places, limit)) else { break };
            // SAFETY: as above.
            if unsafe { node.as_ref().payload(&mut fits) } {
                // SAFETY: it was reached through the list, so it is in it.
                unsafe { self.serve(node, Verdict::Granted, wakes) };
                self.note_overtaking();
                return true;
            }
        }
        false
    }

    /// # Safety
    /// `node` is in this list.
    #[inline]
    unsafe fn serve(&mut self, node: NonNull<Node<P>>, verdict: Verdict, wakes: &mut Wakes) {
        let status = match verdict {
            Verdict::Granted => GRANTED,
            Verdict::Refused => REFUSED,
        };
        // SAFETY: the node is in the list, so alive, and ours until the store. After that its owner may free it, and it
        // is not touched here again (rule 3).
        unsafe {
            wakes.push(self.unlink(node));
            node.as_ref().status.store(status, Release);
        }
    }

    /// # Safety
    /// `node` is idle, belongs to the caller, and is not moved before it has been unlinked.
    #[inline]
    pub(super) unsafe fn append(&mut self, node: NonNull<Node<P>>, waker: Waker) {
        let links = Links { prev: self.tail, next: None, waker };
        // SAFETY: the caller owns the new node; the old tail is in the list (rules 1 and 2).
        unsafe {
            node.as_ref().joined.set(true);
            node.as_ref().links.with_mut(|new| (*new).write(links));
            match self.tail {
                Some(tail) => tail.as_ref().links(|links| links.next = Some(node)),
                None => self.head = Some(node),
            }
        }
        self.tail = Some(node);
        self.len += 1;
    }

    /// Takes `node` out of the line. The caller wakes or drops the waker after it has released the lock.
    ///
    /// # Safety
    /// `node` is in this list. Its status stays `Waiting`: the caller changes it or frees the node.
    #[inline]
    pub(super) unsafe fn unlink(&mut self, node: NonNull<Node<P>>) -> Waker {
        // SAFETY: the node and its neighbours are in the list (rules 1 and 2). Moving the links out
        // leaves them uninitialised, as they are in a node that is in no list.
        unsafe {
            let Links { prev, next, waker } = node.as_ref().links.with_mut(|links| (*links).assume_init_read());
            // Most nodes leave from the front. The next one then keeps a stale `prev`, which is never read, and its
            // memory, which belongs to another task, is not touched.
            let front = self.head == Some(node);
            match prev {
                _ if front => {
                    self.head = next;
                    self.overtaken = 0;
                }
                Some(prev) => prev.as_ref().links(|links| links.next = next),
                None => unreachable!("only the first node has no predecessor"),
            }
            match next {
                Some(_) if front => {}
                Some(next) => next.as_ref().links(|links| links.prev = prev),
                None if front => self.tail = None,
                None => self.tail = prev,
            }
            self.len -= 1;
            waker
        }
    }
}
