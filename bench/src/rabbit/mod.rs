//! Messages from RabbitMQ: bare consumers of small messages, acknowledged each or in runs; and whole workers, of tasks that do
//! nothing or wait for 5 ms. The same broker for all, in one run.
//!
//! `TIDEGATE_RABBIT_PLAIN=host:port` names a broker; without it a private one is started by tests/rabbit/node.sh and ended with
//! the run. Reading order: here the lines, then one file a contestant; `broker.rs` has the broker.

mod broker;
mod lapin;
mod pika;
mod python;
mod tidegate;
mod worker;

use std::rc::Rc;
use std::time::Instant;

pub(crate) use broker::Broker;
use rustix::time::{ClockId, clock_gettime};

use python::Peer;
use worker::{Form, Work};

use crate::harness::{BASELINE, Goal, Line, Sample};

const LAPIN: &str = "lapin";
const LAPIN_EACH: &str = "lapin, ack each";
const PIKA: &str = "pika";
const CELERY: &str = "celery prefork -c 2";
const DRAMATIQ: &str = "dramatiq -p 2 -t 8";
const DRAMATIQ_WIDE: &str = "dramatiq -p 2 -t 32";
const TASKIQ: &str = "taskiq, 2 workers";

const MESSAGES: u32 = 20_000;
const BODY: [u8; 100] = [b'x'; 100];
const PREFETCH: u16 = 1_000;

/// How a consumer acknowledges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acks {
    Each,
    /// Every so many at once.
    Multiple(u32),
}

/// What a batch cost.
#[derive(Clone, Copy)]
struct Cost {
    /// Seconds on the wall.
    wall: f64,
    /// Seconds of this process's CPUs, all threads.
    cpu: f64,
}

pub(crate) fn lines() -> Vec<Line> {
    let broker = Rc::new(Broker::default());
    let runs = Acks::Multiple(200);
    vec![
        wall(&broker, "acknowledged 200 at a time", runs).goal(Goal::Ratio { against: &[LAPIN], limit: 1.0, aim: 1.2 }),
        wall(&broker, "acknowledged each", Acks::Each),
        cpu(&broker, "acknowledged 200 at a time", runs).goal(Goal::Ratio { against: &[LAPIN], limit: 2.0, aim: 2.0 }),
        cpu(&broker, "acknowledged each", Acks::Each),
        nothing(&broker),
        nothing_cpu(&broker),
        wait(&broker),
    ]
}

/// tidegate's worker beside bare consumers, which only count, and the workers of others.
fn nothing(broker: &Rc<Broker>) -> Line {
    let line = Line::new("rabbit, no-op tasks through a worker", "µs").note(
        "wall time a task, durable queue, persistent messages, acknowledged after the run: tidegate 20,000 tasks in coroutines, \
         prefetch 1,000; lapin and pika only count messages; Celery, dramatiq and taskiq 4,000 tasks from the first run to the \
         last, their start not counted",
    );
    let line = tasks(line, broker, Work::Nothing, |cost| cost.wall);
    let runs = Acks::Multiple(200);
    let line = with(line, LAPIN, broker, move |host| lapin::consume(host, runs).map(|cost| cost.wall));
    let line = with(line, LAPIN_EACH, broker, |host| lapin::consume(host, Acks::Each).map(|cost| cost.wall));
    let line = with(line, PIKA, broker, move |host| pika::consume(host, runs));
    let line = peer(line, CELERY, broker, Peer::CeleryPrefork, Work::Nothing);
    let line = peer(line, DRAMATIQ, broker, Peer::Dramatiq(8), Work::Nothing);
    peer(line, TASKIQ, broker, Peer::Taskiq, Work::Nothing)
        .goal(Goal::Ratio { against: &[LAPIN], limit: 1.0, aim: 1.2 })
        .goal(Goal::Ratio { against: &[CELERY], limit: 10.0, aim: 10.0 })
        .goal(Goal::Ratio { against: &[DRAMATIQ], limit: 5.0, aim: 5.0 })
        .rounds_max(3)
}

