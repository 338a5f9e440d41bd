//! Group `sync`: semaphore and queue beside tokio's, async-lock's, async-channel's and flume's.
//!
//! A workload is written once, over two small vocabularies: what runs the tasks ([`Runtime`]) and
//! what they meet at ([`Gate`], [`Channel`]). A line then names which meets which.

use std::future::{Future, ready};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::harness::{BASELINE, Goal, Line};

const TOKIO: &str = "tokio";
const ASYNC_LOCK: &str = "async-lock";
const ASYNC_CHANNEL: &str = "async-channel";
const FLUME: &str = "flume";
const ONE_AT_A_TIME: &str = "recv, one at a time";
const RECV_MANY: &str = "tokio recv_many";

const NO_PANIC: &str = "workloads do not panic";
const NOT_CLOSED: &str = "the queue stays open";

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = vec![uncontended_line(), handoff_own_line(), handoff_tokio_line()];
    lines.extend([4, 100].map(two_threads_line));
    lines.push(two_loops_line());
    lines.push(bytes_line());
    lines.extend([one_to_one_own_line(), one_to_one_tokio_line(), many_to_many_line()]);
    lines.push(recv_all_line());
    lines
}

fn uncontended_line() -> Line {
    Line::new("semaphore, uncontended", "ns")
        .contestant(BASELINE, uncontended::<OwnLoop, tidegate_sync::Semaphore>)
        .contestant(TOKIO, uncontended::<Tokio, tokio::sync::Semaphore>)
        .contestant(ASYNC_LOCK, uncontended::<Tokio, async_lock::Semaphore>)
        .goal(Goal::Ratio { against: &[TOKIO], limit: 4.0, aim: 6.0 })
        .note("one task acquires and gives back")
}

fn handoff_own_line() -> Line {
    Line::new("semaphore, 100 tasks / 10 permits, own runtime", "ns")
        .contestant(BASELINE, handoff::<OwnLoop, tidegate_sync::Semaphore>)
        .contestant(TOKIO, handoff::<Tokio, tokio::sync::Semaphore>)
        .goal(Goal::Ratio { against: &[TOKIO], limit: 2.0, aim: 3.0 })
        .note("each holds its permit across one switch; tidegate on its loop, tokio on its runtime")
}

fn handoff_tokio_line() -> Line {
    Line::new("semaphore, 100 tasks / 10 permits, all on tokio", "ns")
        .contestant(BASELINE, handoff::<Tokio, tidegate_sync::Semaphore>)
        .contestant(TOKIO, handoff::<Tokio, tokio::sync::Semaphore>)
        .contestant(ASYNC_LOCK, handoff::<Tokio, async_lock::Semaphore>)
        .contestant("two switches, no semaphore", two_switches)
        .goal(Goal::Ratio { against: &[TOKIO], limit: 1.3, aim: 1.7 })
        .note("the same, all on tokio's current-thread runtime; async-lock lets later tasks barge in")
}

fn two_threads_line(permits: usize) -> Line {
    Line::new(format!("semaphore, 2 threads, {permits} permits"), "ns")
        .contestant(BASELINE, move || two_threads::<tidegate_sync::Semaphore>(permits))
        .contestant(TOKIO, move || two_threads::<tokio::sync::Semaphore>(permits))
        .contestant(ASYNC_LOCK, move || two_threads::<async_lock::Semaphore>(permits))
        .goal(Goal::Ratio { against: &[TOKIO], limit: 1.3, aim: 1.8 })
        .note("two OS threads acquire and give back as fast as they can")
}

fn two_loops_line() -> Line {
    Line::new("semaphore, 2 threads x 50 tasks / 4 permits", "ns")
        .contestant(BASELINE, two_loops::<tidegate_sync::Semaphore>)
        .contestant(TOKIO, two_loops::<tokio::sync::Semaphore>)
        .contestant(ASYNC_LOCK, two_loops::<async_lock::Semaphore>)
        .note("a tokio current-thread runtime on each thread; half of the wake-ups cross over")
}

fn bytes_line() -> Line {
    fn of<S: Gate>() -> f64 {
        let gate = S::with(1);
        size_of_val(&gate.enter()) as f64
    }
    Line::new("semaphore, bytes a waiter", "bytes")
        .contestant(BASELINE, of::<tidegate_sync::Semaphore>)
        .contestant(TOKIO, of::<tokio::sync::Semaphore>)
        .contestant(ASYNC_LOCK, of::<async_lock::Semaphore>)
        .goal(Goal::Below { limit: 81.0, aim: 48.0 })
        .rounds_max(1)
        .note("the whole future; async-lock allocates for a waiter besides")
}

