//! Messages from RabbitMQ: bare consumers of small messages, acknowledged each or in runs. The same broker for all, in one run.
//!
//! `TIDEGATE_RABBIT_PLAIN=host:port` names a broker; without it a private one is started by tests/rabbit/node.sh and ended with
//! the run. Reading order: here the lines, then one file a contestant; `broker.rs` has the broker.

mod broker;
mod lapin;
mod pika;
mod tidegate;

use std::rc::Rc;
use std::time::Instant;

use broker::Broker;
use rustix::time::{ClockId, clock_gettime};

use crate::harness::{BASELINE, Goal, Line, Sample};

const LAPIN: &str = "lapin";
const PIKA: &str = "pika";

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
    ]
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
