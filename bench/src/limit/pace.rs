//! What happens in real time: how late, how full, how often woken.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, Dimension, Gate, Limit, TryEnterError, Window};
use tidegate_loop::{EventLoop, LoopHandle, sleep};

use super::python::{Limiter, Python};
use super::strict_server;
use crate::harness::{BASELINE, Goal, Line, Sample, quantile};

const POLLING: &str = "polling, 0.1-2 s";
const POLLING_OFTEN: &str = "polling, 1 ms";
const GOVERNOR: &str = "governor, burst 60";
const AIOLIMITER: &str = "aiolimiter";
const PYRATE: &str = "pyrate-limiter";

const AMOUNT: usize = 60;
const WINDOW: Duration = Duration::from_secs(2);
const WINDOWS: usize = 10;

const LATE_SAMPLES: usize = 1_000;

pub(crate) fn lines() -> Vec<Line> {
    let mut lines = lateness_lines();
    lines.extend(pace_lines());
    lines.extend(wake_up_lines());
    lines.extend(strict_server_lines());
    lines
}

/// Runs once, whoever asks first; rounds of real seconds are not repeated.
fn once<T: Clone + 'static>(run: impl Fn() -> T + 'static) -> impl Fn() -> T + Clone + 'static {
    let kept: Rc<RefCell<Option<T>>> = Rc::default();
    let run = Rc::new(run);
    move || kept.borrow_mut().get_or_insert_with(|| run()).clone()
}

fn lateness_lines() -> Vec<Line> {
    let gate = once(gate_lateness);
    let polling = once(polling_lateness);
    let (median, worst) = (gate.clone(), gate);
    let (polling_median, polling_worst) = (polling.clone(), polling);
    vec![
        Line::new("lateness of an admission, median", "us")
            .contestant(BASELINE, move || quantile(&median(), 0.5))
            .contestant(POLLING, move || quantile(&polling_median(), 0.5))
            .goal(Goal::Below { limit: 1_000.0, aim: 200.0 })
            .rounds_max(1)
            .note("from the exact instant to the lease in hand; 1,000 admissions, 20 of the poller"),
        Line::new("lateness of an admission, worst", "us")
            .contestant(BASELINE, move || quantile(&worst(), 1.0))
            .contestant(POLLING, move || quantile(&polling_worst(), 1.0))
            .goal(Goal::Below { limit: 10_000.0, aim: 3_000.0 })
            .rounds_max(1),
    ]
}

/// Microseconds, sorted: on the loop, one request in any 2 ms.
fn gate_lateness() -> Vec<f64> {
    let limit = Limit::rate("requests", Dimension::REQUESTS, 1, Window::strict(Duration::from_millis(2)));
    let exact = Duration::ZERO..=Duration::ZERO;
    let gate = Gate::builder().limit(limit).margin(exact).build().expect("a limit above zero");
    let event_loop = EventLoop::new().expect("an event loop starts");
    let sample = async move {
        let mut late = Vec::with_capacity(LATE_SAMPLES);
        gate.enter(gate.unscoped(), Cost::request()).await.expect("within the limit").sent();
        while late.len() < LATE_SAMPLES {
            let due = match gate.try_enter(gate.unscoped(), Cost::request()) {
                Err(TryEnterError::Later { ready_at: Some(due), .. }) => due,
                _ => Instant::now(),
            };
            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.expect("within the limit");
            late.push(due.elapsed().as_secs_f64() * 1e6);
            lease.sent();
        }
        late
    };
    sorted(event_loop.run_until_complete(sample).expect("it runs to its end"))
}