fn one_to_one_own_line() -> Line {
    Line::new("queue, one to one, own runtime", "ns")
        .contestant(BASELINE, one_to_one::<OwnLoop, tidegate_sync::Queue<u64>>)
        .contestant(TOKIO, one_to_one::<Tokio, TokioMpsc>)
        .contestant(ASYNC_CHANNEL, one_to_one::<Tokio, AsyncChannel>)
        .contestant(FLUME, one_to_one::<Tokio, Flume>)
        .goal(Goal::Ratio { against: &[TOKIO, ASYNC_CHANNEL, FLUME], limit: 1.3, aim: 2.0 })
        .note("an item, capacity 100; tidegate on its loop, the others on tokio's current-thread runtime")
}

fn one_to_one_tokio_line() -> Line {
    Line::new("queue, one to one, all on tokio", "ns")
        .contestant(BASELINE, one_to_one::<Tokio, tidegate_sync::Queue<u64>>)
        .contestant(TOKIO, one_to_one::<Tokio, TokioMpsc>)
        .contestant(ASYNC_CHANNEL, one_to_one::<Tokio, AsyncChannel>)
        .contestant(FLUME, one_to_one::<Tokio, Flume>)
        .goal(Goal::Ratio { against: &[TOKIO, ASYNC_CHANNEL, FLUME], limit: 1.3, aim: 2.0 })
}

fn many_to_many_line() -> Line {
    Line::new("queue, 8 producers to 8 consumers, all on tokio", "ns")
        .contestant(BASELINE, many_to_many::<tidegate_sync::Queue<u64>>)
        .contestant(ASYNC_CHANNEL, many_to_many::<AsyncChannel>)
        .contestant(FLUME, many_to_many::<Flume>)
        .note("an item, capacity 100, one loop; tokio's mpsc has one consumer and cannot take part")
}

fn recv_all_line() -> Line {
    Line::new("queue, recv_all, 2 threads", "ns")
        .contestant(BASELINE, || between_threads::<tidegate_sync::Queue<u64>>(true))
        .contestant(ONE_AT_A_TIME, || between_threads::<tidegate_sync::Queue<u64>>(false))
        .contestant(TOKIO, || between_threads::<TokioUnbounded>(false))
        .contestant(RECV_MANY, || between_threads::<TokioUnbounded>(true))
        .goal(Goal::Ratio { against: &[TOKIO, RECV_MANY], limit: 2.0, aim: 4.0 })
        .note("an item from one OS thread to another, unbounded")
}

