//! Gates that count on after a restart, in virtual time: the days on which the clocks change, crashes, full disks.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tidegate_limit::journal::{Journal, Receipt, Reservation};
use tidegate_limit::store::{Durability, Store, StoreError};
use tidegate_limit::{Cost, EnterError, Gate, Limit, LoopTimer, Window};
use tidegate_loop::{EventLoop, JoinError, LoopHandle, gather_all, sleep, spawn};

/// A directory that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-gate-store-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("limits.db")
    }

    fn open(&self) -> Store {
        Store::open_with(self.file(), Durability::Crash).unwrap().inline()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn time(text: &str) -> SystemTime {
    text.parse::<Timestamp>().unwrap().into()
}

const RPM: u64 = 150;
const TPM: u64 = 1_000_000;
const RPD: u64 = 10_000;
const BATCH: u64 = 50;
const WORKERS: usize = 20;

/// What was granted: when, and for how many tokens.
type Grants = Vec<(SystemTime, u64)>;

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// Without a word: what was reserved stays reserved.
    Crashed,
}

/// Limits of which the day's is kept across a restart, and the minutes' too if that comes within a minute.
fn limits(with_minutes: bool) -> [Limit; 2] {
    let (rpm, tpm) = (Limit::rpm(RPM), Limit::tpm(TPM));
    if with_minutes { [rpm.journaled(BATCH), tpm.journaled(300_000)] } else { [rpm, tpm] }
}

/// A run of `count` requests that starts at `start`; the instants of its grants, and when it ended.
fn run(store: Store, limits: [Limit; 2], start: SystemTime, count: usize, end: End) -> (Grants, SystemTime) {
    let grants = EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = LoopTimer::new().virtual_start(start);
            let gate = Gate::builder()
                .limit(Limit::concurrency("global", 200))
                .limits(limits)
                .limit(Limit::rpd(RPD, "America/Los_Angeles").journaled(BATCH))
                .timer(timer)
                .store(&store)
                .unwrap()
                .build()
                .unwrap();
            let began = LoopHandle::current().time();
            let grants = Rc::new(RefCell::new(Grants::new()));
            let left = Rc::new(Cell::new(count));
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let (gate, grants, left) = (gate.clone(), Rc::clone(&grants), Rc::clone(&left));
                    spawn(async move {
                        while let Some(rest) = left.get().checked_sub(1) {
                            left.set(rest);
                            // From 1,000 to 8,600 tokens: now requests bind, now tokens.
                            let tokens = 1_000 + 400 * ((rest + worker) % WORKERS) as u64;
                            let mut lease = gate.enter(gate.unscoped(), Cost::tokens(tokens)).await.unwrap();
                            lease.sent();
                            let at = start + (LoopHandle::current().time() - began);
                            grants.borrow_mut().push((at, tokens));
                        }
                    })
                })
                .collect();
            for outcome in gather_all(workers).await {
                outcome.unwrap();
            }
            if end == End::Closed {
                gate.close();
            }
            store.close();
            Rc::try_unwrap(grants).unwrap().into_inner()
        })
        .unwrap();
    let last = grants.last().unwrap().0;
    (grants, last)
}

/// No minute and no day holds more than it may; counted over all windows.
fn assert_kept(grants: &Grants, days: &[(&str, &str)]) {
    let mut first = 0;
    let mut tokens = 0;
    for (last, (at, cost)) in grants.iter().enumerate() {
        assert!(last == 0 || grants[last - 1].0 <= *at, "in order");
        tokens += cost;
        while *at >= grants[first].0 + Duration::from_secs(60) {
            tokens -= grants[first].1;
            first += 1;
        }
        assert!(last - first < RPM as usize, "{} requests in a minute", last - first + 1);
        assert!(tokens <= TPM, "{tokens} tokens in a minute");
    }
    let counts: Vec<_> = days.iter().map(|(from, to)| in_day(grants, from, to)).collect();
    assert!(counts.iter().all(|&count| count <= RPD as usize), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), grants.len(), "every grant is in one of the days");
}

fn in_day(grants: &Grants, from: &str, to: &str) -> usize {
    let day = time(from)..time(to);
    grants.iter().filter(|(at, _)| day.contains(at)).count()
}

