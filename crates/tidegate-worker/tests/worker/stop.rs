//! Starting and stopping in order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{sleep, spawn};
use tidegate_worker::{
    Broker, BrokerError, Consumer, Coroutines, HandlerError, Handlers, Incoming, Job, Local, Master, MasterError,
    MemoryBroker, Mode, ModeError, Outcome, Phase, Settings, Settled, Settlement, Stop, Subscription, Task, TaskState,
};

use crate::support::{QUEUE, Yard, handlers, nap, now, pass, simulate, until};

#[test]
fn a_warm_stop_lets_what_runs_finish_and_returns_the_rest_uncounted() {
    simulate(|| async {
        let mode = Coroutines::new(handlers()).with_slots(2);
        let yard = Yard::with_mode(Rc::new(mode), |settings| settings.prefetch = Some(10));
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(yard.publish(nap(1_000)).await);
        }
        until(|| yard.worker.stats().running == 2 && yard.worker.stats().in_hand == 5).await;
        let (broker, begun) = (Rc::clone(&yard.broker), now());
        let report = yard.stop(Stop::Warm).await;
        assert!(now() - begun <= Duration::from_secs(1));
        assert_eq!((report.received, report.returned, report.cancelled, report.unsettled), (5, 3, false, 0));
        for id in &ids[..2] {
            assert_eq!(broker.result(id).await.unwrap().unwrap().state, TaskState::Succeeded);
        }
        let queue = &broker.inspect().await.unwrap()[0];
        assert_eq!((queue.ready, queue.running, queue.delayed, queue.dead), (3, 0, 0, 0));
        // Uncounted, and in their old order.
        let waiting = broker.peek(QUEUE, 10).await.unwrap();
        assert_eq!(
            waiting.iter().map(|envelope| &envelope.id).collect::<Vec<_>>(),
            ids[2..].iter().collect::<Vec<_>>()
        );
    });
}

#[test]
fn a_warm_stop_ends_what_does_not_end_when_its_time_is_over() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |settings| settings.warm_timeout = Duration::from_secs(7));
        let stuck = yard.publish(Task::new("hang")).await;
        let done = yard.publish(nap(3_000)).await;
        until(|| yard.worker.stats().running == 2).await;
        let (broker, begun) = (Rc::clone(&yard.broker), now());
        let report = yard.stop(Stop::Warm).await;
        assert_eq!((now() - begun).as_secs(), 7);
        assert_eq!((report.returned, report.cancelled, report.unsettled), (1, true, 0));
        assert_eq!(broker.result(&done).await.unwrap().unwrap().state, TaskState::Succeeded);
        assert_eq!(broker.peek(QUEUE, 10).await.unwrap()[0].id, stuck);
    });
}

#[test]
fn a_cold_stop_ends_everything_at_once_and_a_warm_one_can_be_made_cold() {
    simulate(|| async {
        for first in [Stop::Cold, Stop::Warm] {
            let yard = Yard::new(handlers(), |_| {});
            yard.publish(Task::new("hang")).await;
            until(|| yard.worker.stats().running == 1).await;
            let begun = now();
            yard.worker.stop(first);
            sleep(Duration::from_secs(1)).await;
            yard.worker.stop(Stop::Cold);
            let broker = Rc::clone(&yard.broker);
            let report = yard.running.await.unwrap().unwrap();
            assert!(now() - begun <= Duration::from_millis(1_001), "{first:?}");
            assert_eq!((report.returned, report.cancelled), (1, true));
            assert_eq!(broker.inspect().await.unwrap()[0].ready, 1);
        }
    });
}

#[test]
fn a_worker_without_work_stops_in_no_time() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |_| {});
        until(|| yard.worker.phase() == Phase::Running).await;
        let (worker, begun) = (yard.worker.clone(), now());
        yard.stop(Stop::Warm).await;
        assert_eq!((now() - begun, worker.phase()), (Duration::ZERO, Phase::Stopped));
    });
}

/// Ignores every request to end.
struct Deaf;

impl Mode for Deaf {
    fn name(&self) -> &'static str {
        "deaf"
    }

    fn slots(&self) -> usize {
        2
    }

    fn handlers(&self) -> Option<Vec<String>> {
        None
    }

    fn start(&self) -> Local<'_, Result<(), ModeError>> {
        Box::pin(async { Ok(()) })
    }

    fn run(&self, _job: Job) -> Local<'static, Outcome> {
        Box::pin(std::future::pending())
    }

    fn recycle(&self) {}

    fn stop(&self) -> Local<'_, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_stop_is_bounded_whatever_the_mode_does() {
    simulate(|| async {
        let yard = Yard::with_mode(Rc::new(Deaf), |_| {});
        let id = yard.publish(Task::new("any")).await;
        until(|| yard.worker.stats().running == 1).await;
        let (broker, begun) = (Rc::clone(&yard.broker), now());
        let report = yard.stop(Stop::Warm).await;
        let limit = Settings::new([QUEUE]).stop_limit();
        assert!(now() - begun <= limit, "{:?} of {limit:?}", now() - begun);
        assert_eq!((report.returned, report.cancelled), (1, true));
        assert_eq!(broker.peek(QUEUE, 1).await.unwrap()[0].id, id);
    });
}

