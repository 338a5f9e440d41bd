//! Tasks run in long-lived child processes, started from a command of any language. Each has a socket of its own, over which
//! it is given tasks and answers them; what they say to each other is described in `docs/process-protocol.md`.
//!
//! Read in this order: `frame.rs` and `protocol.rs` (the messages), `overseer.rs` (decisions about one child), `child.rs` (their I/O),
//! `slot.rs`, `ticket.rs` and `fleet.rs` (which child gets which task, and what follows a child's end). `exec.rs` is separate:
//! a command that is started for every task.

mod child;
mod exec;
mod fleet;
mod frame;
mod inherited;
mod lines;
mod memory;
mod overseer;
mod protocol;
mod slot;
mod ticket;

use std::ffi::OsString;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

pub use child::{CHILD_VARIABLE, SOCKET_VARIABLE};
pub use exec::{EXIT_RETRY, Exec};
use fleet::Fleet;
pub use fleet::ProcessStats;
pub use inherited::Inherited;
use overseer::Rules;
pub use protocol::PROTOCOL_VERSION;
#[cfg(fuzzing)]
pub use protocol::fuzz as fuzz_frames;
use ticket::Ticket;

use crate::broker::Local;
use crate::mode::{Figure, Job, Mode, ModeError, StopReason};
use crate::outcome::Outcome;

/// How children are started, and what they may do.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What children inherit of the environment.
    pub inherited: Inherited,
    /// Set for the children beside what they inherit.
    pub environment: Vec<(OsString, OsString)>,
    /// How many there are.
    pub children: usize,
    /// Tasks sent to a child at a time: it runs one, the others wait in its socket, so that it need not wait for the next.
    pub pipeline: usize,
    /// A child is replaced after this many tasks.
    pub max_tasks: Option<u64>,
    /// A child is replaced when it has more bytes than this in memory after a task.
    pub max_rss: Option<u64>,
    /// The largest message in both directions, in bytes of JSON.
    pub max_frame: usize,
    /// How long a child may take to be ready.
    pub ready_limit: Duration,
    /// How long a child that is asked to end may take before it is killed.
    pub grace: Duration,
}

/// The largest message unless told otherwise: 32 MiB.
pub const MAX_FRAME: usize = 32 << 20;

/// How long a child may take to be ready unless told otherwise: less than a worker waits for its start, so that it can be
/// said why.
const READY_LIMIT: Duration = Duration::from_secs(25);