/// Looks after 0.1 s, then longer and longer, for an instant that may be any.
fn polling_lateness() -> Vec<f64> {
    let late = (0..20_u64).map(|n| {
        let due = Instant::now() + Duration::from_millis(150 + n * 97 % 1_500);
        let mut wait = Duration::from_millis(100);
        while Instant::now() < due {
            thread::sleep(wait);
            wait = wait.mul_f64(1.5).min(Duration::from_secs(2));
        }
        due.elapsed().as_secs_f64() * 1e6
    });
    sorted(late.collect())
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Seconds from the beginning at which `WINDOWS` times `AMOUNT` were admitted.
type Admitted = Result<Vec<f64>, String>;

type Contestant = (&'static str, Rc<dyn Fn() -> Admitted>);

fn pace_lines() -> Vec<Line> {
    let python = Rc::new(Python::find());
    let runs: Vec<Contestant> = vec![
        (BASELINE, Rc::new(once(gate_pace))),
        (POLLING, Rc::new(once(|| Ok(polled_pace(PollWait::Longer))))),
        (POLLING_OFTEN, Rc::new(once(|| Ok(polled_pace(PollWait::Millisecond))))),
        (GOVERNOR, Rc::new(once(governor_pace))),
        (AIOLIMITER, python_pace(&python, Limiter::Aiolimiter)),
        (PYRATE, python_pace(&python, Limiter::Pyrate)),
    ];
    let name = format!("worst window, {AMOUNT} per {} s", WINDOW.as_secs());
    let mut worst = Line::new(name, "requests")
        .goal(Goal::Below { limit: AMOUNT as f64 + 0.5, aim: AMOUNT as f64 })
        .rounds_max(1)
        .note("most admissions in any window, of ten windows' worth, from one task that always wants more");
    let mut unused = Line::new("quota not used over ten windows", "%")
        .goal(Goal::Below { limit: 1.0, aim: 0.1 })
        .rounds_max(1)
        .note("how much later than a perfect client the last one was admitted; below zero: too early");
    for (contestant, run) in runs {
        let again = Rc::clone(&run);
        worst = worst.contestant_if(contestant, move || Ok(worst_window(&run()?)));
        unused = unused.contestant_if(contestant, move || Ok(late_by(&again()?)));
    }
    vec![worst, unused]
}

fn worst_window(admitted: &[f64]) -> f64 {
    let mut from = 0;
    let mut worst = 0;
    for (at, instant) in admitted.iter().enumerate() {
        while instant - admitted[from] >= WINDOW.as_secs_f64() {
            from += 1;
        }
        worst = worst.max(at + 1 - from);
    }
    worst as f64
}

/// A perfect client admits the last of ten windows after nine.
fn late_by(admitted: &[f64]) -> f64 {
    let perfect = WINDOW.as_secs_f64() * (WINDOWS - 1) as f64;
    (admitted.last().copied().unwrap_or_default() / perfect - 1.0) * 100.0
}

fn gate_pace() -> Admitted {
    let limit = Limit::rate("requests", Dimension::REQUESTS, AMOUNT as u64, Window::strict(WINDOW));
    let gate = Gate::builder().limit(limit).build().map_err(|error| error.to_string())?;
    let event_loop = EventLoop::new().map_err(|error| error.to_string())?;
    let admitted = async move {
        let begun = Instant::now();
        let mut admitted = Vec::new();
        while admitted.len() < AMOUNT * WINDOWS {
            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.expect("within the limit");
            lease.sent();
            admitted.push(begun.elapsed().as_secs_f64());
        }
        admitted
    };
    event_loop.run_until_complete(admitted).map_err(|error| error.to_string())
}

enum PollWait {
    Longer,
    Millisecond,
}

fn polled_pace(how: PollWait) -> Vec<f64> {
    let begun = Instant::now();
    let mut admitted: Vec<f64> = Vec::new();
    while admitted.len() < AMOUNT * WINDOWS {
        let mut wait = Duration::from_millis(100);
        loop {
            let now = begun.elapsed().as_secs_f64();
            if admitted.iter().filter(|at| now - **at < WINDOW.as_secs_f64()).count() < AMOUNT {
                admitted.push(now);
                break;
            }
            match how {
                PollWait::Longer => {
                    thread::sleep(wait);
                    wait = wait.mul_f64(1.5).min(Duration::from_secs(2));
                }
                PollWait::Millisecond => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    admitted
}

fn governor_pace() -> Admitted {
    let amount = NonZeroU32::new(AMOUNT as u32).expect("not zero");
    let quota = governor::Quota::with_period(WINDOW / AMOUNT as u32).expect("not zero").allow_burst(amount);
    let limiter = governor::RateLimiter::direct(quota);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    Ok(runtime.block_on(async {
        let begun = Instant::now();
        let mut admitted = Vec::new();
        while admitted.len() < AMOUNT * WINDOWS {
            limiter.until_ready().await;
            admitted.push(begun.elapsed().as_secs_f64());
        }
        admitted
    }))
}

fn python_pace(python: &Rc<Python>, limiter: Limiter) -> Rc<dyn Fn() -> Admitted> {
    let python = Rc::clone(python);
    Rc::new(once(move || python.pace(limiter, AMOUNT, WINDOW, AMOUNT * WINDOWS)))
}

fn wake_up_lines() -> Vec<Line> {
    vec![
        Line::new("wake-ups of the gate, per admission that waits", "wake-ups")
            .contestant_if(BASELINE, || wake_ups().map(|(each, _)| each))
            .goal(Goal::Below { limit: 2.01, aim: 1.0 })
            .rounds_max(1)
            .note("virtual time; one task, 10,000 admissions at one in 10 ms"),
        Line::new("wake-ups of the gate, in an idle hour", "wake-ups")
            .contestant_if(BASELINE, || wake_ups().map(|(_, idle)| idle))
            .goal(Goal::Below { limit: 0.5, aim: 0.0 })
            .rounds_max(1),
    ]
}

fn wake_ups() -> Result<(f64, f64), String> {
    let counted = async {
        let limit = Limit::rate("requests", Dimension::REQUESTS, 1, Window::strict(Duration::from_millis(10)));
        let gate = Gate::builder().limit(limit).build().expect("a limit above zero");
        let fired = || LoopHandle::current().metrics().timers_fired as f64;
        let before = fired();
        for _ in 0..10_000 {
            gate.enter(gate.unscoped(), Cost::request()).await.expect("within the limit").sent();
        }
        let each = (fired() - before) / gate.stats().blocked as f64;
        let before = fired();
        sleep(Duration::from_secs(3_600)).await;
        // The hour's own timer is one.
        (each, fired() - before - 1.0)
    };
    EventLoop::simulated(1).run_until_complete(counted).map_err(|error| error.to_string())
}

fn strict_server_lines() -> Vec<Line> {
    let race = once(|| {
        let setting = strict_server::Race {
            amount: 100,
            window: Duration::from_secs(2),
            windows: 5,
            workers: 16,
            wire_max: Duration::from_millis(8),
        };
        strict_server::run(setting).map_err(|error| error.to_string())
    });
    let mut refused = Line::new("strict server, refused of 500", "requests")
        .rounds_max(1)
        .note("loopback, real time, 100 in any 2 s, up to 8 ms on the wire; 16 workers, ten seconds each");
    let mut served = Line::new("strict server, quota not used", "%").rounds_max(1);
    let clients = [(BASELINE, 0), ("polling, back-off", 1), (POLLING, 2), (POLLING_OFTEN, 3)];
    for (contestant, at) in clients {
        let (run, again) = (race.clone(), race.clone());
        refused = refused.contestant_if(contestant, move || -> Sample { Ok(run()?[at].refused as f64) });
        served = served.contestant_if(contestant, move || -> Sample { Ok((1.0 - again()?[at].share) * 100.0) });
    }
    vec![refused, served]
}
