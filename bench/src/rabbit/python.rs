//! Celery, dramatiq and taskiq: their own workers, started on a queue that was filled. Every task notes when it ran, so their
//! start is not counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::worker::{Form, Work, fill};
use crate::harness::Sample;
use crate::python::{Python, output};

/// The releases that are measured against, and those that speak to the broker for them: their speed is measured too.
const PACKAGES: [&str; 10] = [
    "celery==5.7.0",
    "kombu==5.7.0",
    "amqp==5.4.2",
    "billiard==4.3.2",
    "dramatiq[rabbitmq]==2.2.1",
    "pika==1.4.4",
    "taskiq==0.13.0",
    "taskiq-aio-pika==0.6.1",
    "aio-pika==10.2.1",
    "aiormq==7.2.4",
];

/// Tasks a batch: seconds for the fastest of them.
const TASKS: u32 = 4_000;

/// A batch that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What all of them share; `BENCH_OUT` takes eight bytes a task.
const COMMON: &str = r#"
import os, struct, time
HOST, QUEUE = os.environ["BENCH_HOST"], os.environ["BENCH_QUEUE"]
OUT = os.open(os.environ["BENCH_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
URL = f"amqp://guest:guest@{HOST}"
def ran():
    os.write(OUT, struct.pack("<d", time.monotonic()))
"#;

const CELERY: &str = r#"
from common import *
from celery import Celery
app = Celery(broker=URL + "//")
app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=100)
@app.task(name="nothing")
def nothing():
    ran()
@app.task(name="wait")
def wait():
    time.sleep(0.005)
    ran()
"#;

const DRAMATIQ: &str = r#"
from common import *
import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
dramatiq.set_broker(RabbitmqBroker(url=URL))
@dramatiq.actor(queue_name=QUEUE)
def nothing():
    ran()
@dramatiq.actor(queue_name=QUEUE)
def wait():
    time.sleep(0.005)
    ran()
"#;

const TASKIQ: &str = r#"
from common import *
import asyncio, sys
from taskiq_aio_pika import AioPikaBroker
try:
    from taskiq_aio_pika import Queue, Exchange
    broker = AioPikaBroker(URL, qos=1000, exchange=Exchange(name=QUEUE)).with_queue(Queue(name=QUEUE))
except ImportError:
    broker = AioPikaBroker(URL, qos=1000, queue_name=QUEUE, exchange_name=QUEUE, declare_queues=True)
@broker.task(task_name="nothing")
async def nothing():
    ran()
@broker.task(task_name="wait")
async def wait():
    await asyncio.sleep(0.005)
    ran()
async def fill(task, count):
    await broker.startup()
    for _ in range(count):
        await task.kiq()
    await broker.shutdown()
if __name__ == "__main__":
    asyncio.run(fill({"nothing": nothing, "wait": wait}[sys.argv[1]], int(sys.argv[2])))
"#;

/// Whose worker, and how it is set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// Two processes.
    CeleryPrefork,
    /// Two processes, so many threads each.
    Dramatiq(u32),
    /// Two processes, a thousand tasks at a time each.
    Taskiq,
}

/// An interpreter that has them; installs them beside the build's output if need be.
fn interpreter() -> Result<PathBuf, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
    let environment = target.join("bench-python-rabbit");
    let python = environment.join("bin/python");
    let imports = || output(Command::new(&python).args(["-c", "import celery, dramatiq, taskiq_aio_pika"]));
    if imports().is_err() {
        eprintln!("installing {} into {}", PACKAGES.join(", "), environment.display());
        output(Command::new(Python::find().interpreter()?).args(["-m", "venv"]).arg(&environment))?;
        output(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
        imports()?;
    }
    Ok(python)
}

/// A worker of theirs, ended with its whole group.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::TERM);
        // They take seconds to end in order, and have nothing left to do.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Microseconds a task, from the first one's run to the last one's.
pub(super) fn run(host: &str, peer: Peer, work: Work) -> Sample {
    use std::os::unix::process::CommandExt as _;
    let python = interpreter()?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    for (name, text) in [("common", COMMON), ("on_celery", CELERY), ("on_dramatiq", DRAMATIQ), ("on_taskiq", TASKIQ)] {
        fs::write(directory.path().join(format!("{name}.py")), text).map_err(|error| error.to_string())?;
    }
    // Each has queues of its own form.
    let queue = match peer {
        Peer::CeleryPrefork => "bench-celery",
        Peer::Dramatiq(_) => "bench-dramatiq",
        Peer::Taskiq => "bench-taskiq",
    };
    let out = directory.path().join("ran");
    let command = |words: &[String]| {
        let mut command = Command::new(&python);
        command.args(words).current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("BENCH_HOST", host).env("BENCH_QUEUE", queue).env("BENCH_OUT", &out);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let worker = match peer {
        Peer::CeleryPrefork => {
            fill(host, queue, Form::Celery, work, TASKS)?;
            words("-m celery -A on_celery worker -P prefork -c 2 -l ERROR")
        }
        Peer::Dramatiq(threads) => {
            fill(host, queue, Form::Dramatiq, work, TASKS)?;
            words(&format!("-m dramatiq on_dramatiq -p 2 -t {threads}"))
        }
        Peer::Taskiq => {
            output(&mut command(&words(&format!("on_taskiq.py {} {TASKS}", work.name()))))?;
            words("-m taskiq worker on_taskiq:broker --workers 2 --max-async-tasks 1000 --log-level ERROR")
        }
    };
    let log = directory.path().join("log");
    let errors = fs::File::create(&log).map_err(|error| error.to_string())?;
    let child = command(&worker).stderr(errors).process_group(0).spawn().map_err(|error| error.to_string())?;
    let _running = Running(child);
    let ran = wait(&out).map_err(|seen| {
        let said = fs::read_to_string(&log).unwrap_or_default();
        format!("{seen} of {TASKS} tasks ran within {PATIENCE:?}: {}", said.lines().last().unwrap_or("it said nothing"))
    })?;
    Ok(ran * 1e6 / f64::from(TASKS - 1))
}

/// Seconds from the first task to the last; or how many there were.
fn wait(out: &Path) -> Result<f64, usize> {
    let begun = Instant::now();
    loop {
        let seen = fs::metadata(out).map_or(0, |file| file.len() as usize / 8);
        if seen >= TASKS as usize {
            break;
        }
        if begun.elapsed() > PATIENCE {
            return Err(seen);
        }
        thread::sleep(Duration::from_millis(20));
    }
    let bytes = fs::read(out).unwrap_or_default();
    let (times, _) = bytes.as_chunks::<8>();
    let times = times.iter().map(|time| f64::from_le_bytes(*time));
    let (first, last) = times.fold((f64::MAX, f64::MIN), |(first, last), time| (first.min(time), last.max(time)));
    Ok(last - first)
}
