//! Coroutine mode: async handlers on the worker's own loop. A time-out drops the future.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_loop::{LoopHandle, sleep_until, timeout_at};
use tidegate_sync::Event;

use crate::broker::Local;
use crate::context::TaskContext;
use crate::handlers::{HandlerError, Handlers, outcome_of, panicked};
use crate::mode::{Begun, Job, Mode, ModeError, StopReason, StopSignal};
use crate::outcome::Outcome;

/// Runs async handlers on the worker's loop, many at a time.
///
/// - **Soft limit**: a cancellation request, as [`tidegate_loop::timeout`] makes it: the innermost
///   [`catch_cancel`](tidegate_loop::catch_cancel) of the handler gets it and may clean up until the hard limit; without
///   one the future is dropped.
/// - **Hard limit**: the future is dropped.
/// - **Stop, revoke**: the future is dropped.
///
/// What it cannot do: end a handler that does not come back to the loop. One that computes or blocks holds up every other
/// task of this worker; it belongs in thread or process mode.
///
/// ```
/// use tidegate_worker::{Coroutines, HandlerError, Handlers, Mode};
///
/// let handlers = Handlers::new().task("ping", || async { Ok::<_, HandlerError>("pong") });
/// assert_eq!(Coroutines::new(handlers).slots(), Coroutines::SLOTS);
/// ```
#[derive(Debug)]
pub struct Coroutines {
    handlers: Rc<Handlers>,
    slots: usize,
    running: Rc<Cell<usize>>,
    /// Set by `stop`: every run ends.
    ended: Rc<Event>,
}

impl Coroutines {
    /// How many tasks run at a time unless set: the high-water mark.
    pub const SLOTS: usize = 1_000;

    /// With these handlers.
    pub fn new(handlers: Handlers) -> Coroutines {
        Coroutines {
            handlers: Rc::new(handlers),
            slots: Coroutines::SLOTS,
            running: Rc::default(),
            ended: Rc::default(),
        }
    }

    /// This many at a time.
    ///
    /// # Panics
    /// When it is 0.
    #[must_use]
    pub fn with_slots(mut self, slots: usize) -> Coroutines {
        assert!(slots > 0, "a mode without slots would run nothing");
        self.slots = slots;
        self
    }

    /// Calls the handler; its future has not been polled.
    fn call(&self, job: Job) -> Result<Called, Outcome> {
        let Some((name, handler)) = self.handlers.get(&job.task.name) else {
            return Err(Outcome::Rejected { reason: format!("no handler is called '{}'", job.task.name) });
        };
        let running = Counted::new(&self.running);
        let Job { task, soft_limit, hard_limit, stop } = job;
        let limits = Limits { soft: soft_limit, hard: hard_limit };
        let (soft_at, hard_at) = limits.deadlines();
        let context = TaskContext::named(Arc::clone(name), &task, soft_at, hard_at);
        let called = catch_unwind(AssertUnwindSafe(|| handler.call(task, context.clone())));
        let call = Call(Some(called.map_err(|panic| panicked(&*panic))?));
        Ok(Called { call, context, limits, stop, ended: Rc::clone(&self.ended), _running: running })
    }
}

impl Mode for Coroutines {
    fn name(&self) -> &'static str {
        "coroutine"
    }

    fn slots(&self) -> usize {
        self.slots
    }

    fn handlers(&self) -> Option<Vec<String>> {
        Some(self.handlers.names())
    }

    fn start(&self) -> Local<'_, Result<(), ModeError>> {
        self.ended.clear();
        Box::pin(std::future::ready(Ok(())))
    }

    fn run(&self, job: Job) -> Local<'static, Outcome> {
        match self.call(job) {
            Ok(called) => Box::pin(called.watched()),
            Err(outcome) => Box::pin(std::future::ready(outcome)),
        }
    }

    fn begin(&self, job: Job, cx: &mut Context<'_>) -> Begun {
        // A soft limit has to be around the handler from its first step: what is entered later counts as further inside.
        if job.soft_limit.is_some() {
            return Begun::Runs(self.run(job));
        }
        // Most handlers that don't wait at all need neither timers nor a place in line for the stop.
        match self.call(job) {
            Ok(mut called) => match Pin::new(&mut called.call).poll(cx) {
                Poll::Ready(ended) => Begun::Ended(ended.into_outcome(None)),
                Poll::Pending => Begun::Runs(Box::pin(called.watched())),
            },
            Err(outcome) => Begun::Ended(outcome),
        }
    }

    fn recycle(&self) {
        tracing::info!("coroutine mode has nothing to recycle: handlers are part of this process");
    }

    fn stop(&self) -> Local<'_, ()> {
        Box::pin(async {
            self.ended.set();
            while self.running.get() > 0 {
                // Each ends at its next step, which is due now.
                tidegate_loop::yield_now().await;
            }
        })
    }
}

