//! What an admission costs: with much on record, with many in line, in one dimension and in four.

use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use governor::clock::{Clock as _, Reference as _};
use tidegate_limit::{Cost, Dimension, Gate, Lease, Limit, Limits, Moment, Start, ThreadTimer, Timer, Window};

use crate::harness::{BASELINE, Goal, Line};

const GOVERNOR: &str = "governor";
const LEAKY_BUCKET: &str = "leaky-bucket";
const TOKIO: &str = "tokio semaphore";
const IN_THE_GATE: &str = "tidegate, as a gate";

const BATCH: u32 = 20_000;
/// So much that nobody is ever denied.
const PLENTY: u64 = 1 << 40;

pub(crate) fn lines() -> Vec<Line> {
    let mut lines: Vec<Line> = [0, 1_000, 100_000, 1_000_000].into_iter().map(events_line).collect();
    lines.push(growth_line());
    lines.push(one_dimension_line());
    lines.push(concurrency_line());
    lines.extend([1, 1_000, 100_000].map(waiters_line));
    lines
}

fn events_line(events: u32) -> Line {
    let line = Line::new(format!("admission, 4 limits, {events} events"), "ns")
        .contestant(BASELINE, move || admission(events))
        .note("global, RPM, TPM strict, RPD; entered, sent and left, nobody else there; events spread over the window");
    match events {
        100_000 => line.goal(Goal::Below { limit: 300.0, aim: 100.0 }),
        _ => line,
    }
}

fn growth_line() -> Line {
    Line::new("admission, growth from 10^3 to 10^6 events", "x")
        .contestant(BASELINE, || {
            // Alternating, so that a machine that gets slower falls on both.
            let (small, large) = (FourLimits::with(1_000), FourLimits::with(1_000_000));
            let mut ratios: Vec<f64> = (0..5).map(|_| large.enter_many() / small.enter_many()).collect();
            ratios.sort_by(f64::total_cmp);
            ratios[2]
        })
        .goal(Goal::Below { limit: 1.5, aim: 1.1 })
}

fn one_dimension_line() -> Line {
    Line::new("one bucket, a check", "ns")
        .contestant(BASELINE, core_check)
        .contestant(IN_THE_GATE, gate_check)
        .contestant(GOVERNOR, governor_check)
        .contestant(LEAKY_BUCKET, leaky_bucket_check)
        .goal(Goal::Ratio { against: &[GOVERNOR], limit: 0.333, aim: 1.0 })
        .note("never denied, from one thread, clock included (governor's for both); tidegate: the decision behind a mutex, without slots")
}

fn concurrency_line() -> Line {
    Line::new("concurrency alone", "ns")
        .contestant(BASELINE, || {
            let gate = Gate::builder().limit(Limit::concurrency("slots", 10)).timer(ThreadTimer::default()).build();
            let gate = gate.expect("a limit above zero");
            each(BATCH, || drop(black_box(ready(gate.enter(gate.unscoped(), Cost::nothing())).map(Lease::sent_now))))
        })
        .contestant(TOKIO, || {
            let semaphore = tokio::sync::Semaphore::new(10);
            each(BATCH, || drop(black_box(ready(semaphore.acquire()))))
        })
        .note("entered and left; the gate reads the clock and keeps figures besides")
}

fn waiters_line(waiters: usize) -> Line {
    Line::new(format!("hand-over with {waiters} in line"), "ns")
        .contestant(BASELINE, move || {
            let gate = Gate::builder().limit(Limit::concurrency("slots", 1)).limit(Limit::rpm(PLENTY));
            let gate = gate.timer(ThreadTimer::default()).build().expect("limits above zero");
            hand_over(waiters, || gate.enter(gate.unscoped(), Cost::request()))
        })
        .contestant(TOKIO, move || {
            let semaphore = tokio::sync::Semaphore::new(1);
            hand_over(waiters, || semaphore.acquire())
        })
        .rounds_max(11)
        .note("one leaves, the next comes in, another gets into line; the gate decides about a rate besides")
}

trait SentNow {
    fn sent_now(self) -> Self;
}

impl SentNow for Lease {
    fn sent_now(mut self) -> Self {
        self.sent();
        self
    }
}

/// Nanoseconds for each of `count` calls.
fn each(count: u32, mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..count {
        call();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(count)
}

/// What a future that need not wait returns.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("there is room for everybody"),
    }
}