/// The last half hour of one day, all of the next, on which the clocks change, and the beginning of the third; with a
/// restart on the second.
fn day_of_ten_thousand(name: &str, start: &str, days: [(&str, &str); 3], end: End) -> Vec<usize> {
    let scratch = Scratch::new(name);
    let (mut grants, stopped) = run(scratch.open(), limits(false), time(start), 6_970, end);
    let again = stopped + Duration::from_secs(60);
    let (rest, _) = run(scratch.open(), limits(false), again, 8_530, end);
    grants.extend(rest);
    assert_kept(&grants, &days);
    let third = time(days[2].0);
    let first_of_third = grants.iter().map(|(at, _)| *at).find(|at| *at >= third);
    assert_eq!(first_of_third, Some(third), "the day begins with its first instant");
    days.iter().map(|(from, to)| in_day(&grants, from, to)).collect()
}

const AUTUMN: [(&str, &str); 3] = [
    ("2026-10-31T07:00:00Z", "2026-11-01T07:00:00Z"),
    // 25 hours.
    ("2026-11-01T07:00:00Z", "2026-11-02T08:00:00Z"),
    ("2026-11-02T08:00:00Z", "2026-11-03T08:00:00Z"),
];
const SPRING: [(&str, &str); 3] = [
    ("2026-03-07T08:00:00Z", "2026-03-08T08:00:00Z"),
    // 23 hours.
    ("2026-03-08T08:00:00Z", "2026-03-09T07:00:00Z"),
    ("2026-03-09T07:00:00Z", "2026-03-10T07:00:00Z"),
];

#[test]
fn a_day_of_ten_thousand_across_a_restart_and_the_end_of_summer_time() {
    let counts = day_of_ten_thousand("autumn", "2026-11-01T06:30:00Z", AUTUMN, End::Closed);
    assert_eq!(counts[1], RPD as usize, "{counts:?}: not one was lost to the restart");
}

#[test]
fn a_day_of_ten_thousand_across_a_crash_and_the_beginning_of_summer_time() {
    let counts = day_of_ten_thousand("spring", "2026-03-08T07:30:00Z", SPRING, End::Crashed);
    let lost = RPD as usize - counts[1];
    assert!((1..=BATCH as usize).contains(&lost), "{counts:?}: a crash costs what was reserved, and no more");
}

#[test]
fn a_minute_is_kept_across_a_crash() {
    let scratch = Scratch::new("minute");
    let start = "2026-06-01T12:00:00Z";
    let (mut grants, _) = run(scratch.open(), limits(true), time(start), 140, End::Crashed);
    // A moment later, 140 of 150 are used; with what was reserved, all.
    let (rest, _) = run(scratch.open(), limits(true), time(start) + Duration::from_secs(1), 400, End::Closed);
    grants.extend(rest);
    assert_kept(&grants, &[("2026-06-01T07:00:00Z", "2026-06-02T07:00:00Z")]);
}

/// A strict server sees all runs as one: started again at any instant after a stop or a crash, no minute is exceeded.
#[test]
fn runs_that_stop_at_random_instants_and_start_again_keep_the_minute() {
    let start = time("2026-06-01T12:00:00Z");
    for seed in 0..60_u64 {
        let scratch = Scratch::new(&format!("restarts-{seed}"));
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut grants, mut at) = (Grants::new(), start);
        for _ in 0..4 {
            let (count, gap) = (1 + below(400) as usize, Duration::from_millis(below(20_000)));
            let end = if below(2) == 0 { End::Crashed } else { End::Closed };
            let (of_run, ended) = run(scratch.open(), limits(true), at, count, end);
            grants.extend(of_run);
            at = ended + gap;
        }
        println!("seed {seed}");
        assert_kept(&grants, &[("2026-06-01T07:00:00Z", "2026-06-02T07:00:00Z")]);
    }
}

#[test]
fn a_line_of_thousands_does_not_go_as_many_calls_deep() {
    let scratch = Scratch::new("deep");
    let store = scratch.open();
    let granted = EventLoop::simulated(1)
        .run_until_complete(async move {
            let limit = Limit::rpd(1_000_000, "UTC").journaled(0);
            let gate = Gate::builder().limit(limit).store(&store).unwrap().build().unwrap();
            gate.pause("rpd", Duration::from_secs(5)).unwrap();
            let tasks: Vec<_> = (0..5_000)
                .map(|_| {
                    let gate = gate.clone();
                    spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() })
                })
                .collect();
            gather_all(tasks).await;
            gate.stats().granted
        })
        .unwrap();
    assert_eq!(granted, 5_000);
}

