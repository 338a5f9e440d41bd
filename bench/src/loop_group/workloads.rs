//! What is timed, written once. Every runtime's module mounts this file beside its own vocabulary
//! (`run`, `spawn`, `join`, `detach`, `yield_now`, `sleep`, `timeout`) and so compiles the very
//! same source.
//!
//! A trait would not do: `tokio::spawn` demands `Send` of the finished future, the others forbid
//! promising it. Runtimes are built by `run`, outside the timed section; the workload itself is a
//! spawned task everywhere, because the root of tokio's `block_on` is woken through an eventfd and
//! would be billed for that.

use std::future::{pending, ready};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::poll_once;

use super::vocabulary::{detach, join, run, sleep, spawn, timeout, yield_now};
use crate::harness::quantile;
use crate::heap;
use crate::loop_group::baton::{Baton, Helper};
use crate::loop_group::parts::{CpuTime, SelfWaking, ns_per, spread_us};

/// ns a task: spawned in batches, each joined before the next.
pub(crate) fn spawn_join(batch: u32, batches: u32) -> f64 {
    run(async move {
        let mut handles = Vec::with_capacity(batch as usize);
        let begun = Instant::now();
        for _ in 0..batches {
            for value in 0..batch {
                handles.push(spawn(async move { black_box(value) }));
            }
            for handle in handles.drain(..) {
                black_box(join(handle).await);
            }
        }
        ns_per(begun.elapsed(), batch * batches)
    })
}

