//! A broker that misbehaves by a seed: for tests of what must hold whatever happens.
//!
//! It wraps another broker. Every operation is a step; by chance a step takes long, fails before anything was done, fails
//! although everything was done, or costs every consumer its leases. At a chosen step the process that uses it dies: from then on
//! nothing it asks is ever answered, and [`Faulty::crashed`] asks the test to drop it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, pending};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use jiff::Timestamp;
use tidegate_loop::sleep;
use tidegate_sync::Event;

use crate::broker::{
    Broker, BrokerError, Capabilities, Consumer, DeadLetter, Incoming, Local, Published, QueueStats, Selection,
    Settled, Settlement, Subscription, TaskResult,
};
use crate::task::{Envelope, TaskId};

/// What goes wrong, and how often: chances are of one step, 0 to 1.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The same seed does the same.
    pub seed: u64,
    /// A step takes up to this long.
    pub slow_max: Duration,
    /// It fails, and nothing was done.
    pub fails_before: f64,
    /// It was done, and the answer says that it failed.
    pub fails_after: f64,
    /// Every consumer loses what it has.
    pub loses_leases: f64,
    /// The process dies at this step; `None`: never.
    pub crash_at: Option<u64>,
}

impl Plan {
    /// Nothing goes wrong.
    pub fn quiet(seed: u64) -> Plan {
        Plan { seed, slow_max: Duration::ZERO, fails_before: 0.0, fails_after: 0.0, loses_leases: 0.0, crash_at: None }
    }

    /// A bit of everything, with a crash within the first `steps`; drawn from the seed.
    pub fn rough(seed: u64, steps: u64) -> Plan {
        let mut rng = Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
        let mut chance = |max: f64| if rng.bool() { rng.f64() * max } else { 0.0 };
        let (fails_before, fails_after, loses_leases) = (chance(0.2), chance(0.2), chance(0.05));
        let slow_max = Duration::from_millis(rng.u64(0..2_000));
        let crash_at = rng.bool().then(|| rng.u64(1..=steps.max(1)));
        Plan { seed, slow_max, fails_before, fails_after, loses_leases, crash_at }
    }
}

struct Faults {
    plan: Plan,
    rng: RefCell<Rng>,
    steps: Cell<u64>,
    dead: Cell<bool>,
    death: Event,
    lose: Box<dyn Fn()>,
}

impl Faults {
    /// One step on the way to doing something. Dies here if it is time to.
    async fn step(&self, what: &str) -> Result<(), BrokerError> {
        self.die_at_its_step().await;
        let (pause, loses, fails) = {
            let mut rng = self.rng.borrow_mut();
            let longest = self.plan.slow_max.as_micros() as u64;
            let pause = if longest > 0 && rng.bool() { rng.u64(0..=longest) } else { 0 };
            (pause, rng.f64() < self.plan.loses_leases, rng.f64() < self.plan.fails_before)
        };
        if pause > 0 {
            sleep(Duration::from_micros(pause)).await;
            self.stay_dead().await;
        }
        if loses {
            (self.lose)();
        }
        if fails {
            return Err(BrokerError::Retry { message: format!("{what}: lost on the way there") });
        }
        Ok(())
    }

    async fn die_at_its_step(&self) {
        let step = self.steps.get() + 1;
        self.steps.set(step);
        if self.plan.crash_at.is_some_and(|at| step >= at) && !self.dead.replace(true) {
            self.death.set();
        }
        self.stay_dead().await;
    }

    /// Never returns after the planned crash: a dead process receives no answers.
    async fn stay_dead(&self) {
        if self.dead.get() {
            pending::<()>().await;
        }
    }

    /// The step back, once it was done.
    async fn answer<T>(&self, what: &str, answer: Result<T, BrokerError>) -> Result<T, BrokerError> {
        self.die_at_its_step().await;
        if answer.is_ok() && self.rng.borrow_mut().f64() < self.plan.fails_after {
            return Err(BrokerError::Retry { message: format!("{what}: done, and the answer was lost") });
        }
        answer
    }
}

/// A broker with faults.
pub struct Faulty {
    inner: Rc<dyn Broker>,
    faults: Rc<Faults>,
}

impl Faulty {
    /// Around `inner`; `lose` makes every consumer of it lose its leases.
    pub fn new(inner: Rc<dyn Broker>, plan: Plan, lose: impl Fn() + 'static) -> Faulty {
        let faults = Faults {
            rng: RefCell::new(Rng::with_seed(plan.seed)),
            plan,
            steps: Cell::new(0),
            dead: Cell::new(false),
            death: Event::new(),
            lose: Box::new(lose),
        };
        Faulty { inner, faults: Rc::new(faults) }
    }

    /// Waits for the planned crash. Everything that uses this broker must be dropped then, as if the process was killed.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call sees the same.
    pub fn crashed(&self) -> impl Future<Output = ()> + use<> {
        let faults = Rc::clone(&self.faults);
        async move { faults.death.wait().await }
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.faults.steps.get()
    }

    fn through<'a, T: 'a>(
        &'a self,
        what: &'static str,
        act: impl Future<Output = Result<T, BrokerError>> + 'a,
    ) -> Local<'a, Result<T, BrokerError>> {
        Box::pin(async move {
            self.faults.step(what).await?;
            let answer = act.await;
            self.faults.answer(what, answer).await
        })
    }
}

impl Broker for Faulty {
    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>> {
        self.through("publish", async move { self.inner.publish(batch).await })
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        self.through("subscribe", async move {
            let inner = self.inner.subscribe(what).await?;
            Ok(Rc::new(FaultyConsumer { inner, faults: Rc::clone(&self.faults) }) as Rc<dyn Consumer>)
        })
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        self.through("inspect", async move { self.inner.inspect().await })
    }

    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>> {
        let queue = queue.to_owned();
        self.through("peek", async move { self.inner.peek(&queue, limit).await })
    }

    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>> {
        let queue = queue.to_owned();
        self.through("purge", async move { self.inner.purge(&queue).await })
    }

    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>> {
        let queue = queue.map(str::to_owned);
        self.through("dead", async move { self.inner.dead(queue.as_deref(), limit).await })
    }

    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.through("dead_retry", async move { self.inner.dead_retry(which).await })
    }

    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.through("dead_drop", async move { self.inner.dead_drop(which).await })
    }

    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>> {
        let id = id.clone();
        self.through("revoke", async move { self.inner.revoke(&id).await })
    }

    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>> {
        let id = id.clone();
        self.through("result", async move { self.inner.result(&id).await })
    }

    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>> {
        let id = id.clone();
        self.through("wait_result", async move { self.inner.wait_result(&id).await })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        self.through("close", async move { self.inner.close().await })
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("plan", &self.faults.plan).field("steps", &self.steps()).finish_non_exhaustive()
    }
}

struct FaultyConsumer {
    inner: Rc<dyn Consumer>,
    faults: Rc<Faults>,
}

impl Consumer for FaultyConsumer {
    /// Never loses an answer: what was handed out would be gone without a trace, which no broker does to a live connection.
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>> {
        Box::pin(async move {
            self.faults.step("recv_all").await?;
            self.inner.recv_all().await
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>> {
        Box::pin(async move {
            self.faults.step("settle").await?;
            let answer = self.inner.settle(batch).await;
            self.faults.answer("settle", answer).await
        })
    }

    fn stop(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.faults.step("stop").await?;
            let answer = self.inner.stop().await;
            self.faults.answer("stop", answer).await
        })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.faults.step("close").await?;
            let answer = self.inner.close().await;
            self.faults.answer("close", answer).await
        })
    }
}