#[test]
fn what_cannot_be_written_is_not_granted_and_says_why() {
    let scratch = Scratch::new("gone");
    let (file, aside) = (scratch.file(), scratch.0.join("aside.db"));
    let store = scratch.open();
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let limit = Limit::rpd(1_000, "UTC").journaled(10);
            let gate = Gate::builder().limit(limit).store(&store).unwrap().build().unwrap();
            for _ in 0..10 {
                gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            }
            std::fs::rename(&file, &aside).unwrap();
            match gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err() {
                EnterError::Journal { limit, reason } => {
                    assert_eq!(&*limit, "rpd");
                    assert!(reason.contains("limits.db was deleted or replaced"), "{reason}");
                }
                other => panic!("{other}"),
            }
            assert_eq!(gate.stats().limit("rpd").unwrap().used, 10);
            // Put back, and it goes on.
            std::fs::rename(&aside, &file).unwrap();
            gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            store.close();
            for _ in 0..9 {
                gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            }
            let error = gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err();
            assert!(error.to_string().contains("it was closed"), "{error}");
        })
        .unwrap();
}

#[test]
fn a_clock_that_was_set_back_does_not_bring_the_quota_back() {
    let scratch = Scratch::new("back");
    run(scratch.open(), limits(false), time("2026-06-03T12:00:00Z"), 300, End::Closed);
    let store = scratch.open();
    let used = EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = LoopTimer::new().virtual_start(time("2026-06-01T12:00:00Z"));
            let limit = Limit::rpd(RPD, "America/Los_Angeles").journaled(BATCH);
            let gate = Gate::builder().limit(limit).timer(timer).store(&store).unwrap().build().unwrap();
            gate.stats().limit("rpd").unwrap().used
        })
        .unwrap();
    assert_eq!(used, 300);
}

#[test]
fn a_second_gate_on_the_store_counts_what_the_first_has_reserved() {
    let scratch = Scratch::new("second");
    let store = scratch.open();
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let gate = || {
                let limit = Limit::rpd(1_000, "UTC").journaled(10);
                Gate::builder().limit(limit).store(&store).unwrap().build().unwrap()
            };
            let first = gate();
            for _ in 0..3 {
                first.enter(first.unscoped(), Cost::request()).await.unwrap().sent();
            }
            assert_eq!(gate().stats().limit("rpd").unwrap().used, 10);
            first.close();
            assert_eq!(gate().stats().limit("rpd").unwrap().used, 3);
        })
        .unwrap();
}

#[test]
fn a_closed_store_says_so() {
    let scratch = Scratch::new("closed");
    let store = scratch.open();
    store.close();
    store.close();
    assert!(matches!(store.restored().unwrap_err(), StoreError::Failed { .. }));
    assert!(Gate::builder().limit(Limit::rpm(1)).store(&store).is_err());
    assert!(!scratch.open().created());
}

#[test]
fn the_stores_own_thread_admits_all_and_releases_the_file() {
    let scratch = Scratch::new("thread");
    let store = Store::open_with(scratch.file(), Durability::Crash).unwrap();
    let kept = store.clone();
    tidegate_loop::run(async move {
        let limit = Limit::rpd(1_000, "UTC").journaled(7);
        let gate = Gate::builder().limit(limit).store(&store).unwrap().build().unwrap();
        let tasks: Vec<_> = (0..200)
            .map(|_| {
                let gate = gate.clone();
                spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() })
            })
            .collect();
        gather_all(tasks).await;
        gate.close();
    })
    .unwrap();
    kept.close();
    let restored = scratch.open().restored().unwrap();
    assert_eq!(restored.iter().map(tidegate_limit::journal::Restored::amount).sum::<u64>(), 200);
}

/// The use of a limit that a restart at `at` finds.
fn used_after_restart(scratch: &Scratch, limit: Limit, at: SystemTime) -> u64 {
    let store = scratch.open();
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let (name, timer) = (limit.name().to_owned(), LoopTimer::new().virtual_start(at));
            let gate = Gate::builder().limit(limit).timer(timer).store(&store).unwrap().build().unwrap();
            gate.stats().limit(&name).unwrap().used
        })
        .unwrap()
}

