//! The asker's side: a provider that has others ask.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use serde_json::Value;
use tidegate_batch::{Asked, Asking, CallError, CallerStats, Estimate, ItemScope, Key, Parameters, Provider, Question};
use tidegate_limit::{Admission, Backoff, Cost};
use tidegate_loop::sleep;
use tidegate_sync::Event;
use tidegate_worker::codec::native;
use tidegate_worker::{Broker, BrokerError, Envelope, Published, Task, TaskId, TaskResult, TaskState, Unique};

use crate::form::{ARGUMENT, PageOutcome, PageResult, PageTask, Server, TASK};

/// Counts up when the same task would be answered differently.
const VERSION: &[u8] = b"tidegate/page task/1";

/// How long a page's unique key blocks a second publish, whatever became of the first. A task that ends just when another
/// run asks for the page has a result, which is kept for longer. Brokers that remember ids (SQLite) find a waiting task anyway.
const ASKED_FOR: Duration = Duration::from_secs(3600);

/// How many waiting tasks are searched for our own when they are revoked.
const PEEKED_MAX: usize = 10_000;

/// Smallest and largest delay between attempts to reach a broker that is down. Attempts go on without end.
const AWAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Explains pages by publishing them as tasks for workers and waiting for the results.
///
/// It is a [`Provider`]: a run caches its answers, shows progress and writes outputs as with any other, under the same keys.
/// So a page that was answered through workers is not sent again by a run without them, nor the other way round.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_batch::{Local, Provider, Question};
/// use tidegate_crew::{Asks, Crew, PageHandler, TASK};
/// use tidegate_limit::{Gate, Limit};
/// use tidegate_loop::{run, spawn};
/// use tidegate_worker::{Coroutines, Handlers, Master, MemoryBroker, Settings, Stop};
///
/// run(async {
///     let broker = Rc::new(MemoryBroker::new());
///     let gate = Gate::builder().limit(Limit::concurrency("global", 8)).build().unwrap();
///
///     // On the workers' machines:
///     let handler = Rc::new(PageHandler::new(Asks::Local((&gate).into()), "worker 1"));
///     let handlers = Handlers::new().handler(TASK, handler.clone());
///     let worker = Master::new(broker.clone(), Rc::new(Coroutines::new(handlers)), Settings::new(["explain"]));
///     let stop = worker.handle();
///     let working = spawn(worker.run());
///
///     // On the asker's:
///     let crew = Crew::new(broker, "explain", handler.server().clone(), Rc::new(Local::new(&gate)), None, &gate);
///     let text = "Tides are the rise and fall of the sea. The moon causes tides by its gravity. Lunch was late.";
///     let question = Question { page: 1, pages: 1, text: text.into(), ..Question::default() };
///     let asked = crew.ask(&gate.unscoped().into(), &question).await.unwrap();
///     assert!(asked.answer.text.contains("> Tides are the rise and fall of the sea."));
///     stop.stop(Stop::Warm);
///     working.await.unwrap().unwrap();
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Crew {
    inner: Rc<Inner>,
}

struct Inner {
    broker: Rc<dyn Broker>,
    queue: String,
    server: Server,
    /// What it would be without workers: decides what answers are kept under.
    alone: Rc<dyn Provider>,
    parameters: Option<Parameters>,
    gate: Admission,
    /// What was answered before is not looked at: tasks have names of their own.
    fresh: bool,
    /// Tasks that were published and have no result, each with what is set when it is taken back.
    out: RefCell<HashMap<TaskId, Rc<Event>>>,
    results: Cell<u64>,
    /// Nothing more is to be published.
    over: Cell<bool>,
    traffic: Cell<CallerStats>,
}

/// The result of [`Crew::withdraw`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Withdrawn {
    /// Tasks that no worker had received; none will run them.
    pub revoked: usize,
    /// Tasks that workers have or will receive. Their answers are kept for the next run.
    pub left: usize,
}

impl Crew {
    /// Asks through `queue` of `broker` for answers of `server`, with `parameters` (none for the offline provider). `alone`
    /// is the provider that would be asked without workers; it is not asked. A task that is out takes a place in `gate`,
    /// whose scopes bound the tasks of a file; the quotas are the workers' business.
    #[must_use]
    pub fn new(
        broker: Rc<dyn Broker>,
        queue: &str,
        server: Server,
        alone: Rc<dyn Provider>,
        parameters: Option<Parameters>,
        gate: impl Into<Admission>,
    ) -> Crew {
        let inner = Inner {
            broker,
            queue: queue.into(),
            server,
            alone,
            parameters,
            gate: gate.into(),
            fresh: false,
            out: RefCell::default(),
            results: Cell::new(0),
            over: Cell::new(false),
            traffic: Cell::default(),
        };
        Crew { inner: Rc::new(inner) }
    }

