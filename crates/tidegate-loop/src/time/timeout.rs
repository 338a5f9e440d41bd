//! Time-outs. One that runs out is a cancellation request of its own, taken back on the way out, so nested ones and
//! requests from elsewhere tell each other apart.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::context::Snapshot;
use crate::kernel::clock::{Nanos, nanos_of};
use crate::kernel::current;
use crate::kernel::timers::TimerKey;
use crate::kernel::{Kernel, TimerJob};
use crate::runtime::callback::Callback;
use crate::runtime::event_loop::LoopHandle;
use crate::task::cancel::{self, CatchFrame};
use crate::task::raw::TaskRef;
use crate::task::{JoinError, JoinHandle, Outcome};

/// Time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("time ran out")
    }
}

impl std::error::Error for Elapsed {}

/// Awaits `future` for at most `limit`. When time runs out the task gets a cancellation request: what `future` awaits
/// unwinds, may clean up, and `Err(Elapsed)` comes out here. A future that never waits never times out.
///
/// The clock starts at the first poll, and no later than when the future first waits.
///
/// # Cancel safety
/// As cancel-safe as `future`; dropped, its timer is disarmed.
///
/// # Panics
/// When polled outside of a task of the loop and it has to wait; when polled after it was ready.
///
/// ```
/// use tidegate_loop::{run, sleep, timeout, Duration, Elapsed};
/// run(async {
///     assert_eq!(timeout(Duration::from_millis(1), sleep(Duration::from_secs(60))).await, Err(Elapsed));
///     assert_eq!(timeout(Duration::from_secs(60), async { 1 }).await, Ok(1));
/// })
/// .unwrap();
/// ```
#[inline]
pub fn timeout<F: Future>(limit: Duration, future: F) -> Timeout<F> {
    Timeout { future: Some(future), phase: TimeoutPhase::New(Limit::After(limit)), place: CatchFrame::OUTSIDE }
}

/// Awaits `future`, but no longer than until `deadline`; otherwise as [`timeout`].
///
/// ```
/// use tidegate_loop::{run, sleep, timeout_at, Duration, LoopHandle};
/// run(async {
///     let deadline = LoopHandle::current().time() + Duration::from_millis(1);
///     assert!(timeout_at(deadline, sleep(Duration::from_secs(60))).await.is_err());
/// })
/// .unwrap();
/// ```
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    Timeout { future: Some(future), phase: TimeoutPhase::New(Limit::At(deadline)), place: CatchFrame::OUTSIDE }
}

/// Awaits a task for at most `limit`; when time runs out the task is cancelled, and this fails once it has cleaned up.
/// With a limit of zero a task that is not done is cancelled at once: its body never starts.
///
/// # Errors
/// `Err(Elapsed)` outside; inside, why the task has no result.
///
/// # Cancel safety
/// Dropped, the task goes on by itself.
///
/// ```
/// use tidegate_loop::{run, spawn, wait_for, Duration, Elapsed};
/// run(async {
///     let task = spawn(std::future::pending::<()>());
///     assert!(matches!(wait_for(Duration::from_millis(1), task).await, Err(Elapsed)));
/// })
/// .unwrap();
/// ```
pub async fn wait_for<T: 'static>(limit: Duration, mut handle: JoinHandle<T>) -> Result<Result<T, JoinError>, Elapsed> {
    if !limit.is_zero() {
        return timeout(limit, handle).await;
    }
    if handle.is_finished() {
        return Ok(handle.await);
    }
    let task = handle.task();
    let ended = LoopHandle::current().create_future();
    let signal = ended.clone();
    // Not the task's own end but a future beside it: cancelled meanwhile, we go, and the task is left to its clean-up.
    task.add_done_callback(move |_| drop(signal.set_result(())));
    task.cancel();
    let _ = ended.await;
    match task.outcome() {
        Some(Outcome::Cancelled) => Err(Elapsed),
        _ => Ok(handle.try_result().expect("it has ended, and this is its only handle")),
    }
}

