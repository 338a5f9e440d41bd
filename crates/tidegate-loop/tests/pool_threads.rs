//! Jobs in threads: order, context, panics, cancellation, growth and retirement, shutdown, virtual time.

#[path = "conformance/support.rs"]
mod support;

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::thread::{self, ThreadId};

use support::{Reports, ms};
use tidegate_loop::{
    ContextVar, Duration, EventLoop, JobError, LoopHandle, ReportKind, Runner, ThreadPool, gather_all, interrupt, run,
    sleep, spawn, to_thread, yield_now,
};

const LONG: Duration = Duration::from_secs(120);

fn watched() -> EventLoop {
    let event_loop = EventLoop::new().unwrap();
    event_loop.call_later(120.0, || interrupt("nothing happened for two minutes"));
    event_loop
}

fn single() -> ThreadPool {
    ThreadPool::builder().threads_max(1).build()
}

/// A job that says when it has begun and ends when it is released.
struct Gate {
    begins: Receiver<()>,
    end: Sender<()>,
}

fn gate() -> (Gate, impl FnOnce() + Send + 'static) {
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let job = move || {
        begun.send(()).unwrap();
        // An error is as good: the test is over.
        let _ = ends.recv();
    };
    (Gate { begins, end }, job)
}

/// Tells over a channel, when it is dropped, in which thread that was.
struct DropsIn(Sender<ThreadId>);

