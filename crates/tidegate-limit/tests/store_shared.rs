//! Gates that share a state file, each with a store of its own as processes have, in virtual time; and clocks that are set.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tidegate_limit::store::{Durability, Store};
use tidegate_limit::{Cost, Gate, Limit, LoopTimer, Timer, Window};
use tidegate_loop::{EventLoop, LoopHandle, gather_all, sleep, spawn, timeout};

const START: &str = "2026-06-01T12:00:00Z";

/// A directory that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-shared-store-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn open(&self) -> Store {
        Store::open_with(self.0.join("limits.db"), Durability::Crash).unwrap().inline()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A wall clock that can be set, beside the loop's virtual time.
#[derive(Clone)]
struct Settable {
    began: Instant,
    /// A timer has one alarm, so each gate has one of its own.
    alarm: Arc<LoopTimer>,
    /// Seconds that are added to the wall clock.
    ahead: Arc<AtomicI64>,
}

impl Settable {
    fn new() -> Settable {
        Settable { began: LoopHandle::current().time(), alarm: Arc::new(LoopTimer::new()), ahead: Arc::default() }
    }

    fn for_gate(&self) -> Settable {
        Settable { alarm: Arc::new(LoopTimer::new()), ..self.clone() }
    }

    fn set(&self, ahead: Duration) {
        self.ahead.store(ahead.as_secs() as i64, Ordering::Relaxed);
    }

    fn set_back(&self, by: Duration) {
        self.ahead.store(-(by.as_secs() as i64), Ordering::Relaxed);
    }
}

impl Timer for Settable {
    fn now(&self) -> Instant {
        self.alarm.now()
    }

    fn wall(&self) -> SystemTime {
        let start: SystemTime = START.parse::<Timestamp>().unwrap().into();
        let (wall, ahead) = (start + (self.now() - self.began), self.ahead.load(Ordering::Relaxed));
        let by = Duration::from_secs(ahead.unsigned_abs());
        if ahead < 0 { wall - by } else { wall + by }
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn arm(&self, at: Instant, waker: &Waker) {
        self.alarm.arm(at, waker);
    }

    fn disarm(&self) {
        self.alarm.disarm();
    }
}

fn gate(scratch: &Scratch, timer: &Settable, limit: Limit) -> (Gate, Store) {
    let store = scratch.open();
    let gate = Gate::builder().limit(limit).timer(timer.for_gate()).store(&store).unwrap().build().unwrap();
    (gate, store)
}

async fn enter(gate: &Gate, count: usize) {
    for _ in 0..count {
        gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
    }
}

/// Returns how many more get in within `time`.
async fn enter_for(gate: &Gate, time: Duration) -> usize {
    let entered = RefCell::new(0);
    let enter = async {
        loop {
            gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            *entered.borrow_mut() += 1;
        }
    };
    let _: Result<(), _> = timeout(time, enter).await;
    entered.into_inner()
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn gates_that_share_a_day_are_granted_all_of_it_and_not_more() {
    for seed in 0..20 {
        let scratch = Scratch::new(&format!("day-{seed}"));
        EventLoop::simulated(seed)
            .run_until_complete(async move {
                let timer = Settable::new();
                let entering: Vec<_> = (0..3)
                    .map(|_| {
                        let (gate, store) = gate(&scratch, &timer, Limit::rpd(50, "UTC").journaled(7));
                        spawn(async move {
                            let entered = enter_for(&gate, HOUR).await;
                            gate.close();
                            store.close();
                            entered
                        })
                    })
                    .collect();
                let entered: Vec<usize> = gather_all(entering).await.into_iter().map(Result::unwrap).collect();
                assert_eq!(entered.iter().sum::<usize>(), 50, "{entered:?}");
            })
            .unwrap();
    }
}

#[test]
fn what_a_gate_gives_back_is_found_by_one_that_waits() {
    let scratch = Scratch::new("given-back");
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let (timer, limit) = (Settable::new(), || Limit::rpd(10, "UTC").journaled(10));
            let (first, _first_store) = gate(&scratch, &timer, limit());
            let (second, _second_store) = gate(&scratch, &timer, limit());
            enter(&first, 4).await;
            assert_eq!(enter_for(&second, HOUR).await, 0, "the first has reserved all of it");
            assert_eq!(second.stats().limit("rpd").unwrap().remaining, 0);
            let waits = second.clone();
            let waits = spawn(async move { enter(&waits, 6).await });
            first.close();
            let began = LoopHandle::current().time();
            waits.await.unwrap();
            assert!(LoopHandle::current().time() - began <= Duration::from_secs(10));
            assert_eq!(enter_for(&second, HOUR).await, 0);
        })
        .unwrap();
}

