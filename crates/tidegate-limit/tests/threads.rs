//! One gate, several threads: loops that come and go, stop and are busy.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tidegate_limit::{Cost, Dimension, Enter, Gate, Lease, Limit, Scope, TokioTimer, Window};
use tidegate_loop::{EventLoop, spawn, timeout, yield_now};

const fn is_send_and_sync<T: Send + Sync>() {}
const fn is_send<T: Send>() {}
const _: () = is_send_and_sync::<Gate>();
const _: () = is_send_and_sync::<Scope>();
const _: () = is_send_and_sync::<Lease>();
const _: () = is_send::<Enter<'static>>();

const WINDOW: Duration = Duration::from_millis(20);

fn requests(amount: u64) -> Limit {
    Limit::rate("requests", Dimension::REQUESTS, amount, Window::strict(WINDOW))
}

/// On each of two threads, 8 tasks on `run`'s loop enter 25 times each.
fn two_threads(gate: &Gate, run: fn(Gate, Arc<Seen>)) {
    let seen = Arc::new(Seen::default());
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (gate, seen) = (gate.clone(), Arc::clone(&seen));
            thread::spawn(move || run(gate, seen))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = gate.stats();
    assert!(seen.worst.load(SeqCst) <= 3, "{} at once", seen.worst.load(SeqCst));
    assert_eq!((stats.granted, stats.current, stats.waiting), (400, 0, 0));
    assert!(stats.peak <= 3);
}

#[derive(Default)]
struct Seen {
    inside: AtomicU64,
    worst: AtomicU64,
}

async fn enter_often(gate: Gate, seen: Arc<Seen>) {
    for n in 0..25 {
        let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
        lease.sent();
        seen.worst.fetch_max(seen.inside.fetch_add(1, SeqCst) + 1, SeqCst);
        if n % 3 == 0 {
            let mut yielded = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut yielded, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
        }
        seen.inside.fetch_sub(1, SeqCst);
    }
}

fn shared() -> [Limit; 2] {
    [Limit::concurrency("slots", 3), requests(50)]
}

#[test]
fn two_loops_share_one_gate() {
    let gate = Gate::builder().limits(shared()).build().unwrap();
    two_threads(&gate, |gate, seen| {
        let event_loop = EventLoop::new().unwrap();
        let tasks = async move {
            let tasks: Vec<_> = (0..8).map(|_| spawn(enter_often(gate.clone(), Arc::clone(&seen)))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        };
        event_loop.run_until_complete(tasks).unwrap();
    });
}

#[test]
fn two_tokio_runtimes_of_one_thread_each_share_one_gate() {
    let gate = Gate::builder().limits(shared()).timer(TokioTimer::new()).build().unwrap();
    two_threads(&gate, |gate, seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async move {
            let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(enter_often(gate.clone(), Arc::clone(&seen)))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

/// A loop that waits at the gate, and is then stopped, kept, or closed, as `end` has it, while another waits behind it.
fn first_loop_ends(end: impl FnOnce(EventLoop) + Send + 'static) {
    let gate = Gate::builder().limit(requests(1)).build().unwrap();
    gate.try_enter(gate.unscoped(), Cost::request()).unwrap().sent();
    let (in_line, wait) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let first = thread::spawn({
        let gate = gate.clone();
        move || {
            let event_loop = EventLoop::new().unwrap();
            event_loop
                .run_until_complete(async move {
                    // It arms the alarm, and is never polled again.
                    drop(spawn({
                        let gate = gate.clone();
                        async move { drop(gate.enter(gate.unscoped(), Cost::request()).await) }
                    }));
                    yield_now().await;
                    assert_eq!(gate.stats().waiting, 1);
                })
                .unwrap();
            in_line.send(()).unwrap();
            end(event_loop);
            let _ = finished.recv();
        }
    });
    wait.recv().unwrap();
    let second = EventLoop::new().unwrap();
    let waiting = gate.clone();
    second
        .run_until_complete(async move {
            // At most two windows: one for the entry before it, if that is still there. A lost alarm never fires.
            let entering = waiting.enter(waiting.unscoped(), Cost::request());
            timeout(Duration::from_secs(60), entering).await.expect("the alarm was lost").unwrap().sent();
        })
        .unwrap();
    drop(finish);
    first.join().unwrap();
}

#[test]
fn a_loop_that_is_closed_hands_the_alarm_on() {
    first_loop_ends(|event_loop| event_loop.close().unwrap());
}

#[test]
fn a_loop_that_stands_still_does_not_keep_the_alarm() {
    // Its task keeps its place, and is given a lease that it never fetches; that lease was never sent.
    first_loop_ends(std::mem::forget);
}

#[test]
fn a_lease_may_be_dropped_on_any_thread() {
    let gate = Gate::builder().limit(Limit::concurrency("slots", 1)).build().unwrap();
    let held = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    let elsewhere = thread::spawn(move || drop(held));
    let waiting = gate.clone();
    EventLoop::new()
        .unwrap()
        .run_until_complete(async move { drop(waiting.enter(waiting.unscoped(), Cost::request()).await.unwrap()) })
        .unwrap();
    elsewhere.join().unwrap();
    assert_eq!(gate.stats().current, 0);
}
