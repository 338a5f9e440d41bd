//! Random loads against a gate, in virtual time and in many orders of equally ready tasks. Every entry is held against a
//! model that keeps all there ever was and adds it up.
//!
//! A failure prints its seed; `TIDEGATE_SEED=<seed>` runs that one alone.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tidegate_limit::{Cost, Dimension, EnterError, Gate, Limit, Scope, SkipAhead, Window};
use tidegate_loop::{Duration, Instant, LoopHandle, explore, sleep, spawn, timeout, yield_now};

const SEEDS: u64 = 300;
const ENTRIES: usize = 150;

/// SplitMix64: small, seeded, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// One strict limit as the model sees it.
struct Strict {
    name: &'static str,
    dimension: Dimension,
    amount: Cell<u64>,
    window: Duration,
    /// The highest amount so far.
    highest: Cell<u64>,
}

struct Entry {
    at: Instant,
    cost: Cost,
}

struct World {
    gate: Gate,
    scopes: Vec<(Scope, Cell<u64>)>,
    strict: Vec<Strict>,
    slots: Cell<u64>,
    log: RefCell<Vec<Entry>>,
    inside: Cell<u64>,
    inside_scope: Vec<Cell<u64>>,
    /// The latest comer of each cost that went in, and when, by scope: equal costs never pass each other.
    last_in: RefCell<Vec<HashMap<u64, (usize, Instant)>>>,
    changed: Cell<bool>,
}

fn now() -> Instant {
    LoopHandle::current().time()
}

impl World {
    /// An entry was admitted: checks that there was nothing to wait for.
    fn went_in(&self, scope: usize, cost: &Cost) {
        let now = now();
        self.inside.set(self.inside.get() + 1);
        self.inside_scope[scope].set(self.inside_scope[scope].get() + 1);
        self.log.borrow_mut().push(Entry { at: now, cost: cost.clone() });
        for strict in &self.strict {
            let log = self.log.borrow();
            let in_window = log.iter().filter(|entry| now - entry.at < strict.window);
            let total: u64 = in_window.map(|entry| entry.cost.of(strict.dimension)).sum();
            // Leases granted before a limit was lowered stay; no other entry is admitted above it.
            let bound = if self.changed.get() { strict.highest.get() } else { strict.amount.get() };
            assert!(total <= bound, "{total} in a window of {}, and {bound} may", strict.name);
        }
        assert!(self.inside.get() <= 12, "{} inside", self.inside.get());
    }

    fn went_out(&self, scope: usize) {
        self.inside.set(self.inside.get() - 1);
        self.inside_scope[scope].set(self.inside_scope[scope].get() - 1);
    }

    fn settled(&self, at: usize, cost: Cost) {
        self.log.borrow_mut()[at].cost = cost;
    }
}

