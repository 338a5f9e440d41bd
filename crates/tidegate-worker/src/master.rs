//! The master: starts connection, pool and intake in this order, each awaited, and ends them in the order that loses
//! nothing: (1) the connection stops receiving, (2) the pool starts no further task, (3) running tasks finish or are
//! cancelled, (4) finished tasks are settled and the rest returned, (5) the connection is closed.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{JoinHandle, LoopHandle, spawn, timeout};
use tidegate_sync::Event as Bell;

use crate::broker::{Broker, BrokerError, Subscription};
use crate::connection::{Connection, Failure};
use crate::cron::{self, Schedule};
use crate::mode::{Mode, ModeError};
use crate::outcome::OutcomeKind;
use crate::phase::{Event, Phase};
use crate::pool::{Shared, WorkerPool};
use crate::settings::Settings;

/// How a worker is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Running tasks may finish, up to the warm limit.
    Warm,
    /// Running tasks are cancelled at once.
    Cold,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Tasks received.
    pub received: u64,
    /// Confirmed by the broker, by outcome; those that never occurred are left out.
    pub settled: Vec<(OutcomeKind, u64)>,
    /// Returned to their queues uncounted.
    pub returned: u64,
    /// Settlements that came too late.
    pub lost: u64,
    /// Tasks that ended without the broker's confirmation before the stop's time was over; it will deliver them again.
    pub unsettled: u64,
    /// Whether a task had to be cancelled.
    pub cancelled: bool,
    /// From the request to the end.
    pub stop_took: Duration,
}

/// Why a worker did not run, or did not go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum MasterError {
    /// The broker could not be reached; nothing was begun.
    Connection(BrokerError),
    /// The mode could not be started; everything was undone.
    Mode(ModeError),
    /// Starting took too long; everything was undone.
    StartTimeout {
        /// What was being waited for.
        phase: Phase,
        /// The limit.
        limit: Duration,
    },
    /// The broker failed for good while tasks were running. They were ended in order, as far as the broker allowed.
    Broken {
        /// Its error.
        error: BrokerError,
        /// What was done until then.
        report: Report,
    },
}

impl fmt::Display for MasterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MasterError::Connection(error) => write!(f, "cannot receive tasks: {error}"),
            MasterError::Mode(error) => write!(f, "cannot run tasks: {error}"),
            MasterError::StartTimeout { phase, limit } => {
                write!(f, "starting took longer than {limit:?}, while {phase}; raise the limit, or see why")
            }
            MasterError::Broken { error, .. } => write!(f, "the broker does not go on: {error}"),
        }
    }
}

impl std::error::Error for MasterError {}

/// A worker: a broker's tasks run in a mode, until it is stopped.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_worker::codec::native;
/// use tidegate_worker::{
///     Broker, Coroutines, Envelope, HandlerError, Handlers, Master, MemoryBroker, Settings, Stop, Task,
/// };
///
/// async fn add(a: i64, b: i64) -> Result<i64, HandlerError> {
///     Ok(a + b)
/// }
///
/// tidegate_loop::run(async {
///     let broker = Rc::new(MemoryBroker::new());
///     let handlers = Handlers::new().task("add", add);
///     let settings = Settings::new(["default"]);
///     let worker = Master::new(broker.clone(), Rc::new(Coroutines::new(handlers)), settings);
///     let handle = worker.handle();
///     let running = tidegate_loop::spawn(worker.run());
///
///     let task = Task::new("add").arg(3).arg(4);
///     broker.publish(vec![Envelope::of(&task, "default", native::encode(&task))]).await.unwrap();
///     assert_eq!(broker.wait_result(&task.id).await.unwrap().value, 7);
///
///     handle.stop(Stop::Warm);
///     let report = running.await.unwrap().unwrap();
///     assert_eq!((report.received, report.unsettled), (1, 0));
/// })
/// .unwrap();
/// ```
pub struct Master {
    control: Rc<Control>,
    settings: Settings,
}

/// What a master and its handles share.
pub(crate) struct Control {
    pub(crate) shared: Rc<Shared>,
    phase: Cell<Phase>,
    stop: Cell<Option<Stop>>,
    changed: Bell,
}

