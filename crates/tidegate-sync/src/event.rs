//! The event: a flag that tasks can wait for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::list::{List, Verdict};
use super::lock::{Lock, while_more};
use super::shim::{AtomicBool, AtomicU64};
use super::stats::Stats;
use super::turn::{Home, Left, Turn};

/// A flag that any number of tasks can wait for.
///
/// [`set`](Self::set) ends all waits, and later ones end at once until [`clear`](Self::clear).
/// [`notify_all`](Self::notify_all) ends the waits of the tasks that are waiting at that moment and does not change the
/// flag. A wait that has been ended stays ended, even if the event is cleared before its task runs. An event wakes all
/// tasks; to hand work to *one* task, use a [`Semaphore`](crate::Semaphore) or a [`Queue`](crate::Queue).
///
/// Each call takes effect atomically, at one instant between its start and its return. Only `.await` waits.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_sync::Event;
///
/// # futures_lite::future::block_on(async {
/// let connected = Arc::new(Event::new());
/// let signal = Arc::clone(&connected);
/// std::thread::spawn(move || signal.set());
/// connected.wait().await;
/// assert!(connected.is_set());
/// # });
/// ```
pub struct Event {
    /// Changed under the lock, read without it.
    set: AtomicBool,
    /// Number of waits that found the event set.
    passed: AtomicU64,
    crowd: Lock<EventWaiters>,
}

#[derive(Default)]
pub(super) struct EventWaiters {
    /// Each waiter with the value of `round` when it joined, so in ascending order.
    waiting: List<u64>,
    /// Incremented by every call that ends waits: the call ends those of earlier rounds. Many waiters are woken in several
    /// sections of the lock, and a task that joins in between has the current round and stays.
    round: u64,
    peak: usize,
    released: u64,
    blocked: u64,
}

impl Event {
    /// Creates an event that is not set.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// assert!(!Event::new().is_set());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { set: AtomicBool::new(false), passed: AtomicU64::new(0), crowd: Lock::new(EventWaiters::default()) }
    }

    /// Sets the flag and wakes all waiting tasks.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// # futures_lite::future::block_on(async {
    /// let ready = Event::new();
    /// ready.set();
    /// ready.wait().await;
    /// # });
    /// ```
    pub fn set(&self) {
        self.release_crowd(|| self.set.store(true, Release));
    }

    /// Clears the flag: later waits do not end at once any more.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// let ready = Event::new();
    /// ready.set();
    /// ready.clear();
    /// assert!(!ready.is_set());
    /// ```
    pub fn clear(&self) {
        self.crowd.quietly(|_| self.set.store(false, Release));
    }

    /// Whether the flag is set.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// let ready = Event::new();
    /// ready.set();
    /// assert!(ready.is_set());
    /// ```
    #[inline]
    pub fn is_set(&self) -> bool {
        self.set.load(Acquire)
    }

    /// Wakes the tasks that are waiting now and returns their number.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// let changed = Event::new();
    /// assert_eq!(changed.notify_all(), 0);
    /// assert!(!changed.is_set());
    /// ```
    pub fn notify_all(&self) -> usize {
        self.release_crowd(|| ())
    }

    /// Waits until the event is set or its [waiters are notified](Self::notify_all).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no trace.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// # futures_lite::future::block_on(async {
    /// let ready = Event::new();
    /// futures_lite::future::zip(ready.wait(), async { ready.set() }).await;
    /// # });
    /// ```
    #[inline]
    pub fn wait(&self) -> Wait<'_> {
        Wait { turn: Turn::new(self, 0) }
    }

    /// The event's figures.
    ///
    /// ```
    /// # use tidegate_sync::Event;
    /// # futures_lite::future::block_on(async {
    /// let ready = Event::new();
    /// ready.set();
    /// ready.wait().await;
    /// assert_eq!((ready.stats().total, ready.stats().blocked), (1, 0));
    /// # });
    /// ```
    pub fn stats(&self) -> Stats {
        self.crowd.quietly(|crowd| Stats {
            current: crowd.waiting.len(),
            peak: crowd.peak,
            total: crowd.released + self.passed.load(Relaxed),
            blocked: crowd.blocked,
            waiting: crowd.waiting.len(),
        })
    }

    fn release_crowd(&self, mark: impl FnOnce()) -> usize {
        let mut mark = Some(mark);
        let mut round = 0;
        let mut released = 0;
        while_more(|| {
            self.crowd.with(|crowd, wakes| {
                if let Some(mark) = mark.take() {
                    mark();
                    crowd.round += 1;
                    round = crowd.round;
                }
                while !wakes.is_full() && crowd.waiting.front(|came| *came < round) == Some(true) {
                    crowd.waiting.serve_front(Verdict::Granted, wakes);
                    crowd.released += 1;
                    released += 1;
                }
                wakes.is_full()
            })
        });
        released
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("set", &self.is_set())
            .field("waiting", &self.crowd.try_peek(|crowd| crowd.waiting.len()))
            .finish()
    }
}

pin_project! {
    /// The future of [`Event::wait`].
    ///
    /// ```
    /// # use tidegate_sync::{Event, Wait};
    /// # futures_lite::future::block_on(async {
    /// let ready = Event::new();
    /// let wait: Wait<'_> = ready.wait();
    /// ready.set();
    /// wait.await;
    /// # });
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Wait<'a> {
        #[pin]
        turn: Turn<&'a Event>,
    }
}

impl Future for Wait<'_> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut turn = self.project().turn;
        if turn.is_idle() {
            if !turn.home().is_set() {
                let arrived = turn.as_mut().arrive(cx, |event, crowd, came| {
                    if event.is_set() {
                        return Some(());
                    }
                    *came = crowd.round;
                    crowd.blocked += 1;
                    crowd.peak = crowd.peak.max(crowd.waiting.len() + 1);
                    None
                });
                if arrived.is_none() {
                    return Poll::Pending;
                }
            }
            turn.home().passed.fetch_add(1, Relaxed);
        } else {
            ready!(turn.as_mut().poll_served(cx));
        }
        turn.finish();
        Poll::Ready(())
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").finish_non_exhaustive()
    }
}

// SAFETY: a reference leads to the same event as long as it lives, and the list stays in that event.
unsafe impl Home for &Event {
    type State = EventWaiters;
    type Payload = u64;

    #[inline]
    fn lock(&self) -> &Lock<EventWaiters> {
        &self.crowd
    }

    #[inline]
    fn list(crowd: &mut EventWaiters) -> &mut List<u64> {
        &mut crowd.waiting
    }

    /// Does nothing: a wait that ends uses nothing up, so there is nothing to pass on.
    fn left(&self, _came: &mut u64, _left: Left) {}
}
