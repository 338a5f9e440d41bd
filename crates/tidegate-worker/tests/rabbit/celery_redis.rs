//! Celery's results in Redis, and its chords: Celery from PyPI at the other end, a Redis of the test's own between.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_loop::{sleep, timeout};
use tidegate_worker::codec::celery;
use tidegate_worker::rabbit::{PresenceOptions, QueueKind, RabbitBroker, RedisResults};
use tidegate_worker::{Broker, Stop, Task};

use crate::celery::Worker;
use crate::redis::Redis;
use crate::support::{Peer, name, on_loop, open_kind, python, python_of, python_text, pythons};

async fn counting(redis: &Redis) -> Rc<RabbitBroker> {
    let broker = Rc::new(open_kind(QueueKind::Plain).await);
    let results = RedisResults::open(&redis.address()).unwrap().expire_after(Duration::from_secs(1000));
    results.ready().await.unwrap();
    broker.keep_celery_results(results);
    broker
}

#[test]
fn results_are_kept_where_celerys_producers_look() {
    on_loop(async {
        let redis = Redis::start();
        let broker = counting(&redis).await;
        let queue = name("redis");
        let mut options = PresenceOptions::new(&name("worker"));
        options.track_started = true;
        let worker = Worker::counting(&broker, &queue, 10, options);
        let told = python("celery_redis.py", &[&queue, &redis.address()]).await;
        worker.handle.stop(Stop::Warm);
        worker.ended().await;

        assert_eq!(told["plain"], json!([3, ["STARTED", "SUCCESS"]]));
        assert_eq!(told["long"], json!(true), "integers of any size stay integers");
        assert_eq!(told["again"], json!(["SUCCESS", 3]));
        assert!((900..=1000).contains(&told["ttl"].as_i64().unwrap()), "{}", told["ttl"]);
        assert_eq!(told["failure"], json!(["ValueError", "no luck"]));
        assert_eq!(told["failed"], json!(["FAILURE", "Traceback (most recent call last):\n  …"]));
        assert_eq!(told["flaky"], json!([2, ["STARTED", "RETRY", "STARTED", "RETRY", "STARTED", "SUCCESS"]]));
        assert_eq!(told["unknown"][0], json!("NotRegistered"));
        assert_eq!(told["expired"], json!(["TaskRevokedError", "expired"]));
        assert_eq!(told["limit"][0], json!("TimeLimitExceeded"));
        assert_eq!(told["broken chain"], json!(["ValueError", "midway"]));
        assert_eq!(told["ignored"], json!(0));

        assert_eq!(told["broken chord"][0], json!("ChordError"));
        assert!(told["broken chord"][1].as_str().unwrap().ends_with("raised ValueError('midway')"), "{told}");
        assert_eq!(told["notes"], json!([[told["broken id"], "sorry"]]));
        let within = told["broken chord in a chord"][1].as_str().unwrap();
        assert!(within.contains("ChordError") && within.contains("within"), "{within}");
        assert!(told["expired part"][1].as_str().unwrap().contains("TaskRevokedError('expired')"), "{told}");
        assert_eq!(told["left"], json!([]), "nothing of a chord is left behind");
    });
}

/// Canvases that Celery's own worker before 5.7 does not bring to an end: the first one ends the worker itself, the other one
/// leaves its producer waiting.
const BEYOND_OLDER: &str = "chain to a group in a chord,broken chord in a chain";

/// With each version of Celery: what its own worker makes of its producer's canvas is what tidegate's worker makes of it. With the
/// newest also what both make of it on one queue.
#[test]
fn the_canvas_is_what_it_is_with_celerys_own_worker() {
    on_loop(async {
        let redis = Redis::start();
        for (at, interpreter) in pythons().iter().enumerate() {
            let left_out = if at == 0 { "" } else { BEYOND_OLDER };
            let draw = async |queue: &str| {
                python_of(interpreter, "celery_canvas.py", &[queue, &redis.address(), left_out]).await
            };
            let start_celery = |queue: &str| Peer::start(interpreter, "celery_worker.py", &[queue, &redis.address()]);

            let queue = name("canvas-theirs");
            let theirs = {
                let _worker = start_celery(&queue);
                draw(&queue).await
            };
            assert_eq!(theirs["chord in a chain"], json!(1 + 2 + 10 + 1 + 2 + 20 + 100));
            assert_eq!(theirs["broken chord"][0], json!("ChordError"), "{theirs}");
            assert!(!theirs.to_string().contains("TimeoutError"), "{interpreter}: {theirs}");

            for (what, beside) in [("ours", false), ("both", true)].into_iter().take(if at == 0 { 2 } else { 1 }) {
                let broker = counting(&redis).await;
                let queue = name(what);
                let _beside = beside.then(|| start_celery(&queue));
                let worker = Worker::counting(&broker, &queue, 10, PresenceOptions::new(&name("worker")));
                let ours = draw(&queue).await;
                worker.handle.stop(Stop::Warm);
                let report = worker.ended().await;
                assert!(report.received > 0);
                for (canvas, expected) in theirs.as_object().unwrap() {
                    assert_eq!(&ours[canvas], expected, "{interpreter}, {what}: {canvas}");
                }
            }
        }
    });
}