fn nothing_cpu(broker: &Rc<Broker>) -> Line {
    let line = Line::new("rabbit, client CPU, no-op tasks through a worker", "µs")
        .note("CPU time a task, all threads of the client; lapin only counts messages, acknowledged 200 at a time");
    let line = tasks(line, broker, Work::Nothing, |cost| cost.cpu);
    let runs = Acks::Multiple(200);
    with(line, LAPIN, broker, move |host| lapin::consume(host, runs).map(|cost| cost.cpu))
        .goal(Goal::Ratio { against: &[LAPIN], limit: 2.0, aim: 2.0 })
        .rounds_max(5)
}

fn wait(broker: &Rc<Broker>) -> Line {
    let line = Line::new("rabbit, tasks of 5 ms through a worker", "µs")
        .note("wall time a task; tidegate 1,000 at a time in one process, the others as many as they are set up for");
    let line = tasks(line, broker, Work::Wait, |cost| cost.wall);
    let line = peer(line, CELERY, broker, Peer::CeleryPrefork, Work::Wait);
    let line = peer(line, DRAMATIQ, broker, Peer::Dramatiq(8), Work::Wait);
    let line = peer(line, DRAMATIQ_WIDE, broker, Peer::Dramatiq(32), Work::Wait);
    peer(line, TASKIQ, broker, Peer::Taskiq, Work::Wait)
        .goal(Goal::Ratio { against: &[DRAMATIQ, DRAMATIQ_WIDE], limit: 5.0, aim: 5.0 })
        .rounds_max(3)
}

/// The queue of tidegate's worker.
const TASK_QUEUE: &str = "bench-tidegate";

fn tasks(line: Line, broker: &Rc<Broker>, work: Work, figure: fn(Cost) -> f64) -> Line {
    let broker = broker.clone();
    line.contestant_if(BASELINE, move || {
        let host = broker.host()?;
        worker::fill(&host, TASK_QUEUE, Form::Native, work, MESSAGES)?;
        Ok(figure(worker::run(&host, TASK_QUEUE, MESSAGES)?) * 1e6 / f64::from(MESSAGES))
    })
}

fn peer(line: Line, name: &'static str, broker: &Rc<Broker>, peer: Peer, work: Work) -> Line {
    let broker = broker.clone();
    line.contestant_if(name, move || python::run(&broker.host()?, peer, work))
}

fn wall(broker: &Rc<Broker>, name: &str, acks: Acks) -> Line {
    let line = Line::new(format!("rabbit, consume 100 B, {name}"), "µs").note(
        "wall time a message: 20,000 wait in the queue, prefetch 1,000; tidegate is told of each and says it as it likes",
    );
    let line = with(line, BASELINE, broker, move |broker| tidegate::consume(broker, acks).map(|cost| cost.wall));
    let line = with(line, LAPIN, broker, move |broker| lapin::consume(broker, acks).map(|cost| cost.wall));
    with(line, PIKA, broker, move |broker| pika::consume(broker, acks)).rounds_max(5)
}

fn cpu(broker: &Rc<Broker>, name: &str, acks: Acks) -> Line {
    let line = Line::new(format!("rabbit, client CPU, 100 B, {name}"), "µs")
        .note("CPU time a message, all threads of the client");
    let line = with(line, BASELINE, broker, move |broker| tidegate::consume(broker, acks).map(|cost| cost.cpu));
    with(line, LAPIN, broker, move |broker| lapin::consume(broker, acks).map(|cost| cost.cpu)).rounds_max(5)
}

/// Adds a contestant; before each of its batches the queue is filled, outside of the measured time.
fn with(line: Line, name: &'static str, broker: &Rc<Broker>, mut batch: impl FnMut(&str) -> Sample + 'static) -> Line {
    let broker = broker.clone();
    line.contestant_if(name, move || {
        let host = broker.host()?;
        tidegate::fill(&host)?;
        Ok(batch(&host)? * 1e6 / f64::from(MESSAGES))
    })
}

/// The queue of every batch.
const QUEUE: &str = "tidegate-bench";

fn cpu_now() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs from the first message to the last.
struct Watch {
    begun: Instant,
    cpu: f64,
}

impl Watch {
    fn start() -> Watch {
        Watch { begun: Instant::now(), cpu: cpu_now() }
    }

    fn stop(&self) -> Cost {
        Cost { wall: self.begun.elapsed().as_secs_f64(), cpu: cpu_now() - self.cpu }
    }
}