/// The soft and the hard time limit of a run.
#[derive(Clone, Copy)]
struct Limits {
    soft: Option<Duration>,
    hard: Option<Duration>,
}

impl Limits {
    /// When the two are passed by a run that begins now; most have none, and need no clock.
    fn deadlines(self) -> (Option<Instant>, Option<Instant>) {
        if self.soft.is_none() && self.hard.is_none() {
            return (None, None);
        }
        let now = LoopHandle::current().time();
        let at = |limit: Option<Duration>| limit.and_then(|limit| now.checked_add(limit));
        (at(self.soft), at(self.hard))
    }
}

/// A handler that was called.
struct Called {
    call: Call,
    context: TaskContext,
    limits: Limits,
    stop: Rc<StopSignal>,
    /// The end of all of them.
    ended: Rc<Event>,
    _running: Counted,
}

impl Called {
    /// A run that waits. It ends by itself, by a stop signal, or by a time limit.
    async fn watched(self) -> Outcome {
        let Called { mut call, context, limits, stop, ended, _running } = self;
        let soft_at = context.soft_deadline();
        let hard_at = context.hard_deadline();
        let mut requested = pin!(stop.requested());
        let mut all = pin!(ended.wait());
        let mut hard = pin!(async move {
            match hard_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let mut handled = pin!(async {
            match soft_at {
                Some(at) => timeout_at(at, &mut call).await.unwrap_or(Ended::SoftLimit),
                None => (&mut call).await,
            }
        });
        // The handler last: what was polled last is what a cancellation request goes to.
        poll_fn(|cx| {
            if let Poll::Ready(reason) = requested.as_mut().poll(cx) {
                context.stop();
                return Poll::Ready(match reason {
                    StopReason::Stopping => Outcome::Cancelled,
                    StopReason::Revoked => Outcome::Revoked,
                });
            }
            if all.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Outcome::Cancelled);
            }
            if hard.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Outcome::TimedOut { limit: limits.hard.unwrap_or_default() });
            }
            handled.as_mut().poll(cx).map(|ended| ended.into_outcome(limits.soft))
        })
        .await
    }
}

/// How a handler's future ended.
enum Ended {
    Answer(Result<Value, HandlerError>),
    Panic(Outcome),
    SoftLimit,
}

impl Ended {
    fn into_outcome(self, soft_limit: Option<Duration>) -> Outcome {
        match self {
            Ended::Answer(answer) => outcome_of(answer, soft_limit),
            Ended::Panic(outcome) => outcome,
            Ended::SoftLimit => Outcome::TimedOut { limit: soft_limit.unwrap_or_default() },
        }
    }
}

/// A handler's future whose panics, in a step or in the drop, are its own.
struct Call(Option<Local<'static, Result<Value, HandlerError>>>);

impl Future for Call {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let call = self.0.as_mut().expect("not polled after it was ready");
        match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(answer)) => {
                self.end();
                Poll::Ready(Ended::Answer(answer))
            }
            Err(panic) => {
                self.end();
                Poll::Ready(Ended::Panic(panicked(&*panic)))
            }
        }
    }
}

impl Call {
    fn end(&mut self) {
        let call = self.0.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(call))) {
            tracing::error!(panic = ?panicked(&*panic), "a handler's destructor panicked");
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end();
    }
}

/// A run that counts as running until it is dropped.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(count: &Rc<Cell<usize>>) -> Counted {
        count.set(count.get() + 1);
        Counted(Rc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