const CHORD: &str = r#"
import json, sys
from celery import Celery, chord, signature
app = Celery(broker=sys.argv[1], backend=sys.argv[3])
app.conf.task_default_queue = sys.argv[2]
s = lambda name, *args: signature(name, args=args, app=app)
print(json.dumps(chord([s("add", n, n) for n in range(20)], s("total")).apply_async().id))
"#;

const RESULT: &str = r#"
import json, sys
from celery import Celery
app = Celery(broker=sys.argv[1], backend=sys.argv[3])
print(json.dumps(app.AsyncResult(sys.argv[4]).get(timeout=60)))
"#;

/// A producer's task, with this id.
async fn send(broker: &RabbitBroker, queue: &str, id: &str) {
    let mut task = Task::new("add").arg(1).arg(2);
    task.id = id.into();
    broker.publish(vec![celery::encode(&task, queue, &celery::Extras::default())]).await.unwrap();
}

#[test]
fn a_redis_that_is_away_holds_up_settlements_and_loses_nothing() {
    on_loop(async {
        let mut redis = Redis::start();
        let broker = counting(&redis).await;
        let queue = name("away");
        let start =
            |broker: &Rc<RabbitBroker>| Worker::counting(broker, &queue, 10, PresenceOptions::new(&name("worker")));
        let worker = start(&broker);
        redis.kill();
        send(&broker, &queue, "kept").await;
        has_run(&worker).await;
        assert_eq!(worker.handle.stats().settled, 0, "what is not kept is not acknowledged");
        redis.up();
        assert_eq!(python_text(RESULT, &[&queue, &redis.address(), "kept"]).await, json!(3));
        // Chords are counted again as well.
        let id = python_text(CHORD, &[&queue, &redis.address()]).await;
        let sum = python_text(RESULT, &[&queue, &redis.address(), id.as_str().unwrap()]).await;
        assert_eq!(sum, json!(2 * (0..20).sum::<i64>()));
        worker.handle.stop(Stop::Warm);
        assert_eq!(worker.ended().await.unsettled, 0);

        // Without Redis it can be stopped all the same: another worker gets what was not acknowledged.
        let broker = counting(&redis).await;
        let worker = start(&broker);
        redis.kill();
        send(&broker, &queue, "left").await;
        has_run(&worker).await;
        worker.handle.stop(Stop::Warm);
        let report = timeout(Duration::from_secs(120), worker.ended()).await.expect("it stops without Redis");
        assert_eq!(report.unsettled, 1, "{report:?}");
        drop(broker);
        redis.up();
        let broker = counting(&redis).await;
        let worker = start(&broker);
        assert_eq!(python_text(RESULT, &[&queue, &redis.address(), "left"]).await, json!(3));
        worker.handle.stop(Stop::Warm);
        worker.ended().await;
    });
}

/// Until the worker's first task has ended.
async fn has_run(worker: &Worker) {
    while worker.handle.stats().running_peak == 0 || worker.handle.stats().running > 0 {
        sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn without_a_backend_a_part_of_a_chord_is_a_dead_letter_that_says_why() {
    on_loop(async {
        let redis = Redis::start();
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("uncounted");
        let worker = Worker::start(&broker, &queue, 10, PresenceOptions::new(&name("worker")));
        python_text(CHORD, &[&queue, &redis.address()]).await;
        while worker.handle.stats().settled < 20 {
            sleep(Duration::from_millis(10)).await;
        }
        let letters = broker.dead(Some(&queue), 100).await.unwrap();
        assert_eq!(letters.len(), 20);
        assert!(letters.iter().all(|letter| letter.reason.contains("--result-backend redis://HOST")), "{letters:?}");
        worker.handle.stop(Stop::Warm);
        worker.ended().await;
    });
}

#[test]
fn a_second_run_does_not_take_a_success_back() {
    on_loop(async {
        let redis = Redis::start();
        let broker = counting(&redis).await;
        let queue = name("twice");
        let mut options = PresenceOptions::new(&name("worker"));
        options.track_started = true;
        let worker = Worker::counting(&broker, &queue, 1, options);
        send(&broker, &queue, "twice").await;
        let mut task = Task::new("fail").arg("the second time");
        task.id = "twice".into();
        broker.publish(vec![celery::encode(&task, &queue, &celery::Extras::default())]).await.unwrap();
        while worker.handle.stats().settled < 2 {
            sleep(Duration::from_millis(10)).await;
        }
        let kept: Value = python_text(RESULT, &[&queue, &redis.address(), "twice"]).await;
        assert_eq!(kept, json!(3));
        worker.handle.stop(Stop::Warm);
        worker.ended().await;
    });
}
