//! Whatever happens, what a restart would count is at least what counts now: random entries, refunds, settlements, late
//! sends and a midnight, with a journal that takes its time; compared with a gate restored from the journal again and
//! again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tidegate_limit::journal::{Journal, Receipt, Reservation, Restored};
use tidegate_limit::{Cost, Dimension, Gate, Limit, LoopTimer, Start, Window};
use tidegate_loop::{EventLoop, LoopHandle, gather_all, sleep, spawn};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

/// What is on disk, and what is on its way there.
#[derive(Default)]
struct Disk {
    rows: BTreeMap<(Arc<str>, u64), (u64, SystemTime)>,
    under_way: Vec<(Reservation, Receipt)>,
}

#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Disk>>);

impl Journal for Slow {
    fn write(&self, reservation: Reservation, receipt: Receipt) {
        self.0.lock().unwrap().under_way.push((reservation, receipt));
    }
}

impl Slow {
    /// Lets everything that is in flight arrive. Returns whether there was anything.
    fn arrive(&self) -> bool {
        let under_way = std::mem::take(&mut self.0.lock().unwrap().under_way);
        let any = !under_way.is_empty();
        for (reservation, receipt) in under_way {
            {
                let rows = &mut self.0.lock().unwrap().rows;
                let limit = &reservation.limit;
                if let Some(settled) = reservation.settles {
                    rows.get_mut(&(Arc::clone(limit), settled.serial)).expect("it was written").0 = settled.spent;
                }
                let at = reservation.period.unwrap_or(reservation.until);
                rows.insert((Arc::clone(limit), reservation.serial), (reservation.amount, at));
            }
            receipt.written();
        }
        any
    }

    fn restored(&self) -> Vec<Restored> {
        let disk = self.0.lock().unwrap();
        disk.rows.iter().map(|((limit, _), (amount, at))| Restored::new(Arc::clone(limit), *amount, *at)).collect()
    }
}

fn limits() -> [Limit; 3] {
    let bucket = Window::Bucket { per: Duration::from_secs(60), burst: None, start: Start::Full };
    [Limit::rpd(2_000, "UTC"), Limit::tpm(4_000), Limit::rate("flow", Dimension::TOKENS, 5_000, bucket)]
}

/// What is allowed to happen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Nothing is booked but what was reserved: the bound holds at any instant.
    Declared,
    /// Answers cost more than was estimated, requests leave long after they were granted: the bound holds as soon as the
    /// journal has caught up.
    Anything,
}

fn simulate(seed: u64, mood: Mood) {
    let start: SystemTime = "2026-06-01T23:57:00Z".parse::<Timestamp>().unwrap().into();
    EventLoop::simulated(seed)
        .run_until_complete(async move {
            let disk = Slow::default();
            let batches = [7, 100, 100];
            let gate = Gate::builder()
                .limits(limits().into_iter().zip(batches).map(|(limit, batch)| limit.journaled(batch)))
                .timer(LoopTimer::new().virtual_start(start))
                .journal(disk.clone())
                .build()
                .unwrap();
            let (began, running) = (LoopHandle::current().time(), Rc::new(Cell::new(true)));
            let random = Rc::new(RefCell::new(Random(seed)));
            let mut tasks: Vec<_> = (0..12)
                .map(|_| {
                    let (gate, random, running) = (gate.clone(), Rc::clone(&random), Rc::clone(&running));
                    spawn(async move {
                        while running.get() {
                            let tokens = 1 + random.borrow_mut().below(150);
                            let mut lease = gate.enter(gate.unscoped(), Cost::tokens(tokens)).await.unwrap();
                            if mood == Mood::Anything && random.borrow_mut().below(3) == 0 {
                                let late = random.borrow_mut().millis(20_000);
                                sleep(late).await;
                            }
                            if random.borrow_mut().below(6) == 0 {
                                continue;
                            }
                            lease.sent();
                            let thinks = random.borrow_mut().millis(9_000);
                            sleep(thinks).await;
                            let more =
                                if mood == Mood::Anything && random.borrow_mut().below(4) == 0 { 400 } else { 0 };
                            let actual = random.borrow_mut().below(tokens + more + 1);
                            lease.settle(Cost::tokens(actual));
                        }
                    })
                })
                .collect();
            let (writer, going, chance) = (disk.clone(), Rc::clone(&running), Rc::clone(&random));
            tasks.push(spawn(async move {
                while going.get() {
                    let takes = chance.borrow_mut().millis(60);
                    sleep(takes).await;
                    writer.arrive();
                }
            }));
            for _ in 0..150 {
                let pause = random.borrow_mut().millis(3_000);
                sleep(pause).await;
                if mood == Mood::Anything {
                    while disk.arrive() {}
                }
                let wall = start + (LoopHandle::current().time() - began);
                let again = Gate::builder()
                    .limits(limits())
                    .timer(LoopTimer::new().virtual_start(wall))
                    .restore(disk.restored())
                    .build()
                    .unwrap();
                let (now, then) = (gate.stats(), again.stats());
                for limit in &now.limits {
                    // A bucket cannot be more than empty.
                    let used = if &*limit.name == "flow" { limit.used.min(limit.amount) } else { limit.used };
                    let counted = then.limit(&limit.name).unwrap().used;
                    assert!(counted >= used, "seed {seed}: {used} of {} are used, {counted} restored", limit.name);
                }
            }
            // No entry may wait for a journal that has ended.
            running.set(false);
            while gate.stats().waiting > 0 || gate.stats().current > 0 {
                disk.arrive();
                sleep(Duration::from_millis(100)).await;
            }
            gather_all(tasks).await;
        })
        .unwrap();
}

fn seeds() -> u64 {
    if std::env::var_os("TIDEGATE_SOAK").is_some() { 200 } else { 8 }
}

#[test]
fn what_is_reserved_is_never_less_than_what_was_granted() {
    for seed in 0..seeds() {
        simulate(seed, Mood::Declared);
    }
}

#[test]
fn undeclared_usage_is_written_as_soon_as_it_is_known() {
    for seed in 0..seeds() {
        simulate(seed, Mood::Anything);
    }
}