impl Control {
    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    fn on(&self, event: Event) {
        let before = self.phase.get();
        match before.next(event) {
            Ok(next) => {
                tracing::debug!(from = before.as_str(), to = next.as_str(), ?event, "phase");
                self.phase.set(next);
            }
            Err(illegal) => unreachable!("the master's own steps follow its table: {illegal:?}"),
        }
    }

    /// Waits for a request of at least this kind.
    async fn requested(&self, at_least: Stop) -> Stop {
        loop {
            if let Some(stop) = self.stop.get().filter(|stop| *stop >= at_least) {
                return stop;
            }
            self.changed.clear();
            self.changed.wait().await;
        }
    }
}

/// A handle to a running master; clones are equal.
#[derive(Clone)]
pub struct MasterHandle {
    pub(crate) control: Rc<Control>,
}

impl MasterHandle {
    /// Asks it to stop. A cold request after a warm one counts; a warm one after a cold one does not.
    pub fn stop(&self, how: Stop) {
        if self.control.stop.get().is_none_or(|before| before < how) {
            self.control.stop.set(Some(how));
            self.control.changed.set();
        }
    }

    /// The stop that was asked for, if any.
    pub fn stopping(&self) -> Option<Stop> {
        self.control.stop.get()
    }

    /// Replaces every child process by a new one, each after its current task.
    pub fn recycle(&self) {
        self.control.shared.mode.recycle();
    }

    /// The phase between start and end.
    pub fn phase(&self) -> Phase {
        self.control.phase.get()
    }

    /// Its counters now.
    pub fn stats(&self) -> WorkerStats {
        let counters = &self.control.shared.counters;
        WorkerStats {
            received: counters.received.get(),
            running: counters.running.get(),
            running_peak: counters.running_peak.get(),
            in_hand: self.control.shared.hands.len() as u64,
            waiting_for_limit: counters.waiting_for_limit.get(),
            settled: counters.by_kind().iter().map(|(_, count)| count).sum(),
            retried: counters.retried.get(),
            dead: counters.dead.get(),
            returned: counters.returned.get(),
            lost: counters.lost.get(),
            receives: counters.batches_received.get(),
            settles: counters.batches_settled.get(),
            watermark_pauses: counters.watermark_pauses.get(),
        }
    }
}

impl fmt::Debug for MasterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterHandle").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

/// A worker's counters at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Tasks received.
    pub received: u64,
    /// Tasks that hold a slot.
    pub running: u64,
    /// The most tasks that held a slot at once.
    pub running_peak: u64,
    /// Tasks in flight: running, or waiting for a slot or a limit.
    pub in_hand: u64,
    /// Tasks blocked by a limit.
    pub waiting_for_limit: u64,
    /// Settlements that the broker has confirmed.
    pub settled: u64,
    /// Of `settled`: sent back for another attempt.
    pub retried: u64,
    /// Of `settled`: dead-lettered.
    pub dead: u64,
    /// Of `settled`: returned uncounted.
    pub returned: u64,
    /// Settlements that came too late.
    pub lost: u64,
    /// Batches received.
    pub receives: u64,
    /// Batches settled.
    pub settles: u64,
    /// Times the high-water mark was reached.
    pub watermark_pauses: u64,
}

impl Master {
    /// Returns a worker for this broker's tasks; nothing happens before [`run`](Self::run).
    pub fn new(broker: Rc<dyn Broker>, mode: Rc<dyn Mode>, settings: Settings) -> Master {
        let seed = LoopHandle::try_current().and_then(|handle| handle.seed());
        let shared = Rc::new(Shared {
            broker,
            mode,
            decode: Rc::clone(&settings.decode),
            policies: settings.policies.clone(),
            limits: settings.limits.clone(),
            middleware: settings.middleware.clone(),
            counters: crate::metrics::Counters::default(),
            hands: Rc::default(),
            chance: Cell::new(seed.unwrap_or_else(|| fastrand::u64(..))),
        });
        let control =
            Control { shared, phase: Cell::new(Phase::Connecting), stop: Cell::new(None), changed: Bell::new() };
        Master { control: Rc::new(control), settings }
    }

    /// Returns a handle to stop and observe it while it runs.
    pub fn handle(&self) -> MasterHandle {
        MasterHandle { control: Rc::clone(&self.control) }
    }