/// The instants of all grants, by gates that come and go.
#[test]
fn no_minute_of_gates_that_share_it_is_exceeded() {
    const RPM: usize = 60;
    for seed in 0..30 {
        let scratch = Scratch::new(&format!("minute-{seed}"));
        let mut grants = EventLoop::simulated(seed)
            .run_until_complete(async move {
                let (timer, grants) = (Settable::new(), Rc::new(RefCell::new(Vec::new())));
                let running: Vec<_> = (0..4_u64)
                    .map(|number| {
                        let (gate, store) = gate(&scratch, &timer, Limit::rpm(RPM as u64).journaled(4));
                        let grants = Rc::clone(&grants);
                        spawn(async move {
                            sleep(Duration::from_secs(7 * number)).await;
                            for n in 0..60 {
                                enter(&gate, 1).await;
                                grants.borrow_mut().push(LoopHandle::current().time());
                                sleep(Duration::from_millis((seed * 37 + n * 101 * number) % 900)).await;
                            }
                            // Half of them crash.
                            if number % 2 == 0 {
                                gate.close();
                            }
                            store.close();
                        })
                    })
                    .collect();
                gather_all(running).await.into_iter().for_each(|done| done.unwrap());
                Rc::try_unwrap(grants).unwrap().into_inner()
            })
            .unwrap();
        grants.sort();
        assert_eq!(grants.len(), 240);
        for window in grants.windows(RPM + 1) {
            assert!(window[RPM] - window[0] >= Duration::from_secs(60), "seed {seed}: more than {RPM} in a minute");
        }
        let took = *grants.last().unwrap() - grants[0];
        assert!(took < Duration::from_secs(300), "seed {seed}: {took:?}: they leave each other room");
    }
}

#[test]
fn a_bucket_is_shared_too() {
    let scratch = Scratch::new("bucket");
    let entered = EventLoop::simulated(1)
        .run_until_complete(async move {
            let (timer, window) = (Settable::new(), Window::bucket(Duration::from_secs(60)));
            let entering: Vec<_> = (0..2)
                .map(|_| {
                    let limit = Limit::rpm(60).window(window.clone()).journaled(3);
                    let (gate, store) = gate(&scratch, &timer, limit);
                    spawn(async move {
                        let entered = enter_for(&gate, Duration::from_secs(600)).await;
                        gate.close();
                        store.close();
                        entered
                    })
                })
                .collect();
            gather_all(entering).await.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        })
        .unwrap();
    let sum = entered.iter().sum::<usize>();
    assert!((400..=600).contains(&sum), "{entered:?} of 600");
}

#[test]
fn a_day_can_slide() {
    let scratch = Scratch::new("sliding");
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let (timer, limit) = (Settable::new(), || Limit::rpd(10, "UTC").window(Window::strict(DAY)).journaled(2));
            let (first, store) = gate(&scratch, &timer, limit());
            enter(&first, 4).await;
            sleep(10 * HOUR).await;
            enter(&first, 6).await;
            first.close();
            store.close();
            sleep(5 * HOUR).await;
            let (second, store) = gate(&scratch, &timer, limit());
            let began = LoopHandle::current().time();
            enter(&second, 4).await;
            let waited = LoopHandle::current().time() - began;
            // When the first four leave the window, after 9 hours; a reservation of a day is open for 22 minutes.
            assert!((9 * HOUR..9 * HOUR + HOUR / 2).contains(&waited), "{waited:?}");
            assert_eq!(enter_for(&second, HOUR).await, 0);
            second.close();
            store.close();
        })
        .unwrap();
}

#[test]
fn a_day_that_slides_and_one_of_the_calendar_count_each_other() {
    for is_closed in [true, false] {
        let scratch = Scratch::new(&format!("both-days-{is_closed}"));
        EventLoop::simulated(1)
            .run_until_complete(async move {
                let timer = Settable::new();
                let calendar = || Limit::rpd(10, "UTC").journaled(1);
                let sliding = || calendar().window(Window::strict(DAY));
                let end = |gate: Gate, store: Store| {
                    if is_closed {
                        gate.close();
                    }
                    store.close();
                };
                let (first, store) = gate(&scratch, &timer, calendar());
                enter(&first, 4).await;
                end(first, store);
                let (second, store) = gate(&scratch, &timer, sliding());
                enter(&second, 3).await;
                assert_eq!(second.stats().limit("rpd").unwrap().used, 7);
                end(second, store);
                let (third, store) = gate(&scratch, &timer, calendar());
                assert_eq!(enter_for(&third, HOUR).await, 3, "of ten, seven are used");
                end(third, store);
                // After midnight the calendar's day is new, the other is not.
                sleep(12 * HOUR).await;
                let (fourth, store) = gate(&scratch, &timer, sliding());
                assert_eq!(enter_for(&fourth, HOUR).await, 0);
                end(fourth, store);
                let (fifth, store) = gate(&scratch, &timer, calendar());
                assert_eq!(enter_for(&fifth, HOUR).await, 10);
                end(fifth, store);
            })
            .unwrap();
    }
}

