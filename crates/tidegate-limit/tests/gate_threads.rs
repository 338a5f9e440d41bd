//! One gate, many threads, real time: entries are made, settled and dropped in every state. Nothing is lost, nothing leaks,
//! and the cap is never exceeded.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tidegate_limit::{Cost, Dimension, EnterError, Gate, Lease, Limit, SkipAhead, ThreadTimer, Window};

/// Unparks its thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            // A wake-up that was lost would leave it here for ever.
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once, and gives up.
fn glance(future: impl Future<Output = Result<Lease, EnterError>>) -> Option<Lease> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(lease) => Some(lease.unwrap()),
        Poll::Pending => None,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const THREADS: u64 = 6;
const CAP: u64 = 3;
const SCOPE_CAP: u64 = 2;

/// The number of leases, counted by their holders.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn hold(&self, cap: u64) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= cap, "{now} at once, {cap} may");
        thread::yield_now();
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn hammer(gate: &Gate, rounds: u64) {
    let scopes = [gate.scope("a", SCOPE_CAP), gate.scope("b", SCOPE_CAP)];
    let (all, in_scope) = (Count::default(), [Count::default(), Count::default()]);
    thread::scope(|threads| {
        for seed in 0..THREADS {
            let (scopes, all, in_scope) = (&scopes, &all, &in_scope);
            threads.spawn(move || {
                let mut random = Random(seed + 1);
                for _ in 0..rounds {
                    let which = random.below(2) as usize;
                    let cost = Cost::tokens(1 + random.below(9));
                    let entering = gate.enter(&scopes[which], cost);
                    let lease = if random.below(4) == 0 { glance(entering) } else { Some(block_on(entering).unwrap()) };
                    let Some(mut lease) = lease else { continue };
                    in_scope[which].hold(SCOPE_CAP);
                    all.hold(CAP);
                    match random.below(4) {
                        0 => drop(lease),
                        1 => {
                            lease.sent();
                            lease.settle(Cost::tokens(random.below(12)));
                        }
                        _ => lease.sent(),
                    }
                }
            });
        }
        threads.spawn(|| {
            // Changes the limits meanwhile, and restores them at the end.
            for turn in 0..rounds {
                gate.set("slots", 1 + turn % CAP).unwrap();
                scopes[0].resize(turn % (SCOPE_CAP + 1));
                gate.pause("tokens", Duration::from_micros(20)).unwrap();
                thread::yield_now();
            }
            gate.set("slots", CAP).unwrap();
            scopes[0].resize(SCOPE_CAP);
        });
    });
}

fn assert_empty(gate: &Gate) {
    let stats = gate.stats();
    assert_eq!((stats.current, stats.waiting), (0, 0), "{stats:?}");
    assert_eq!(stats.limit("slots").unwrap().used, 0);
    assert!(stats.peak <= CAP);
    assert!(stats.scopes.iter().all(|scope| scope.current == 0 && scope.waiting == 0));
    let leases: Vec<_> = (0..CAP).map(|_| gate.try_enter(gate.unscoped(), Cost::nothing()).unwrap()).collect();
    assert!(gate.try_enter(gate.unscoped(), Cost::nothing()).is_err(), "the cap is there, and no more");
    drop(leases);
}

fn rounds() -> u64 {
    if std::env::var_os("TIDEGATE_SOAK").is_some() { 50_000 } else { 1_500 }
}

#[test]
fn many_threads_lose_no_lease_and_never_pass_the_cap() {
    for skip_ahead in [SkipAhead::default(), SkipAhead::OFF] {
        let gate = Gate::builder()
            .limit(Limit::concurrency("slots", CAP))
            .limit(Limit::rate("tokens", Dimension::TOKENS, 600, Window::strict(Duration::from_millis(2))))
            .limit(Limit::rate("flow", Dimension::TOKENS, 900, Window::bucket(Duration::from_millis(2))))
            .margin(Duration::ZERO..=Duration::ZERO)
            .skip_ahead(skip_ahead)
            .timer(ThreadTimer::default())
            .build()
            .unwrap();
        hammer(&gate, rounds());
        assert_empty(&gate);
    }
}

#[test]
fn closing_a_gate_ends_every_wait_on_any_thread() {
    for _ in 0..50 {
        let gate = Gate::builder()
            .limit(Limit::concurrency("slots", CAP))
            .limit(Limit::rpm(5))
            .timer(ThreadTimer::default())
            .build()
            .unwrap();
        let refused = AtomicU64::new(0);
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    loop {
                        match block_on(gate.enter(gate.unscoped(), Cost::request())) {
                            Ok(mut lease) => lease.sent(),
                            Err(EnterError::Closed) => break,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    refused.fetch_add(1, Ordering::SeqCst);
                });
            }
            while gate.stats().waiting < THREADS as usize {
                thread::yield_now();
            }
            gate.close();
        });
        assert_eq!(refused.into_inner(), THREADS);
        assert_eq!(gate.stats().waiting, 0);
    }
}
