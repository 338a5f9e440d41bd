//! A baton that a task and an OS thread hand to each other: every pass is one wake-up from a
//! foreign thread. Written with std alone, so that all runtimes carry the same weight.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How the helper thread waits for its turn, and where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Helper {
    /// Parked, on the loop's own core: when it answers, the loop sleeps. Left to the scheduler the
    /// two meet now on one core, now on two, and the line would measure which; on two cores of a
    /// virtual machine it would measure the hypervisor.
    Parks,
    /// Spinning, on whatever core: it answers at once, while the loop is still at work.
    Spins,
}

/// The calling thread's cores before it was pinned; given back when dropped.
struct Pinned(Option<CpuSet>);

impl Pinned {
    /// Pins the calling thread to the first core it may use. Where that fails nothing is said: the
    /// line is only noisier.
    fn to_first_core() -> Self {
        let allowed = sched_getaffinity(None).ok();
        if let Some(all) = &allowed {
            let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core));
            let mut one = CpuSet::new();
            one.set(first.unwrap_or(0));
            let _ = sched_setaffinity(None, &one);
        }
        Self(allowed)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

const TASK: u8 = 0;
const HELPER: u8 = 1;
const DONE: u8 = 2;

struct Shared {
    /// Whose turn it is.
    turn: AtomicU8,
    /// Set by the task before it gives the turn away, taken by the helper after it gave it back.
    waker: Mutex<Option<Waker>>,
}

pub(crate) struct Baton {
    shared: Arc<Shared>,
    helper: Helper,
    thread: JoinHandle<()>,
    _pinned: Option<Pinned>,
}

/// Tells a busy sibling that the passing is over.
pub(crate) struct DoneFlag(Arc<Shared>);

impl DoneFlag {
    pub(crate) fn get(&self) -> bool {
        self.0.turn.load(Ordering::Relaxed) == DONE
    }
}

impl Baton {
    pub(crate) fn new(helper: Helper) -> Self {
        let shared = Arc::new(Shared { turn: AtomicU8::new(TASK), waker: Mutex::new(None) });
        let theirs = Arc::clone(&shared);
        // The helper inherits the core of the thread that starts it.
        let pinned = (helper == Helper::Parks).then(Pinned::to_first_core);
        let thread = thread::spawn(move || answer(&theirs, helper));
        Self { shared, helper, thread, _pinned: pinned }
    }

    pub(crate) fn spins(&self) -> bool {
        self.helper == Helper::Spins
    }

    pub(crate) fn done_flag(&self) -> DoneFlag {
        DoneFlag(Arc::clone(&self.shared))
    }

    /// Hands the turn to the helper and waits until the helper has woken this task.
    pub(crate) async fn pass(&self) {
        let mut passed = false;
        poll_fn(|cx| {
            if !passed {
                passed = true;
                *self.shared.slot() = Some(cx.waker().clone());
                self.give(HELPER);
                return Poll::Pending;
            }
            match self.shared.turn.load(Ordering::Acquire) {
                TASK => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }

    pub(crate) fn finish(self) {
        self.give(DONE);
        self.thread.join().expect("the helper only passes the baton");
    }

    fn give(&self, turn: u8) {
        self.shared.turn.store(turn, Ordering::Release);
        if !self.spins() {
            self.thread.thread().unpark();
        }
    }
}

impl Shared {
    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(shared: &Shared, helper: Helper) {
    loop {
        match shared.turn.load(Ordering::Acquire) {
            DONE => return,
            HELPER => {
                shared.turn.store(TASK, Ordering::Release);
                let waker = shared.slot().take();
                waker.expect("the task leaves its waker before it passes").wake();
            }
            _ if helper == Helper::Spins => std::hint::spin_loop(),
            _ => thread::park(),
        }
    }
}