/// A time-out that can be moved while it runs.
///
/// ```
/// use tidegate_loop::{run, sleep, Deadline, Duration, LoopHandle};
/// run(async {
///     let deadline = Deadline::after(Duration::from_millis(1));
///     let inner = deadline.clone();
///     let result = deadline
///         .scope(async move {
///             inner.reschedule(Some(LoopHandle::current().time() + Duration::from_secs(60)));
///             sleep(Duration::from_millis(5)).await;
///         })
///         .await;
///     assert!(result.is_ok() && !deadline.expired());
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Deadline {
    cell: Rc<DeadlineCell>,
    limit: Option<Limit>,
}

#[derive(Clone, Copy)]
enum Limit {
    After(Duration),
    At(Instant),
}

impl Limit {
    fn nanos(self, kernel: &Kernel, start: impl FnOnce() -> Nanos) -> Nanos {
        match self {
            Limit::After(duration) => start().saturating_add(nanos_of(duration)),
            Limit::At(instant) => kernel.clock.nanos(instant),
        }
    }
}

impl Deadline {
    /// `limit` after the scope is entered.
    ///
    /// ```
    /// let deadline = tidegate_loop::Deadline::after(std::time::Duration::from_secs(1));
    /// assert!(!deadline.expired());
    /// ```
    #[must_use]
    pub fn after(limit: Duration) -> Deadline {
        Deadline { cell: Rc::default(), limit: Some(Limit::After(limit)) }
    }

    /// At `instant`.
    ///
    /// ```
    /// let deadline = tidegate_loop::Deadline::at(std::time::Instant::now());
    /// ```
    #[must_use]
    pub fn at(instant: Instant) -> Deadline {
        Deadline { cell: Rc::default(), limit: Some(Limit::At(instant)) }
    }

    /// A deadline that never expires unless [`reschedule`](Self::reschedule) sets a time.
    ///
    /// ```
    /// let deadline = tidegate_loop::Deadline::never();
    /// ```
    #[must_use]
    pub fn never() -> Deadline {
        Deadline { cell: Rc::default(), limit: None }
    }

    /// Awaits `future` under this deadline. A deadline is used once.
    ///
    /// # Panics
    /// When the deadline was used before, or outside of a task.
    ///
    /// ```
    /// # use tidegate_loop::{run, Deadline, Duration};
    /// run(async {
    ///     assert_eq!(Deadline::after(Duration::from_secs(1)).scope(async { 1 }).await, Ok(1));
    /// })
    /// .unwrap();
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> Timeout<F> {
        Timeout { future: Some(future), phase: TimeoutPhase::Scope(self.clone()), place: CatchFrame::OUTSIDE }
    }

    /// Moves it, while the scope runs; `None`: not until the next call. Does nothing once it has expired or ended.
    ///
    /// ```
    /// # tidegate_loop::Deadline::never().reschedule(None); // not entered: nothing to move
    /// ```
    pub fn reschedule(&self, when: Option<Instant>) {
        let Some(task) = self.cell.task.borrow().clone() else { return };
        if self.cell.stage.get() != DeadlineStage::Entered {
            return;
        }
        current::on(task.loop_serial, |kernel| {
            self.cell.disarm(kernel);
            if let Some(when) = when {
                self.cell.arm(kernel, kernel.clock.nanos(when));
            }
        });
    }

