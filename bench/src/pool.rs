//! Group `pool`: bounded pools with nothing to do and with something to wait for.
//!
//! Every contestant has one producer that submits `count` tasks and holds at most `cap` of them at once; the batch ends
//! when the last has. Reading order: the lines, the contestants, the asyncio script.
//!
//! `TIDEGATE_BENCH_LONG=1` adds a million tasks of 1 ms, which take minutes.

use std::future::Future;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use tidegate_pool::{Executor, InSlot, JoinError, Pool, Spawn, Threaded, TidegateLoop, Tokio};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::{BASELINE, Goal, Line, Sample};

const JOIN_SET: &str = "tokio JoinSet+Semaphore";
const BUFFER_UNORDERED: &str = "buffer_unordered on tokio";
const LOCKED: &str = "tidegate, state behind a lock";
const ON_TOKIO: &str = "tidegate-pool on tokio";
const MAP: &str = "tidegate, Pool::map";
const ASYNCIO: &str = "asyncio, lock + event";

/// Set, it adds the lines that take minutes: a million tasks of 1 ms in 5 slots are 200 seconds at best.
const LONG: &str = "TIDEGATE_BENCH_LONG";

const TASK: Duration = Duration::from_millis(1);

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = vec![
        of_nothing(10_000, "10k", 5),
        of_nothing(10_000, "10k", 100),
        of_nothing(1_000_000, "1M", 5),
        of_nothing(1_000_000, "1M", 100).goal(Goal::Ratio { against: &[JOIN_SET], limit: 2.0, aim: 4.0 }),
        // Two seconds a batch, four for the peers: long enough to need no second one.
        of_a_millisecond(10_000, "10k", 5).rounds_max(1).goal(share_of_ideal(5, 0.85, 0.95)),
        of_a_millisecond(10_000, "10k", 100).rounds_max(7).goal(share_of_ideal(100, 0.80, 0.95)),
    ];
    if std::env::var_os(LONG).is_some() {
        lines.extend([5, 100].map(|cap| of_a_millisecond(1_000_000, "1M", cap).rounds_max(1)));
    }
    lines
}

fn of_nothing(count: u32, name: &str, cap: usize) -> Line {
    let line = Line::new(format!("pool, {name} tasks of 0 ms, cap {cap}"), "ns");
    let line = line.note("a task; buffer_unordered spawns none: its futures stop while their caller is busy");
    let line = with(line, BASELINE, 1e9, count, move |count| on_loop(TidegateLoop, count, cap, Duration::ZERO));
    let line = with(line, ON_TOKIO, 1e9, count, move |count| on_tokio(count, cap, Duration::ZERO));
    let line = with(line, JOIN_SET, 1e9, count, move |count| join_set(count, cap, Duration::ZERO));
    let line = with(line, BUFFER_UNORDERED, 1e9, count, move |count| buffer_unordered(count, cap, Duration::ZERO));
    if count > 10_000 {
        return line.rounds_max(5);
    }
    let line = with(line, LOCKED, 1e9, count, move |count| on_loop(Locked, count, cap, Duration::ZERO));
    let line = with(line, MAP, 1e9, count, move |count| map_on_loop(count, cap));
    with_asyncio(line, 1e9, count, cap, Duration::ZERO).rounds_max(21)
}

fn of_a_millisecond(count: u32, name: &str, cap: usize) -> Line {
    let line = Line::new(format!("pool, {name} tasks of 1 ms, cap {cap}"), "µs");
    let line = line.note(format!("wall time a task; ideal {} µs", 1e3 / cap as f64));
    let line = with(line, BASELINE, 1e6, count, move |count| on_loop(TidegateLoop, count, cap, TASK));
    let line = with(line, JOIN_SET, 1e6, count, move |count| join_set(count, cap, TASK));
    if count > 10_000 {
        return line;
    }
    let line = with(line, BUFFER_UNORDERED, 1e6, count, move |count| buffer_unordered(count, cap, TASK));
    with_asyncio(line, 1e6, count, cap, TASK)
}

/// Adds a contestant whose `batch` of so many tasks gives the seconds a task. The first batch only warms up, so it is a
/// tenth of the others; a batch that makes one wait is announced.
fn with(line: Line, name: &'static str, scale: f64, count: u32, mut batch: impl FnMut(u32) -> f64 + 'static) -> Line {
    let mut warm = false;
    line.contestant(name, move || {
        let count = if std::mem::replace(&mut warm, true) { count } else { count / 10 };
        let begun = Instant::now();
        let cost = batch(count) * scale;
        if begun.elapsed() > Duration::from_secs(1) {
            eprintln!("      {name}: {count} tasks in {:.1?}", begun.elapsed());
        }
        cost
    })
}

/// For colour, so one batch must do, after one that finds out whether there is a Python at all.
fn with_asyncio(line: Line, scale: f64, count: u32, cap: usize, task: Duration) -> Line {
    let mut known = None;
    let mut found = false;
    line.contestant_if(ASYNCIO, move || {
        if !std::mem::replace(&mut found, true) {
            return asyncio(1, cap, task);
        }
        let measured = known.get_or_insert_with(|| asyncio(count, cap, task)).clone();
        Ok(measured? * scale)
    })
}

/// Shares of what `cap` slots could do with tasks of exactly 1 ms, as bounds on the time a task.
fn share_of_ideal(cap: usize, limit: f64, aim: f64) -> Goal {
    let bound = |share: f64| (1e3 / cap as f64 / share * 100.0).round() / 100.0;
    Goal::Below { limit: bound(limit), aim: bound(aim) }
}