/// ns a switch: tasks that wake themselves through their waker and return `Pending` once.
pub(crate) fn self_wake(tasks: u32, switches: u32) -> f64 {
    run(async move {
        let each = switches / tasks;
        let handles: Vec<_> = (0..tasks)
            .map(|_| {
                spawn(async move {
                    for _ in 0..each {
                        SelfWaking::default().await;
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        for handle in handles {
            join(handle).await;
        }
        ns_per(begun.elapsed(), each * tasks)
    })
}

/// ns a switch by the runtime's own `yield_now`.
pub(crate) fn own_yield(tasks: u32, switches: u32) -> f64 {
    run(async move {
        let each = switches / tasks;
        let handles: Vec<_> = (0..tasks)
            .map(|_| {
                spawn(async move {
                    for _ in 0..each {
                        yield_now().await;
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        for handle in handles {
            join(handle).await;
        }
        ns_per(begun.elapsed(), each * tasks)
    })
}

/// ns a round trip of two tasks over tokio's `Notify`, on whatever runtime.
pub(crate) fn notify_ping_pong(trips: u32) -> f64 {
    run(async move {
        let ping = Arc::new(tokio::sync::Notify::new());
        let pong = Arc::new(tokio::sync::Notify::new());
        let (heard, answer) = (Arc::clone(&ping), Arc::clone(&pong));
        let echo = spawn(async move {
            for _ in 0..trips {
                heard.notified().await;
                answer.notify_one();
            }
        });
        let begun = Instant::now();
        for _ in 0..trips {
            ping.notify_one();
            pong.notified().await;
        }
        let cost = ns_per(begun.elapsed(), trips);
        join(echo).await;
        cost
    })
}

/// ns a round trip of two tasks over tokio's unbounded channels, on whatever runtime.
pub(crate) fn mpsc_ping_pong(trips: u32) -> f64 {
    run(async move {
        let (ping, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let (answer, mut pong) = tokio::sync::mpsc::unbounded_channel();
        let echo = spawn(async move {
            while let Some(value) = heard.recv().await {
                if answer.send(value).is_err() {
                    break;
                }
            }
        });
        let begun = Instant::now();
        for trip in 0..trips {
            assert!(ping.send(trip).is_ok());
            black_box(pong.recv().await);
        }
        let cost = ns_per(begun.elapsed(), trips);
        drop(ping);
        join(echo).await;
        cost
    })
}

/// Between two turns of the loop; small enough for tokio's cooperative budget of 128.
const ARMS_A_TURN: u32 = 100;

/// ns to arm a timer and cancel it, while an earlier one is outstanding: without that one tokio
/// writes an eventfd per arm, which would be measured instead.
pub(crate) fn arm_cancel(arms: u32) -> f64 {
    run(async move {
        let mut earlier = pin!(sleep(Duration::from_secs(60)));
        assert!(poll_once(earlier.as_mut()).await.is_none());
        let begun = Instant::now();
        for turn in 0..arms / ARMS_A_TURN {
            for arm in 0..ARMS_A_TURN {
                let delay = Duration::from_secs(120) + Duration::from_micros((turn + arm).into());
                let mut later = pin!(sleep(black_box(delay)));
                assert!(poll_once(later.as_mut()).await.is_none());
            }
            SelfWaking::default().await;
        }
        ns_per(begun.elapsed(), arms)
    })
}

/// CPU ns a timer: `timers` armed, nine in ten cancelled, the rest awaited. CPU, since much of the
/// wall time is spent waiting for deadlines 100 to 200 ms away.
pub(crate) fn many_timers(timers: u32) -> f64 {
    run(async move {
        let begun = CpuTime::now();
        let mut armed: Vec<Pin<Box<_>>> = Vec::with_capacity(timers as usize);
        for index in 0..timers {
            if index % ARMS_A_TURN == 0 {
                SelfWaking::default().await;
            }
            let delay = Duration::from_millis(100) + spread_us(index, 100_000);
            let mut timer = Box::pin(sleep(delay));
            assert!(poll_once(timer.as_mut()).await.is_none());
            armed.push(timer);
        }
        let mut index = 0;
        armed.retain(|_| {
            index += 1;
            index % 10 == 0
        });
        for timer in armed {
            timer.await;
        }
        ns_per(begun.elapsed(), timers)
    })
}

/// CPU ns a timer that is armed, fires and resumes its task: `tasks` tasks sleep `sleeps` times
/// for `delay` plus up to `spread` µs.
pub(crate) fn firing(tasks: u32, sleeps: u32, delay: Duration, spread: u32) -> f64 {
    run(async move {
        let handles: Vec<_> = (0..tasks)
            .map(|task| {
                spawn(async move {
                    for turn in 0..sleeps {
                        sleep(delay + spread_us(task * sleeps + turn, spread)).await;
                    }
                })
            })
            .collect();
        let begun = CpuTime::now();
        for handle in handles {
            join(handle).await;
        }
        ns_per(begun.elapsed(), tasks * sleeps)
    })
}

/// ns for a time-out of one second around a future that is ready at once.
pub(crate) fn timeout_ready(count: u32) -> f64 {
    run(async move {
        let begun = Instant::now();
        for value in 0..count {
            let limit = black_box(Duration::from_secs(1));
            black_box(timeout(limit, ready(black_box(value))).await);
        }
        ns_per(begun.elapsed(), count)
    })
}

/// µs a round trip task → parked OS thread → the task's waker → task.
pub(crate) fn cross_thread(trips: u32, helper: Helper) -> f64 {
    run(async move {
        let baton = Baton::new(helper);
        // A spinning helper is to find the loop at work, not on its way to sleep.
        let busy = baton.spins().then(|| {
            let done = baton.done_flag();
            spawn(async move {
                while !done.get() {
                    SelfWaking::default().await;
                }
            })
        });
        let begun = Instant::now();
        for _ in 0..trips {
            baton.pass().await;
        }
        let cost = ns_per(begun.elapsed(), trips) / 1000.0;
        baton.finish();
        if let Some(busy) = busy {
            join(busy).await;
        }
        cost
    })
}

/// µs by which `sleep(1 ms)` comes late: the median of `sleeps` in a row.
pub(crate) fn overshoot(sleeps: u32) -> f64 {
    const DELAY: Duration = Duration::from_millis(1);
    run(async move {
        let mut late = Vec::with_capacity(sleeps as usize);
        for _ in 0..sleeps {
            let begun = Instant::now();
            sleep(DELAY).await;
            late.push(begun.elapsed().saturating_sub(DELAY).as_secs_f64() * 1e6);
        }
        late.sort_by(f64::total_cmp);
        quantile(&late, 0.5)
    })
}

/// Heap bytes a task that has been polled once and waits for ever.
pub(crate) fn parked_bytes(tasks: u32) -> f64 {
    // On a thread of its own: what a runtime keeps for the next task on this one would not be counted.
    let measure = move || {
        heap::counting(|| {
            run(async move {
                let before = heap::live_bytes();
                for _ in 0..tasks {
                    detach(spawn(pending::<()>()));
                }
                for _ in 0..4 {
                    SelfWaking::default().await;
                }
                (heap::live_bytes() - before) as f64 / f64::from(tasks)
            })
        })
    };
    std::thread::spawn(measure).join().expect("the measurement does not panic")
}
