//! A worker as Celery's tools see it: events, so that monitors such as Flower list it and its tasks, and remote control, so that
//! `celery inspect`, `celery control` and `app.control` reach it.
//!
//! Called by whoever starts a [`Master`](crate::Master) whose tasks come from Celery's producers. What follows a task (answers,
//! callbacks, chains) is not here but written with its settlement (`../follow.rs`).
//!
//! Read `mod.rs` (what is kept of tasks), `events.rs` (what is said of them), `control.rs` and `glob.rs` (what is asked and answered), then
//! `outbox.rs` and `pidbox.rs`: the two connections. `backend.rs` is results in Redis, for those whose producers look there.

mod backend;
mod control;
mod events;
mod glob;
mod outbox;
mod panel;
mod pidbox;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tidegate_loop::{LoopHandle, Task as LoopTask, spawn};

use super::RabbitBroker;
use crate::broker::{BrokerError, Settled, TaskError, TaskState, Verdict};
use crate::codec::celery::{self, Answer, Status};
use crate::master::MasterHandle;
use crate::middleware::{Middleware, TaskInfo};
use crate::mode::Job;
use crate::outcome::Outcome;
use crate::pool::Decode;
use crate::settings::Settings;
use crate::task::{Envelope, Task, TaskId};
pub use backend::RedisResults;
use events::Sender;
#[cfg(fuzzing)]
pub use glob::fuzz as fuzz_glob;
use outbox::Outbox;

/// How a worker shows itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PresenceOptions {
    /// Its node name, such as `celery@host`: what `celery inspect -d` is given. Two workers of one name confuse everybody.
    pub hostname: String,
    /// Whether task events are sent from the start. Unless set they are not, until a monitor asks for them, as Flower does.
    pub task_events: bool,
    /// Whether producers are told when a task begins (`STARTED`); not unless set, as in Celery.
    pub track_started: bool,
    /// How often a heartbeat is sent: every 2 s.
    pub heartbeat: Duration,
    /// Whether it listens to remote control (`celery inspect`, `celery control`). Unless cleared it does.
    pub remote_control: bool,
    /// Celery's setting `control_exchange`, the first part of the exchange's name.
    pub control_exchange: String,
    /// Celery's setting `event_exchange`.
    pub event_exchange: String,
}

impl PresenceOptions {
    /// For a worker of this name; without an `@` the machine's is added.
    pub fn new(name: &str) -> PresenceOptions {
        let hostname = if name.contains('@') { name.to_owned() } else { format!("{name}@{}", panel::machine()) };
        PresenceOptions {
            hostname,
            task_events: false,
            track_started: false,
            heartbeat: Duration::from_secs(2),
            remote_control: true,
            control_exchange: "celery".to_owned(),
            event_exchange: "celeryev".to_owned(),
        }
    }
}

/// A worker's place among Celery's: attach it to the settings, start it with the master's handle, stop it when the master has
/// ended. Dropped, it is silent at once.
///
/// ```no_run
/// use std::rc::Rc;
/// use tidegate_worker::codec::celery;
/// use tidegate_worker::rabbit::{Options, Presence, PresenceOptions, QueueKind, RabbitBroker};
/// use tidegate_worker::{Coroutines, HandlerError, Handlers, Master, Settings};
///
/// async fn add(a: i64, b: i64) -> Result<i64, HandlerError> {
///     Ok(a + b)
/// }
///
/// # tidegate_loop::run(async {
/// let mut options = Options::default();
/// options.kind = QueueKind::Plain;
/// let broker = Rc::new(RabbitBroker::open("amqp://localhost", options).await?);
/// let mut settings = Settings::new(["celery"]);
/// settings.decode = Rc::new(celery::decode);
/// let presence = Presence::new(&broker, PresenceOptions::new("tidegate"));
/// presence.attach(&mut settings);
/// let master = Master::new(broker, Rc::new(Coroutines::new(Handlers::new().task("add", add))), settings);
/// presence.start(master.handle());
/// let report = master.run().await;
/// presence.stop().await;
/// # let _ = report;
/// # Ok::<(), tidegate_worker::BrokerError>(())
/// # }).unwrap().unwrap();
/// ```
pub struct Presence {
    shared: Rc<Shared>,
    tasks: RefCell<Vec<LoopTask>>,
}

struct Shared {
    broker: Rc<RabbitBroker>,
    options: PresenceOptions,
    sender: RefCell<Sender>,
    outbox: Outbox,
    task_events: Cell<bool>,
    /// What events will say of tasks in hand; empty while nobody wants events.
    runs: RefCell<HashMap<RunKey, Run>>,
    decode: RefCell<Option<Decode>>,
    queues: RefCell<Vec<String>>,
    prefetch: Cell<Option<usize>>,
    worker: RefCell<Option<MasterHandle>>,
    born: Instant,
}

