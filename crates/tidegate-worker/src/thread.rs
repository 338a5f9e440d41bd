//! Thread mode: handlers that block, each in a thread of its own. A thread cannot be ended from outside; one that does not
//! come back in time is left behind, replaced, counted and logged.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{JobError, LoopHandle, ThreadPool, sleep, sleep_until};
use tidegate_sync::{OwnedPermit, Semaphore};

use crate::broker::Local;
use crate::context::TaskContext;
use crate::handlers::{BlockingHandler, BlockingHandlers, outcome_of, panicked};
use crate::mode::{Figure, Job, Mode, ModeError, StopReason};
use crate::outcome::Outcome;

/// Runs blocking handlers, each in a thread of its own.
///
/// - **Soft limit, stop, revoke**: cooperative. [`TaskContext::should_stop`] turns true, and nothing else happens: a handler
///   that does not ask is not told.
/// - **Hard limit**, and [`grace`](Threads::with_grace) after a stop or a revoke: the thread is *abandoned*. Its run counts as
///   ended, a fresh thread takes its place, and what it returns later is thrown away. It still runs, holds what it holds, and
///   does what it does: after a time-out a task may run twice at once.
///
/// Of threads left behind there may be [`abandoned_max`](Threads::with_abandoned_max); with more, slots stay empty until one
/// of them comes back. What cannot be trusted to come back belongs in process mode.
///
/// ```
/// use tidegate_worker::{BlockingHandlers, HandlerError, Mode, Threads};
///
/// let handlers = BlockingHandlers::new().task("nap", || Ok::<_, HandlerError>(()));
/// assert_eq!(Threads::new(handlers).with_slots(4).slots(), 4);
/// ```
pub struct Threads {
    handlers: BlockingHandlers,
    slots: usize,
    grace: Duration,
    abandoned_max: usize,
    crew: Rc<Crew>,
}

/// The threads. Each is a pool of one: its jobs come back to the loop, in virtual time in a fixed order.
struct Crew {
    idle: RefCell<Vec<Seat>>,
    /// A seat made before is not used again; see `recycle`.
    generation: Cell<u64>,
    /// One permit a thread that may run a task.
    free: RefCell<Arc<Semaphore>>,
    abandoned: Arc<AtomicUsize>,
    abandoned_total: Cell<u64>,
}

struct Seat {
    thread: ThreadPool,
    generation: u64,
}

impl Threads {
    /// How long a handler may take to notice a stop or a revoke unless set.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// With these handlers, in as many threads as there are processors, four at least.
    pub fn new(handlers: BlockingHandlers) -> Threads {
        let slots = std::thread::available_parallelism().map_or(4, |count| count.get().max(4));
        let crew = Crew {
            idle: RefCell::default(),
            generation: Cell::new(0),
            free: RefCell::new(Arc::new(Semaphore::new(slots))),
            abandoned: Arc::default(),
            abandoned_total: Cell::new(0),
        };
        Threads { handlers, slots, grace: Threads::GRACE, abandoned_max: 4 * slots, crew: Rc::new(crew) }
    }

    /// In this many threads; four times as many may be left behind.
    ///
    /// # Panics
    /// When it is 0.
    #[must_use]
    pub fn with_slots(mut self, slots: usize) -> Threads {
        assert!(slots > 0, "a mode without slots would run nothing");
        self.slots = slots;
        self.abandoned_max = 4 * slots;
        self.crew.free.replace(Arc::new(Semaphore::new(slots)));
        self
    }

    /// How long a handler may take to notice a stop or a revoke.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Threads {
        self.grace = grace;
        self
    }

    /// How many threads may be left behind before slots stay empty.
    #[must_use]
    pub fn with_abandoned_max(mut self, abandoned_max: usize) -> Threads {
        self.abandoned_max = abandoned_max;
        self
    }
}