impl ProcessOptions {
    /// One child per processor, each started with `command`, and default options.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> ProcessOptions {
        ProcessOptions {
            command: command.into_iter().map(Into::into).collect(),
            inherited: Inherited::harmless(),
            environment: Vec::new(),
            children: std::thread::available_parallelism().map_or(1, usize::from),
            pipeline: 1,
            max_tasks: None,
            max_rss: None,
            max_frame: MAX_FRAME,
            ready_limit: READY_LIMIT,
            grace: Duration::from_secs(5),
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            ready_limit: self.ready_limit,
            grace: self.grace,
            max_tasks: self.max_tasks,
            depth: self.pipeline,
            max_frame: self.max_frame,
        }
    }

    fn command_line(&self) -> String {
        self.command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// Runs tasks in child processes.
///
/// Hard limits, revokes and a stop end the child: SIGTERM to its process group, SIGKILL after the grace, and a fresh one
/// takes its place. What it leaves in its group is killed with it. Children die with the worker, also by `kill -9`; theirs then
/// do not, if they neither read from nor write to what they inherit.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_worker::{Job, Mode, Outcome, ProcessMode, ProcessOptions, StopSignal, Task};
///
/// // A child of one line: it greets, and answers every task with null.
/// let child = r#"
/// import json, os, socket
/// s = socket.socket(fileno=int(os.environ["TIDEGATE_SOCKET"]))
/// f = s.makefile("rwb")
/// def say(m): b = json.dumps(m).encode(); f.write(len(b).to_bytes(4, "big") + b); f.flush()
/// say({"type": "ready", "version": 1, "handlers": ["noop"]})
/// while header := f.read(4):
///     order = json.loads(f.read(int.from_bytes(header, "big")))
///     if order["type"] == "run": say({"type": "done", "run": order["run"], "value": None})
/// "#;
/// tidegate_loop::run(async move {
///     let mut options = ProcessOptions::new(["python3", "-c", child]);
///     options.children = 1;
///     let mode = ProcessMode::new(options);
///     mode.start().await.unwrap();
///     assert_eq!(mode.handlers(), Some(vec!["noop".to_string()]));
///     let job = Job { task: Task::new("noop"), soft_limit: None, hard_limit: None, stop: Rc::new(StopSignal::default()) };
///     assert_eq!(mode.run(job).await, Outcome::Success(serde_json::Value::Null));
///     mode.stop().await;
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
pub struct ProcessMode {
    fleet: Rc<Fleet>,
}

impl ProcessMode {
    /// Nothing is started yet.
    ///
    /// # Panics
    /// Without children, or with a pipeline of none.
    pub fn new(options: ProcessOptions) -> ProcessMode {
        assert!(options.children > 0, "a process mode without children would run nothing");
        assert!(options.pipeline > 0, "a child must be able to have one task");
        ProcessMode { fleet: Fleet::new(options) }
    }

    /// What became of the children so far.
    pub fn stats(&self) -> ProcessStats {
        self.fleet.stats.get()
    }

    /// The process ids of the children that live, in the order of their numbers.
    pub fn pids(&self) -> Vec<u32> {
        self.fleet.pids()
    }

    /// Runs that wait for a child, because those there are have enough to do or are being replaced.
    pub fn waiting(&self) -> usize {
        self.fleet.waiting()
    }
}

impl Mode for ProcessMode {
    fn name(&self) -> &'static str {
        "process"
    }

    fn slots(&self) -> usize {
        self.fleet.options.children * self.fleet.options.pipeline
    }

    fn handlers(&self) -> Option<Vec<String>> {
        self.fleet.handlers()
    }

    fn start(&self) -> Local<'_, Result<(), ModeError>> {
        Box::pin(self.fleet.start())
    }

    fn run(&self, job: Job) -> Local<'static, Outcome> {
        let Job { task, soft_limit, hard_limit, stop } = job;
        let ticket = Rc::new(Ticket::new(task, soft_limit, hard_limit));
        let run = Run { fleet: self.fleet.clone(), ticket };
        run.fleet.submit(run.ticket.clone());
        Box::pin(async move {
            let mut requested = pin!(stop.requested());
            let mut asked = false;
            poll_fn(|cx| {
                if let Poll::Ready(outcome) = run.ticket.poll(cx) {
                    return Poll::Ready(outcome);
                }
                if !asked && let Poll::Ready(reason) = requested.as_mut().poll(cx) {
                    asked = true;
                    run.fleet.stop_run(&run.ticket, reason);
                    return run.ticket.poll(cx);
                }
                Poll::Pending
            })
            .await
        })
    }

    fn recycle(&self) {
        self.fleet.recycle();
    }

    fn stop(&self) -> Local<'_, ()> {
        Box::pin(self.fleet.stop())
    }

    fn figures(&self) -> Vec<Figure> {
        let stats = self.stats();
        let figure = |name, help, value| Figure { name, help, value };
        vec![
            figure("children", "Child processes alive.", stats.children as u64),
            figure("children_started_total", "Child processes started.", stats.started),
            figure("children_ended_total", "Child processes that ended on request.", stats.ended),
            figure("children_died_total", "Child processes that died by themselves.", stats.died),
        ]
    }
}

impl Drop for ProcessMode {
    fn drop(&mut self) {
        self.fleet.shut();
    }
}

/// The future of a run. If it is dropped before the run's end, the run is ended too, because its result would be lost.
struct Run {
    fleet: Rc<Fleet>,
    ticket: Rc<Ticket>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.fleet.stop_run(&self.ticket, StopReason::Stopping);
    }
}
