//! A day of requests in virtual time: across a change of the clocks, and across a restart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use tidegate_limit::journal::{Journal, Receipt, Reservation, Restored};
use tidegate_limit::{Builder, Cost, Gate, Limit, LoopTimer, Timer};
use tidegate_loop::{EventLoop, LoopHandle, sleep, spawn};

const BATCH: u64 = 50;

/// Reservations, as a disk would keep them.
#[derive(Default)]
struct Disk(Mutex<Vec<Reservation>>);

impl Journal for Disk {
    fn write(&self, reservation: Reservation, receipt: Receipt) {
        let mut kept = self.0.lock().unwrap();
        if let Some(settled) = reservation.settles
            && let Some(before) = kept.iter_mut().rfind(|kept| kept.serial == settled.serial)
        {
            before.amount = settled.spent;
        }
        kept.push(reservation);
        drop(kept);
        receipt.written();
    }
}

impl Disk {
    fn restored(&self) -> Vec<Restored> {
        let kept = self.0.lock().unwrap();
        kept.iter()
            .map(|kept| Restored::new(Arc::clone(&kept.limit), kept.amount, kept.period.unwrap_or(kept.until)))
            .collect()
    }
}

fn limits() -> Builder {
    Gate::builder()
        .limit(Limit::concurrency("global", 200))
        .limit(Limit::rpm(150))
        .limit(Limit::tpm(1_000_000))
        .limit(Limit::rpd(10_000, "America/Los_Angeles").journaled(BATCH))
}

fn wall(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().unwrap().into()
}

/// Sends `count` requests and returns when, after the beginning, the last of them went.
async fn send(gate: &Gate, count: usize) -> Duration {
    let began = LoopHandle::current().time();
    for n in 0..count {
        let mut lease = gate.enter(gate.unscoped(), Cost::tokens(3_000 + n as u64 % 1_000)).await.unwrap();
        lease.sent();
        lease.settle(Cost::tokens(2_000));
    }
    LoopHandle::current().time() - began
}

/// 10,000 fit into the day, at 150 a minute; the next waits for midnight in Los Angeles, which comes after `hours`.
fn a_day(start: &str, hours: u64) {
    let start = wall(start);
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let disk = Arc::new(Disk::default());
            let timer = LoopTimer::new().virtual_start(start);
            let gate = limits().timer(timer).journal(Arc::clone(&disk)).build().unwrap();
            let taken = send(&gate, 10_000).await;
            assert_eq!(taken, Duration::from_secs(66 * 60), "66 full minutes, and the first 100 of another");
            let next = taken + send(&gate, 1).await;
            assert_eq!(next, Duration::from_secs(hours * 3600));
            let stats = gate.stats();
            assert_eq!(stats.idle_alarms, 0);
            assert!(stats.alarms <= 67, "one a minute: {}", stats.alarms);
            assert!(stats.limit("rpd").unwrap().blocked_for > Duration::from_secs((hours - 2) * 3600));
        })
        .unwrap();
}

#[test]
fn a_day_on_which_the_clocks_go_ahead_ends_after_23_hours() {
    a_day("2026-03-08T08:00:00Z", 23);
}

#[test]
fn a_day_on_which_the_clocks_go_back_ends_after_25_hours() {
    a_day("2026-11-01T07:00:00Z", 25);
}

#[test]
fn a_crash_counts_a_batch_too_many_at_the_most_and_never_one_too_few() {
    let start = wall("2026-03-08T08:00:00Z");
    let disk = Arc::new(Disk::default());
    let run = |begins: SystemTime, count: usize, closes: bool| {
        let disk = Arc::clone(&disk);
        EventLoop::simulated(1)
            .run_until_complete(async move {
                let timer = LoopTimer::new().virtual_start(begins);
                let gate = limits().timer(timer).restore(disk.restored()).journal(disk).build().unwrap();
                let remaining = gate.stats().limit("rpd").unwrap().remaining;
                send(&gate, count).await;
                if closes {
                    gate.close();
                }
                remaining
            })
            .unwrap()
    };
    let hour = Duration::from_secs(3600);
    assert_eq!(run(start, 4_020, false), 10_000);
    let remaining = run(start + hour, 500, true);
    assert!((10_000 - 4_020 - BATCH..=10_000 - 4_020).contains(&remaining), "{remaining} after a crash");
    assert_eq!(run(start + hour * 2, 0, false), remaining - 500, "closed in good order, nothing too much is counted");
    // The next day is a new one, though the last reservation of this one was never settled.
    assert_eq!(run(start + hour * 23, 0, false), 10_000);
}

/// The loop's clock, which a test can set.
#[derive(Clone)]
struct Settable {
    began: Instant,
    alarm: Arc<LoopTimer>,
    /// Seconds that are added to the wall clock.
    ahead: Arc<AtomicU64>,
}

impl Timer for Settable {
    fn now(&self) -> Instant {
        self.alarm.now()
    }

    fn wall(&self) -> SystemTime {
        let ahead = Duration::from_secs(self.ahead.load(Ordering::Relaxed));
        wall("2026-11-19T12:00:00Z") + (self.now() - self.began) + ahead
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        self.alarm.arm(at, waker);
    }

    fn disarm(&self) {
        self.alarm.disarm();
    }
}

/// As when a machine sleeps over midnight.
#[test]
fn a_day_that_begins_because_the_clock_is_set_is_noticed_while_everything_waits() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let began = LoopHandle::current().time();
            let timer = Settable { began, alarm: Arc::new(LoopTimer::new()), ahead: Arc::default() };
            let ahead = Arc::clone(&timer.ahead);
            let gate = Gate::builder().limit(Limit::rpd(10, "UTC")).timer(timer).build().unwrap();
            send(&gate, 10).await;
            let sending = spawn({
                let gate = gate.clone();
                async move { send(&gate, 1).await }
            });
            sleep(Duration::from_secs(3_600)).await;
            assert_eq!(gate.stats().limit("rpd").unwrap().used, 10);
            ahead.store(24 * 3_600, Ordering::Relaxed);
            let waited = sending.await.unwrap();
            assert!(waited <= Duration::from_secs(3_600 + 31), "{waited:?}");
        })
        .unwrap();
}