impl Mode for Threads {
    fn name(&self) -> &'static str {
        "thread"
    }

    fn slots(&self) -> usize {
        self.slots
    }

    fn handlers(&self) -> Option<Vec<String>> {
        Some(self.handlers.names())
    }

    fn start(&self) -> Local<'_, Result<(), ModeError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn run(&self, job: Job) -> Local<'static, Outcome> {
        let Some(handler) = self.handlers.get(&job.task.name) else {
            let reason = format!("no handler is called '{}'", job.task.name);
            return Box::pin(std::future::ready(Outcome::Rejected { reason }));
        };
        let run = Run {
            handler: Arc::clone(handler),
            crew: Rc::clone(&self.crew),
            grace: self.grace,
            abandoned_max: self.abandoned_max,
        };
        Box::pin(run.go(job))
    }

    fn recycle(&self) {
        self.crew.generation.set(self.crew.generation.get() + 1);
        let idle = self.crew.idle.take();
        tracing::info!(idle = idle.len(), "idle threads end now, the others once their tasks are done");
    }

    fn stop(&self) -> Local<'_, ()> {
        let idle = self.crew.idle.take();
        let left = self.crew.abandoned.load(Ordering::Relaxed);
        if left > 0 {
            tracing::warn!(left, "threads are left behind; they end with this process");
        }
        drop(idle);
        Box::pin(std::future::ready(()))
    }

    fn figures(&self) -> Vec<Figure> {
        vec![
            Figure {
                name: "threads_abandoned_total",
                help: "Threads left behind because their tasks did not come back in time.",
                value: self.crew.abandoned_total.get(),
            },
            Figure {
                name: "threads_abandoned",
                help: "Threads left behind that still run.",
                value: self.crew.abandoned.load(Ordering::Relaxed) as u64,
            },
        ]
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("handlers", &self.handlers)
            .field("slots", &self.slots)
            .field("abandoned", &self.crew.abandoned_total.get())
            .finish_non_exhaustive()
    }
}

struct Run {
    handler: Arc<dyn BlockingHandler>,
    crew: Rc<Crew>,
    grace: Duration,
    abandoned_max: usize,
}

