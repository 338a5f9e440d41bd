//! A slot at work. It begins what is next in line, and the next, for as long as none of them has to wait: a task that is over
//! with its first step needs no coroutine of its own.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_limit::Admitted;
use tidegate_loop::{ContextVars, LoopHandle, Task};

use crate::broker::Local;
use crate::hands::Held;
use crate::metrics::add;
use crate::middleware::TaskInfo;
use crate::mode::{Begun, Job};
use crate::moment;
use crate::outcome::Outcome;
use crate::pool::WorkerPool;

/// What runs in a slot.
pub(crate) struct Lane {
    pool: Rc<WorkerPool>,
    /// Not begun yet; with what its limit gave it.
    first: Option<(Held, Option<Box<Admitted>>)>,
    /// Whether it goes on with those in line.
    along: bool,
    /// Has to wait. Behind it the lane ends: what is in line is another's by then.
    waiting: Option<Run>,
}

/// A run that goes on behind its first step. Dropped, it ends before the task returns.
struct Run {
    steps: Steps,
    lease: Option<Box<Admitted>>,
    begun: Instant,
    running: Running,
    held: Held,
}

struct Steps {
    /// `None` once it is dropped.
    outcome: Option<Local<'static, Outcome>>,
    /// What it sets stays its own, whatever its coroutine has run before.
    variables: ContextVars,
}

/// What a first step came to.
enum Step {
    Waits(Run),
    /// At this instant, after this long.
    Over(Instant, Duration),
}

/// Now, on both clocks: the date is looked at once for all first steps that follow each other.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    /// `since` before.
    date: Timestamp,
    since: Duration,
}

impl Lane {
    /// Begins with this one, and goes on with those in line.
    pub(crate) fn along_the_line(pool: &Rc<WorkerPool>, first: Held) -> Lane {
        Lane { pool: Rc::clone(pool), first: Some((first, None)), along: true, waiting: None }
    }

    /// For this one, which its limit has admitted.
    pub(crate) fn of_one(pool: &Rc<WorkerPool>, held: Held, lease: Box<Admitted>) -> Lane {
        Lane { pool: Rc::clone(pool), first: Some((held, Some(lease))), along: false, waiting: None }
    }

    fn next(&mut self) -> Option<(Held, Option<Box<Admitted>>)> {
        self.along.then(|| self.pool.next_in_line()).flatten().map(|held| (held, None))
    }

    fn poll_first_steps(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let date = self.pool.shared.broker.now();
        let mut now = Moment { at: LoopHandle::current().time(), date, since: Duration::ZERO };
        self.pool.is_tired(now.at);
        // It may have waited for its slot.
        let mut next = match self.first.take() {
            Some((held, lease)) => match self.pool.still_wanted(&held) {
                None => Some((held, lease)),
                Some(outcome) => {
                    self.pool.settle(held, outcome);
                    self.next()
                }
            },
            None => None,
        };
        while let Some((held, lease)) = next {
            match first_step(&self.pool, held, lease, now, cx) {
                Step::Waits(run) => {
                    self.waiting = Some(run);
                    return Poll::Pending;
                }
                Step::Over(at, took) => now = Moment { at, since: now.since + took, ..now },
            }
            // A request to end this coroutine was meant for what it ran.
            if self.pool.is_tired(now.at) || Task::current().cancelling() > 0 {
                break;
            }
            next = self.next();
        }
        Poll::Ready(())
    }
}

impl Future for Lane {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(run) = &mut self.waiting else { return self.poll_first_steps(cx) };
        let Poll::Ready(outcome) = run.steps.poll(cx) else { return Poll::Pending };
        if let Some(run) = self.waiting.take() {
            run.end(&self.pool, outcome);
        }
        Poll::Ready(())
    }
}