#[test]
fn a_request_granted_before_midnight_and_sent_after_it_counts_on_the_day_it_was_sent() {
    let scratch = Scratch::new("midnight");
    let store = scratch.open();
    let limit = || Limit::rpd(10, "UTC").journaled(1);
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = LoopTimer::new().virtual_start(time("2026-06-01T23:59:59Z"));
            let gate = Gate::builder().limit(limit()).timer(timer).store(&store).unwrap().build().unwrap();
            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
            sleep(Duration::from_secs(2)).await;
            lease.sent();
            assert_eq!(gate.stats().limit("rpd").unwrap().used, 1);
            store.close();
        })
        .unwrap();
    assert!(used_after_restart(&scratch, limit(), time("2026-06-02T00:00:02Z")) >= 1);
}

#[test]
fn what_an_answer_cost_above_its_estimate_survives_a_crash() {
    let scratch = Scratch::new("overdrawn");
    let store = scratch.open();
    let limit = || Limit::tpm(100_000).journaled(1_000);
    let start = time("2026-06-01T12:00:00Z");
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = LoopTimer::new().virtual_start(start);
            let gate = Gate::builder().limit(limit()).timer(timer).store(&store).unwrap().build().unwrap();
            let mut lease = gate.enter(gate.unscoped(), Cost::tokens(900)).await.unwrap();
            lease.sent();
            sleep(Duration::from_secs(20)).await;
            lease.settle(Cost::tokens(7_900));
            // No entry comes after it.
            store.close();
        })
        .unwrap();
    let used = used_after_restart(&scratch, limit(), start + Duration::from_secs(21));
    assert!((7_900..=7_900 + 1_000).contains(&used), "{used}");
}

#[test]
fn a_bucket_that_starts_cold_is_not_made_colder_by_what_is_restored() {
    let scratch = Scratch::new("cold");
    let store = scratch.open();
    let minute = Window::bucket(Duration::from_secs(60));
    let limit = move || Limit::tpm(60_000).window(minute.clone()).journaled(1_000);
    let start = time("2026-06-01T12:00:00Z");
    let cold = limit.clone();
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = LoopTimer::new().virtual_start(start);
            let gate = Gate::builder().limit(cold()).timer(timer).store(&store).unwrap().build().unwrap();
            gate.enter(gate.unscoped(), Cost::tokens(50_000)).await.unwrap().sent();
            store.close();
        })
        .unwrap();
    let used = used_after_restart(&scratch, limit(), start + Duration::from_secs(50));
    assert_eq!(used, 60_000, "empty, as it would be without a file, and not below");
}

/// Hands the receipt in from within, as a journal in memory does.
struct AtOnce;

impl Journal for AtOnce {
    fn write(&self, _: Reservation, receipt: Receipt) {
        receipt.written();
    }
}

#[test]
fn a_journal_that_answers_at_once_does_not_make_a_long_line_deep() {
    let granted = EventLoop::simulated(1)
        .run_until_complete(async move {
            let limit = Limit::rpd(1_000_000, "UTC").journaled(0);
            let gate = Gate::builder().limit(limit).journal(AtOnce).build().unwrap();
            gate.pause("rpd", Duration::from_secs(5)).unwrap();
            let tasks: Vec<_> = (0..50_000)
                .map(|_| {
                    let gate = gate.clone();
                    spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent() })
                })
                .collect();
            gather_all(tasks).await;
            gate.stats().granted
        })
        .unwrap();
    assert_eq!(granted, 50_000);
}

/// Fails in the worst way, once.
struct Panics(AtomicBool);

impl Journal for Panics {
    fn write(&self, _: Reservation, receipt: Receipt) {
        assert!(self.0.swap(true, Ordering::Relaxed), "the journal is broken");
        receipt.written();
    }
}

#[test]
fn a_journal_that_panics_is_asked_again_by_the_next_request() {
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let limit = Limit::rpd(10, "UTC").journaled(0);
            let gate = Gate::builder().limit(limit).journal(Panics(AtomicBool::new(false))).build().unwrap();
            let first = gate.clone();
            let unlucky = spawn(async move { first.enter(first.unscoped(), Cost::request()).await.is_ok() });
            assert!(matches!(unlucky.await, Err(JoinError::Panicked(_))));
            gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            assert_eq!((gate.stats().waiting, gate.stats().limit("rpd").unwrap().used), (0, 1));
        })
        .unwrap();
}