/// A broker whose answers are spoilt on request.
struct Spoilt {
    inner: MemoryBroker,
    faults: Rc<Faults>,
}

#[derive(Default)]
struct Faults {
    subscribe: Cell<bool>,
    settle_hangs: Cell<bool>,
    settle_fails: Cell<u32>,
    receive: RefCell<Option<BrokerError>>,
    log: RefCell<Vec<&'static str>>,
}

struct SpoiltConsumer {
    inner: Rc<dyn Consumer>,
    faults: Rc<Faults>,
}

impl Broker for Spoilt {
    pass! {
        describe() -> String;
        now() -> jiff::Timestamp;
        publish(batch: Vec<tidegate_worker::Envelope>) -> Local<'_, Result<Vec<tidegate_worker::Published>, BrokerError>>;
        inspect() -> Local<'_, Result<Vec<tidegate_worker::QueueStats>, BrokerError>>;
        peek(queue: &str, limit: usize) -> Local<'_, Result<Vec<tidegate_worker::Envelope>, BrokerError>>;
        purge(queue: &str) -> Local<'_, Result<u64, BrokerError>>;
        dead(queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<tidegate_worker::DeadLetter>, BrokerError>>;
        dead_retry(which: tidegate_worker::Selection) -> Local<'_, Result<u64, BrokerError>>;
        dead_drop(which: tidegate_worker::Selection) -> Local<'_, Result<u64, BrokerError>>;
        revoke(id: &tidegate_worker::TaskId) -> Local<'_, Result<(), BrokerError>>;
        result(id: &tidegate_worker::TaskId) -> Local<'_, Result<Option<tidegate_worker::TaskResult>, BrokerError>>;
        wait_result(id: &tidegate_worker::TaskId) -> Local<'_, Result<tidegate_worker::TaskResult, BrokerError>>;
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        Box::pin(async move {
            if self.faults.subscribe.get() {
                return Err(BrokerError::Refused { message: "no such host".into() });
            }
            let inner = self.inner.subscribe(what).await?;
            self.faults.log.borrow_mut().push("subscribed");
            Ok(Rc::new(SpoiltConsumer { inner, faults: Rc::clone(&self.faults) }) as Rc<dyn Consumer>)
        })
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        self.faults.log.borrow_mut().push("broker closed");
        self.inner.close()
    }
}

impl Consumer for SpoiltConsumer {
    fn recv_all(&self) -> Local<'_, Result<Vec<Incoming>, BrokerError>> {
        match self.faults.receive.borrow_mut().take() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.inner.recv_all(),
        }
    }

    fn settle(&self, batch: Vec<Settlement>) -> Local<'_, Result<Vec<Settled>, BrokerError>> {
        if self.faults.settle_hangs.get() {
            return Box::pin(std::future::pending());
        }
        if let Some(left) = self.faults.settle_fails.get().checked_sub(1) {
            self.faults.settle_fails.set(left);
            return Box::pin(async { Err(BrokerError::Refused { message: "the disk is full".into() }) });
        }
        self.faults.log.borrow_mut().push("settled");
        self.inner.settle(batch)
    }

    fn stop(&self) -> Local<'_, Result<(), BrokerError>> {
        self.faults.log.borrow_mut().push("stopped receiving");
        self.inner.stop()
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        self.faults.log.borrow_mut().push("consumer closed");
        self.inner.close()
    }
}

struct Trouble {
    client: MemoryBroker,
    faults: Rc<Faults>,
    master: Master,
}

fn trouble(mode: Rc<dyn Mode>) -> Trouble {
    let client = MemoryBroker::new();
    let faults = Rc::<Faults>::default();
    let spoilt = Spoilt { inner: client.connect(), faults: Rc::clone(&faults) };
    let master = Master::new(Rc::new(spoilt), mode, Settings::new([QUEUE]));
    Trouble { client, faults, master }
}

#[test]
fn the_stop_has_its_order() {
    simulate(|| async {
        let Trouble { client, faults, master } = trouble(Rc::new(Coroutines::new(handlers())));
        let worker = master.handle();
        let running = spawn(master.run());
        crate::support::publish(&client, QUEUE, nap(1_000)).await;
        until(|| worker.stats().running == 1).await;
        worker.stop(Stop::Warm);
        running.await.unwrap().unwrap();
        let order = ["subscribed", "stopped receiving", "settled", "consumer closed", "broker closed"];
        assert_eq!(*faults.log.borrow(), order);
    });
}

#[test]
fn a_broker_that_does_not_confirm_costs_its_limit_and_no_more() {
    simulate(|| async {
        let Trouble { client, faults, master } = trouble(Rc::new(Coroutines::new(handlers())));
        let worker = master.handle();
        let running = spawn(master.run());
        faults.settle_hangs.set(true);
        let id = crate::support::publish(&client, QUEUE, Task::new("add").arg(1).arg(1)).await;
        until(|| worker.stats().received == 1 && worker.stats().in_hand == 0).await;
        let begun = now();
        worker.stop(Stop::Warm);
        let report = running.await.unwrap().unwrap();
        assert_eq!((now() - begun, report.unsettled), (Duration::from_secs(10), 1));
        // Unconfirmed is not lost: the next worker gets it.
        assert_eq!(client.peek(QUEUE, 1).await.unwrap()[0].id, id);
    });
}