/// A task and its retries before. The id alone is not enough: a retry can be delivered before the run before it is settled.
type RunKey = (TaskId, u32);

/// A run of a task, from its delivery until it is settled.
#[derive(Default)]
struct Run {
    /// Told when it begins.
    started: Option<Answer>,
    begun: Option<Instant>,
    end: Option<End>,
}

enum End {
    Success { result: String, runtime_s: f64 },
    Failure(TaskError),
    Revoked,
}

impl Presence {
    /// Nothing is sent before [`start`](Self::start).
    pub fn new(broker: &Rc<RabbitBroker>, options: PresenceOptions) -> Presence {
        let sender = Sender::new(options.hostname.clone(), options.event_exchange.clone(), std::process::id());
        let outbox = Outbox::new(&broker.core, &options);
        let shared = Shared {
            broker: Rc::clone(broker),
            sender: RefCell::new(sender),
            outbox,
            task_events: Cell::new(options.task_events),
            runs: RefCell::default(),
            decode: RefCell::default(),
            queues: RefCell::default(),
            prefetch: Cell::new(None),
            worker: RefCell::default(),
            born: broker.core.clock.instant(),
            options,
        };
        Presence { shared: Rc::new(shared), tasks: RefCell::default() }
    }

    /// The node name.
    pub fn hostname(&self) -> &str {
        &self.shared.options.hostname
    }

    /// Has the worker of these settings report here. After the codec is set, before the master is made.
    pub fn attach(&self, settings: &mut Settings) {
        let shared = &self.shared;
        *shared.queues.borrow_mut() = settings.queues.clone();
        shared.prefetch.set(settings.prefetch);
        let decode = Rc::clone(&settings.decode);
        *shared.decode.borrow_mut() = Some(Rc::clone(&decode));
        let own = Rc::downgrade(shared);
        settings.decode = Rc::new(move |envelope, retries| {
            let task = decode(envelope, retries)?;
            if let Some(shared) = own.upgrade() {
                shared.received(envelope, retries, &task);
            }
            Ok(task)
        });
        settings.middleware.push(Rc::new(Hooks(Rc::downgrade(shared))));
        let own = Rc::downgrade(shared);
        *shared.broker.core.unseen.borrow_mut() = Some(Rc::new(move |envelope, state| {
            if let Some(shared) = own.upgrade() {
                shared.unseen(envelope, state);
            }
        }));
    }

    /// Begins to send heartbeats and, with [`remote_control`](PresenceOptions::remote_control), to answer. A broker that is away is waited for.
    pub fn start(&self, worker: MasterHandle) {
        *self.shared.worker.borrow_mut() = Some(worker);
        let sending = spawn(outbox::send(Rc::clone(&self.shared)));
        self.tasks.borrow_mut().push(sending.task());
        if self.shared.options.remote_control {
            let answering = spawn(pidbox::serve(Rc::clone(&self.shared)));
            self.tasks.borrow_mut().push(answering.task());
        }
    }

    /// Says good-bye and closes the connections.
    ///
    /// # Cancel safety
    /// Dropped, monitors find out by the missing heartbeats.
    pub async fn stop(&self) {
        self.end_tasks();
        self.shared.outbox.finish(&self.shared).await;
    }

