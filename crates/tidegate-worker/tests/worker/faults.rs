//! Whatever the broker and the machine do, none is lost and every stop ends: by the seed.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{LoopHandle, explore, sleep, spawn};
use tidegate_worker::codec::native;
use tidegate_worker::faulty::{Faulty, Plan};
use tidegate_worker::{
    Backoff, Broker, Coroutines, Envelope, HandlerError, Handlers, Master, MemoryBroker, Policies, Policy, Settings,
    Stop, Task, TaskContext, TaskId, TaskState,
};

use crate::support::{QUEUE, now};

const TASKS: u64 = 30;

/// How often each was begun and finished, in all lives together.
#[derive(Default)]
struct Runs {
    begun: RefCell<HashMap<TaskId, u32>>,
    finished: RefCell<HashMap<TaskId, u32>>,
}

fn handlers(runs: &Rc<Runs>, finished_here: &Rc<RefCell<HashSet<TaskId>>>) -> Handlers {
    let (runs, here) = (Rc::clone(runs), Rc::clone(finished_here));
    Handlers::new().task("work", move |context: TaskContext, millis: u64, fate: String| {
        let (runs, here) = (Rc::clone(&runs), Rc::clone(&here));
        async move {
            let id = context.id().clone();
            *runs.begun.borrow_mut().entry(id.clone()).or_default() += 1;
            sleep(Duration::from_millis(millis)).await;
            match fate.as_str() {
                "fails" => return Err(HandlerError::failed("as planned")),
                "panics" => panic!("as planned"),
                "hangs" if context.retries() == 0 => std::future::pending().await,
                "retries" if context.retries() == 0 => return Err(HandlerError::retry("as planned")),
                _ => {}
            }
            *runs.finished.borrow_mut().entry(id.clone()).or_default() += 1;
            here.borrow_mut().insert(id);
            Ok(())
        }
    })
}

fn settings(random: &mut fastrand::Rng) -> Settings {
    let mut settings = Settings::new([QUEUE]);
    settings.prefetch = Some(random.usize(1..12));
    settings.warm_timeout = Duration::from_millis(random.u64(0..5_000));
    settings.policies = Policies::new(Policy {
        retries_max: 1_000,
        // Every lost lease and every death counts as a crash; here they are the machine's fault, not the task's.
        crashes_max: u32::MAX,
        hard_limit: Some(Duration::from_secs(20)),
        backoff: Backoff { min: Duration::from_millis(10), max: Duration::from_secs(5) },
        ..Policy::default()
    })
    .task("fails", Policy::default());
    settings
}

fn task(random: &mut fastrand::Rng) -> (Task, &'static str) {
    let fate = *random.choice(&["succeeds", "succeeds", "succeeds", "fails", "panics", "hangs", "retries"]).unwrap();
    (Task::new("work").arg(random.u64(0..3_000)).arg(fate), fate)
}

/// One life of a worker on a broker with faults, until it dies by plan or is stopped.
async fn live(memory: &MemoryBroker, runs: &Rc<Runs>, plan: Plan, random: &mut fastrand::Rng) {
    let losing = memory.connect();
    let broker = Rc::new(Faulty::new(Rc::new(memory.connect()), plan, move || losing.lose_leases()));
    let here = Rc::<RefCell<HashSet<TaskId>>>::default();
    let settings = settings(random);
    let limit = settings.stop_limit();
    let mode = Coroutines::new(handlers(runs, &here)).with_slots(random.usize(1..6));
    let crashed = broker.crashed();
    let master = Master::new(broker, Rc::new(mode), settings);
    let worker = master.handle();
    let running = spawn(master.run());
    let stop_after = Duration::from_millis(random.u64(0..20_000));
    let how = if random.bool() { Stop::Warm } else { Stop::Cold };

    let died = {
        let mut crashed = pin!(crashed);
        let mut time = pin!(sleep(stop_after));
        poll_fn(|cx| match crashed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => time.as_mut().poll(cx).map(|()| false),
        })
        .await
    };
    if died {
        // As after kill -9: nothing of it goes on.
        running.cancel();
        let _ = running.await;
        return;
    }
    let asked = now();
    worker.stop(how);
    // It may still die by plan, in the middle of its stop; then nothing it asks is answered, and its limits have to do.
    let ended = running.await.unwrap();
    assert!(now() - asked <= limit, "a stop took {:?}, allowed are {limit:?}", now() - asked);
    // A start that failed for good is a worker that never ran.
    if let Ok(report) = ended
        && report.unsettled == 0
        && report.lost == 0
    {
        for id in &here.take() {
            let result = memory.result(id).await.unwrap().expect("what finished was acknowledged");
            assert_eq!(result.state, TaskState::Succeeded, "{id} finished and was not acknowledged");
        }
    }
}