    /// The same, without looking at what workers have answered before.
    ///
    /// # Panics
    /// If it has been shared already.
    #[must_use]
    pub fn with_fresh(mut self, fresh: bool) -> Crew {
        Rc::get_mut(&mut self.inner).expect("set up before it is shared").fresh = fresh;
        self
    }

    /// Tasks that are out: published, and without a result.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.inner.out.borrow().len()
    }

    /// Results that have come so far.
    #[must_use]
    pub fn results(&self) -> u64 {
        self.inner.results.get()
    }

    /// How many workers take from the queue now.
    ///
    /// # Errors
    /// As the broker's.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn workers(&self) -> Result<u64, BrokerError> {
        let queues = self.inner.broker.inspect().await?;
        Ok(queues.iter().find(|stats| stats.queue == self.inner.queue).map_or(0, |stats| stats.consumers))
    }

    /// Revokes all tasks that no worker has received, so that they are not paid for, and publishes no further ones. Calls that
    /// wait for a revoked task, and later calls, end with [`CallError::Closed`]. A task that a worker receives at the same
    /// moment is ended by that worker.
    ///
    /// # Errors
    /// Those of the broker; tasks that were not revoked by then are left.
    ///
    /// # Cancel safety
    /// If the future is dropped, some tasks may have been revoked.
    pub async fn withdraw(&self) -> Result<Withdrawn, BrokerError> {
        let inner = &*self.inner;
        inner.over.set(true);
        let mut withdrawn = Withdrawn::default();
        if self.outstanding() > 0 {
            let waiting = inner.broker.peek(&inner.queue, PEEKED_MAX).await?;
            for envelope in waiting {
                let Some(taken_back) = inner.out.borrow().get(&envelope.id).cloned() else { continue };
                inner.broker.revoke(&envelope.id).await?;
                inner.out.borrow_mut().remove(&envelope.id);
                taken_back.set();
                withdrawn.revoked += 1;
            }
        }
        withdrawn.left = self.outstanding();
        Ok(withdrawn)
    }
}

impl Provider for Crew {
    fn identity(&self) -> &str {
        self.inner.alone.identity()
    }

    fn model(&self) -> &str {
        self.inner.alone.model()
    }

    fn takes_pictures(&self) -> bool {
        self.inner.alone.takes_pictures()
    }

    fn estimate(&self, question: &Question) -> Estimate {
        self.inner.alone.estimate(question)
    }

    fn traffic(&self) -> CallerStats {
        self.inner.traffic.get()
    }

    fn ask<'a>(&'a self, scope: &'a ItemScope, question: &'a Question) -> Asking<'a> {
        Box::pin(async move {
            let inner = &*self.inner;
            // The quotas are the workers' business, also those that are shared.
            let mut lease = scope.enter(&inner.gate.gate().into(), Cost::nothing()).await?;
            lease.sent();
            inner.ask(question).await
        })
    }
}

/// A task of this run, until it has a result.
struct Out<'a> {
    inner: &'a Inner,
    id: TaskId,
    taken_back: Rc<Event>,
}

impl<'a> Out<'a> {
    fn new(inner: &'a Inner, id: TaskId) -> Out<'a> {
        // Two calls may ask the same question.
        let taken_back = Rc::clone(inner.out.borrow_mut().entry(id.clone()).or_default());
        Out { inner, id, taken_back }
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        // Two references: this call's and the map's. So this call was the last one to wait.
        if Rc::strong_count(&self.taken_back) == 2 {
            self.inner.out.borrow_mut().remove(&self.id);
        }
    }
}

impl Inner {
    async fn ask(&self, question: &Question) -> Result<Asked, CallError> {
        let named = self.name_of(question);
        let mut id = if self.fresh { another(&named) } else { named.clone() };
        if !self.fresh {
            match patiently(|| self.broker.result(&id)).await?.filter(|result| result.state.is_final()) {
                None => {}
                Some(result) => match self.answer_in(result) {
                    Some(asked) => return Ok(asked),
                    // It came to nothing, in another run: this one asks anew.
                    None => id = another(&named),
                },
            }
        }
        loop {
            if self.over.get() {
                return Err(CallError::Closed);
            }
            let out = Out::new(self, id.clone());
            self.publish(&id, question).await?;
            if self.over.get() {
                // Who looked through the queue came too early for this one.
                patiently(|| self.broker.revoke(&id)).await?;
                return Err(CallError::Closed);
            }
            let Some(result) = self.wait(&out).await? else { return Err(CallError::Closed) };
            drop(out);
            self.results.set(self.results.get() + 1);
            match result.state {
                // By an earlier run, which is over.
                TaskState::Revoked | TaskState::Expired => id = another(&named),
                _ => return self.outcome(result),
            }
        }
    }

