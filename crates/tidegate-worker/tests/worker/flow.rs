//! Receiving, running, settling.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{ContextVar, sleep};
use tidegate_pool::Watermarks;
use tidegate_worker::codec::native;
use tidegate_worker::{Broker, Coroutines, Envelope, HandlerError, Handlers, MemoryBroker, Stop, Task, TaskState};

use crate::support::{QUEUE, Yard, handlers, nap, now, publish, simulate, until};

#[test]
fn a_task_is_run_once_and_its_result_is_kept() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |_| {});
        let result = yard.run(Task::new("add").arg(2).arg(3)).await;
        assert_eq!((result.state, result.value), (TaskState::Succeeded, 5.into()));
        assert_eq!(yard.broker.inspect().await.unwrap()[0].running, 0);
        let report = yard.stop(Stop::Warm).await;
        assert_eq!((report.received, report.returned, report.unsettled, report.cancelled), (1, 0, 0, false));
    });
}

static MARK: ContextVar<u32> = ContextVar::new("mark");

/// Tasks that end within their first step run in a row in one coroutine; nothing else may show that.
#[test]
fn tasks_that_follow_each_other_in_a_slot_know_nothing_of_each_other() {
    simulate(|| async {
        let handlers = Handlers::new()
            .task("mark", |nap: bool| async move {
                let before = MARK.get();
                MARK.set(1);
                if nap {
                    sleep(Duration::from_millis(5)).await;
                }
                Ok::<_, HandlerError>((before, MARK.get()))
            })
            .task("end_itself", || async {
                tidegate_loop::Task::current().cancel();
                Ok::<_, HandlerError>(())
            });
        let broker = MemoryBroker::new();
        let mark = |nap: bool| Task::new("mark").arg(nap);
        let tasks = [mark(false), mark(false), Task::new("end_itself"), mark(false), mark(true), mark(false)];
        let batch = tasks.iter().map(|task| Envelope::of(task, QUEUE, native::encode(task)));
        broker.publish(batch.collect()).await.unwrap();
        let yard = Yard::on(&broker, Rc::new(Coroutines::new(handlers).with_slots(2)), |_| {});
        for task in &tasks {
            let result = yard.result(&task.id).await;
            assert_eq!(result.state, TaskState::Succeeded);
            if task.name == "mark" {
                assert_eq!(result.value, serde_json::json!([null, 1]));
            }
        }
        let report = yard.stop(Stop::Warm).await;
        assert_eq!((report.received, report.returned, report.unsettled), (6, 0, 0));
    });
}

#[test]
fn what_is_there_is_received_together_and_what_ended_is_settled_together() {
    simulate(|| async {
        let broker = MemoryBroker::new();
        let batch: Vec<Envelope> = (0..500)
            .map(|n| {
                let task = Task::new("add").arg(n).arg(1);
                Envelope::of(&task, QUEUE, native::encode(&task))
            })
            .collect();
        let last = batch[499].id.clone();
        broker.publish(batch).await.unwrap();
        let yard = Yard::on(&broker, Rc::new(Coroutines::new(handlers())), |_| {});
        yard.result(&last).await;
        until(|| yard.worker.stats().settled == 500).await;
        let stats = yard.worker.stats();
        assert_eq!(stats.receives, 1);
        assert!(stats.settles <= 3, "{stats:?}");
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn never_more_run_than_there_are_slots_and_never_more_are_in_hand_than_the_prefetch() {
    simulate(|| async {
        let running = Rc::new(Cell::new((0, 0)));
        let seen = Rc::clone(&running);
        let handlers = Handlers::new().task("count", move || {
            let seen = Rc::clone(&seen);
            async move {
                let (now, peak) = seen.get();
                seen.set((now + 1, peak.max(now + 1)));
                sleep(Duration::from_millis(3)).await;
                let (now, peak) = seen.get();
                seen.set((now - 1, peak));
                Ok::<_, HandlerError>(())
            }
        });
        let mode = Coroutines::new(handlers).with_slots(4);
        let yard = Yard::with_mode(Rc::new(mode), |settings| settings.prefetch = Some(6));
        for _ in 0..50 {
            yard.publish(Task::new("count")).await;
        }
        until(|| {
            assert!(yard.worker.stats().in_hand <= 6);
            yard.worker.stats().settled == 50
        })
        .await;
        assert_eq!(running.get(), (0, 4));
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn at_the_high_mark_nothing_starts_until_the_low_one() {
    simulate(|| async {
        let starts = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&starts);
        let begun = now();
        let handlers = Handlers::new().task("step", move |millis: u64| {
            noted.borrow_mut().push((now() - begun).as_millis());
            async move {
                sleep(Duration::from_millis(millis)).await;
                Ok::<_, HandlerError>(())
            }
        });
        let mode = Coroutines::new(handlers).with_slots(4);
        let yard = Yard::with_mode(Rc::new(mode), |settings| {
            settings.prefetch = Some(100);
            settings.watermarks = Some(Watermarks { high: 4, low: 1 });
        });
        // Four start; when three of them have ended, at 30 ms, the next three may.
        for millis in [10, 20, 30, 100, 1, 1, 1] {
            yard.publish(Task::new("step").arg(millis)).await;
        }
        until(|| yard.worker.stats().settled == 7).await;
        assert_eq!(*starts.borrow(), [0, 0, 0, 0, 30, 30, 30]);
        assert_eq!(yard.worker.stats().watermark_pauses, 2);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_waiting_task_that_is_revoked_never_runs_and_a_running_one_is_ended() {
    simulate(|| async {
        let mode = Coroutines::new(handlers()).with_slots(1);
        let yard = Yard::with_mode(Rc::new(mode), |settings| settings.prefetch = Some(10));
        let running = yard.publish(Task::new("hang")).await;
        let waiting = yard.publish(Task::new("hang")).await;
        until(|| yard.worker.stats().in_hand == 2).await;
        yard.broker.revoke(&waiting).await.unwrap();
        yard.broker.revoke(&running).await.unwrap();
        assert_eq!(yard.result(&waiting).await.state, TaskState::Revoked);
        assert_eq!(yard.result(&running).await.state, TaskState::Revoked);
        assert_eq!(yard.worker.stats().running_peak, 1);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_delivery_that_was_lost_is_ended_here_and_run_elsewhere() {
    simulate(|| async {
        let broker = MemoryBroker::new();
        let runs = Rc::new(Cell::new(0));
        let counted = Rc::clone(&runs);
        let handlers = Handlers::new().task("once", move || {
            let counted = Rc::clone(&counted);
            async move {
                counted.set(counted.get() + 1);
                if counted.get() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, HandlerError>(counted.get())
            }
        });
        let yard = Yard::on(&broker, Rc::new(Coroutines::new(handlers)), |_| {});
        let id = yard.publish(Task::new("once")).await;
        until(|| runs.get() == 1).await;
        broker.lose_leases();
        assert_eq!(yard.result(&id).await.value, 2);
        assert_eq!((yard.worker.stats().running, yard.worker.stats().lost), (0, 1));
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn several_queues_are_served_by_one_worker() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |settings| settings.queues = vec!["a".into(), "b".into()]);
        let one = publish(&*yard.broker, "a", Task::new("add").arg(1).arg(1)).await;
        let two = publish(&*yard.broker, "b", nap(5)).await;
        assert_eq!(yard.result(&one).await.value, 2);
        assert_eq!(yard.result(&two).await.value, 5);
        yard.stop(Stop::Warm).await;
    });
}
