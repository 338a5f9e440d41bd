//! Thread mode. What blocks cannot be simulated, so most of this is real time; nothing is timed, everything is waited for.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_worker::{
    BlockingHandlers, HandlerError, Mode, Policies, Policy, Stop, Task, TaskContext, TaskState, Threads,
};

use crate::support::{Yard, live, quick, simulate, until};

/// A handler that blocks until it is let go, and does not look at anything else.
fn deaf() -> (BlockingHandlers, Sender<()>) {
    let (release, blocked) = channel();
    let blocked: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(blocked));
    let handlers = BlockingHandlers::new()
        .task("add", |a: i64, b: i64| Ok::<_, HandlerError>(a + b))
        .task("panic", || -> Result<(), HandlerError> { panic!("a bug") })
        .task("polite", |context: TaskContext| {
            while !context.should_stop() {
                std::thread::yield_now();
            }
            Err::<(), _>(HandlerError::SoftLimit)
        })
        .task("deaf", move || {
            let _ = blocked.lock().unwrap().recv();
            Ok::<_, HandlerError>(())
        });
    (handlers, release)
}

fn limited(soft_millis: u64, hard_millis: u64) -> Policies {
    let limit = |millis: u64| (millis > 0).then(|| Duration::from_millis(millis));
    Policies::new(Policy { soft_limit: limit(soft_millis), hard_limit: limit(hard_millis), retries_max: 0, ..quick() })
}

#[test]
fn blocking_handlers_run_in_threads_in_virtual_time_too() {
    simulate(|| async {
        let yard = Yard::with_mode(Rc::new(Threads::new(deaf().0)), |_| {});
        assert_eq!(yard.run(Task::new("add").arg(2).arg(3)).await.value, 5);
        assert_eq!(yard.run(Task::new("panic")).await.error.unwrap().kind, "panic");
        assert_eq!(yard.run(Task::new("nobody")).await.error.unwrap().kind, "Rejected");
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_handler_that_asks_hears_of_its_soft_limit() {
    live(async {
        let yard = Yard::with_mode(Rc::new(Threads::new(deaf().0)), |settings| settings.policies = limited(5, 0));
        let error = yard.run(Task::new("polite")).await.error.unwrap();
        assert_eq!((error.kind.as_str(), error.message.as_str()), ("TimeLimit", "ran longer than its limit of 5ms"));
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_thread_that_does_not_come_back_is_left_behind_replaced_and_counted() {
    live(async {
        let (handlers, release) = deaf();
        let mode = Rc::new(Threads::new(handlers).with_slots(1));
        let yard = Yard::with_mode(Rc::clone(&mode) as Rc<dyn Mode>, |settings| {
            settings.policies = limited(0, 20).task("add", quick());
        });
        let figures = |mode: &Threads| mode.figures().iter().map(|figure| figure.value).collect::<Vec<_>>();
        assert_eq!(yard.run(Task::new("deaf")).await.error.unwrap().kind, "TimeLimit");
        assert_eq!(figures(&mode), [1, 1]);
        // The one slot there is has a thread again.
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        release.send(()).unwrap();
        until(|| figures(&mode) == [1, 0]).await;
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_job_that_is_late_before_its_thread_starts_leaves_nothing_behind() {
    live(async {
        let mode = Rc::new(Threads::new(deaf().0).with_slots(1).with_abandoned_max(0));
        let at_once = Policy { hard_limit: Some(Duration::from_nanos(1)), retries_max: 0, ..quick() };
        let yard = Yard::with_mode(Rc::clone(&mode) as Rc<dyn Mode>, |settings| {
            settings.policies = Policies::new(quick()).task("panic", at_once);
        });
        // New threads take longer to start than this limit, so most of these jobs are dropped before they run.
        for _ in 0..20 {
            yard.run(Task::new("panic")).await;
        }
        until(|| mode.figures()[1].value == 0).await;
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn with_too_many_left_behind_a_slot_waits_for_one_to_come_back() {
    live(async {
        let (handlers, release) = deaf();
        let mode = Rc::new(Threads::new(handlers).with_slots(1).with_abandoned_max(1));
        let yard = Yard::with_mode(Rc::clone(&mode) as Rc<dyn Mode>, |settings| {
            settings.policies = limited(0, 20).task("add", quick());
        });
        for _ in 0..2 {
            assert_eq!(yard.run(Task::new("deaf")).await.error.unwrap().kind, "TimeLimit");
        }
        let id = yard.publish(Task::new("add").arg(1).arg(1)).await;
        until(|| yard.worker.stats().running == 1).await;
        assert_eq!(yard.broker_result(&id).await, None);
        release.send(()).unwrap();
        release.send(()).unwrap();
        assert_eq!(yard.result(&id).await.value, 2);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_stop_asks_first_and_leaves_behind_who_does_not_listen() {
    live(async {
        let (handlers, release) = deaf();
        let mode = Rc::new(Threads::new(handlers).with_slots(2).with_grace(Duration::from_millis(20)));
        let yard = Yard::with_mode(Rc::clone(&mode) as Rc<dyn Mode>, |_| {});
        yard.publish(Task::new("deaf")).await;
        yard.publish(Task::new("polite")).await;
        until(|| yard.worker.stats().running == 2).await;
        let broker = Rc::clone(&yard.broker);
        let report = yard.stop(Stop::Cold).await;
        assert_eq!((report.returned, report.cancelled, report.unsettled), (2, true, 0));
        assert_eq!(mode.figures()[0].value, 1);
        assert_eq!(tidegate_worker::Broker::inspect(&*broker).await.unwrap()[0].ready, 2);
        release.send(()).unwrap();
    });
}

#[test]
fn a_revoked_run_is_asked_to_end() {
    live(async {
        let yard = Yard::with_mode(Rc::new(Threads::new(deaf().0)), |_| {});
        let id = yard.publish(Task::new("polite")).await;
        until(|| yard.worker.stats().running == 1).await;
        tidegate_worker::Broker::revoke(&*yard.broker, &id).await.unwrap();
        assert_eq!(yard.result(&id).await.state, TaskState::Revoked);
        yard.stop(Stop::Warm).await;
    });
}
