//! Real producers and real workers of others: Celery and dramatiq from PyPI, in the environment that tests/rabbit/run.sh makes.

use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_amqp::{Message, types::BasicProperties};
use tidegate_loop::to_thread;
use tidegate_worker::codec::{celery, dramatiq};
use tidegate_worker::rabbit::{QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Consumer, Delivery, Task, TaskError, Verdict};

use crate::support::{deliveries, host, name, on_loop, one, open_kind, settle, subscribe};

/// Runs a script of Python's while the loop goes on; `argv` is the broker's address and the queue.
async fn python(script: &'static str, queue: &str) -> Value {
    let python = std::env::var("TIDEGATE_PYTHON").expect("TIDEGATE_PYTHON is not set; tests/rabbit/run.sh does");
    let arguments = ["-c".to_owned(), script.to_owned(), format!("amqp://guest:guest@{}//", host()), queue.to_owned()];
    let run = move || Command::new(python).args(arguments).stdin(Stdio::null()).output().unwrap();
    let Output { status, stdout, stderr } = to_thread(run).await.unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&stdout)))
}

async fn answer(broker: &RabbitBroker, message: &celery::Message, status: celery::Status<'_>) {
    let Some((reply, body)) = message.answer(status, broker.now()) else { return };
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_correlation_id(reply.correlation_id.as_str().into());
    broker.post(Message::to_queue(reply.queue, body).properties(&properties)).await.unwrap();
}

/// Adds two numbers, or says no.
fn add(task: &Task) -> Result<Value, TaskError> {
    match (task.name.as_str(), task.args.iter().filter_map(Value::as_i64).collect::<Vec<_>>().as_slice()) {
        ("add", [a, b]) => Ok(json!(a + b)),
        _ => Err(TaskError { kind: "ValueError".into(), message: format!("no {}", task.name), traceback: None }),
    }
}

/// A worker of a few lines: runs, answers, sends what follows, settles.
async fn work(broker: Rc<RabbitBroker>, consumer: Rc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut done = Vec::new();
    while done.len() < count {
        for delivery in deliveries(&consumer, 1).await {
            let message = celery::read(&delivery.envelope, delivery.retries).unwrap();
            assert!(delivery.envelope.eta.is_none_or(|eta| eta <= broker.now()), "came early");
            match add(&message.task) {
                Ok(value) => {
                    broker.publish(message.after_success(&value).unwrap()).await.unwrap();
                    answer(&broker, &message, celery::Status::Success(&value)).await;
                }
                Err(error) => answer(&broker, &message, celery::Status::Failure(&error)).await,
            }
            settle(&consumer, delivery.tag, Verdict::Ack).await;
            done.push(delivery);
        }
    }
    done
}

const CELERY_PRODUCER: &str = r#"
import json, sys
from celery import Celery, chain, signature
app = Celery(broker=sys.argv[1], backend="rpc://")
app.conf.task_default_queue = sys.argv[2]
told = {}
told["plain"] = app.send_task("add", (1, 2)).get(timeout=60)
told["countdown"] = app.send_task("add", (3, 4), countdown=1, priority=5, time_limit=30, soft_time_limit=20).get(timeout=60)
try:
    app.send_task("nosuch", (1,)).get(timeout=60)
except Exception as error:
    told["failure"] = [type(error).__name__, str(error)]
told["chain"] = chain(signature("add", (10, 20), app=app), signature("add", (5,), app=app)).apply_async().get(timeout=60)
print(json.dumps(told))
"#;

#[test]
fn celerys_producers_get_their_results() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("celery");
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let worker = tidegate_loop::spawn(work(broker.clone(), consumer, 5));
        let told = python(CELERY_PRODUCER, &queue).await;
        assert_eq!((&told["plain"], &told["countdown"], &told["chain"]), (&json!(3), &json!(7), &json!(35)));
        assert_eq!(told["failure"], json!(["ValueError", "no nosuch"]));
        let done = worker.await.unwrap();
        let limited = celery::decode(&done[1].envelope, 0).unwrap();
        assert_eq!(
            (limited.hard_limit, limited.soft_limit),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(20)))
        );
        broker.close().await.unwrap();
    });
}

/// One task, then the worker ends.
const CELERY_WORKER: &str = r#"
import json, os, signal, sys, threading
from celery import Celery
app = Celery(broker=sys.argv[1])
app.conf.task_default_queue = sys.argv[2]
seen = []
@app.task(name="join", bind=True)
def join(self, *args, **kwargs):
    seen.append([self.request.id, list(args), kwargs, list(self.request.timelimit)])
    if len(seen) == 2:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
out = os.dup(1)
os.dup2(2, 1)
try:
    app.worker_main(["worker", "-P", "solo", "-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])
except SystemExit:
    pass
os.write(out, json.dumps(seen).encode())
"#;

#[test]
fn celerys_workers_run_our_tasks() {
    on_loop(async {
        let broker = open_kind(QueueKind::Plain).await;
        let queue = name("celery-worker");
        let mut task = Task::new("join").arg(1).kwarg("to", "a@example.org");
        task.hard_limit = Some(Duration::from_secs(30));
        let plain = celery::encode(&task, &queue, &celery::Extras::default());
        let mut late = Task::new("join").arg("late");
        late.id = "later".into();
        let eta = Some(broker.now() + Duration::from_secs(1));
        let late = celery::encode(&late, &queue, &celery::Extras { eta, ..celery::Extras::default() });
        broker.publish(vec![plain, late]).await.unwrap();
        let seen = python(CELERY_WORKER, &queue).await;
        let expected = json!([
            [task.id.as_str(), [1], {"to": "a@example.org"}, [30.0, null]],
            ["later", ["late"], {}, [null, null]],
        ]);
        assert_eq!(seen, expected);
        broker.close().await.unwrap();
    });
}

const DRAMATIQ_PRODUCER: &str = r#"
import json, sys
import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
broker = RabbitmqBroker(url=sys.argv[1].rstrip("/"))
dramatiq.set_broker(broker)
@dramatiq.actor(queue_name=sys.argv[2])
def add(a, b): pass
print(json.dumps(add.send(1, 2).message_id))
"#;

#[test]
fn dramatiqs_producers_are_understood() {
    on_loop(async {
        let broker = open_kind(QueueKind::Dramatiq).await;
        let queue = name("dramatiq");
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let id = python(DRAMATIQ_PRODUCER, &queue).await;
        let delivery = one(&consumer).await;
        let task = dramatiq::decode(&delivery.envelope, 0).unwrap();
        assert_eq!((json!(task.id.as_str()), task.name.as_str(), task.args), (id, "add", vec![json!(1), json!(2)]));
        settle(&consumer, delivery.tag, Verdict::Ack).await;
        broker.close().await.unwrap();
    });
}