#[test]
fn a_full_disk_is_waited_out_and_nothing_is_lost() {
    simulate(|| async {
        let Trouble { client, faults, master } = trouble(Rc::new(Coroutines::new(handlers())));
        let worker = master.handle();
        let running = spawn(master.run());
        faults.settle_fails.set(5);
        faults.receive.replace(Some(BrokerError::Retry { message: "busy".into() }));
        let id = crate::support::publish(&client, QUEUE, Task::new("add").arg(1).arg(1)).await;
        assert_eq!(client.wait_result(&id).await.unwrap().value, 2);
        worker.stop(Stop::Warm);
        assert_eq!(running.await.unwrap().unwrap().settled, [(tidegate_worker::OutcomeKind::Success, 1)]);
    });
}

#[test]
fn a_broker_that_breaks_down_ends_the_worker_in_order_and_is_told_of() {
    simulate(|| async {
        let Trouble { client, faults, master } = trouble(Rc::new(Coroutines::new(handlers())));
        let worker = master.handle();
        let running = spawn(master.run());
        crate::support::publish(&client, QUEUE, nap(1_000)).await;
        until(|| worker.stats().running == 1).await;
        faults.receive.replace(Some(BrokerError::Damaged { message: "page 7 is torn".into() }));
        // Something to receive, so that it asks again.
        crate::support::publish(&client, QUEUE, nap(1)).await;
        let Err(MasterError::Broken { error, report }) = running.await.unwrap() else { panic!() };
        assert_eq!(error.to_string(), "page 7 is torn");
        assert_eq!(report.unsettled, 0);
        assert_eq!(faults.log.borrow().last(), Some(&"broker closed"));
    });
}

#[test]
fn a_broker_out_of_reach_is_an_error_before_anything_else_happens() {
    simulate(|| async {
        let Trouble { faults, master, .. } = trouble(Rc::new(Coroutines::new(Handlers::new())));
        faults.subscribe.set(true);
        let worker = master.handle();
        let error = master.run().await.unwrap_err();
        assert_eq!(error.to_string(), "cannot receive tasks: no such host");
        assert_eq!(worker.phase(), Phase::Stopped);
        assert_eq!(*faults.log.borrow(), ["broker closed"]);
    });
}

/// Cannot start, or takes for ever.
struct Lame {
    hangs: bool,
    stopped: Rc<Cell<bool>>,
}

impl Mode for Lame {
    fn name(&self) -> &'static str {
        "lame"
    }

    fn slots(&self) -> usize {
        1
    }

    fn handlers(&self) -> Option<Vec<String>> {
        None
    }

    fn start(&self) -> Local<'_, Result<(), ModeError>> {
        Box::pin(async {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            Err(ModeError { message: "python3 is not installed".into() })
        })
    }

    fn run(&self, _job: Job) -> Local<'static, Outcome> {
        Box::pin(std::future::pending())
    }

    fn recycle(&self) {}

    fn stop(&self) -> Local<'_, ()> {
        self.stopped.set(true);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn a_start_that_fails_is_undone() {
    simulate(|| async {
        for hangs in [false, true] {
            let stopped = Rc::new(Cell::new(false));
            let Trouble { client, faults, master } = trouble(Rc::new(Lame { hangs, stopped: Rc::clone(&stopped) }));
            crate::support::publish(&client, QUEUE, nap(1)).await;
            let error = master.run().await.unwrap_err();
            match hangs {
                false => assert_eq!(error.to_string(), "cannot run tasks: python3 is not installed"),
                true => assert!(error.to_string().contains("longer than 30s, while starting-pool"), "{error}"),
            }
            assert!(stopped.get());
            assert_eq!(*faults.log.borrow(), ["subscribed", "consumer closed", "broker closed"]);
            assert_eq!(client.inspect().await.unwrap()[0].ready, 1);
        }
    });
}

#[test]
fn a_worker_that_is_dropped_lets_go_of_everything() {
    simulate(|| async {
        let held = Rc::new(());
        let handlers = Handlers::new().task("hold", {
            let held = Rc::clone(&held);
            move || {
                let held = Rc::clone(&held);
                async move {
                    std::future::pending::<()>().await;
                    drop(held);
                    Ok::<_, HandlerError>(())
                }
            }
        });
        let yard = Yard::new(handlers, |_| {});
        yard.publish(Task::new("hold")).await;
        until(|| yard.worker.stats().running == 1).await;
        let Yard { worker, running, broker } = yard;
        running.cancel();
        assert!(running.await.is_err());
        drop((worker, broker));
        // The runs are tasks of their own, and end with what they belong to.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(Rc::strong_count(&held), 1);
    });
}