impl Drop for DropsIn {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn a_job_runs_in_another_thread_and_brings_its_result() {
    let here = thread::current().id();
    let there = run(async { to_thread(|| thread::current().id()).await.unwrap() }).unwrap();
    assert_ne!(here, there);
}

#[test]
fn to_thread_starts_when_awaited_and_run_in_executor_at_once() {
    run(async {
        let handle = LoopHandle::current();
        let lazy = to_thread(|| ());
        yield_now().await;
        assert_eq!(handle.thread_pool().stats().total, 0);
        let (gate, job) = gate();
        let eager = handle.run_in_executor(job);
        gate.begins.recv().unwrap();
        gate.end.send(()).unwrap();
        eager.await.unwrap();
        lazy.await.unwrap();
    })
    .unwrap();
}

#[test]
fn the_loop_goes_on_while_a_job_runs() {
    watched()
        .run_until_complete(async {
            let (gate, job) = gate();
            let job = spawn(to_thread(job));
            for _ in 0..100 {
                sleep(Duration::from_micros(10)).await;
            }
            assert!(!job.is_finished());
            gate.end.send(()).unwrap();
            job.await.unwrap().unwrap();
        })
        .unwrap();
}

#[test]
fn context_is_carried_into_the_thread_and_what_it_writes_stays_there() {
    static USER: ContextVar<String> = ContextVar::new("user");
    static DEPTH: ContextVar<u32> = ContextVar::with_default("depth", || 1);
    static LOCAL: ContextVar<Rc<str>> = ContextVar::local("local");
    run(async {
        USER.set("ann".into());
        LOCAL.set("here".into());
        let job = to_thread(|| {
            let seen = (USER.get(), DEPTH.get(), LOCAL.get().is_some());
            USER.set("bob".into());
            DEPTH.set(7);
            (seen, USER.get(), DEPTH.get())
        });
        assert_eq!(job.await.unwrap(), ((Some("ann".into()), Some(1), false), Some("bob".into()), Some(7)));
        assert_eq!((USER.get().as_deref(), DEPTH.get()), (Some("ann"), Some(1)));
        assert_eq!(LOCAL.get().as_deref(), Some("here"));
        // The same thread again: nothing was left behind in it.
        let (user, depth) = LoopHandle::current().thread_pool().run(|| (USER.get(), DEPTH.get())).await.unwrap();
        assert_eq!((user.as_deref(), depth), (Some("ann"), Some(1)));
        spawn(async {
            USER.set("eve".into());
            assert_eq!(to_thread(|| USER.get()).await.unwrap().as_deref(), Some("eve"));
        })
        .await
        .unwrap();
    })
    .unwrap();
}

#[test]
fn a_call_from_a_thread_carries_the_context_back() {
    static USER: ContextVar<u32> = ContextVar::new("user");
    watched()
        .run_until_complete(async {
            USER.set(3);
            let handle = LoopHandle::current();
            let seen = handle.create_future::<Option<u32>>();
            let setter = tidegate_loop::OnLoop::new(seen.clone());
            let remote = handle.remote();
            let call = move || {
                setter.with(|future| future.set_result(USER.get()).unwrap()).unwrap();
            };
            to_thread(move || remote.call_soon_threadsafe(call).unwrap()).await.unwrap();
            assert_eq!(seen.await.unwrap(), Some(3));
        })
        .unwrap();
}

#[test]
fn a_panic_reaches_the_awaiter_with_its_payload_and_the_thread_lives_on() {
    let pool = single();
    let event_loop = EventLoop::builder().thread_pool(pool.clone()).build().unwrap();
    event_loop
        .run_until_complete(async {
            let Err(JobError::Panicked(panic)) = to_thread(|| std::panic::panic_any(41_u32)).await else {
                panic!("expected a panic");
            };
            assert_eq!(panic.into_payload().downcast_ref(), Some(&41_u32));
            assert_eq!(to_thread(|| 42).await.unwrap(), 42);
        })
        .unwrap();
    let stats = pool.stats();
    assert_eq!((stats.panicked, stats.total, stats.threads), (1, 2, 1));
}

#[test]
fn jobs_in_line_are_taken_first_come_first_served() {
    let pool = single();
    let (gate, job) = gate();
    let _first = pool.run(job);
    let order = Arc::new(Mutex::new(Vec::new()));
    let jobs: Vec<_> = (0..1_000)
        .map(|number| {
            let order = order.clone();
            pool.run(move || order.lock().unwrap().push(number))
        })
        .collect();
    gate.begins.recv().unwrap();
    assert_eq!(pool.stats().queued, 1_000);
    gate.end.send(()).unwrap();
    pool.shutdown(LONG).unwrap();
    assert!(jobs.iter().all(tidegate_loop::ThreadJob::is_finished));
    assert_eq!(*order.lock().unwrap(), (0..1_000).collect::<Vec<_>>());
}

#[test]
fn a_cancelled_awaiter_takes_its_job_out_of_the_line() {
    let pool = single();
    let event_loop = EventLoop::builder().thread_pool(pool.clone()).build().unwrap();
    event_loop
        .run_until_complete(async move {
            let here = thread::current().id();
            let (gate, job) = gate();
            let first = spawn(to_thread(job));
            let (dropped, drops) = mpsc::channel();
            let ran = Arc::new(AtomicUsize::new(0));
            let (tell, counter) = (DropsIn(dropped), ran.clone());
            let second = spawn(to_thread(move || {
                let _tell = tell;
                counter.fetch_add(1, Ordering::SeqCst);
            }));
            yield_now().await;
            gate.begins.recv().unwrap();
            assert_eq!((pool.stats().busy, pool.stats().queued), (1, 1));
            second.cancel();
            assert!(second.await.is_err());
            assert_eq!(drops.try_recv().unwrap(), here, "the closure went with its awaiter");
            assert_eq!((pool.stats().queued, pool.stats().removed), (0, 1));
            gate.end.send(()).unwrap();
            first.await.unwrap().unwrap();
            to_thread(|| ()).await.unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 0);
        })
        .unwrap();
}

#[test]
fn a_job_whose_awaiter_is_gone_runs_on_and_its_result_is_dropped_on_the_loop() {
    watched()
        .run_until_complete(async {
            let here = thread::current().id();
            let (gate, job) = gate();
            let (dropped, drops) = mpsc::channel();
            let result = DropsIn(dropped);
            let task = spawn(to_thread(move || {
                job();
                result
            }));
            yield_now().await;
            gate.begins.recv().unwrap();
            task.cancel();
            assert!(task.await.is_err());
            gate.end.send(()).unwrap();
            let place = loop {
                match drops.try_recv() {
                    Ok(place) => break place,
                    Err(_) => yield_now().await,
                }
            };
            assert_eq!(place, here);
        })
        .unwrap();
}

