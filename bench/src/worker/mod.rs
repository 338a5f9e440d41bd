//! Group `worker`: tasks through a durable queue, publishes synced, and what a worker costs while it waits.
//!
//! Reading order: this list; `whole.rs` (a worker and its producers), `queue.rs` (the queue alone), `processes.rs` (several
//! processes); the peers in `python.rs` (huey; Celery and dramatiq on the RabbitMQ of group `rabbit`) and `apalis.rs`.

mod apalis;
mod memory;
mod processes;
mod python;
mod queue;
mod whole;

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use crate::harness::{BASELINE, Goal, Line};
use crate::rabbit::Broker;
use apalis::Apalis;
use python::{Environment, Kind, Peer};
use whole::{PAUSE_TIME, Work};

const PYTHON: &str = "tidegate, Python in processes";
const PREFORK: &str = "celery prefork, RabbitMQ";
const THREADS: &str = "celery threads, RabbitMQ";
const DRAMATIQ: &str = "dramatiq, RabbitMQ";
const HUEY: &str = "huey, SQLite, fsync";
const APALIS: &str = "apalis, SQLite, fsync";

/// How long a worker has nothing to do before it is asked to stop.
const QUIET: Duration = Duration::from_millis(500);

/// What the lines have in common.
struct Contestants {
    environment: Environment,
    prefork: Peer,
    threads: Peer,
    dramatiq: Peer,
    apalis: Rc<Apalis>,
}

impl Contestants {
    fn new() -> Contestants {
        let environment = Environment::find();
        let broker = Rc::new(Broker::default());
        let peer = |kind| Peer::new(kind, &environment, &broker);
        Contestants {
            prefork: peer(Kind::CeleryPrefork),
            threads: peer(Kind::CeleryThreads),
            dramatiq: peer(Kind::Dramatiq),
            apalis: Rc::default(),
            environment,
        }
    }
}

pub(crate) fn lines() -> Vec<Line> {
    let with = Contestants::new();
    vec![
        nothing_line(&with),
        pause_line(&with),
        through_line(1_000, &with),
        through_line(1, &with),
        backlog_line(),
        four_line(),
        latency_line(&with),
        idle_line(),
        memory_line(&with),
        stop_line(&with),
    ]
}

/// From the call that publishes to the confirmed settlement, with a whole worker between.
fn nothing_line(with: &Contestants) -> Line {
    let line = Line::new("no-op tasks, enqueue to settled", "µs")
        .note(
            "producer and worker; every task published by a call of its own. tidegate: one process, 1,000 in flight, and 2 \
             children with the Python module. The peers on RabbitMQ publish persistent messages without waiting for confirms, \
             acknowledge after the run, and are timed until the last task has begun; huey publishes all, then runs all",
        )
        .goal(Goal::Below { limit: 60.0, aim: 20.0 })
        .goal(Goal::Ratio { against: &[HUEY], limit: 20.0, aim: 20.0 })
        .goal(Goal::Ratio { against: &[PREFORK], limit: 10.0, aim: 10.0 })
        .goal(Goal::RatioOf { of: PYTHON, against: &[PREFORK], limit: 3.0 });
    flow_line(line, with, Work::Nothing, [20_000, 10_000, 2_000, 2_000, 3_000, 400, 2_000], 2)
}

/// The same with tasks that wait, as calls of other services do.
fn pause_line(with: &Contestants) -> Line {
    let line = Line::new("5 ms tasks, enqueue to settled", "µs").note(
        "as above; tidegate's coroutines and 16 Python children; Celery prefork -c 2 and threads -c 32, dramatiq -p 2 -t 8, huey \
         with 16 threads, apalis with 1,000 at a time",
    );
    flow_line(line, with, Work::Pause, [20_000, 5_000, 400, 2_000, 2_000, 400, 2_000], 16)
}

/// `counts`: tasks a sample, in the order of the contestants.
fn flow_line(line: Line, with: &Contestants, work: Work, counts: [usize; 7], children: usize) -> Line {
    let environment = with.environment.clone();
    let pause = match work {
        Work::Nothing => Duration::ZERO,
        Work::Pause => PAUSE_TIME,
    };
    let huey_workers = if pause.is_zero() { 0 } else { 16 };
    let mut line =
        line.rounds_max(5).contestant_if(BASELINE, move || whole::flow(counts[0], whole::coroutines(), work));
    line = line.contestant_if(PYTHON, move || {
        let mode = whole::python(environment.plain()?, children, whole::pipeline())?;
        whole::flow(counts[1], mode, work)
    });
    let peers = [(PREFORK, &with.prefork), (THREADS, &with.threads), (DRAMATIQ, &with.dramatiq)];
    for ((name, peer), count) in peers.into_iter().zip(&counts[2..5]) {
        let (peer, count) = (peer.clone(), *count);
        line = line.contestant_if(name, move || peer.flow(count, pause));
    }
    let (environment, apalis) = (with.environment.clone(), Rc::clone(&with.apalis));
    line.contestant_if(HUEY, move || environment.huey(counts[5], pause, huey_workers))
        .contestant_if(APALIS, move || apalis.flow(counts[6], pause))
}

