//! The queue between processes: this binary again, in other roles.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use tidegate_loop::{EventLoop, Runner, sleep};
use tidegate_worker::{Broker, Incoming, Master, Settlement, Signals, SqliteBroker, Verdict};

use super::queue::{scratch, subscribe, take, task};
use super::{memory, whole};
use crate::harness::Sample;

/// The word this binary is started with as one of the processes.
const CHILD: &str = "--queue-child";

const EACH: usize = 20_000;
const BATCH: usize = 100;

/// How many single tasks a latency is the median of.
pub(super) const PINGS: usize = 40;

/// How long the idle worker is watched.
const IDLE: Duration = Duration::from_secs(4);

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Result<Process, String> {
        let executable = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(executable)
            .args([CHILD, role])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let lines = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Process { child, lines })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(read) if read > 0 => Ok(line.trim().to_owned()),
            _ => Err("a process ended too early".to_owned()),
        }
    }

    fn tell(&mut self) -> Result<(), String> {
        let stdin = self.child.stdin.as_mut().ok_or("no pipe")?;
        stdin.write_all(b"go\n").and_then(|()| stdin.flush()).map_err(|error| error.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Microseconds a task, from the start signal until the last is settled.
pub(super) fn four() -> Sample {
    let directory = scratch("four")?;
    let path = directory.join("queue.db");
    let mut workers = [Process::start("work", &path)?, Process::start("work", &path)?];
    let mut producers = [Process::start("produce", &path)?, Process::start("produce", &path)?];
    for process in workers.iter_mut().chain(&mut producers) {
        process.line()?;
    }
    let began = Instant::now();
    for producer in &mut producers {
        producer.tell()?;
    }
    // Each worker says how many it has done after every batch; both pipes are read by threads.
    let (sender, counts) = std::sync::mpsc::channel();
    let mut shares = [0_usize; 2];
    let pids = workers.each_ref().map(|worker| Pid::from_child(&worker.child));
    let readers: Vec<_> = workers
        .into_iter()
        .enumerate()
        .map(|(at, mut worker)| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                while let Ok(line) = worker.line() {
                    if sender.send((at, line.parse::<usize>().unwrap_or(0))).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    while shares.iter().sum::<usize>() < 2 * EACH {
        let (at, count) = counts.recv().map_err(|_| "the workers ended".to_owned())?;
        shares[at] += count;
    }
    let took = began.elapsed();
    let ends: Result<Vec<f64>, String> = producers
        .iter_mut()
        .map(|producer| producer.line()?.parse::<f64>().map_err(|error| error.to_string()))
        .collect();
    for pid in pids {
        kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
    }
    for reader in readers {
        reader.join().map_err(|_| "a reader failed".to_owned())?;
    }
    let _ = std::fs::remove_dir_all(&directory);
    let (first, last) = (ends.clone()?[0].min(ends.clone()?[1]), ends.clone()?[0].max(ends?[1]));
    if shares.iter().any(|&share| share * 10 < EACH) || last > first * 10.0 {
        return Err(format!(
            "somebody was starved: workers did {shares:?}, producers took {first:.1} s and {last:.1} s"
        ));
    }
    Ok(took.as_secs_f64() * 1e6 / (2 * EACH) as f64)
}

/// Milliseconds from `publish` to the worker's hand, one task at a time; the median.
pub(super) fn latency() -> Sample {
    let directory = scratch("latency")?;
    let path = directory.join("queue.db");
    let mut worker = Process::start("clock", &path)?;
    worker.line()?;
    let event_loop = EventLoop::new().map_err(|error| error.to_string())?;
    let lines = std::cell::RefCell::new(worker);
    let took = Runner::new(event_loop)
        .run(async move {
            let broker = SqliteBroker::open(&path).await.expect("the queue opens");
            let mut took = Vec::with_capacity(PINGS);
            for _ in 0..PINGS {
                // Idle means asleep, everybody.
                sleep(Duration::from_millis(20)).await;
                let began = clock();
                broker.publish(vec![task()]).await.expect("the disk has room");
                let arrived: i64 = lines.borrow_mut().line().expect("the worker lives").parse().expect("an instant");
                took.push((arrived - began) as f64 / 1e6);
            }
            took.sort_by(f64::total_cmp);
            took[PINGS / 2]
        })
        .map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&directory);
    Ok(took)
}

/// A worker with everything, in a process of its own, that has done `count` tasks.
fn worker_after(count: usize, path: &Path) -> Result<Process, String> {
    let mut worker = Process::start("worker", path)?;
    worker.line()?;
    let path = path.to_owned();
    super::queue::run(async move {
        let broker = SqliteBroker::open(&path).await.expect("the queue opens");
        broker.publish((0..count).map(|_| task()).collect()).await.expect("the disk has room");
        loop {
            let queues = broker.inspect().await.expect("the queue lives");
            if queues.iter().all(|queue| queue.ready + queue.running == 0) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        broker.close().await.expect("it closes");
    })?;
    Ok(worker)
}

/// Megabytes of a worker, after some tasks.
pub(super) fn worker_memory() -> Sample {
    let directory = scratch("memory")?;
    let worker = worker_after(500, &directory.join("queue.db"))?;
    let taken = memory::of_process(worker.child.id());
    drop(worker);
    let _ = std::fs::remove_dir_all(&directory);
    taken
}

/// Seconds from SIGTERM to the end of a worker with nothing to do.
pub(super) fn stop() -> Sample {
    let directory = scratch("stop")?;
    let mut worker = worker_after(1, &directory.join("queue.db"))?;
    std::thread::sleep(super::QUIET);
    let began = Instant::now();
    kill_process(Pid::from_child(&worker.child), Signal::TERM).map_err(|error| error.to_string())?;
    let ended = worker.child.wait().map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let _ = std::fs::remove_dir_all(&directory);
    if ended.success() { Ok(took.as_secs_f64()) } else { Err(format!("the worker ended with {ended}")) }
}

/// Percent of a core that a waiting worker uses.
pub(super) fn idle() -> Sample {
    let directory = scratch("idle")?;
    let worker = worker_after(1, &directory.join("queue.db"))?;
    let cpu = |id: u32| -> Result<f64, String> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/schedstat")).map_err(|error| error.to_string())?;
        let mut total: f64 = stat.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        // The main thread's figure does not include the others'.
        total = std::fs::read_dir(format!("/proc/{id}/task"))
            .map_err(|error| error.to_string())?
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
            .filter_map(|stat| stat.split(' ').next().and_then(|word| word.parse::<f64>().ok()))
            .sum::<f64>()
            .max(total);
        Ok(total)
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu(worker.child.id())?;
    std::thread::sleep(IDLE);
    let used = cpu(worker.child.id())? - before;
    let _ = std::fs::remove_dir_all(&directory);
    Ok(used / IDLE.as_nanos() as f64 * 100.0)
}

/// Nanoseconds on the clock that all processes share.
fn clock() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

pub(super) fn child_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != CHILD {
        return None;
    }
    let (role, path) = (args.next()?, args.next()?);
    let event_loop = EventLoop::new().expect("a loop");
    let ran = Runner::new(event_loop).run(async move {
        let broker = SqliteBroker::open(&path).await.expect("the queue opens");
        match role.as_str() {
            "produce" => produce(&broker).await,
            "work" => work(&broker).await,
            "worker" => whole_worker(broker).await,
            _ => tell_arrivals(&broker).await,
        }
    });
    Some(if ran.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // Whoever listened has gone when this fails, and this process is about to be ended.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn produce(broker: &SqliteBroker) {
    say("ready");
    let mut go = String::new();
    std::io::stdin().lock().read_line(&mut go).expect("a word");
    let began = Instant::now();
    for _ in 0..EACH / BATCH {
        broker.publish((0..BATCH).map(|_| task()).collect()).await.expect("the disk has room");
    }
    say(began.elapsed().as_secs_f64());
}

async fn work(broker: &SqliteBroker) {
    let consumer = subscribe(broker, BATCH).await;
    say("ready");
    loop {
        say(take(&consumer).await);
    }
}

/// The worker as a user has it, until it is told to stop.
async fn whole_worker(broker: SqliteBroker) {
    let mut signals = Signals::listen().expect("signals can be heard");
    let master = Master::new(std::rc::Rc::new(broker), whole::coroutines(), whole::settings());
    let worker = master.handle();
    let passing = tidegate_loop::spawn(async move { signals.pass_to(&worker).await });
    say("ready");
    master.run().await.expect("it stops in order");
    passing.cancel();
}

/// Says when each task arrived.
async fn tell_arrivals(broker: &SqliteBroker) {
    let consumer = subscribe(broker, 10).await;
    say("ready");
    loop {
        let incoming = consumer.recv_all().await.expect("the queue lives");
        let arrived = clock();
        for incoming in incoming {
            let Incoming::Delivery(delivery) = incoming else { continue };
            let ack = Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None };
            consumer.settle(vec![ack]).await.expect("the queue lives");
            say(arrived);
        }
    }
}
