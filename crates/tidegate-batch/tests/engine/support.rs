//! Batches behind one gate, and a strict server.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_batch::jsonl::{Batch, BatchError, Input, Output, Summary};
use tidegate_batch::{Caller, Change, Control, Dialect, ItemId, ItemState, Retries};
use tidegate_limit::{Backoff, Gate};
use tidegate_loop::{EventLoop, JoinHandle, LoopHandle, sleep, spawn, to_thread, yield_now};
use tidegate_rehearsal::Handle;

/// How long the server takes for each answer.
pub(crate) const LATENCY: Duration = Duration::from_secs(2);

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn time() -> Instant {
    LoopHandle::current().time()
}

pub(crate) async fn sleep_until(at: Instant) {
    sleep(at.saturating_duration_since(time())).await;
}

/// The clock moves in steps of this length.
pub(crate) const STEP: Duration = Duration::from_millis(50);

/// Ticks between two steps: what a timer wakes is admitted before the clock moves on.
const TICKS: usize = 4;

/// Rounds without a step after which everything waits for the clock.
const STILL: usize = 50;

/// Runs a test on a loop whose clock stands still until [`keep_time`] moves it.
pub(crate) fn in_virtual_time<F: Future + 'static>(test: F) -> F::Output {
    EventLoop::builder().manual_clock().build().unwrap().run_until_complete(test).unwrap()
}

/// Moves the clock while every request that `gate` has admitted is in flight at `server` and no job of a thread is going on:
/// in virtual time, results of threads come when nothing else is ready, in the order of the jobs.
pub(crate) fn keep_time(gate: &Gate, server: &Handle) -> JoinHandle<()> {
    let (gate, server) = (gate.clone(), server.clone());
    spawn(async move {
        let mut still = 0;
        loop {
            for _ in 0..TICKS {
                yield_now().await;
            }
            to_thread(|| ()).await.unwrap();
            still += 1;
            if gate.stats().current == server.stats().in_flight || still == STILL {
                LoopHandle::current().advance(STEP);
                still = 0;
            }
        }
    })
}

/// A folder with request files.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn requests(&self, name: &str, count: usize) -> PathBuf {
        let path = self.0.path().join(format!("{name}.jsonl"));
        let line = |number: usize| {
            let text = format!("Question {number} of {name}: why do tides turn?");
            let body = json!({"model": "m", "max_tokens": 60, "messages": [{"role": "user", "content": text}]});
            let id = format!("{name}-{number}");
            json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
        };
        std::fs::write(&path, (1..=count).map(line).collect::<String>()).unwrap();
        path
    }

    /// A batch whose results go nowhere: no disk takes time while the clock is virtual.
    pub(crate) fn batch(&self, name: &str, count: usize) -> Batch {
        fn discard(_: &[u8]) -> io::Result<()> {
            Ok(())
        }
        Batch::new(Input::File(self.requests(name, count)), Output::Stdout).stdout(discard)
    }

    pub(crate) fn results(&self) -> PathBuf {
        self.0.path().join("results.jsonl")
    }

    /// A batch whose results go to a file.
    pub(crate) fn batch_to_file(&self, name: &str, count: usize) -> Batch {
        Batch::new(Input::File(self.requests(name, count)), Output::File(self.results()))
    }
}

/// Starts a batch behind `gate`.
pub(crate) fn start(batch: Batch, gate: &Gate, server: &Handle) -> JoinHandle<Result<Summary, BatchError>> {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).with_retries(0);
    let caller = Caller::new(gate, Dialect::OpenAi, &format!("{}/v1", server.base_url())).unwrap();
    let caller = caller.with_retries(Retries { backoff, ..Retries::default() });
    spawn(async move { batch.run(&caller).await })
}

/// When requests were sent, as the run has told.
pub(crate) fn sent_times(control: &Control) -> Rc<RefCell<Vec<Instant>>> {
    let times: Rc<RefCell<Vec<Instant>>> = Rc::default();
    let noted = Rc::clone(&times);
    control.on_event(move |event| {
        if let Change::Item { state: ItemState::InFlight, .. } = event.change {
            noted.borrow_mut().push(time());
        }
    });
    times
}

/// The most requests that were sent within any minute that begins at or after `from`.
pub(crate) fn most_per_minute(times: &[Instant], from: Instant) -> usize {
    let times: Vec<Instant> = times.iter().copied().filter(|at| *at >= from).collect();
    let within = |first: &Instant| times.iter().filter(|at| *at >= first && **at < *first + secs(60)).count();
    times.iter().map(within).max().unwrap_or(0)
}

/// Checks at every event that the figures fit together and that no more is in flight than the gate admits.
pub(crate) fn check_figures(control: &Control, gate: &Gate) {
    let (looked_at, gate) = (control.clone(), gate.clone());
    control.on_event(move |_| {
        let progress = looked_at.progress();
        let settled = progress.done + progress.failed + progress.skipped;
        assert_eq!(progress.total, progress.waiting + progress.blocked + progress.in_flight + settled, "{progress:?}");
        let stats = gate.stats();
        let slots = stats.limit("global").unwrap().amount;
        assert!(progress.in_flight <= slots.max(stats.current), "{} in flight", progress.in_flight);
        assert!(progress.in_flight <= stats.current, "each of them holds a slot");
        let items = looked_at.items();
        let count = |is: fn(&ItemState) -> bool| items.iter().filter(|item| is(&item.state)).count() as u64;
        assert_eq!(count(|state| matches!(state, ItemState::Blocked { .. })), progress.blocked);
        assert_eq!(count(|state| *state == ItemState::InFlight), progress.in_flight);
        assert_eq!(count(|state| *state == ItemState::Done), progress.done - progress.cached);
        assert_eq!(count(|state| matches!(state, ItemState::Failed { .. })), progress.failed);
    });
}

pub(crate) fn line(line: u64) -> ItemId {
    ItemId::Request { line }
}
