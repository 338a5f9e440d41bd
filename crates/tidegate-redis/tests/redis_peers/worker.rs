//! One of the machines that share a gate: a process of its own, on a loop of its own.

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use tidegate_limit::{Cost, Limit, Window};
use tidegate_loop::{LoopHandle, gather_all, sleep, spawn};
use tidegate_redis::{Client, SharedGate};

use crate::server::quick;
use crate::windows::now_ns;

pub(crate) const FLAG: &str = "--as-worker";

/// What strict windows lose to the way to Redis and back.
pub(crate) const MARGIN: Duration = Duration::from_millis(20);

/// What the machines share, and how they use it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) gate: String,
    pub(crate) requests: u64,
    pub(crate) window: Duration,
    pub(crate) slots: u64,
    pub(crate) lease: Duration,
    /// How long each takes.
    pub(crate) request: Duration,
    pub(crate) for_: Duration,
    /// Requests at once, if the gate lets them.
    pub(crate) tasks: usize,
}

impl Job {
    fn arguments(&self) -> Vec<String> {
        let ms = |duration: Duration| duration.as_millis().to_string();
        vec![
            self.url.clone(),
            self.gate.clone(),
            self.requests.to_string(),
            ms(self.window),
            self.slots.to_string(),
            ms(self.lease),
            ms(self.request),
            ms(self.for_),
            self.tasks.to_string(),
        ]
    }

    fn read(arguments: &[String]) -> Job {
        let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
        let ms = |at: usize| Duration::from_millis(number(at));
        Job {
            url: arguments[0].clone(),
            gate: arguments[1].clone(),
            requests: number(2),
            window: ms(3),
            slots: number(4),
            lease: ms(5),
            request: ms(6),
            for_: ms(7),
            tasks: number(8) as usize,
        }
    }

    pub(crate) fn gate(&self, client: Client) -> SharedGate {
        SharedGate::builder(client, self.gate.as_str())
            .limit(Limit::concurrency("slots", self.slots))
            .limit(Limit::rpm(self.requests).window(Window::strict(self.window)))
            .lease(self.lease)
            .margin(MARGIN)
            .build()
            .expect("a gate")
    }

    /// A process that does the job, behind `prefix` (a command that runs commands) if there is one.
    pub(crate) fn start(&self, log: &Path, prefix: &[&str]) -> Worker {
        let exe = std::env::current_exe().expect("this program");
        let mut words: Vec<std::ffi::OsString> = prefix.iter().map(Into::into).collect();
        words.extend([exe.into(), FLAG.into(), log.into()]);
        words.extend(self.arguments().into_iter().map(Into::into));
        let child = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn().expect("a worker");
        Worker { child, log: log.to_owned() }
    }
}

pub(crate) struct Worker {
    child: Child,
    pub(crate) log: PathBuf,
}

impl Worker {
    pub(crate) fn finish(mut self) {
        assert!(self.child.wait().expect("a worker").success(), "a worker failed");
    }

    /// When it was dead for sure.
    pub(crate) fn kill(mut self) -> u64 {
        self.child.kill().expect("a worker");
        self.child.wait().expect("a worker");
        now_ns()
    }
}

pub(crate) fn run(arguments: &[String]) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(&arguments[0]).expect("the log");
    let job = Job::read(&arguments[1..]);
    tidegate_loop::run(work(job, log)).expect("the loop runs");
}

async fn work(job: Job, log: std::fs::File) {
    let client = Client::open(job.url.parse().expect("an address"), quick());
    let gate = job.gate(client);
    let until = LoopHandle::current().time() + job.for_;
    let (log, ids) = (Rc::new(log), Rc::new(Cell::new(0)));
    let tasks: Vec<_> = (0..job.tasks)
        .map(|_| {
            let (gate, log, ids, request) = (gate.clone(), log.clone(), ids.clone(), job.request);
            spawn(async move {
                while LoopHandle::current().time() < until {
                    let Ok(mut lease) = gate.enter(Cost::request()).await else { return };
                    // On the record before anything can happen to us.
                    let id = ids.replace(ids.get() + 1);
                    let sent = now_ns();
                    (&*log).write_all(format!("sent {id} {sent}\n").as_bytes()).expect("the log");
                    lease.sent();
                    sleep(request).await;
                    (&*log).write_all(format!("ended {id} {}\n", now_ns()).as_bytes()).expect("the log");
                    drop(lease);
                }
            })
        })
        .collect();
    let _ = gather_all(tasks).await;
    gate.close().await;
    let stats = gate.stats();
    eprintln!(
        "    granted {} in {} calls; turns {}, notifications {}, alarms {}, restamped {}",
        stats.granted, stats.calls, stats.turns, stats.notifications, stats.alarms, stats.restamped
    );
}