    /// Whether time ran out.
    ///
    /// ```
    /// assert!(!tidegate_loop::Deadline::never().expired());
    /// ```
    pub fn expired(&self) -> bool {
        matches!(self.cell.stage.get(), DeadlineStage::Expiring | DeadlineStage::Expired)
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline").field("expired", &self.expired()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum DeadlineStage {
    #[default]
    Created,
    Entered,
    /// Time ran out and the request has been made; it has not come out yet.
    Expiring,
    Expired,
    Left,
}

#[derive(Default)]
enum Armed {
    #[default]
    No,
    Timer(TimerKey),
    /// It lay in the past: its turn comes with the next tick.
    Soon(crate::runtime::callback::Handle),
}

/// A deadline in force: whom it cancels, and the timer behind it.
#[derive(Default)]
pub(crate) struct DeadlineCell {
    task: RefCell<Option<TaskRef>>,
    stage: Cell<DeadlineStage>,
    armed: Cell<Armed>,
    /// The requests the task had when the scope was entered: what is more is not ours.
    cancels: Cell<u16>,
}

impl DeadlineCell {
    fn enter(&self, task: TaskRef) {
        assert!(self.stage.get() == DeadlineStage::Created, "a deadline is used once; make another for the next scope");
        self.cancels.set(task.cancels.get());
        self.stage.set(DeadlineStage::Entered);
        *self.task.borrow_mut() = Some(task);
    }

    fn arm(self: &Rc<Self>, kernel: &Kernel, when: Nanos) {
        if when > kernel.now() {
            let key = kernel.timers.borrow_mut().arm(when, TimerJob::Expire(self.clone()));
            kernel.watch.timer_armed(kernel, when, None);
            self.armed.set(Armed::Timer(key));
        } else {
            let cell = self.clone();
            let expire = Box::new(move || current::with(|kernel| cell.expire(kernel.expect("called by the loop"))));
            let callback = Rc::new(Callback::new(expire, Snapshot::default(), Location::caller()));
            kernel.push_call(callback.clone());
            self.armed.set(Armed::Soon(crate::runtime::callback::Handle { callback }));
        }
    }

    fn disarm(&self, kernel: &Kernel) {
        match self.armed.take() {
            Armed::No => {}
            Armed::Timer(key) => {
                let job = kernel.timers.borrow_mut().cancel(key);
                drop(job);
            }
            Armed::Soon(handle) => handle.cancel(),
        }
    }

    pub(crate) fn task(&self) -> Option<TaskRef> {
        self.task.borrow().clone()
    }

    /// Time has run out.
    pub(crate) fn expire(&self, kernel: &Kernel) {
        self.armed.set(Armed::No);
        if self.stage.get() == DeadlineStage::Entered {
            self.stage.set(DeadlineStage::Expiring);
            let task = self.task.borrow().clone();
            if let Some(task) = task {
                cancel::request(kernel, &task);
            }
        }
    }

    /// The scope is left. Returns `true` if a cancellation that comes out of it is this deadline's alone.
    fn leave(&self) -> bool {
        let Some(task) = self.task.borrow_mut().take() else { return false };
        current::on(task.loop_serial, |kernel| self.disarm(kernel));
        if self.stage.get() != DeadlineStage::Expiring {
            self.stage.set(DeadlineStage::Left);
            return false;
        }
        self.stage.set(DeadlineStage::Expired);
        let ours = cancel::take_back(&task) <= u32::from(self.cancels.get());
        if ours {
            cancel::forget(&task);
        }
        ours
    }
}

pin_project! {
    /// The future of [`timeout`], [`timeout_at`] and [`Deadline::scope`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        // Gone when the time-out has been decided.
        #[pin]
        future: Option<F>,
        phase: TimeoutPhase,
        place: CatchFrame,
    }

    impl<F> PinnedDrop for Timeout<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let TimeoutPhase::Entered(cell) = this.phase {
                // What marked it was its own request, if that was the only one; it goes with it.
                if cell.leave() {
                    this.place.leave();
                }
            }
        }
    }
}

