//! How runs end: retries, limits, dead letters, unusable input.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{catch_cancel, sleep};
use tidegate_worker::{Broker, Envelope, HandlerError, Handlers, Policies, Policy, Stop, Task, TaskContext, TaskState};

use crate::support::{QUEUE, Yard, handlers, live, now, quick, simulate};

#[test]
fn a_task_that_fails_is_tried_again_after_growing_waits() {
    simulate(|| async {
        let tries = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&tries);
        let handlers = Handlers::new().task("flaky", move |context: TaskContext| {
            noted.borrow_mut().push(now());
            async move {
                if context.retries() < 2 {
                    return Err(HandlerError::failed("not yet"));
                }
                Ok(context.retries())
            }
        });
        let yard = Yard::new(handlers, |_| {});
        assert_eq!(yard.run(Task::new("flaky")).await.value, 2);
        let tries = tries.take();
        let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (wait, full) in waits.iter().zip([1, 2].map(Duration::from_secs)) {
            // The broker's clock and the loop's are read a moment apart.
            let slack = Duration::from_millis(5);
            assert!(*wait + slack >= full / 2 && *wait <= full + slack, "{waits:?}");
        }
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_task_without_tries_left_becomes_a_dead_letter_that_says_why() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |_| {});
        let result = yard.run(Task::new("fail")).await;
        assert_eq!(result.state, TaskState::Failed);
        assert_eq!(result.error.unwrap().message, "no luck");
        let dead = yard.broker.dead(None, 10).await.unwrap();
        assert_eq!((dead[0].reason.as_str(), dead[0].retries), ("Error: no luck; tried 3 times", 2));
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_handler_that_asks_for_a_retry_gets_it_when_it_asked() {
    simulate(|| async {
        let handlers = Handlers::new().task("later", |context: TaskContext| async move {
            match context.retries() {
                0 => Err(HandlerError::retry_after(Duration::from_secs(77), "come back")),
                _ => Ok(()),
            }
        });
        let yard = Yard::new(handlers, |_| {});
        let begun = now();
        yard.run(Task::new("later")).await;
        assert_eq!((now() - begun).as_secs(), 77);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_panic_is_the_handlers_failure_and_the_worker_lives_on() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |_| {});
        let error = yard.run(Task::new("panic")).await.error.unwrap();
        assert_eq!((error.kind.as_str(), error.message.as_str()), ("panic", "a bug"));
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        yard.stop(Stop::Warm).await;
    });
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

#[test]
fn a_destructor_that_panics_costs_nobody_but_its_task() {
    simulate(|| async {
        let handlers = handlers().task("bomb", || async {
            let _bomb = Bomb;
            std::future::pending::<Result<(), HandlerError>>().await
        });
        let yard = Yard::new(handlers, |settings| {
            let policy = Policy { hard_limit: Some(Duration::from_secs(1)), retries_max: 0, ..quick() };
            settings.policies = Policies::new(policy);
        });
        assert_eq!(yard.run(Task::new("bomb")).await.error.unwrap().kind, "TimeLimit");
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        yard.stop(Stop::Warm).await;
    });
}

fn limited(soft: Option<u64>, hard: Option<u64>) -> Policies {
    let seconds = |count: Option<u64>| count.map(Duration::from_secs);
    Policies::new(Policy { soft_limit: seconds(soft), hard_limit: seconds(hard), retries_max: 0, ..quick() })
}

#[test]
fn the_hard_limit_drops_the_future() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |settings| settings.policies = limited(None, Some(7)));
        let begun = now();
        let result = yard.run(Task::new("hang")).await;
        assert_eq!((now() - begun).as_secs(), 7);
        assert_eq!(result.error.unwrap().message, "ran longer than its limit of 7s");
        assert_eq!(yard.worker.stats().running, 0);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_task_may_ask_for_limits_of_its_own() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |settings| settings.policies = limited(None, Some(7)));
        let begun = now();
        let mut task = Task::new("hang");
        task.hard_limit = Some(Duration::from_secs(2));
        assert_eq!(yard.run(task).await.state, TaskState::Failed);
        assert_eq!((now() - begun).as_secs(), 2);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn the_soft_limit_is_a_request_that_a_handler_may_catch() {
    simulate(|| async {
        let handlers = handlers().task("tidy", |context: TaskContext| async move {
            let caught = catch_cancel(sleep(Duration::from_secs(60))).await.is_err();
            assert!(context.soft_limit_passed());
            sleep(Duration::from_secs(1)).await;
            Ok::<_, HandlerError>(caught)
        });
        let yard = Yard::new(handlers, |settings| settings.policies = limited(Some(3), Some(10)));
        let begun = now();
        assert_eq!(yard.run(Task::new("tidy")).await.value, true);
        assert_eq!((now() - begun).as_secs(), 4);
        // One that catches nothing ends there and then.
        let begun = now();
        assert_eq!(yard.run(Task::new("hang")).await.error.unwrap().message, "ran longer than its limit of 3s");
        assert_eq!((now() - begun).as_secs(), 3);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_handler_that_goes_on_behind_its_soft_limit_meets_the_hard_one() {
    simulate(|| async {
        let handlers = Handlers::new().task("stubborn", || async {
            loop {
                let _ = catch_cancel(sleep(Duration::from_secs(60))).await;
            }
            #[expect(unreachable_code, reason = "what it would return, for the compiler")]
            Ok::<(), HandlerError>(())
        });
        let yard = Yard::new(handlers, |settings| settings.policies = limited(Some(3), Some(10)));
        let begun = now();
        assert_eq!(yard.run(Task::new("stubborn")).await.error.unwrap().message, "ran longer than its limit of 10s");
        assert_eq!((now() - begun).as_secs(), 10);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn what_nobody_can_run_is_a_dead_letter_at_once_and_the_worker_lives_on() {
    simulate(|| async {
        let yard = Yard::new(handlers(), |_| {});
        let mut ids = vec![
            yard.publish(Task::new("nobody")).await,
            yard.publish(Task::new("add").arg("x").arg(1)).await,
            yard.publish(Task::new("add").arg(1)).await,
            yard.publish(Task::new("add").arg(1).arg(2).arg(3)).await,
            yard.publish(Task::new("add").arg(1).arg(2).kwarg("c", 3)).await,
        ];
        for body in [&b"no JSON"[..], b"", b"[1,2]", b"{\"task\":7}", &[0xff; 100]] {
            let envelope = Envelope::new(QUEUE, body.to_vec());
            ids.push(envelope.id.clone());
            yard.broker.publish(vec![envelope]).await.unwrap();
        }
        for id in &ids {
            let result = yard.result(id).await;
            assert_eq!((result.state, result.error.unwrap().kind.as_str()), (TaskState::Failed, "Rejected"));
        }
        let dead = yard.broker.dead(None, 100).await.unwrap();
        assert_eq!(dead.len(), ids.len());
        assert_eq!(dead[0].reason, "no handler is called 'nobody'");
        assert!(dead[1].reason.starts_with("argument 1 does not fit"), "{}", dead[1].reason);
        assert_eq!(yard.run(Task::new("add").arg(1).arg(1)).await.value, 2);
        assert_eq!(yard.worker.stats().dead, ids.len() as u64);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn an_argument_of_megabytes_is_an_argument() {
    live(async {
        let handlers = Handlers::new().task("length", |text: String| async move { Ok::<_, HandlerError>(text.len()) });
        let yard = Yard::new(handlers, |_| {});
        assert_eq!(yard.run(Task::new("length").arg("x".repeat(4 << 20))).await.value, 4 << 20);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_task_that_expired_while_it_waited_for_its_slot_is_not_run() {
    simulate(|| async {
        let runs = Rc::new(Cell::new(0));
        let counted = Rc::clone(&runs);
        let handlers = handlers().task("count", move || {
            counted.set(counted.get() + 1);
            async { Ok::<_, HandlerError>(()) }
        });
        let mode = tidegate_worker::Coroutines::new(handlers).with_slots(1);
        let yard = Yard::with_mode(Rc::new(mode), |settings| settings.prefetch = Some(2));
        yard.publish(Task::new("sleep").arg(60_000)).await;
        let task = Task::new("count");
        let mut envelope = Envelope::of(&task, QUEUE, tidegate_worker::codec::native::encode(&task));
        envelope.expires = Some(yard.broker.now() + jiff::SignedDuration::from_secs(30));
        yard.broker.publish(vec![envelope]).await.unwrap();
        assert_eq!(yard.result(&task.id).await.state, TaskState::Expired);
        assert_eq!(runs.get(), 0);
        yard.stop(Stop::Warm).await;
    });
}

#[test]
fn a_task_that_killed_its_workers_is_given_up_without_another_run() {
    simulate(|| async {
        let broker = tidegate_worker::MemoryBroker::new();
        let yard = Yard::on(&broker, Rc::new(tidegate_worker::Coroutines::new(handlers())), |settings| {
            settings.policies = Policies::new(Policy { crashes_max: 2, ..quick() });
        });
        let id = yard.publish(Task::new("hang")).await;
        for run in 1..=2 {
            crate::support::until(|| yard.worker.stats().received == run && yard.worker.stats().running == 1).await;
            broker.lose_leases();
        }
        let result = yard.result(&id).await;
        assert_eq!(result.error.unwrap().message, "its process crashed 2 times, the limit is 2");
        yard.stop(Stop::Warm).await;
    });
}
