//! The pool between threads: never a task over the cap, no lost wake-up and no leaked slot while other threads submit,
//! cancel, resize, pause, close or abort.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "these lints are checked in the crate of the sources"
)]
#![allow(unexpected_cfgs, reason = "the features are those of the crate the sources belong to")]

/// Stands in for `tidegate-pool/src/share.rs`.
mod share {
    use std::sync::Arc;

    pub trait Share<T>: Clone {
        fn new(value: T) -> Self;
        fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R;
        fn try_with<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R>;
    }

    pub struct Threaded<T>(Arc<loom::sync::Mutex<T>>);

    impl<T> Share<T> for Threaded<T> {
        fn new(value: T) -> Self {
            Threaded(Arc::new(loom::sync::Mutex::new(value)))
        }

        fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
            section(&mut self.0.lock().unwrap())
        }

        fn try_with<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R> {
            self.0.try_lock().ok().map(|mut value| section(&mut value))
        }
    }

    impl<T> Clone for Threaded<T> {
        fn clone(&self) -> Self {
            Threaded(Arc::clone(&self.0))
        }
    }
}

#[path = "../../../tidegate-pool/src/admission.rs"]
mod admission;
#[path = "../../../tidegate-pool/src/error.rs"]
mod error;
#[path = "../../../tidegate-pool/src/executor.rs"]
mod executor;
#[path = "../../../tidegate-pool/src/handle.rs"]
mod handle;
#[path = "../../../tidegate-pool/src/line.rs"]
mod line;
#[path = "../../../tidegate-pool/src/map.rs"]
mod map;
#[path = "../../../tidegate-pool/src/pool.rs"]
mod pool;
#[path = "../../../tidegate-pool/src/promise.rs"]
mod promise;
#[path = "../../../tidegate-pool/src/roster.rs"]
mod roster;
#[path = "../../../tidegate-pool/src/slot.rs"]
mod slot;
#[path = "../../../tidegate-pool/src/stats.rs"]
mod stats;
#[path = "../../../tidegate-pool/src/submit.rs"]
mod submit;

#[path = "../support/mod.rs"]
mod support;

/// The sources' own name for what they export.
pub use self::{
    admission::Watermarks,
    error::JoinError,
    executor::{Executor, Spawn},
    handle::JoinHandle,
    pool::Pool,
    slot::InSlot,
    stats::Stats,
};

mod inline;

use std::future::{Ready, pending, ready};
use std::sync::Arc;

use inline::{Inline, block_on};
use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use support::{check, poll_once};

type Slot = JoinHandle<(), Inline>;

fn pool(cap: usize) -> Pool<Inline> {
    Pool::on(Inline, cap)
}

/// A task that holds its slot until its handle is dropped: on this executor the handle is the task.
fn enter(pool: &Pool<Inline>) -> Option<Slot> {
    block_on(pool.submit(ready(()))).ok()
}

fn assert_at_rest(pool: &Pool<Inline>) {
    let stats = pool.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0), "{stats:?}");
    assert_eq!(stats.submitted, stats.completed + stats.failed + stats.cancelled, "{stats:?}");
}

#[test]
fn never_more_than_the_cap_and_everybody_gets_in() {
    check(|| {
        let pool = pool(1);
        let inside = Arc::new(AtomicUsize::new(0));
        let work = |pool: &Pool<Inline>, inside: &AtomicUsize| {
            let slot = enter(pool).unwrap();
            assert_eq!(inside.fetch_add(1, SeqCst), 0);
            inside.fetch_sub(1, SeqCst);
            drop(slot);
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, inside) = (pool.clone(), Arc::clone(&inside));
                thread::spawn(move || work(&pool, &inside))
            })
            .collect();
        work(&pool, &inside);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_at_rest(&pool);
        assert_eq!((pool.stats().submitted, pool.stats().peak), (3, 1));
    });
}

#[test]
fn a_submitter_that_gives_up_passes_its_slot_on() {
    check(|| {
        let shared = pool(1);
        let held = enter(&shared).unwrap();
        let give_up = thread::spawn({
            let pool = shared.clone();
            move || {
                let mut submission = pool.submit(ready(()));
                // In line if the slot is not free yet; then dropped with or without a slot that was kept for it.
                drop(poll_once(std::pin::Pin::new(&mut submission)));
            }
        });
        let end = thread::spawn(move || drop(held));
        drop(enter(&shared).unwrap());
        give_up.join().unwrap();
        end.join().unwrap();
        assert_at_rest(&shared);
    });
}