/// What runs the tasks of one thread.
trait Runtime: 'static {
    fn run(main: impl Future<Output = ()> + Send + 'static);

    fn spawn(task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send;
}

struct OwnLoop;

impl Runtime for OwnLoop {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        let event_loop = tidegate_loop::EventLoop::new().expect("an event loop starts");
        event_loop.run_until_complete(main).expect("the workload runs to its end");
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send {
        // The loop's own handle is not `Send`. Once a task, this weighs nothing.
        let done = Arc::new(tidegate_sync::Event::new());
        let set = Arc::clone(&done);
        drop(tidegate_loop::spawn(async move {
            task.await;
            set.set();
        }));
        async move { done.wait().await }
    }
}

struct Tokio;

impl Runtime for Tokio {
    fn run(main: impl Future<Output = ()> + Send + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("tokio's current-thread runtime starts");
        runtime.block_on(async { tokio::spawn(main).await.expect(NO_PANIC) });
    }

    fn spawn(task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send {
        let task = tokio::spawn(task);
        async move { task.await.expect(NO_PANIC) }
    }
}

/// A semaphore.
trait Gate: Send + Sync + 'static {
    fn with(permits: usize) -> Self;

    /// The output is a permit, given back when it is dropped.
    fn enter(&self) -> impl Future<Output: Send> + Send;
}

impl Gate for tidegate_sync::Semaphore {
    fn with(permits: usize) -> Self {
        Self::new(permits)
    }

    fn enter(&self) -> impl Future<Output: Send> + Send {
        self.acquire()
    }
}

impl Gate for tokio::sync::Semaphore {
    fn with(permits: usize) -> Self {
        Self::new(permits)
    }

    fn enter(&self) -> impl Future<Output: Send> + Send {
        self.acquire()
    }
}

impl Gate for async_lock::Semaphore {
    fn with(permits: usize) -> Self {
        Self::new(permits)
    }

    fn enter(&self) -> impl Future<Output: Send> + Send {
        self.acquire()
    }
}

/// A queue with two ends. Its futures are the contestants' own, whatever they yield: another one around them would be a call a
/// message, and measured with it. What an `Option` or a `Result` holds is [what comes out of it](one).
trait Channel: 'static {
    type Sender: Clone + Send + 'static;
    type Receiver: Send + 'static;

    fn with(capacity: usize) -> (Self::Sender, Self::Receiver);

    fn send(sender: &Self::Sender, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send;

    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send;

    /// Waits for one, takes all there are, looks at each, and says how many.
    fn recv_all(receiver: &mut Self::Receiver) -> impl Future<Output = usize> + Send {
        async {
            black_box(one(Self::recv(receiver).await));
            1
        }
    }
}

fn one<T>(outcome: impl IntoIterator<Item = T>) -> T {
    outcome.into_iter().next().expect(NOT_CLOSED)
}

impl Channel for tidegate_sync::Queue<u64> {
    type Sender = Arc<Self>;
    type Receiver = Arc<Self>;

    fn with(capacity: usize) -> (Arc<Self>, Arc<Self>) {
        let queue = Arc::new(Self::bounded(capacity));
        (Arc::clone(&queue), queue)
    }

    fn send(sender: &Arc<Self>, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send {
        sender.push(item)
    }

    fn recv(receiver: &mut Arc<Self>) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send {
        Self::recv(receiver)
    }

    async fn recv_all(receiver: &mut Arc<Self>) -> usize {
        let batch = Self::recv_all(receiver).await.expect(NOT_CLOSED);
        batch.into_iter().map(black_box).count()
    }
}

struct TokioMpsc;

impl Channel for TokioMpsc {
    type Sender = tokio::sync::mpsc::Sender<u64>;
    type Receiver = tokio::sync::mpsc::Receiver<u64>;

    fn with(capacity: usize) -> (Self::Sender, Self::Receiver) {
        tokio::sync::mpsc::channel(capacity)
    }

    fn send(sender: &Self::Sender, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send {
        sender.send(item)
    }

    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send {
        receiver.recv()
    }
}

struct TokioUnbounded;

impl Channel for TokioUnbounded {
    type Sender = tokio::sync::mpsc::UnboundedSender<u64>;
    type Receiver = tokio::sync::mpsc::UnboundedReceiver<u64>;

    fn with(_capacity: usize) -> (Self::Sender, Self::Receiver) {
        tokio::sync::mpsc::unbounded_channel()
    }

    fn send(sender: &Self::Sender, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send {
        ready(sender.send(item))
    }

    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send {
        receiver.recv()
    }

    async fn recv_all(receiver: &mut Self::Receiver) -> usize {
        let mut batch = Vec::new();
        receiver.recv_many(&mut batch, usize::MAX).await;
        batch.into_iter().map(black_box).count()
    }
}

struct AsyncChannel;

impl Channel for AsyncChannel {
    type Sender = async_channel::Sender<u64>;
    type Receiver = async_channel::Receiver<u64>;

    fn with(capacity: usize) -> (Self::Sender, Self::Receiver) {
        async_channel::bounded(capacity)
    }

    fn send(sender: &Self::Sender, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send {
        sender.send(item)
    }

    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send {
        receiver.recv()
    }
}

struct Flume;

impl Channel for Flume {
    type Sender = flume::Sender<u64>;
    type Receiver = flume::Receiver<u64>;

    fn with(capacity: usize) -> (Self::Sender, Self::Receiver) {
        flume::bounded(capacity)
    }

    fn send(sender: &Self::Sender, item: u64) -> impl Future<Output: IntoIterator<Item = ()> + Send> + Send {
        sender.send_async(item)
    }

    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output: IntoIterator<Item = u64> + Send> + Send {
        receiver.recv_async()
    }
}

/// Wakes its own task and is pending once: the same switch on every runtime.
#[derive(Default)]
struct Switch(bool);

impl Future for Switch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// ns an operation, of `count` in `batch`.
fn time(count: usize, batch: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    batch();
    begun.elapsed().as_nanos() as f64 / count as f64
}

fn uncontended<R: Runtime, S: Gate>() -> f64 {
    const COUNT: usize = 500_000;
    time(COUNT, || {
        R::run(async {
            let gate = S::with(1);
            for _ in 0..COUNT {
                drop(black_box(gate.enter().await));
            }
        });
    })
}

/// `tasks` tasks enter one after another, each holding its permit across one switch.
async fn crowd<R: Runtime, S: Gate>(gate: Arc<S>, tasks: usize, each: usize) {
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let gate = Arc::clone(&gate);
            R::spawn(async move {
                for _ in 0..each {
                    let permit = gate.enter().await;
                    Switch::default().await;
                    drop(permit);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

fn handoff<R: Runtime, S: Gate>() -> f64 {
    const TASKS: usize = 100;
    const EACH: usize = 1_000;
    time(TASKS * EACH, || R::run(crowd::<R, S>(Arc::new(S::with(10)), TASKS, EACH)))
}

/// What tokio's runtime alone costs in a hand-off: one switch to get the permit, one to hold it.
fn two_switches() -> f64 {
    const TASKS: usize = 100;
    const EACH: usize = 1_000;
    let switch = || async {
        for _ in 0..EACH {
            Switch::default().await;
            Switch::default().await;
        }
    };
    time(TASKS * EACH, || {
        Tokio::run(async move {
            let tasks: Vec<_> = (0..TASKS).map(|_| Tokio::spawn(switch())).collect();
            for task in tasks {
                task.await;
            }
        });
    })
}

/// Runs `work` on two OS threads at once, each on a core of its own: left to the scheduler they
/// meet now on one, now on two, and the line would measure which. Timed from the first to begin to
/// the last to end, which only the two themselves can tell.
fn on_two_threads(count: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = Barrier::new(2);
    let timed = |n| {
        pin_to_core(n);
        start.wait();
        let begun = Instant::now();
        work(n);
        (begun, Instant::now())
    };
    let [(begun, ended), (begun_too, ended_too)] = thread::scope(|scope| {
        [0, 1].map(|n| scope.spawn(move || timed(n))).map(|thread| thread.join().expect(NO_PANIC))
    });
    let elapsed = ended.max(ended_too) - begun.min(begun_too);
    elapsed.as_nanos() as f64 / count as f64
}

/// Pins the calling thread to the `n`th core it may use. Where that fails nothing is said: the line
/// is only noisier.
fn pin_to_core(n: usize) {
    if let Ok(allowed) = sched_getaffinity(None)
        && let Some(core) = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).nth(n)
    {
        let mut one = CpuSet::new();
        one.set(core);
        let _ = sched_setaffinity(None, &one);
    }
}

fn two_threads<S: Gate>(permits: usize) -> f64 {
    const EACH: usize = 200_000;
    let gate = S::with(permits);
    on_two_threads(2 * EACH, |_| {
        futures_lite::future::block_on(async {
            for _ in 0..EACH {
                drop(black_box(gate.enter().await));
            }
        });
    })
}

fn two_loops<S: Gate>() -> f64 {
    const TASKS: usize = 50;
    const EACH: usize = 400;
    let gate = Arc::new(S::with(4));
    on_two_threads(2 * TASKS * EACH, |_| {
        Tokio::run(crowd::<Tokio, S>(Arc::clone(&gate), TASKS, EACH));
    })
}

fn one_to_one<R: Runtime, C: Channel>() -> f64 {
    const ITEMS: u64 = 200_000;
    time(ITEMS as usize, || {
        R::run(async {
            let (sender, mut receiver) = C::with(100);
            let producer = R::spawn(async move {
                for item in 0..ITEMS {
                    one(C::send(&sender, item).await);
                }
            });
            let consumer = R::spawn(async move {
                for _ in 0..ITEMS {
                    black_box(one(C::recv(&mut receiver).await));
                }
            });
            producer.await;
            consumer.await;
        });
    })
}

fn many_to_many<C: Channel<Receiver: Clone>>() -> f64 {
    const ENDS: u64 = 8;
    const EACH: u64 = 20_000;
    time((ENDS * EACH) as usize, || {
        Tokio::run(async {
            let (sender, receiver) = C::with(100);
            let mut tasks = Vec::new();
            for _ in 0..ENDS {
                let (sender, mut receiver) = (sender.clone(), receiver.clone());
                tasks.push(tokio::spawn(async move {
                    for item in 0..EACH {
                        one(C::send(&sender, item).await);
                    }
                }));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..EACH {
                        black_box(one(C::recv(&mut receiver).await));
                    }
                }));
            }
            for task in tasks {
                task.await.expect(NO_PANIC);
            }
        });
    })
}

fn between_threads<C: Channel>(batches: bool) -> f64 {
    // So many that the start of a thread and the first wake-up are a small part of it.
    const ITEMS: u64 = 2_000_000;
    let (sender, receiver) = C::with(usize::MAX);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let sender = std::sync::Mutex::new(sender);
    on_two_threads(ITEMS as usize, |n| {
        if n == 0 {
            let sender = sender.lock().expect(NO_PANIC).clone();
            futures_lite::future::block_on(async {
                for item in 0..ITEMS {
                    one(C::send(&sender, item).await);
                }
            });
        } else {
            let taken = receiver.lock().expect(NO_PANIC).take();
            let mut receiver = taken.expect("one consumer");
            futures_lite::future::block_on(async {
                let mut received = 0;
                while received < ITEMS {
                    received += if batches {
                        C::recv_all(&mut receiver).await as u64
                    } else {
                        black_box(one(C::recv(&mut receiver).await));
                        1
                    };
                }
            });
        }
    })
}