impl Run {
    async fn go(self, job: Job) -> Outcome {
        let Job { task, soft_limit, hard_limit, stop } = job;
        let name = task.name.clone();
        let id = task.id.clone();
        let free = Arc::clone(&self.crew.free.borrow());
        let permit = {
            // Only with too many threads left behind is there something to wait for.
            let mut acquire = pin!(free.acquire_owned());
            let mut requested = pin!(stop.requested());
            let got = poll_fn(|cx| match requested.as_mut().poll(cx) {
                Poll::Ready(reason) => Poll::Ready(Err(ended_early(reason))),
                Poll::Pending => acquire.as_mut().poll(cx).map(Ok),
            });
            match got.await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) => return Outcome::Cancelled,
                Err(outcome) => return outcome,
            }
        };
        let context = TaskContext::new(&task, soft_limit, hard_limit, LoopHandle::current().time());
        let seat = self.crew.seat();
        let ending = Arc::new(Ending::new(&self.crew.abandoned, &free));
        let thread = {
            let (handler, context) = (Arc::clone(&self.handler), context.clone());
            let comes_back = ComesBack(Arc::clone(&ending));
            seat.thread.run_named(name.as_str(), move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| handler.call(task, context)));
                drop(comes_back);
                outcome.map_or_else(|panic| panicked(&*panic), |answer| outcome_of(answer, soft_limit))
            })
        };
        let mut thread = pin!(thread);
        let mut hard = pin!(async {
            match context.hard_deadline() {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let mut requested = pin!(stop.requested());
        let first = poll_fn(|cx| {
            if let Poll::Ready(done) = thread.as_mut().poll(cx) {
                return Poll::Ready(First::Done(done));
            }
            if let Poll::Ready(reason) = requested.as_mut().poll(cx) {
                return Poll::Ready(First::Stop(reason));
            }
            hard.as_mut().poll(cx).map(|()| First::Late)
        });
        let late = match first.await {
            First::Done(done) => {
                self.crew.give_back(seat);
                drop(permit);
                return outcome(done);
            }
            First::Late => Outcome::TimedOut { limit: hard_limit.unwrap_or_default() },
            First::Stop(reason) => {
                context.stop();
                let early = ended_early(reason);
                let mut grace = pin!(sleep(self.grace));
                let noticed = poll_fn(|cx| match thread.as_mut().poll(cx) {
                    Poll::Ready(done) => Poll::Ready(Some(done)),
                    Poll::Pending => grace.as_mut().poll(cx).map(|()| None),
                });
                match noticed.await {
                    Some(done) => {
                        self.crew.give_back(seat);
                        drop(permit);
                        // What was finished counts; what gave up did so because it was asked to.
                        return match outcome(done) {
                            success @ Outcome::Success(_) => success,
                            _ => early,
                        };
                    }
                    None => early,
                }
            }
        };
        context.stop();
        self.abandon(&ending, permit);
        tracing::error!(
            task.id = %id, task.name = %name, left_behind = self.crew.abandoned.load(Ordering::Relaxed),
            "a thread did not come back in time: it is left behind, still running, and replaced; what it returns is thrown away"
        );
        late
    }

    fn abandon(&self, ending: &Ending, permit: OwnedPermit) {
        self.crew.abandoned_total.set(self.crew.abandoned_total.get() + 1);
        let before = self.crew.abandoned.fetch_add(1, Ordering::Relaxed);
        let replace = before < self.abandoned_max;
        if !replace {
            tracing::error!(
                left_behind = before + 1,
                "too many threads are left behind; this slot stays empty until one comes back"
            );
        }
        ending.abandon(permit, replace);
    }
}

enum First {
    Done(Result<Outcome, JobError>),
    Stop(StopReason),
    Late,
}

fn ended_early(reason: StopReason) -> Outcome {
    match reason {
        StopReason::Stopping => Outcome::Cancelled,
        StopReason::Revoked => Outcome::Revoked,
    }
}

fn outcome(done: Result<Outcome, JobError>) -> Outcome {
    done.unwrap_or_else(|error| Outcome::Crashed { message: error.to_string() })
}

impl Crew {
    fn seat(&self) -> Seat {
        self.idle.borrow_mut().pop().unwrap_or_else(|| Seat {
            thread: ThreadPool::builder().threads_max(1).name("tidegate-task").build(),
            generation: self.generation.get(),
        })
    }

    fn give_back(&self, seat: Seat) {
        if seat.generation == self.generation.get() {
            self.idle.borrow_mut().push(seat);
        }
    }
}

/// Owned by the job: reports the end of the run when the handler has returned, and also when the job is dropped before a thread
/// has started it, as after a hard limit on a busy machine.
struct ComesBack(Arc<Ending>);

impl Drop for ComesBack {
    fn drop(&mut self) {
        self.0.came_back();
    }
}

/// How a thread's run ends. Thread and loop both change `state`; the second of them cleans up.
struct Ending {
    state: AtomicUsize,
    abandoned: Arc<AtomicUsize>,
    free: Arc<Semaphore>,
}

impl Ending {
    const RUNNING: usize = 0;
    const BACK: usize = 1;
    /// The slot was filled by another thread.
    const REPLACED: usize = 2;
    /// The slot stays empty until this thread is back.
    const MISSED: usize = 3;

    fn new(abandoned: &Arc<AtomicUsize>, free: &Arc<Semaphore>) -> Ending {
        Ending { state: AtomicUsize::new(Ending::RUNNING), abandoned: Arc::clone(abandoned), free: Arc::clone(free) }
    }

    /// On the thread.
    fn came_back(&self) {
        match self.state.swap(Ending::BACK, Ordering::AcqRel) {
            Ending::REPLACED => {
                self.abandoned.fetch_sub(1, Ordering::Relaxed);
            }
            Ending::MISSED => {
                self.abandoned.fetch_sub(1, Ordering::Relaxed);
                self.free.release(1);
            }
            _ => {}
        }
    }

    /// On the loop.
    fn abandon(&self, permit: OwnedPermit, replace: bool) {
        let to = if replace { Ending::REPLACED } else { Ending::MISSED };
        let swapped = self.state.compare_exchange(Ending::RUNNING, to, Ordering::AcqRel, Ordering::Acquire);
        match swapped {
            // It came back at this very moment.
            Err(_) => {
                self.abandoned.fetch_sub(1, Ordering::Relaxed);
                drop(permit);
            }
            Ok(_) if replace => drop(permit),
            Ok(_) => permit.forget(),
        }
    }
}