async fn entry(world: Rc<World>, number: usize, scope: usize, cost: Cost, plan: Plan) {
    let entering = world.gate.enter(&world.scopes[scope].0, cost.clone());
    let entered = match plan.patience {
        Some(patience) => match timeout(patience, entering).await {
            Ok(entered) => entered,
            Err(_elapsed) => return,
        },
        None => entering.await,
    };
    let mut lease = match entered {
        Ok(lease) => lease,
        Err(EnterError::TooLarge { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    if !world.changed.get() && plan.patience.is_none() {
        let key = cost.of(Dimension::TOKENS);
        let mut last_in = world.last_in.borrow_mut();
        // Entries admitted at the same instant take their leases in any order.
        let (latest, at) = *last_in[scope].entry(key).or_insert((number, now()));
        assert!(latest <= number || at == now(), "{number} came before {latest} and went in after it");
        last_in[scope].insert(key, (latest.max(number), now()));
    }
    if plan.never_sent {
        return;
    }
    lease.sent();
    world.went_in(scope, &cost);
    let at = world.log.borrow().len() - 1;
    sleep(plan.stays).await;
    if let Some(less) = plan.settles {
        let actual = Cost::tokens(cost.of(Dimension::TOKENS).saturating_sub(less));
        lease.settle(actual.clone());
        world.settled(at, actual);
    }
    world.went_out(scope);
    drop(lease);
}

#[derive(Clone, Copy)]
struct Plan {
    patience: Option<Duration>,
    never_sent: bool,
    stays: Duration,
    settles: Option<u64>,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn one_program(seed: u64) {
    let mut rng = Rng(seed);
    let strict = vec![
        Strict {
            name: "requests",
            dimension: Dimension::REQUESTS,
            amount: Cell::new(5 + rng.below(20)),
            window: ms(100 + rng.below(900)),
            highest: Cell::new(0),
        },
        Strict {
            name: "tokens",
            dimension: Dimension::TOKENS,
            amount: Cell::new(100 + rng.below(400)),
            window: ms(100 + rng.below(2_000)),
            highest: Cell::new(0),
        },
    ];
    strict.iter().for_each(|strict| strict.highest.set(strict.amount.get()));
    let skip_ahead = if rng.below(3) == 0 { SkipAhead::OFF } else { SkipAhead::default() };
    let slots = 1 + rng.below(12);
    let mut builder = Gate::builder().limit(Limit::concurrency("slots", slots)).skip_ahead(skip_ahead);
    for strict in &strict {
        let window = Window::strict(strict.window);
        builder = builder.limit(Limit::rate(strict.name, strict.dimension, strict.amount.get(), window));
    }
    let gate = builder.build().unwrap();
    let caps: Vec<u64> = (0..3).map(|_| 1 + rng.below(8)).collect();
    let scopes = caps.iter().map(|cap| (gate.scope(format!("cap {cap}"), *cap), Cell::new(*cap))).collect();
    let world = Rc::new(World {
        gate,
        scopes,
        strict,
        slots: Cell::new(slots),
        log: RefCell::default(),
        inside: Cell::default(),
        inside_scope: vec![Cell::default(); 3],
        last_in: RefCell::new(vec![Default::default(); 3]),
        changed: Cell::default(),
    });
    let resizes = rng.below(2) == 0;
    let mut tasks = Vec::new();
    for number in 0..ENTRIES {
        let plan = Plan {
            patience: (rng.below(5) == 0).then(|| ms(rng.below(1_500))),
            never_sent: rng.below(8) == 0,
            stays: Duration::from_micros(rng.below(40_000)),
            settles: (rng.below(4) == 0).then(|| rng.below(60)),
        };
        let cost = Cost::tokens(if rng.below(10) == 0 { rng.below(100) } else { rng.below(12) });
        let scope = rng.below(3) as usize;
        let task = spawn(entry(Rc::clone(&world), number, scope, cost, plan));
        if rng.below(15) == 0 {
            task.cancel();
        }
        tasks.push(task);
        // The order of arrival is the order of numbers.
        yield_now().await;
        if resizes && rng.below(20) == 0 {
            resize(&mut rng, &world);
        }
        if rng.below(4) == 0 {
            sleep(Duration::from_micros(rng.below(200_000))).await;
        }
    }
    for (name, least) in [("slots", 3), ("requests", 5), ("tokens", 200)] {
        if world.gate.stats().limit(name).unwrap().amount < least {
            world.changed.set(true);
            world.strict.iter().filter(|strict| strict.name == name).for_each(|strict| {
                strict.highest.set(strict.highest.get().max(least));
            });
            world.gate.set(name, least).unwrap();
        }
    }
    for task in tasks {
        if let Err(tidegate_loop::JoinError::Panicked(panic)) = task.await {
            panic.resume(); // an assertion in it failed
        }
    }
    at_rest(&world).await;
}

fn resize(rng: &mut Rng, world: &World) {
    world.changed.set(true);
    match rng.below(4) {
        0 => {
            world.slots.set(rng.below(12));
            world.gate.set("slots", world.slots.get()).unwrap();
        }
        1 => world.scopes[rng.below(3) as usize].0.resize(1 + rng.below(8)),
        _ => {
            let strict = &world.strict[rng.below(2) as usize];
            strict.amount.set(strict.amount.get() / 2 + rng.below(strict.amount.get() + 1));
            strict.highest.set(strict.highest.get().max(strict.amount.get()));
            world.gate.set(strict.name, strict.amount.get()).unwrap();
        }
    }
}

/// Nothing is left behind, and with nothing to do nothing happens.
async fn at_rest(world: &World) {
    let stats = world.gate.stats();
    assert_eq!((stats.current, stats.waiting, world.inside.get()), (0, 0, 0), "{stats:?}");
    assert_eq!(stats.limit("slots").unwrap().used, 0);
    assert!(stats.scopes.iter().all(|scope| scope.current == 0 && scope.waiting == 0), "{stats:?}");
    let (alarms, steps) = (stats.alarms, LoopHandle::current().metrics().steps);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.gate.stats().alarms, alarms, "an alarm went off in an idle hour");
    assert!(LoopHandle::current().metrics().steps - steps <= 3);
    let stats = world.gate.stats();
    assert!(stats.limits.iter().all(|limit| limit.used == 0), "an hour later nothing counts any more: {stats:?}");
}

#[test]
fn random_schedules_keep_the_windows_and_the_order_and_leak_nothing() {
    explore(0..SEEDS, one_program);
}
