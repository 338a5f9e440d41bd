//! What the limits could have done at best, worked out by brute force, beside what they did. In virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::SystemTime;

use tidegate_limit::{Cost, Dimension, Gate, Limit, Limits, Moment, SkipAhead, Start, Until, Window};
use tidegate_loop::{Duration, EventLoop, LoopHandle, explore, sleep, spawn, yield_now};

const SECOND: u64 = 1_000_000_000;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// At most `amount` in any `window`: everything is kept, everything is added up each time.
struct Strict {
    dimension: Dimension,
    amount: u64,
    window: u64,
    log: Vec<(u64, u64)>,
}

impl Strict {
    fn fits(&self, cost: u64, now: u64) -> bool {
        let used: u64 = self.log.iter().filter(|(at, _)| at + self.window > now).map(|(_, cost)| cost).sum();
        cost == 0 || used + cost <= self.amount
    }
}

/// The earliest instant from `now` on at which all of them take the cost: it can only be now or when an entry leaves.
fn earliest(limits: &[Strict], cost: &Cost, now: u64) -> u64 {
    let leaving = limits.iter().flat_map(|limit| limit.log.iter().map(|(at, _)| at + limit.window));
    let mut instants: Vec<u64> = leaving.filter(|at| *at > now).chain([now]).collect();
    instants.sort_unstable();
    let fits = |at: &u64| limits.iter().all(|limit| limit.fits(cost.of(limit.dimension), *at));
    instants.into_iter().find(fits).expect("when all has left it fits")
}

fn strict(name: &'static str, limit: &Strict) -> Limit {
    Limit::rate(name, limit.dimension, limit.amount, Window::strict(Duration::from_nanos(limit.window)))
}

fn random_limits(rng: &mut Rng) -> [Strict; 2] {
    let requests = Strict {
        dimension: Dimension::REQUESTS,
        amount: 1 + rng.below(40),
        window: 1 + rng.below(SECOND),
        log: Vec::new(),
    };
    let tokens = Strict {
        dimension: Dimension::TOKENS,
        amount: 50 + rng.below(400),
        window: 1 + rng.below(SECOND),
        log: Vec::new(),
    };
    [requests, tokens]
}

#[test]
fn a_denial_names_the_first_instant_at_which_it_fits_whatever_was_booked() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut oracle = random_limits(&mut rng);
        let made = [strict("requests", &oracle[0]), strict("tokens", &oracle[1])];
        let mut limits = Limits::new(made, Moment::ZERO, SystemTime::now()).unwrap();
        let mut now = 0;
        for _ in 0..150 {
            now += rng.below(SECOND / 50);
            let cost = Cost::tokens(rng.below(50));
            let ready = earliest(&oracle, &cost, now);
            match limits.admit(&cost, Moment::from_nanos(now)) {
                Ok(_) => assert_eq!(ready, now, "seed {seed}"),
                Err(denied) => {
                    assert_eq!(denied.until, Until::At(Moment::from_nanos(ready)), "seed {seed}");
                    let early = Moment::from_nanos(ready - 1);
                    assert!(limits.check(&cost, early).is_err(), "seed {seed}: it fits earlier");
                    now = ready;
                    assert!(limits.admit(&cost, Moment::from_nanos(now)).is_ok(), "seed {seed}");
                }
            }
            for limit in &mut oracle {
                limit.log.push((now, cost.of(limit.dimension)));
            }
        }
    }
}