#[test]
fn a_panic_nobody_awaits_is_reported_on_the_loop() {
    let event_loop = watched();
    let reports = Reports::of(&event_loop);
    event_loop
        .run_until_complete(async move {
            let (gate, job) = gate();
            let task = spawn(
                to_thread(move || {
                    job();
                    panic!("lost");
                })
                .name("upload"),
            );
            yield_now().await;
            gate.begins.recv().unwrap();
            task.cancel();
            assert!(task.await.is_err());
            gate.end.send(()).unwrap();
            while reports.all().is_empty() {
                yield_now().await;
            }
            reports.expect([(ReportKind::UnseenPanic, "lost")]);
            assert_eq!(reports.all()[0].name(), Some("upload"));
        })
        .unwrap();
}

#[test]
fn threads_are_made_on_demand_up_to_the_limit_and_no_further() {
    let pool = ThreadPool::builder().threads_max(3).build();
    let barrier = Arc::new(Barrier::new(4));
    let jobs: Vec<_> = (0..3)
        .map(|_| {
            let barrier = barrier.clone();
            pool.run(move || {
                barrier.wait();
                thread::current().id()
            })
        })
        .collect();
    // All three run at one time, or this would hang.
    barrier.wait();
    let more: Vec<_> = (0..50).map(|_| pool.run(|| thread::current().id())).collect();
    let threads = run(async move {
        let mut threads = HashSet::new();
        for job in jobs.into_iter().chain(more) {
            threads.insert(job.await.unwrap());
        }
        threads
    })
    .unwrap();
    assert!(threads.len() <= 3);
    assert_eq!((pool.stats().threads, pool.stats().peak), (3, 3));
}

#[test]
fn one_job_after_the_other_needs_one_thread() {
    let pool = ThreadPool::new();
    let event_loop = EventLoop::builder().thread_pool(pool.clone()).build().unwrap();
    event_loop
        .run_until_complete(async {
            for number in 0..2_000 {
                assert_eq!(to_thread(move || number).await.unwrap(), number);
            }
        })
        .unwrap();
    assert_eq!((pool.stats().threads, pool.stats().total), (1, 2_000));
}

#[test]
fn an_idle_thread_leaves_and_another_is_made_when_needed() {
    thread_local! {
        static TELL: RefCell<Option<DropsIn>> = const { RefCell::new(None) };
    }
    let pool = ThreadPool::builder().idle_after(Duration::ZERO).build();
    for _ in 0..3 {
        let (dropped, drops) = mpsc::channel();
        let job = pool.run(move || {
            TELL.set(Some(DropsIn(dropped)));
            thread::current().id()
        });
        let thread = run(job).unwrap().unwrap();
        assert_eq!(drops.recv().unwrap(), thread, "the thread is at its end");
        assert_eq!(pool.stats().threads, 0);
    }
}

#[test]
fn shutdown_names_the_job_that_still_runs() {
    let pool = ThreadPool::builder().threads_max(2).name("pdf").build();
    let (first_gate, first) = gate();
    let (second_gate, second) = gate();
    let _named = pool.run_named("parse a.pdf", first);
    first_gate.begins.recv().unwrap();
    let line = line!() + 1;
    let _unnamed = pool.run(second);
    second_gate.begins.recv().unwrap();
    let in_line = pool.run(|| ());

    let stuck = pool.shutdown(ms(1)).unwrap_err();
    let names: Vec<_> = stuck.running.iter().map(|job| job.name.to_string()).collect();
    assert_eq!(names[0], "parse a.pdf");
    assert!(names[1].starts_with(&format!("{}:{line}:", file!())), "{names:?}");
    assert!(stuck.running.iter().all(|job| job.running_for >= ms(1) && job.thread.starts_with("pdf-")));
    assert_eq!(stuck.dropped, 1);
    let message = stuck.to_string();
    assert!(message.contains("2 jobs still run: `parse a.pdf` for 0.") && message.contains("1 in line"), "{message}");
    assert!(matches!(run(in_line).unwrap(), Err(JobError::Closed)));
    assert!(matches!(run(pool.run(|| ())).unwrap(), Err(JobError::Closed)));

    first_gate.end.send(()).unwrap();
    second_gate.end.send(()).unwrap();
    pool.shutdown(LONG).unwrap();
    assert_eq!(pool.stats().threads, 0);
}