/// A request is sent a little after it was admitted: it connects first.
#[test]
fn a_request_that_is_sent_a_little_later_counts_once() {
    for (late, counted) in [(Duration::from_secs(1), 3), (HOUR / 2, 6)] {
        let scratch = Scratch::new(&format!("late-{late:?}"));
        EventLoop::simulated(1)
            .run_until_complete(async move {
                let (timer, limit) =
                    (Settable::new(), || Limit::rpd(10, "UTC").window(Window::strict(DAY)).journaled(1));
                let (first, store) = gate(&scratch, &timer, limit());
                let mut leases = Vec::new();
                for _ in 0..3 {
                    leases.push(first.enter(first.unscoped(), Cost::request()).await.unwrap());
                }
                sleep(late).await;
                leases.iter_mut().for_each(tidegate_limit::Lease::sent);
                drop(leases);
                first.close();
                store.close();
                let (second, _store) = gate(&scratch, &timer, limit());
                let used = second.stats().limit("rpd").unwrap().used;
                // What is sent much later is reserved for that time, too.
                assert!((3..=counted).contains(&used), "{used} after {late:?}");
                // And none of it leaves the window earlier than a day after it was sent.
                sleep(DAY - Duration::from_secs(1)).await;
                assert!(second.stats().limit("rpd").unwrap().used >= 3, "{late:?}");
            })
            .unwrap();
    }
}

/// Two gates and a third that starts later; the clock is set in between.
fn after_the_clock_is_set(name: &str, limit: &Limit, set: impl Fn(&Settable) + 'static) -> [usize; 3] {
    let (scratch, limit) = (Scratch::new(name), limit.clone());
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let timer = Settable::new();
            let (first, _first_store) = gate(&scratch, &timer, limit.clone());
            let (second, second_store) = gate(&scratch, &timer, limit.clone());
            enter(&first, 6).await;
            enter(&second, 4).await;
            second.close();
            second_store.close();
            assert_eq!(enter_for(&first, Duration::from_secs(1)).await, 0);
            set(&timer);
            // Long enough for the gate to look at the wall clock.
            sleep(Duration::from_secs(2)).await;
            let (third, _third_store) = gate(&scratch, &timer, limit);
            let mut more = [0; 3];
            for (gate, more) in [&first, &third].into_iter().zip(&mut more) {
                *more = enter_for(gate, Duration::from_secs(20)).await;
            }
            // And when the minute is over.
            sleep(Duration::from_secs(60)).await;
            more[2] = enter_for(&third, Duration::from_secs(600)).await.min(10);
            more
        })
        .unwrap()
}

#[test]
fn a_clock_that_is_set_back_gives_nothing_back() {
    let (day, minute) = (Limit::rpd(10, "UTC").journaled(2), Limit::rpm(10).journaled(2));
    for back in [Duration::from_secs(5), HOUR, 13 * HOUR, 30 * DAY] {
        let set = move |timer: &Settable| timer.set_back(back);
        assert_eq!(after_the_clock_is_set("day-back", &day, set), [0, 0, 0], "{back:?}");
        assert_eq!(after_the_clock_is_set("minute-back", &minute, set), [0, 0, 10], "{back:?}");
    }
}

#[test]
fn a_clock_that_is_set_ahead_is_believed() {
    let day = Limit::rpd(10, "UTC").journaled(2);
    let hour = after_the_clock_is_set("hour-ahead", &day, |timer| timer.set(HOUR));
    assert_eq!(hour, [0, 0, 0], "the same day");
    let [first, third, _] = after_the_clock_is_set("day-ahead", &day, |timer| timer.set(DAY));
    assert_eq!(first + third, 10, "the next day, which they share");
    // The gate that has seen the minute knows better than the clock.
    let minute = Limit::rpm(10).journaled(2);
    let [first, ..] = after_the_clock_is_set("minute-ahead", &minute, |timer| timer.set(DAY));
    assert_eq!(first, 0);
}

#[test]
fn a_clock_that_was_wrong_for_a_while_costs_no_day_to_come() {
    let scratch = Scratch::new("wrong");
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let (timer, limit) = (Settable::new(), || Limit::rpd(10, "UTC").journaled(2));
            timer.set(1_000 * DAY);
            let (wrong, store) = gate(&scratch, &timer, limit());
            enter(&wrong, 7).await;
            wrong.close();
            store.close();
            timer.set(Duration::ZERO);
            let (right, store) = gate(&scratch, &timer, limit());
            assert_eq!(right.stats().limit("rpd").unwrap().used, 7, "nothing is given back");
            assert_eq!(enter_for(&right, HOUR).await, 3);
            right.close();
            store.close();
            sleep(DAY).await;
            let (tomorrow, _store) = gate(&scratch, &timer, limit());
            assert_eq!(enter_for(&tomorrow, HOUR).await, 10);
        })
        .unwrap();
}