/// The queue alone: published, claimed and settled within one process.
fn through_line(in_flight: usize, with: &Contestants) -> Line {
    let environment = with.environment.clone();
    let name = format!("publish → claim → settle, {in_flight} in flight");
    let mut line = Line::new(name, "µs")
        .rounds_max(7)
        .note("one process; tidegate publishes one task a call; huey has one in flight at most")
        .contestant_if(BASELINE, move || queue::through(in_flight))
        .contestant_if(HUEY, move || environment.huey(400, Duration::ZERO, 0));
    if in_flight > 1 {
        line = line
            .goal(Goal::Ratio { against: &[HUEY], limit: 20.0, aim: 20.0 })
            .goal(Goal::Below { limit: 60.0, aim: 20.0 });
    }
    line
}

/// The same hundred at a time, in front of a short and of a long queue.
fn backlog_line() -> Line {
    const SHORT: &str = "1,000 waiting";
    let (mut long, mut short) = (queue::Backlog::of(1_000_000), queue::Backlog::of(1_000));
    Line::new("claim and settle with 1,000,000 waiting", "µs")
        .rounds_max(15)
        .goal(Goal::Ratio { against: &[SHORT], limit: 0.667, aim: 0.667 })
        .note("a hundred at a time; the ratio is the short queue's cost against the long one's")
        .contestant_if(BASELINE, move || long.sample())
        .contestant_if(SHORT, move || short.sample())
}

/// Everybody in a process of its own.
fn four_line() -> Line {
    Line::new("2 producers + 2 workers, four processes", "µs")
        .rounds_max(5)
        .goal(Goal::Below { limit: 100.0, aim: 20.0 })
        .note("batches of 100; it fails if one of the four gets less than a tenth of its share")
        .contestant_if(BASELINE, processes::four)
}

fn latency_line(with: &Contestants) -> Line {
    let (prefork, dramatiq) = (with.prefork.clone(), with.dramatiq.clone());
    Line::new("enqueue to start, idle, two processes", "ms")
        .rounds_max(5)
        .goal(Goal::Below { limit: 2.0, aim: 0.5 })
        .note("from the call that publishes to the worker's hand; tidegate's sync of the publish is in it")
        .contestant_if(BASELINE, processes::latency)
        .contestant_if(PREFORK, move || prefork.latency(processes::PINGS))
        .contestant_if(DRAMATIQ, move || dramatiq.latency(processes::PINGS))
}

fn idle_line() -> Line {
    Line::new("a waiting worker", "% CPU")
        .rounds_max(3)
        .goal(Goal::Below { limit: 0.1, aim: 0.05 })
        .contestant_if(BASELINE, processes::idle)
}

fn memory_line(with: &Contestants) -> Line {
    let (prefork, threads, dramatiq) = (with.prefork.clone(), with.threads.clone(), with.dramatiq.clone());
    Line::new("memory of a worker", "MB")
        .rounds_max(3)
        .goal(Goal::Below { limit: 25.0, aim: 25.0 })
        .note("after 500 tasks, all its processes, shared pages counted once")
        .contestant_if(BASELINE, processes::worker_memory)
        .contestant_if(PREFORK, move || prefork.memory())
        .contestant_if(THREADS, move || threads.memory())
        .contestant_if(DRAMATIQ, move || dramatiq.memory())
}

fn stop_line(with: &Contestants) -> Line {
    let (prefork, threads, dramatiq) = (with.prefork.clone(), with.threads.clone(), with.dramatiq.clone());
    Line::new("warm stop of an idle worker", "s")
        .rounds_max(3)
        .goal(Goal::Below { limit: 0.2, aim: 0.2 })
        .note("from SIGTERM to the end of its process")
        .contestant_if(BASELINE, processes::stop)
        .contestant_if(PREFORK, move || prefork.stop())
        .contestant_if(THREADS, move || threads.stop())
        .contestant_if(DRAMATIQ, move || dramatiq.stop())
}

/// This binary as one of the processes, if that is what it was started for.
pub(crate) fn child_if_asked() -> Option<ExitCode> {
    processes::child_if_asked()
}