#[test]
fn a_runner_waits_for_its_threads_up_to_the_limit_and_tells_which_job_is_left() {
    let runner = Runner::new(EventLoop::new().unwrap()).thread_limit(ms(1));
    let (gate, job) = gate();
    runner
        .run(async move {
            drop(spawn(to_thread(job).name("forever")));
            yield_now().await;
        })
        .unwrap();
    gate.begins.recv().unwrap();
    let tidegate_loop::CleanupError::StillRunning(left) = runner.close().unwrap_err() else { unreachable!() };
    assert_eq!(&*left.running[0].name, "forever");
    drop(gate.end);

    let event_loop = EventLoop::new().unwrap();
    let reports = Reports::of(&event_loop);
    let runner = Runner::new(event_loop).thread_limit(ms(1));
    let (gate, job) = self::gate();
    drop(spawn_and_tick(&runner, to_thread(job).name("again")));
    gate.begins.recv().unwrap();
    drop(runner);
    let report = &reports.all()[0];
    assert_eq!((report.kind(), report.name()), (ReportKind::ThreadLeft, Some("again")));
    drop(gate.end);
}

fn spawn_and_tick<F: Future + 'static>(runner: &Runner, future: F) -> tidegate_loop::JoinHandle<F::Output> {
    let task = runner.event_loop().spawn(future);
    runner.run(yield_now()).unwrap();
    task
}

