//! Gates in front of the pool.

use std::rc::Rc;
use std::time::Duration;

use tidegate_limit::{Gate, Limit};
use tidegate_worker::{Broker, Coroutines, Limits, Stop, Task, TaskState};

use crate::support::{Yard, handlers, nap, now, publish, simulate, until};

#[test]
fn who_waits_for_a_limit_holds_no_slot_and_holds_up_no_other_queue() {
    simulate(|| async {
        let gate = Gate::builder().limit(Limit::concurrency("llm", 1)).build().unwrap();
        let mode = Coroutines::new(handlers()).with_slots(2);
        let yard = Yard::with_mode(Rc::new(mode), |settings| {
            settings.queues = vec!["llm".into(), "default".into()];
            settings.limits = Limits::new().queue("llm", gate);
            settings.prefetch = Some(5);
        });
        for _ in 0..20 {
            publish(&*yard.broker, "llm", nap(1_000)).await;
        }
        until(|| yard.worker.stats().waiting_for_limit == 4).await;
        assert_eq!(yard.worker.stats().running, 1);
        let begun = now();
        for _ in 0..10 {
            assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        }
        assert!(now() - begun < Duration::from_millis(100));
        until(|| yard.worker.stats().settled == 30).await;
        assert!((19..=20).contains(&(now() - begun).as_secs()));
        assert_eq!(yard.worker.stats().running_peak, 2);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_task_bound_by_its_name_keeps_its_rate() {
    simulate(|| async {
        let gate = Gate::builder().limit(Limit::rpm(2)).build().unwrap();
        let yard = Yard::new(handlers(), |settings| settings.limits = Limits::new().task("sleep", gate));
        let begun = now();
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(yard.publish(nap(1)).await);
        }
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        assert!(now() - begun < Duration::from_secs(1));
        for id in &ids {
            yard.result(id).await;
        }
        assert_eq!((now() - begun).as_secs(), 120);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_stop_and_a_revoke_reach_who_waits_for_a_limit() {
    simulate(|| async {
        let gate = Gate::builder().limit(Limit::concurrency("one", 1)).build().unwrap();
        let yard = Yard::new(handlers(), |settings| settings.limits = Limits::new().queue("default", gate));
        yard.publish(nap(2_000)).await;
        let revoked = yard.publish(nap(1)).await;
        yard.publish(nap(1)).await;
        until(|| yard.worker.stats().waiting_for_limit == 2).await;
        yard.broker.revoke(&revoked).await.unwrap();
        assert_eq!(yard.result(&revoked).await.state, TaskState::Revoked);
        let broker = Rc::clone(&yard.broker);
        let report = yard.stop(Stop::Warm).await;
        assert_eq!((report.returned, report.cancelled), (1, false));
        assert_eq!(broker.inspect().await.unwrap()[0].ready, 1);
    });
}
