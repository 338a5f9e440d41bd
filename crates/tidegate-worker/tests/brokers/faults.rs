//! Slow, lossy, crashing: whatever happens, no task is lost and none is acknowledged twice.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{explore, sleep};
use tidegate_worker::faulty::{Faulty, Plan};
use tidegate_worker::{
    Broker, BrokerError, Consumer, Envelope, Incoming, MemoryBroker, Settled, Settlement, SqliteBroker, Subscription,
    TaskId, Verdict, sqlite,
};

const TASKS: usize = 12;

/// What the world saw, kept outside of every process.
#[derive(Default)]
struct Record {
    runs: RefCell<BTreeMap<TaskId, u32>>,
    /// Acknowledged, and the broker said so.
    done: RefCell<BTreeSet<TaskId>>,
}

/// Repeats what may pass; a crash never returns from here.
async fn insist<T, F: Future<Output = Result<T, BrokerError>>>(mut act: impl FnMut() -> F) -> T {
    loop {
        match act().await {
            Ok(done) => return done,
            Err(BrokerError::Retry { .. }) => sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

fn what() -> Subscription {
    Subscription { queues: vec!["q".into()], prefetch: 4, consumer: "faults".into() }
}

/// A worker as simple as can be: runs for ever.
async fn work(broker: Rc<dyn Broker>, record: Rc<Record>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let consumer: Rc<dyn Consumer> = insist(|| broker.subscribe(what())).await;
    loop {
        let mut batch = Vec::new();
        let mut acks = Vec::new();
        for incoming in insist(|| consumer.recv_all()).await {
            let Incoming::Delivery(delivery) = incoming else { continue };
            let id = delivery.envelope.id.clone();
            *record.runs.borrow_mut().entry(id.clone()).or_default() += 1;
            let soon = broker.now().checked_add(Duration::from_millis(rng.u64(0..500))).unwrap();
            let verdict = match rng.u8(0..6) {
                0 => Verdict::Return,
                1 => Verdict::Retry { at: soon },
                2 => Verdict::Crash { at: soon },
                _ => Verdict::Ack,
            };
            acks.push((verdict == Verdict::Ack).then_some(id));
            batch.push(Settlement { tag: delivery.tag, verdict, result: None });
        }
        let settled = insist(|| consumer.settle(batch.clone())).await;
        for (settled, ack) in settled.iter().zip(acks) {
            if let (Settled::Done, Some(id)) = (settled, ack) {
                assert!(record.done.borrow_mut().insert(id.clone()), "{id} was acknowledged twice");
            }
        }
    }
}

/// Runs `process` until it is over or the plan kills it.
async fn until_crash(process: impl Future<Output = ()>, crash: impl Future<Output = ()>) {
    let (mut process, mut crash) = (pin!(process), pin!(crash));
    poll_fn(|cx| {
        if crash.as_mut().poll(cx).is_ready() || process.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// One producer and two workers, each killed and started again as its plan says, until everything is done.
async fn rough_ride(seed: u64, connect: impl AsyncFn() -> Rc<dyn Broker>, lose: impl Fn() + Clone + 'static) {
    let record = Rc::new(Record::default());
    let tasks: Vec<Envelope> = (0..TASKS).map(|n| Envelope::new("q", n.to_string().into_bytes())).collect();
    let ids: BTreeSet<TaskId> = tasks.iter().map(|task| task.id.clone()).collect();
    let finished = Rc::new(Cell::new(false));
    let mut lives = Vec::new();
    for who in 0..2 {
        let (record, finished, lose) = (Rc::clone(&record), Rc::clone(&finished), lose.clone());
        let mut brokers = Vec::new();
        for _ in 0..4 {
            brokers.push(connect().await);
        }
        lives.push(tidegate_loop::spawn(async move {
            for (life, inner) in brokers.into_iter().enumerate() {
                if finished.get() {
                    return;
                }
                let plan_seed = seed.wrapping_mul(31).wrapping_add(who * 4 + life as u64);
                let mut plan = Plan::rough(plan_seed, 60);
                if life == 3 {
                    // The last one lives to see the end.
                    plan.crash_at = None;
                }
                let faulty = Rc::new(Faulty::new(inner, plan, lose.clone()));
                let crash = faulty.crashed();
                until_crash(work(faulty, Rc::clone(&record), plan_seed), crash).await;
            }
        }));
    }
    let mut plan = Plan::rough(seed, 1);
    plan.crash_at = None;
    // An answer that is lost after the task was run and settled means a second publish: at least once, and no fault.
    plan.fails_after = 0.0;
    let publisher = Rc::new(Faulty::new(connect().await, plan, lose));
    for pair in tasks.chunks(2) {
        insist(|| publisher.publish(pair.to_vec())).await;
    }
    let watcher = connect().await;
    loop {
        sleep(Duration::from_secs(1)).await;
        let left: u64 = watcher.inspect().await.unwrap().iter().map(|it| it.ready + it.running + it.delayed).sum();
        if left == 0 {
            break;
        }
        if let Some(at) = lives.iter().position(tidegate_loop::JoinHandle::is_finished) {
            lives.swap_remove(at).await.expect("the last life of a worker does not end");
        }
    }
    finished.set(true);
    for life in &lives {
        life.cancel();
    }
    let runs = record.runs.borrow();
    assert_eq!(runs.keys().cloned().collect::<BTreeSet<_>>(), ids, "every task ran");
}

/// Which seeds: those that `TIDEGATE_SEEDS=FROM..TO` names, many in a soak, some otherwise.
fn seeds(soak: u64, some: u64) -> std::ops::Range<u64> {
    if let Some((from, to)) = std::env::var("TIDEGATE_SEEDS").ok().as_deref().and_then(|range| range.split_once("..")) {
        return from.parse().expect("a seed")..to.parse().expect("a seed");
    }
    0..if std::env::var_os("TIDEGATE_SOAK").is_some() { soak } else { some }
}

#[test]
fn in_memory_no_fault_loses_a_task() {
    explore(seeds(10_000, 1_000), |seed| async move {
        let broker = Rc::new(MemoryBroker::new());
        let (connecting, losing) = (Rc::clone(&broker), Rc::clone(&broker));
        let connect = async || Rc::new(connecting.connect()) as Rc<dyn Broker>;
        rough_ride(seed, connect, move || losing.lose_leases()).await;
    });
}

#[test]
fn in_a_file_no_fault_loses_a_task() {
    explore(seeds(10_000, 40), |seed| async move {
        let directory = tempfile::tempdir().unwrap();
        let mut options = sqlite::Options::new(directory.path().join("queue.db"));
        options.sync_publishes = false;
        options.ballast_bytes = 0;
        let broker = Rc::new(SqliteBroker::open_with(options).await.unwrap());
        let (connecting, losing) = (Rc::clone(&broker), Rc::clone(&broker));
        let connect = async || Rc::new(connecting.connect().await.unwrap()) as Rc<dyn Broker>;
        let lose = move || {
            let losing = Rc::clone(&losing);
            tidegate_loop::spawn(async move { losing.expire_leases().await.map(drop).unwrap_or_default() });
        };
        rough_ride(seed, connect, lose).await;
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
    });
}