#[test]
fn a_runner_lets_a_running_job_finish() {
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let (begun, begins) = mpsc::channel();
    run(async move {
        drop(spawn(to_thread(move || {
            begun.send(()).unwrap();
            thread::yield_now();
            counter.fetch_add(1, Ordering::SeqCst);
        })));
        yield_now().await;
        begins.recv().unwrap();
    })
    .unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

#[test]
fn a_pool_is_shared_by_loops_and_outlives_them() {
    let pool = ThreadPool::builder().threads_max(2).build();
    let loops: Vec<_> = (0..4)
        .map(|_| {
            let pool = pool.clone();
            thread::spawn(move || {
                let event_loop = EventLoop::builder().thread_pool(pool).build().unwrap();
                let jobs = async { gather_all((0..100).map(|n| spawn(to_thread(move || n * n)))).await };
                let squares = Runner::new(event_loop).run(jobs).unwrap();
                squares.into_iter().map(|square| square.unwrap().unwrap()).sum::<u64>()
            })
        })
        .collect();
    for thread in loops {
        assert_eq!(thread.join().unwrap(), 328_350);
    }
    assert_eq!(pool.stats().total, 400);
    assert_eq!(run(pool.run(|| 1)).unwrap().unwrap(), 1);
}

#[test]
fn the_last_handle_lets_the_line_run_dry() {
    let (sent, results) = mpsc::channel();
    let pool = single();
    // Held: a job whose awaiter is dropped is taken out of the line.
    let _jobs: Vec<_> = (0..10)
        .map(|number| {
            let sent = sent.clone();
            pool.run(move || sent.send(number).unwrap())
        })
        .collect();
    drop((pool, sent));
    assert_eq!(results.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_job_can_be_awaited_on_any_executor() {
    let pool = ThreadPool::new();
    let (sent, results) = mpsc::channel();
    let job = pool.run(|| 5);
    thread::spawn(move || {
        struct Unpark(thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut job = std::pin::pin!(job);
        loop {
            if let Poll::Ready(result) = job.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                break sent.send(result.unwrap()).unwrap();
            }
            thread::park();
        }
    });
    assert_eq!(results.recv().unwrap(), 5);
}

/// The jobs end in an order that the loop must not see, each when it is released.
fn virtual_run(seed: u64, order: &[usize]) -> Vec<String> {
    let log = support::Log::new();
    let lines = log.clone();
    let (gates, jobs): (Vec<Gate>, Vec<_>) = order.iter().map(|_| gate()).unzip();
    let ends: Vec<_> = gates.iter().map(|gate| gate.end.clone()).collect();
    let order = order.to_vec();
    let driver = thread::spawn(move || {
        for &at in &order {
            gates[at].begins.recv().unwrap();
            ends[at].send(()).unwrap();
        }
    });
    let pool = ThreadPool::builder().threads_max(jobs.len()).build();
    let event_loop = EventLoop::builder().simulated(seed).thread_pool(pool).build().unwrap();
    event_loop
        .run_until_complete(async move {
            let start = LoopHandle::current().time();
            let mut tasks = Vec::new();
            for (number, job) in jobs.into_iter().enumerate() {
                let log = log.clone();
                tasks.push(spawn(async move {
                    to_thread(job).await.unwrap();
                    log.tick(format_args!("job {number} at {:?}", LoopHandle::current().time() - start));
                    sleep(ms(number as u64)).await;
                    log.tick(format_args!("end {number} at {:?}", LoopHandle::current().time() - start));
                }));
            }
            sleep(ms(1)).await;
            log.tick("slept");
            for task in tasks {
                task.await.unwrap();
            }
        })
        .unwrap();
    driver.join().unwrap();
    lines.lines()
}

#[test]
fn virtual_time_waits_for_threads_and_does_not_see_which_was_first() {
    for seed in 0..4 {
        let one = virtual_run(seed, &[0, 1, 2, 3]);
        let other = virtual_run(seed, &[2, 3, 1, 0]);
        assert_eq!(one, other, "seed {seed}");
        assert_eq!(one.iter().filter(|line| line.contains("job")).count(), 4);
        assert!(one.iter().take(4).all(|line| line.contains("at 0ns")), "the clock stood still: {one:?}");
    }
}

#[test]
fn a_dropped_job_does_not_hold_virtual_time() {
    let event_loop = support::strict();
    let (gate, job) = gate();
    let runs = event_loop.run_until_complete(async move {
        let task = spawn(to_thread(job));
        yield_now().await;
        gate.begins.recv().unwrap();
        task.cancel();
        assert!(task.await.is_err());
        sleep(Duration::from_secs(3600)).await;
        gate
    });
    drop(runs.unwrap());
}

#[test]
fn a_manual_clock_sees_a_result_once_it_is_there() {
    let pool = ThreadPool::new();
    let event_loop = EventLoop::builder().manual_clock().thread_pool(pool.clone()).build().unwrap();
    let job = event_loop.spawn(to_thread(|| 9));
    event_loop.run_until_idle().unwrap();
    pool.shutdown(LONG).unwrap();
    event_loop.run_until_idle().unwrap();
    assert!(job.is_finished());
}

#[test]
fn many_jobs_from_many_tasks_all_come_back() {
    let event_loop = watched();
    let sum = event_loop.run_until_complete(async {
        let tasks: Vec<_> = (0..5_000_u64).map(|n| spawn(async move { to_thread(move || n).await.unwrap() })).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    assert_eq!(sum.unwrap(), 4_999 * 5_000 / 2);
    let stats = event_loop.thread_pool().stats();
    assert!(stats.threads <= event_loop.thread_pool().threads_max());
    assert_eq!((stats.busy, stats.queued, stats.total), (0, 0, 5_000));
}