/// The real clock, moved ahead at will: to spread what is recorded over a window.
#[derive(Default)]
struct Shifted {
    ahead: AtomicU64,
    thread: ThreadTimer,
}

impl Timer for Shifted {
    fn now(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        self.thread.arm(at, waker);
    }

    fn disarm(&self) {
        self.thread.disarm();
    }
}

struct FourLimits {
    gate: Gate,
}

impl FourLimits {
    /// With so many events within the last minute.
    fn with(events: u32) -> FourLimits {
        let timer = Arc::new(Shifted::default());
        let gate = Gate::builder()
            .limit(Limit::concurrency("global", 200))
            .limit(Limit::rpm(PLENTY))
            .limit(Limit::tpm(PLENTY))
            .limit(Limit::rpd(PLENTY, "America/Los_Angeles"))
            .timer(Arc::clone(&timer))
            .build()
            .expect("limits above zero");
        let four = FourLimits { gate };
        let apart = 55_000_000_000 / u64::from(events.max(1));
        for _ in 0..events {
            timer.ahead.fetch_add(apart, Ordering::Relaxed);
            four.enter();
        }
        four
    }

    #[inline]
    fn enter(&self) {
        let entered = ready(self.gate.enter(self.gate.unscoped(), Cost::tokens(1_000)));
        entered.expect("there is plenty").sent();
    }

    fn enter_many(&self) -> f64 {
        each(BATCH, || self.enter())
    }
}

fn admission(events: u32) -> f64 {
    FourLimits::with(events).enter_many()
}

fn plenty() -> Limit {
    let window = Window::Bucket { per: Duration::from_secs(1), burst: None, start: Start::Full };
    Limit::rate("bucket", Dimension::REQUESTS, 1_000_000_000, window)
}

fn core_check() -> f64 {
    let limits = Limits::new([plenty()], Moment::ZERO, SystemTime::now()).expect("a limit above zero");
    // Time is an argument here, so both are given the same clock: governor's own, which costs a third of the system's.
    let clock = governor::clock::DefaultClock::default();
    let (limits, epoch) = (Mutex::new(limits), clock.now());
    each(BATCH, || {
        let now = Moment::from_nanos(clock.now().duration_since(epoch).as_u64());
        let booked = limits.lock().expect("nobody panics").admit(&Cost::request(), now);
        black_box(&booked);
    })
}

fn gate_check() -> f64 {
    let gate = Gate::builder().limit(plenty()).timer(ThreadTimer::default()).build().expect("a limit above zero");
    each(BATCH, || gate.try_enter(gate.unscoped(), Cost::request()).expect("there is plenty").sent())
}

fn governor_check() -> f64 {
    let amount = NonZeroU32::new(1_000_000_000).expect("not zero");
    let limiter = governor::RateLimiter::direct(governor::Quota::per_second(amount));
    each(BATCH, || drop(black_box(limiter.check())))
}

fn leaky_bucket_check() -> f64 {
    // It asks for tokio's clock when it is made.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("tokio starts");
    let _inside = runtime.enter();
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(1_000_000_000)
        .initial(1_000_000_000)
        .refill(1_000_000_000)
        .interval(Duration::from_secs(1))
        .build();
    each(BATCH, || assert!(limiter.try_acquire(1)))
}

/// A line of `waiters`; each step the one inside leaves, the first in line comes in, and another gets into line.
fn hand_over<F: Future>(waiters: usize, enter: impl Fn() -> F) -> f64 {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    let mut inside = Some(ready(enter()));
    let mut line: std::collections::VecDeque<Pin<Box<F>>> = (0..waiters)
        .map(|_| {
            let mut future = Box::pin(enter());
            assert!(future.as_mut().poll(&mut cx).is_pending());
            future
        })
        .collect();
    let cost = each(BATCH / 4, || {
        drop(inside.take());
        let mut first = line.pop_front().expect("somebody waits");
        let Poll::Ready(next) = first.as_mut().poll(&mut cx) else { unreachable!("it was its turn") };
        first.set(enter());
        inside = Some(next);
        assert!(first.as_mut().poll(&mut cx).is_pending());
        line.push_back(first);
    });
    // From the last to the first: whoever leaves then hands nothing on.
    while line.pop_back().is_some() {}
    cost
}