    fn end_tasks(&self) {
        for task in self.tasks.borrow_mut().drain(..) {
            task.cancel();
        }
        // It knows the master, which knows the middleware, which knows us.
        self.shared.worker.borrow_mut().take();
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    fn emit(&self, kind: &str, fields: Map<String, Value>) {
        let event = self.sender.borrow_mut().event(kind, fields, self.broker.core.now());
        self.outbox.event(event);
    }

    fn received(&self, envelope: &Envelope, retries: u32, task: &Task) {
        let started = self.options.track_started.then(|| self.started(envelope)).flatten();
        if self.task_events.get() {
            self.emit("task-received", events::received(envelope, task));
        } else if started.is_none() {
            return;
        }
        self.runs.borrow_mut().insert((envelope.id.clone(), retries), Run { started, ..Run::default() });
    }

    /// A task that was revoked or had expired before any worker saw it.
    fn unseen(&self, envelope: &Envelope, state: TaskState) {
        if !self.task_events.get() {
            return;
        }
        let decode = self.decode.borrow().clone();
        if let Some(task) = decode.and_then(|decode| decode(envelope, 0).ok()) {
            self.emit("task-received", events::received(envelope, &task));
        }
        self.emit("task-revoked", events::revoked(envelope.id.as_str(), false, state == TaskState::Expired));
    }

    /// What a producer is told when its task begins.
    fn started(&self, envelope: &Envelope) -> Option<Answer> {
        if !celery::is_celery(envelope) {
            return None;
        }
        let message = celery::read(envelope, 0).ok()?;
        let status = Status::Started { pid: std::process::id(), hostname: &self.options.hostname };
        message.answer(status, self.broker.core.now())
    }

    fn starting(&self, info: &TaskInfo) {
        let mut runs = self.runs.borrow_mut();
        let Some(run) = runs.get_mut(&run_key(info)) else { return };
        run.begun = Some(LoopHandle::current().time());
        let started = run.started.take();
        drop(runs);
        if let Some(answer) = started {
            // Over the connection that the result will go over: it must not come behind that.
            let core = Rc::clone(&self.broker.core);
            drop(spawn(async move {
                if let Err(error) = core.tell(answer).await {
                    log("a producer was not told that its task began", &error);
                }
            }));
        }
        if self.task_events.get() {
            self.emit("task-started", events::about(info.id.as_str()));
        }
    }

    fn ended(&self, info: &TaskInfo, outcome: &Outcome) {
        let mut runs = self.runs.borrow_mut();
        let Some(run) = runs.get_mut(&run_key(info)) else { return };
        let ran = run.begun.map(|begun| LoopHandle::current().time().saturating_duration_since(begun));
        let runtime_s = ran.unwrap_or_default().as_secs_f64();
        let plain =
            |kind: &str, message: String| End::Failure(TaskError { kind: kind.to_owned(), message, traceback: None });
        run.end = match outcome {
            Outcome::Success(value) => Some(End::Success { result: celery::repr(value), runtime_s }),
            Outcome::Failure(error) | Outcome::Retry { error, .. } => Some(End::Failure(error.clone())),
            Outcome::TimedOut { limit } => Some(plain("TimeLimitExceeded", format!("{limit:?}"))),
            Outcome::Crashed { message } => Some(plain("WorkerLostError", message.clone())),
            Outcome::Revoked => Some(End::Revoked),
            _ => None,
        };
    }

    /// The last word on a task in hand.
    fn settled(&self, info: &TaskInfo, verdict: &Verdict, settled: Settled) {
        let Some(run) = self.runs.borrow_mut().remove(&run_key(info)) else { return };
        if !self.task_events.get() || settled == Settled::Lost {
            return;
        }
        let id = info.id.as_str();
        match (verdict, run.end) {
            (Verdict::Ack, Some(End::Success { result, runtime_s })) => {
                self.emit("task-succeeded", events::succeeded(id, &result, runtime_s));
            }
            (Verdict::Ack, end) => {
                let now = self.broker.core.now();
                let expired = end.is_none() && info.expires.is_some_and(|expires| expires <= now);
                self.emit("task-revoked", events::revoked(id, end.is_some(), expired));
            }
            (Verdict::Retry { .. }, Some(End::Failure(error))) => self.emit("task-retried", events::failed(id, &error)),
            (Verdict::Dead { .. }, Some(End::Failure(error))) => self.emit("task-failed", events::failed(id, &error)),
            (Verdict::Dead { reason, traceback }, _) => {
                let error =
                    TaskError { kind: "Rejected".to_owned(), message: reason.clone(), traceback: traceback.clone() };
                self.emit("task-failed", events::failed(id, &error));
            }
            _ => {}
        }
    }

    /// What the heartbeat says.
    fn heartbeat(&self, kind: &str) {
        let (active, processed) = self.worker.borrow().as_ref().map_or((0, 0), |worker| {
            let stats = worker.stats();
            (stats.running, stats.settled)
        });
        let interval_s = self.options.heartbeat.as_secs_f64();
        self.emit(kind, events::heartbeat(interval_s, active, processed, panel::load()));
    }
}

fn run_key(info: &TaskInfo) -> RunKey {
    (info.id.clone(), info.retries)
}

/// The worker's hooks; it may outlive the presence.
struct Hooks(std::rc::Weak<Shared>);

impl Middleware for Hooks {
    fn starting(&self, task: &TaskInfo, _job: &mut Job) {
        if let Some(shared) = self.0.upgrade() {
            shared.starting(task);
        }
    }

    fn ended(&self, task: &TaskInfo, outcome: &mut Outcome) {
        if let Some(shared) = self.0.upgrade() {
            shared.ended(task, outcome);
        }
    }

    fn settled(&self, task: &TaskInfo, verdict: &Verdict, settled: Settled) {
        if let Some(shared) = self.0.upgrade() {
            shared.settled(task, verdict, settled);
        }
    }
}

/// What a connection for monitors could not do; they are not worth stopping for.
fn log(what: &str, error: &BrokerError) {
    tracing::debug!(%error, "{what}");
}