    /// A name for the task that is the same for everything that is answered alike.
    fn name_of(&self, question: &Question) -> TaskId {
        let text = question.to_text();
        let picture = question.picture.as_ref().map_or(&[][..], |picture| &picture.png);
        let parts = [VERSION, self.alone.identity().as_bytes(), question.language.as_bytes(), text.as_bytes(), picture];
        TaskId::from(format!("page-{}", Key::of(parts)).as_str())
    }

    async fn publish(&self, id: &TaskId, question: &Question) -> Result<(), CallError> {
        let page = PageTask::new(&self.server, self.parameters.as_ref(), question);
        let mut task = Task::new(TASK).kwarg(ARGUMENT, serde_json::to_value(page).unwrap_or(Value::Null));
        task.id = id.clone();
        let mut envelope = Envelope::of(&task, &self.queue, native::encode(&task));
        // Brokers that remember no ids remember keys; a publish that fails leaves none behind.
        envelope.unique = Some(Unique { key: id.to_string(), hold: ASKED_FOR, past_settle: true });
        patiently(|| {
            let stored = self.broker.publish(vec![envelope.clone()]);
            Box::pin(async {
                match stored.await?.pop() {
                    Some(Published::Refused { reason } | Published::Unknown { reason }) => {
                        Err(BrokerError::Retry { message: reason })
                    }
                    _ => Ok(()),
                }
            })
        })
        .await?;
        Ok(())
    }

    /// The task's result, or nothing if it was taken back.
    async fn wait(&self, out: &Out<'_>) -> Result<Option<TaskResult>, CallError> {
        let mut taken_back = pin!(out.taken_back.wait());
        let mut result = pin!(patiently(|| self.broker.wait_result(&out.id)));
        poll_fn(|cx| {
            if taken_back.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(None));
            }
            result.as_mut().poll(cx).map(|result| result.map(Some))
        })
        .await
    }

    /// Returns the answer in a result that was not paid for in this run, if there is one.
    fn answer_in(&self, result: TaskResult) -> Option<Asked> {
        let read = PageResult::read(result.value).ok()?;
        match read.outcome {
            PageOutcome::Answer(answer) => Some(Asked::new(answer, read.attempts)),
            PageOutcome::Error(_) => None,
        }
    }

    fn outcome(&self, result: TaskResult) -> Result<Asked, CallError> {
        if result.state != TaskState::Succeeded {
            let (kind, message) = result.error.map(|error| (error.kind, error.message)).unwrap_or_default();
            return Err(match kind.as_str() {
                // No worker would take any other page either.
                "Rejected" => CallError::Shut { reason: message },
                _ => CallError::Unavailable { attempts: 1, reason: format!("the workers gave up: {kind}: {message}") },
            });
        }
        let PageResult { worker, attempts, outcome } =
            PageResult::read(result.value).map_err(|reason| CallError::Garbled { attempts: 1, reason })?;
        let mut traffic = self.traffic.get();
        traffic.sent += u64::from(attempts);
        match outcome {
            PageOutcome::Answer(answer) => {
                traffic.answered += 1;
                traffic.usage += answer.usage;
                self.traffic.set(traffic);
                Ok(Asked::new(answer, attempts))
            }
            PageOutcome::Error(refusal) => {
                traffic.failed += 1;
                self.traffic.set(traffic);
                Err(refusal.into_error(&worker, attempts))
            }
        }
    }
}

/// Another task for the same question.
fn another(named: &TaskId) -> TaskId {
    TaskId::from(format!("{named}-{:016x}", fastrand::u64(..)).as_str())
}

/// Again and again, as long as waiting may help.
async fn patiently<'a, T>(
    mut attempt: impl FnMut() -> tidegate_worker::Local<'a, Result<T, BrokerError>>,
) -> Result<T, CallError> {
    let backoff = Backoff::new(AWAY.0, AWAY.1).with_retries(u32::MAX);
    let mut failed: u32 = 0;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(BrokerError::Retry { message }) => {
                tracing::debug!(message, "asking the broker again in a moment");
                let delay = backoff.delay(failed, fastrand::u64(..), None);
                failed = failed.saturating_add(1);
                sleep(delay.unwrap_or(AWAY.1)).await;
            }
            Err(BrokerError::Closed) => return Err(CallError::Closed),
            Err(error) => return Err(CallError::Shut { reason: error.to_string() }),
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew")
            .field("queue", &self.inner.queue)
            .field("server", &self.inner.server)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}