#[test]
fn a_slot_taken_back_by_a_smaller_cap_is_given_again() {
    check(|| {
        let pool = pool(1);
        let held = enter(&pool).unwrap();
        let resize = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.resize(0);
                pool.resize(1);
            }
        });
        let end = thread::spawn(move || drop(held));
        // Waits, is perhaps told of a slot and finds it gone, and gets it in the end.
        let slot = enter(&pool).unwrap();
        assert_eq!(pool.stats().running, 1);
        drop(slot);
        resize.join().unwrap();
        end.join().unwrap();
        assert_at_rest(&pool);
        assert_eq!(pool.stats().peak, 1);
    });
}

#[test]
fn a_smaller_cap_holds_from_the_moment_it_is_set() {
    check(|| {
        let pool = pool(2);
        let held = enter(&pool).unwrap();
        let submit = thread::spawn({
            let pool = pool.clone();
            move || pool.try_submit(ready(())).ok()
        });
        pool.resize(1);
        // A task that was submitted before the change may run; after it, one running task is the cap.
        let before = pool.stats().running;
        let other = submit.join().unwrap();
        assert_eq!(pool.stats().running, before, "a task started past the cap");
        drop((held, other));
        assert_at_rest(&pool);
    });
}

#[test]
fn closing_ends_every_wait_and_waits_for_every_task() {
    check(|| {
        let pool = pool(1);
        let held = enter(&pool).unwrap();
        let submit = thread::spawn({
            let pool = pool.clone();
            move || drop(enter(&pool))
        });
        let end = thread::spawn(move || drop(held));
        block_on(pool.close());
        assert_eq!(pool.stats().running, 0, "closed, so nothing starts any more");
        submit.join().unwrap();
        end.join().unwrap();
        assert_at_rest(&pool);
        assert!(pool.try_submit(ready(())).is_err());
    });
}

#[test]
fn aborting_misses_nobody_who_is_on_the_way_in() {
    check(|| {
        let pool = pool(2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                // Its task never ends by itself: unless it is cancelled, this never returns.
                thread::spawn(move || match block_on(pool.submit(pending::<()>())) {
                    Ok(task) => assert!(matches!(block_on(task), Err(JoinError::Cancelled))),
                    Err(_refused) => {}
                })
            })
            .collect();
        block_on(pool.abort());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_at_rest(&pool);
        assert_eq!(pool.stats().cancelled, pool.stats().submitted);
    });
}

#[test]
fn no_submitter_gets_past_the_line() {
    check(|| {
        let pool = pool(1);
        let held = enter(&pool).unwrap();
        let mut first = pool.submit(ready(()));
        assert!(poll_once(std::pin::Pin::new(&mut first)).is_none());
        let tries = thread::spawn({
            let pool = pool.clone();
            move || pool.try_submit(ready(())).is_ok()
        });
        drop(held);
        assert!(!tries.join().unwrap(), "it passed the one in line");
        drop(poll_once(std::pin::Pin::new(&mut first)).expect("its slot was kept").ok());
        drop(first);
        assert_at_rest(&pool);
    });
}

#[test]
fn pausing_and_watermarks_lose_no_wake_up() {
    check(|| {
        let pool = pool(1);
        let held = enter(&pool).unwrap();
        let control = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.pause();
                pool.set_watermarks(Some(Watermarks { high: 1, low: 0 }));
                pool.resume();
            }
        });
        let end = thread::spawn(move || drop(held));
        drop(enter(&pool).unwrap());
        control.join().unwrap();
        end.join().unwrap();
        assert_at_rest(&pool);
    });
}

#[test]
fn a_waker_replaced_while_a_slot_comes_is_the_one_that_is_woken() {
    check(|| {
        let pool = pool(1);
        let held = enter(&pool).unwrap();
        let mut submission = pool.submit(ready(()));
        assert!(poll_once(std::pin::Pin::new(&mut submission)).is_none());
        let end = thread::spawn(move || drop(held));
        // First polled with a waker that does nothing; `block_on` brings its own.
        drop(block_on(submission).ok());
        end.join().unwrap();
        assert_at_rest(&pool);
    });
}