/// Everything before a run, its first step, and everything behind it if that was the last.
fn first_step(
    pool: &Rc<WorkerPool>,
    mut held: Held,
    mut lease: Option<Box<Admitted>>,
    now: Moment,
    cx: &mut Context<'_>,
) -> Step {
    let begun = now.at;
    let running = Running::new(pool);
    held.begin(begun);
    if let Some(lease) = &mut lease {
        lease.sent();
    }
    let shared = &pool.shared;
    let task = held.take_task().expect("what could not be read was refused, and nothing is run twice");
    let policy = shared.policies.of(&task.name);
    let mut job = Job {
        soft_limit: task.soft_limit.or(policy.soft_limit),
        hard_limit: task.hard_limit.or(policy.hard_limit),
        stop: Rc::clone(held.stop()),
        task,
    };
    let info = held.info();
    shared.middleware.iter().for_each(|middleware| middleware.starting(info, &mut job));
    shared.counters.queued.add(moment::since(now.date, info.published) + now.since);
    let variables = ContextVars::current();
    let outcome = match variables.run(|| shared.mode.begin(job, cx)) {
        Begun::Ended(outcome) => outcome,
        Begun::Runs(outcome) => {
            let steps = Steps { outcome: Some(outcome), variables };
            let mut run = Run { steps, lease, begun, running, held };
            return match run.steps.poll(cx) {
                Poll::Pending => Step::Waits(run),
                Poll::Ready(outcome) => run.end(pool, outcome),
            };
        }
    };
    drop(lease);
    end(pool, held, outcome, begun, running)
}

impl Run {
    fn end(self, pool: &WorkerPool, outcome: Outcome) -> Step {
        let Run { steps, lease, begun, running, held } = self;
        drop((steps, lease));
        end(pool, held, outcome, begun, running)
    }
}

/// Everything behind a run.
fn end(pool: &WorkerPool, held: Held, mut outcome: Outcome, begun: Instant, running: Running) -> Step {
    let (shared, info) = (&pool.shared, held.info());
    let now = LoopHandle::current().time();
    let took = now - begun;
    shared.counters.ran.add(took);
    shared.middleware.iter().rev().for_each(|middleware| middleware.ended(info, &mut outcome));
    log(info, &outcome, took);
    pool.settle(held, outcome);
    drop(running);
    Step::Over(now, took)
}

impl Steps {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = self.outcome.as_mut().expect("there until it is dropped");
        self.variables.run(|| outcome.as_mut().poll(cx))
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        self.variables.run(|| drop(outcome));
    }
}

fn log(info: &TaskInfo, outcome: &Outcome, took: Duration) {
    let (id, name, ms) = (&info.id, &info.name, took.as_millis() as u64);
    match outcome {
        Outcome::Success(_) => tracing::debug!(task.id = %id, task.name = %name, ms, "succeeded"),
        Outcome::Failure(error) => {
            tracing::warn!(task.id = %id, task.name = %name, ms, kind = error.kind, error = error.message, "failed");
        }
        Outcome::Retry { error, .. } => {
            tracing::info!(task.id = %id, task.name = %name, ms, error = error.message, "asks to be run again");
        }
        Outcome::TimedOut { limit } => tracing::warn!(task.id = %id, task.name = %name, ms, ?limit, "timed out"),
        Outcome::Crashed { message } => {
            tracing::error!(task.id = %id, task.name = %name, ms, error = message, "crashed");
        }
        Outcome::Cancelled => tracing::info!(task.id = %id, task.name = %name, ms, "ended by the stop"),
        Outcome::Revoked => tracing::info!(task.id = %id, task.name = %name, ms, "revoked while it ran"),
        // Logged elsewhere, or not worth a line.
        Outcome::Rejected { .. } | Outcome::Expired | Outcome::Poisoned { .. } => {}
    }
}

/// Counts a run, and the times the marks are reached.
struct Running(Rc<WorkerPool>);

impl Running {
    fn new(pool: &Rc<WorkerPool>) -> Running {
        let counters = &pool.shared.counters;
        counters.begun();
        if let Some(marks) = pool.watermarks
            && counters.running.get() >= marks.high as u64
            && !pool.high.replace(true)
        {
            add(&counters.watermark_pauses, 1);
            tracing::debug!(high = marks.high, low = marks.low, "the high-water mark is reached; starts wait");
        }
        Running(Rc::clone(pool))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pool = &self.0;
        pool.shared.counters.ended();
        if pool.watermarks.is_some_and(|marks| pool.shared.counters.running.get() <= marks.low as u64) {
            pool.high.set(false);
        }
    }
}