/// All come at once; each goes at the instant the oracle says, in order.
#[test]
fn without_skipping_each_goes_at_the_instant_of_a_perfect_line() {
    explore(0..60, |seed| async move {
        let mut rng = Rng(seed);
        let mut oracle = random_limits(&mut rng);
        let gate = Gate::builder()
            .limits([strict("requests", &oracle[0]), strict("tokens", &oracle[1])])
            .skip_ahead(SkipAhead::OFF)
            .build()
            .unwrap();
        let began = LoopHandle::current().time();
        let went = Rc::new(RefCell::new(Vec::new()));
        let costs: Vec<Cost> = (0..120).map(|_| Cost::tokens(rng.below(50))).collect();
        let mut tasks = Vec::new();
        for (number, cost) in costs.iter().enumerate() {
            let (gate, went, cost) = (gate.clone(), Rc::clone(&went), cost.clone());
            tasks.push(spawn(async move {
                gate.enter(gate.unscoped(), cost).await.unwrap().sent();
                let at = LoopHandle::current().time() - began;
                went.borrow_mut().push((number, at.as_nanos() as u64));
            }));
            yield_now().await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut went = went.take();
        went.sort_unstable();
        let mut now = 0;
        let mut instants = 0;
        for ((number, at), cost) in went.into_iter().zip(&costs) {
            let ready = earliest(&oracle, cost, now);
            assert_eq!(at, ready, "entry {number}");
            instants += u64::from(ready > now);
            now = ready;
            for limit in &mut oracle {
                limit.log.push((now, cost.of(limit.dimension)));
            }
        }
        let stats = gate.stats();
        assert_eq!(
            (stats.alarms, stats.idle_alarms),
            (instants, 0),
            "one alarm for each instant at which an entry is admitted"
        );
    });
}

/// Demand without end, mixed sizes: at least 99 % of what the window lets through, and never more in any.
#[test]
fn with_enough_to_do_a_strict_limit_is_used_to_99_percent_and_never_passed() {
    explore(0..20, |seed| async move {
        const AMOUNT: u64 = 10_000;
        const WINDOWS: u64 = 10;
        let window = Duration::from_secs(6);
        let limit = Limit::rate("tokens", Dimension::TOKENS, AMOUNT, Window::strict(window));
        let gate = Gate::builder().limit(limit).build().unwrap();
        let began = LoopHandle::current().time();
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut rng = Rng(seed);
        for _ in 0..20 {
            let (gate, log, mut rng) = (gate.clone(), Rc::clone(&log), Rng(rng.below(u64::MAX)));
            spawn(async move {
                loop {
                    let tokens = if rng.below(20) == 0 { 400 + rng.below(400) } else { 1 + rng.below(60) };
                    gate.enter(gate.unscoped(), Cost::tokens(tokens)).await.unwrap().sent();
                    log.borrow_mut().push((LoopHandle::current().time(), tokens));
                }
            });
        }
        sleep(window * WINDOWS as u32 - Duration::from_nanos(1)).await;
        let log = log.take();
        let total: u64 = log.iter().map(|(_, tokens)| tokens).sum();
        assert!(total * 100 >= AMOUNT * WINDOWS * 99, "{total} of {}", AMOUNT * WINDOWS);
        let (mut from, mut in_window) = (0, 0);
        for (at, tokens) in &log {
            in_window += tokens;
            while *at - log[from].0 >= window {
                in_window -= log[from].1;
                from += 1;
            }
            assert!(in_window <= AMOUNT, "{in_window} in a window that ends at {:?}", *at - began);
        }
    });
}

#[test]
fn a_large_request_is_not_starved_and_what_it_cannot_use_yet_is_not_idle() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let second = Duration::from_secs(1);
            let limit = Limit::rate("tokens", Dimension::TOKENS, 100, Window::strict(second * 60));
            let gate = Gate::builder().limit(limit).build().unwrap();
            let began = LoopHandle::current().time();
            // 30 leave at 60 s, 60 at 70 s.
            gate.enter(gate.unscoped(), Cost::tokens(30)).await.unwrap().sent();
            sleep(second * 10).await;
            gate.enter(gate.unscoped(), Cost::tokens(60)).await.unwrap().sent();
            let large = spawn({
                let gate = gate.clone();
                async move {
                    gate.enter(gate.unscoped(), Cost::tokens(80)).await.unwrap().sent();
                    LoopHandle::current().time() - began
                }
            });
            sleep(second).await;
            // The large one is due at 70 s and leaves 20: exactly this many may pass, now or as soon as they fit.
            let passed = Rc::new(Cell::new(0));
            for _ in 0..50 {
                let (gate, passed, large) = (gate.clone(), Rc::clone(&passed), large.task());
                spawn(async move {
                    gate.enter(gate.unscoped(), Cost::tokens(1)).await.unwrap().sent();
                    passed.set(passed.get() + u32::from(!large.is_finished()));
                });
            }
            assert_eq!(large.await.unwrap(), second * 70);
            assert_eq!(passed.get(), 20);
        })
        .unwrap();
}

#[test]
fn lowering_is_exact_and_raising_takes_effect_at_once() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let second = Duration::from_secs(1);
            let gate = Gate::builder().limit(Limit::rpm(10)).limit(Limit::concurrency("slots", 4)).build().unwrap();
            let enter = || gate.try_enter(gate.unscoped(), Cost::request());
            let held: Vec<_> = (0..4).map(|_| enter().unwrap()).collect();
            gate.set("slots", 2).unwrap();
            for (freed, mut lease) in held.into_iter().enumerate() {
                lease.sent();
                drop(lease);
                let free = enter();
                assert_eq!(free.is_ok(), freed >= 2, "with {} left", 3 - freed);
            }
            // Four have been sent in this minute.
            gate.set("rpm", 4).unwrap();
            assert!(enter().is_err());
            let waiting = spawn({
                let gate = gate.clone();
                async move {
                    gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
                    LoopHandle::current().time()
                }
            });
            sleep(second).await;
            let raised = LoopHandle::current().time();
            gate.set("rpm", 5).unwrap();
            assert_eq!(waiting.await.unwrap(), raised);
        })
        .unwrap();
}

#[test]
fn a_cold_bucket_never_lets_more_through_in_its_first_window_and_a_full_one_almost_twice() {
    for (start, most) in [(Start::Cold, 60), (Start::Full, 120)] {
        let window = Window::Bucket { per: Duration::from_secs(60), burst: None, start };
        let limit = Limit::rate("rpm", Dimension::REQUESTS, 60, window);
        let mut limits = Limits::new([limit], Moment::ZERO, SystemTime::now()).unwrap();
        let (mut now, mut admitted) = (Moment::ZERO, 0);
        while now < Moment::ZERO + Duration::from_secs(60) {
            match limits.admit(&Cost::request(), now) {
                Ok(_) => admitted += 1,
                Err(denied) => {
                    let Until::At(at) = denied.until else { panic!("{denied:?}") };
                    assert!(at > now);
                    now = at;
                }
            }
        }
        assert!(admitted <= most && admitted >= most - 1, "{start:?}: {admitted}");
    }
}