enum TimeoutPhase {
    /// Not polled yet.
    New(Limit),
    Scope(Deadline),
    Entered(Rc<DeadlineCell>),
    /// A cancellation that is not this time-out's goes on outwards: the poll returns to what owns this, which drops it.
    Unwinding,
    Ready,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        match &this.phase {
            TimeoutPhase::New(limit) => {
                let limit = *limit;
                current::with(|kernel| {
                    let kernel = kernel.expect("timeout needs a running loop: await it inside run(...)");
                    let due = match limit {
                        Limit::After(duration) => duration.is_zero(),
                        Limit::At(deadline) => kernel.clock.nanos(deadline) <= kernel.now(),
                    };
                    if due {
                        // Its place in the queue is before anything the future queues.
                        *this.phase = TimeoutPhase::Entered(enter(kernel, Rc::default(), Some(limit)));
                        this.place.enter(None);
                        return poll_entered(this.future, this.phase, this.place, cx);
                    }
                    // A future that is ready at once, the common case, costs no timer and no entry: only what must be
                    // known from before it ran is noted.
                    let sequence = kernel.timers.borrow_mut().reserve();
                    let readings = kernel.readings();
                    let cancels = kernel.current_task().map_or(0, |task| task.cancels.get());
                    let depth = cancel::depth_of(kernel);
                    let future = this.future.as_mut().as_pin_mut().expect("not polled before");
                    if let Poll::Ready(output) = future.poll(cx) {
                        *this.phase = TimeoutPhase::Ready;
                        this.future.set(None);
                        return Poll::Ready(Ok(output));
                    }
                    let cell = enter(kernel, Rc::default(), None);
                    cell.cancels.set(cancels);
                    let when = limit.nanos(kernel, || kernel.now_since(readings));
                    let key = kernel.timers.borrow_mut().arm_as(when, sequence, TimerJob::Expire(cell.clone()));
                    kernel.watch.timer_armed(kernel, when, None);
                    cell.armed.set(Armed::Timer(key));
                    *this.phase = TimeoutPhase::Entered(cell);
                    this.place.enter(Some(depth));
                    this.place.remember(cx.waker());
                    Poll::Pending
                })
            }
            TimeoutPhase::Scope(deadline) => {
                let Deadline { cell, limit } = deadline.clone();
                current::with(|kernel| {
                    let kernel = kernel.expect("a deadline needs a running loop: await its scope inside run(...)");
                    *this.phase = TimeoutPhase::Entered(enter(kernel, cell, limit));
                });
                this.place.enter(None);
                poll_entered(this.future, this.phase, this.place, cx)
            }
            TimeoutPhase::Entered(_) => poll_entered(this.future, this.phase, this.place, cx),
            TimeoutPhase::Unwinding => Poll::Pending,
            TimeoutPhase::Ready => panic!("Timeout polled after it was ready"),
        }
    }
}

/// Makes `cell` a deadline of the current task.
fn enter(kernel: &Kernel, cell: Rc<DeadlineCell>, limit: Option<Limit>) -> Rc<DeadlineCell> {
    let task = kernel.current_ref().expect("a time-out needs a task to cancel: await it inside one");
    cell.enter(task);
    if let Some(limit) = limit {
        let when = limit.nanos(kernel, || kernel.now());
        cell.arm(kernel, when);
    }
    cell
}

fn poll_entered<F: Future>(
    mut future: Pin<&mut Option<F>>,
    phase: &mut TimeoutPhase,
    place: &mut CatchFrame,
    cx: &mut PollContext<'_>,
) -> Poll<Result<F::Output, Elapsed>> {
    if !place.is_marked() {
        let inner = future.as_mut().as_pin_mut().expect("there until decided");
        match inner.poll(cx) {
            Poll::Ready(output) if !place.is_marked() => {
                place.leave();
                future.set(None);
                leave(phase);
                return Poll::Ready(Ok(output));
            }
            Poll::Pending if !place.is_marked() => {
                place.remember(cx.waker());
                return Poll::Pending;
            }
            _ => {}
        }
    }
    // A cancellation came out of the future: this time-out's own, or one that is meant for an outer scope.
    place.leave();
    future.set(None);
    if leave(phase) {
        return Poll::Ready(Err(Elapsed));
    }
    *phase = TimeoutPhase::Unwinding;
    cancel::raise_here();
    Poll::Pending
}

fn leave(phase: &mut TimeoutPhase) -> bool {
    match std::mem::replace(phase, TimeoutPhase::Ready) {
        TimeoutPhase::Entered(cell) => cell.leave(),
        _ => false,
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").finish_non_exhaustive()
    }
}