async fn ride(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let memory = MemoryBroker::new();
    let runs = Rc::<Runs>::default();
    let fates = Rc::new(RefCell::new(HashMap::new()));
    let published = Rc::new(Cell::new(0));
    let publisher = spawn({
        let (client, mut random) = (memory.connect(), random.fork());
        let (fates, published) = (Rc::clone(&fates), Rc::clone(&published));
        async move {
            for _ in 0..TASKS {
                let (task, fate) = task(&mut random);
                fates.borrow_mut().insert(task.id.clone(), fate);
                let mut envelope = Envelope::of(&task, QUEUE, native::encode(&task));
                if random.u8(0..4) == 0 {
                    envelope.eta = Some(client.now() + jiff::SignedDuration::from_secs(random.i64(0..30)));
                }
                envelope.priority = random.u8(0..10);
                client.publish(vec![envelope]).await.unwrap();
                published.set(published.get() + 1);
                sleep(Duration::from_millis(random.u64(0..1_500))).await;
            }
        }
    });
    // Two workers at a time, each with several lives.
    let lives: Vec<_> = (0..2)
        .map(|_| {
            let (memory, runs, mut random) = (memory.connect(), Rc::clone(&runs), random.fork());
            spawn(async move {
                for _ in 0..random.u8(1..4) {
                    let plan = Plan::rough(random.u64(..), 80);
                    live(&memory, &runs, plan, &mut random).await;
                }
            })
        })
        .collect();
    for life in lives {
        life.await.unwrap();
    }
    publisher.await.unwrap();

    // A last worker with a broker that works, until everything has an end.
    let mut last = settings(&mut random);
    last.policies = Policies::new(Policy { retries_max: 3, crashes_max: u32::MAX, ..last.policies.of("any").clone() });
    let master =
        Master::new(Rc::new(memory.connect()), Rc::new(Coroutines::new(handlers(&runs, &Rc::default()))), last);
    let worker = master.handle();
    let running = spawn(master.run());
    let fates = fates.take();
    for (id, fate) in &fates {
        let result = memory.wait_result(id).await.unwrap();
        let expected = if matches!(*fate, "fails" | "panics") { TaskState::Failed } else { TaskState::Succeeded };
        assert_eq!(result.state, expected, "{id} {fate}");
        let finished = runs.finished.borrow().get(id).copied().unwrap_or(0);
        assert_eq!(finished > 0, expected == TaskState::Succeeded, "{id} {fate} finished {finished} times");
    }
    worker.stop(Stop::Warm);
    let report = running.await.unwrap().unwrap();
    assert_eq!(report.unsettled, 0);
    let queue = &memory.inspect().await.unwrap()[0];
    assert_eq!((queue.ready, queue.delayed, queue.running), (0, 0, 0), "at {:?}", LoopHandle::current().time());
    let dead = memory.dead(None, 1_000).await.unwrap();
    assert_eq!(dead.len(), fates.values().filter(|fate| matches!(**fate, "fails" | "panics")).count());
}

/// Which seeds: those that `TIDEGATE_SEEDS=FROM..TO` names, many in a soak, some otherwise.
fn seeds(soak: u64, some: u64) -> std::ops::Range<u64> {
    if let Some((from, to)) = std::env::var("TIDEGATE_SEEDS").ok().as_deref().and_then(|range| range.split_once("..")) {
        return from.parse().expect("a seed")..to.parse().expect("a seed");
    }
    0..if std::env::var_os("TIDEGATE_SOAK").is_some() { soak } else { some }
}

#[test]
fn none_is_lost_and_every_stop_ends_whatever_goes_wrong() {
    std::panic::set_hook(Box::new({
        let usual = std::panic::take_hook();
        // The handlers' own panics, thousands of them, are part of the plan.
        move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&"as planned") {
                usual(panic);
            }
        }
    }));
    explore(seeds(10_000, 150), ride);
}