/// Seconds a task.
fn per_task(begun: Instant, count: u32) -> f64 {
    begun.elapsed().as_secs_f64() / f64::from(count)
}

fn on_loop<S>(executor: S, count: u32, cap: usize, task: Duration) -> f64
where
    S: Spawn<InSlot<Empty, S>> + Spawn<InSlot<tidegate_loop::Sleep, S>>,
{
    let measured = tidegate_loop::run(async move {
        let pool = Pool::on(executor, cap);
        let begun = Instant::now();
        for _ in 0..count {
            if task.is_zero() {
                pool.submit(Empty).await.expect("open").detach();
            } else {
                pool.submit(tidegate_loop::sleep(task)).await.expect("open").detach();
            }
        }
        pool.close().await;
        let cost = per_task(begun, count);
        let stats = pool.stats();
        assert_eq!((stats.completed, stats.peak), (u64::from(count), cap), "{stats:?}");
        cost
    });
    measured.expect("the loop ran")
}

fn map_on_loop(count: u32, cap: usize) -> f64 {
    let measured = tidegate_loop::run(async move {
        let pool = Pool::new(cap);
        let begun = Instant::now();
        let mut results = pool.map(0..count, |_| Empty);
        while let Some((_, result)) = results.next().await {
            result.expect("no panic");
        }
        per_task(begun, count)
    });
    measured.expect("the loop ran")
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn on_tokio(count: u32, cap: usize, task: Duration) -> f64 {
    tokio_runtime().block_on(async {
        let pool = Pool::on(Tokio, cap);
        let begun = Instant::now();
        for _ in 0..count {
            pool.submit(tokio_task(task)).await.expect("open").detach();
        }
        pool.close().await;
        per_task(begun, count)
    })
}

/// Ended tasks are reaped as new ones are added: a set of a million results would cost it dear.
fn join_set(count: u32, cap: usize, task: Duration) -> f64 {
    tokio_runtime().block_on(async {
        let slots = Arc::new(Semaphore::new(cap));
        let mut tasks = JoinSet::new();
        let begun = Instant::now();
        for _ in 0..count {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("open");
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                tokio_task(task).await;
                drop(slot);
            });
        }
        while tasks.join_next().await.is_some() {}
        per_task(begun, count)
    })
}

fn buffer_unordered(count: u32, cap: usize, task: Duration) -> f64 {
    tokio_runtime().block_on(async {
        let begun = Instant::now();
        let tasks = stream::iter(0..count).map(|_| tokio_task(task)).buffer_unordered(cap);
        tasks.for_each(|()| std::future::ready(())).await;
        per_task(begun, count)
    })
}

async fn tokio_task(task: Duration) {
    if task.is_zero() {
        Empty.await;
    } else {
        tokio::time::sleep(task).await;
    }
}

/// Nothing to do: what is left is the pool.
struct Empty;

impl Future for Empty {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// The loop, with the pool's state counted and locked as if it were shared between threads.
#[derive(Clone)]
struct Locked;

impl Executor for Locked {
    type Shared<T> = Threaded<T>;
    type Handle<T: 'static> = tidegate_loop::JoinHandle<T>;
    type Canceller = tidegate_loop::Task;

    fn now(&self) -> Instant {
        TidegateLoop.now()
    }

    fn poll_join<T: 'static>(handle: &mut Self::Handle<T>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        TidegateLoop::poll_join(handle, cx)
    }

    fn is_finished<T: 'static>(handle: &Self::Handle<T>) -> bool {
        handle.is_finished()
    }

    fn canceller<T: 'static>(handle: &Self::Handle<T>) -> Self::Canceller {
        handle.task()
    }

    fn cancel(task: &Self::Canceller) -> bool {
        task.cancel()
    }
}

impl<F: Future + 'static> Spawn<F> for Locked {
    fn spawn(&self, future: F) -> Self::Handle<F::Output> {
        tidegate_loop::spawn(future)
    }
}

/// A pool as one writes it in asyncio: a lock for the count, an event for "there is room", a clean-up task for each
/// task that ends. `argv`: count, cap, seconds a task. Prints seconds a task.
const SCRIPT: &str = r#"
import asyncio, sys, time

class Pool:
    def __init__(self, cap):
        self.cap, self.running = cap, set()
        self.guard, self.room = asyncio.Lock(), asyncio.Event()

    async def submit(self, work):
        await self.guard.acquire()
        try:
            while len(self.running) >= self.cap:
                self.room.clear()
                self.guard.release()
                try:
                    await self.room.wait()
                finally:
                    await self.guard.acquire()
            task = asyncio.ensure_future(work)
            self.running.add(task)
            task.add_done_callback(lambda done: asyncio.ensure_future(self.ended(done)))
            return task
        finally:
            self.guard.release()

    async def ended(self, task):
        async with self.guard:
            self.running.discard(task)
            self.room.set()

async def nothing():
    pass

async def main(count, cap, seconds):
    pool = Pool(cap)
    begun = time.perf_counter()
    for _ in range(count):
        task = await pool.submit(asyncio.sleep(seconds) if seconds else nothing())
    while pool.running:
        await asyncio.wait(set(pool.running))
        await asyncio.sleep(0)
    return (time.perf_counter() - begun) / count

print(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
"#;

fn asyncio(count: u32, cap: usize, task: Duration) -> Sample {
    let done = Command::new("python3")
        .args(["-c", SCRIPT, &count.to_string(), &cap.to_string(), &task.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    printed.trim().parse().map_err(|_| errors.lines().last().unwrap_or("python3 printed nothing").to_owned())
}