    /// Runs until it is asked to stop, or until the broker refuses to go on. Ends in bounded time after that, as long as the
    /// loop itself goes on: see [`Settings`] for the limits of each step.
    ///
    /// # Errors
    /// If it could not start, in which case everything was undone, or if the broker failed for good.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything ends at once; tasks in flight return when the broker notices.
    pub async fn run(self) -> Result<Report, MasterError> {
        let Master { control, settings } = self;
        let mut rooms = Rooms::new(&control);
        if let Err(error) = rooms.start(&settings).await {
            control.on(Event::Failed);
            rooms.close(settings.close_timeout).await;
            return Err(error);
        }
        let broken = rooms.until_stop().await;
        let asked = LoopHandle::current().time();
        let (unsettled, cancelled) = rooms.stop(&settings).await;
        let report = rooms.report(unsettled, cancelled, LoopHandle::current().time() - asked);
        match broken.then(|| rooms.failure.take()).flatten() {
            Some(error) => Err(MasterError::Broken { error, report }),
            None => Ok(report),
        }
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Master").field("phase", &self.control.phase()).field("settings", &self.settings).finish()
    }
}

/// The parts that were started so far, in order. They end when it is dropped.
struct Rooms {
    control: Rc<Control>,
    failure: Rc<Failure>,
    connections: Vec<Rc<Connection>>,
    mode_started: bool,
    pool: Option<Rc<WorkerPool>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Rooms {
    fn new(control: &Rc<Control>) -> Rooms {
        Rooms {
            control: Rc::clone(control),
            failure: Rc::default(),
            connections: Vec::new(),
            mode_started: false,
            pool: None,
            tasks: Vec::new(),
        }
    }

    async fn start(&mut self, settings: &Settings) -> Result<(), MasterError> {
        let control = Rc::clone(&self.control);
        let shared = &control.shared;
        let limit = settings.start_timeout;
        let late = |phase| MasterError::StartTimeout { phase, limit };

        for (number, what) in subscriptions(settings, shared.mode.slots()).into_iter().enumerate() {
            let opened = timeout(limit, Connection::open(shared, number, what)).await;
            let connection = opened.map_err(|_| late(Phase::Connecting))?.map_err(MasterError::Connection)?;
            self.connections.push(connection);
        }
        control.on(Event::Connected);

        self.mode_started = true;
        let started = timeout(limit, shared.mode.start()).await;
        started.map_err(|_| late(Phase::StartingPool))?.map_err(MasterError::Mode)?;
        let pool = WorkerPool::new(Rc::clone(shared), settings.watermarks);
        self.tasks.push(spawn(Rc::clone(&pool).take()));
        control.on(Event::Started);

        self.connections.iter().for_each(|connection| connection.serve(&pool, &self.failure));
        self.pool = Some(pool);
        if !settings.schedules.is_empty() {
            let schedules: Vec<Schedule> = settings.schedules.clone();
            self.tasks.push(spawn(cron::publish(Rc::clone(shared), schedules)));
        }
        Ok(())
    }

    /// Waits for a stop. Returns `true` if the broker failed, `false` if the stop was asked for.
    async fn until_stop(&self) -> bool {
        let mut asked = pin!(self.control.requested(Stop::Warm));
        let mut broken = pin!(self.failure.happened());
        poll_fn(|cx| {
            if asked.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            broken.as_mut().poll(cx).map(|()| true)
        })
        .await
    }

    /// Stops in order. Returns how many tasks could not be settled in time, and whether a task had to be cancelled.
    async fn stop(&mut self, settings: &Settings) -> (usize, bool) {
        let control = Rc::clone(&self.control);
        let pool = Rc::clone(self.pool.as_ref().expect("only what runs is stopped"));
        let cold = control.stop.get() == Some(Stop::Cold);
        let in_hand = control.shared.hands.len();
        tracing::info!(cold, in_hand, limit = ?settings.warm_timeout, "stopping");

        // 1. Both at once: a task that arrives between the two would have to be returned.
        let drained = pool.stop_taking();
        for connection in &self.connections {
            match timeout(settings.close_timeout, connection.stop_receiving()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the broker could not be asked to stop delivering"),
                Err(_) => tracing::warn!("the broker did not confirm that it stops delivering"),
            }
        }
        control.on(if cold { Event::Cold } else { Event::Warm });

        let mut drained = pin!(drained);
        if control.phase() == Phase::Draining {
            let event = {
                let mut late = pin!(tidegate_loop::sleep(settings.warm_timeout));
                let mut cold = pin!(control.requested(Stop::Cold));
                poll_fn(|cx| {
                    if drained.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Event::Idle);
                    }
                    if cold.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Event::Cold);
                    }
                    late.as_mut().poll(cx).map(|()| Event::Late)
                })
                .await
            };
            control.on(event);
        }

        let cancelled = control.phase() == Phase::Cancelling;
        if cancelled {
            let told = control.shared.hands.stop(true);
            tracing::info!(told, limit = ?settings.cancel_timeout, "cancelling running tasks");
            let idle = timeout(settings.cancel_timeout, drained.as_mut()).await.is_ok();
            self.stop_mode(settings).await;
            if !idle {
                tracing::error!("some tasks ignored their cancellation; they are abandoned and return to their queues");
                pool.abort().await;
            }
            control.on(if idle { Event::Idle } else { Event::Late });
        } else {
            self.stop_mode(settings).await;
        }

        let settled = timeout(settings.settle_timeout, async {
            for connection in &self.connections {
                connection.settled().await;
            }
        });
        let settled = settled.await.is_ok();
        let unsettled = self.connections.iter().map(|connection| connection.unsettled()).sum();
        if !settled {
            tracing::error!(unsettled, "the broker did not confirm everything in time; it will hand those out again");
        }
        control.on(if settled { Event::Settled } else { Event::Late });
        self.close(settings.close_timeout).await;
        (unsettled, cancelled)
    }

    async fn stop_mode(&mut self, settings: &Settings) {
        if std::mem::take(&mut self.mode_started)
            && timeout(settings.cancel_timeout, self.control.shared.mode.stop()).await.is_err()
        {
            tracing::error!(mode = self.control.shared.mode.name(), "did not stop in time and is left behind");
        }
    }

    /// From [`Phase::Closing`] to the end.
    async fn close(&mut self, limit: Duration) {
        if std::mem::take(&mut self.mode_started) {
            let _ = timeout(limit, self.control.shared.mode.stop()).await;
        }
        let broker = Rc::clone(&self.control.shared.broker);
        let closed = timeout(limit, async {
            for connection in &self.connections {
                connection.close().await?;
            }
            broker.close().await
        });
        let event = match closed.await {
            Ok(Ok(()) | Err(BrokerError::Closed)) => Event::Closed,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the broker could not be closed in order");
                Event::Closed
            }
            Err(_) => Event::Late,
        };
        self.end();
        self.control.on(event);
    }

    fn report(&self, unsettled: usize, cancelled: bool, stop_took: Duration) -> Report {
        let counters = &self.control.shared.counters;
        Report {
            received: counters.received.get(),
            settled: counters.by_kind().into_iter().filter(|(_, count)| *count > 0).collect(),
            returned: counters.returned.get(),
            lost: counters.lost.get(),
            unsettled: unsettled as u64,
            cancelled,
            stop_took,
        }
    }

    fn end(&mut self) {
        self.connections.drain(..).for_each(|connection| connection.end_tasks());
        self.tasks.drain(..).for_each(|task| {
            task.cancel();
        });
        if let Some(pool) = self.pool.take() {
            drop(pool.abort());
        }
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        self.end();
    }
}

/// One subscription for all queues without a limit of their own, and one for each of the others.
fn subscriptions(settings: &Settings, slots: usize) -> Vec<Subscription> {
    let prefetch = settings.prefetch.unwrap_or_else(|| Settings::prefetch_for(slots));
    let subscription = |queues: Vec<String>| Subscription { queues, prefetch, consumer: settings.name.clone() };
    let (bound, free): (Vec<String>, Vec<String>) =
        settings.queues.iter().cloned().partition(|queue| settings.limits.binds_queue(queue));
    let mut all: Vec<Subscription> = bound.into_iter().map(|queue| subscription(vec![queue])).collect();
    if !free.is_empty() {
        all.push(subscription(free));
    }
    all
}
