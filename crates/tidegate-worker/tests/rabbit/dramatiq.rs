//! A whole worker for dramatiq's producers, and dramatiq's workers for our tasks; dramatiq from PyPI at the other end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_loop::spawn;
use tidegate_sync::Event;
use tidegate_worker::codec::dramatiq;
use tidegate_worker::rabbit::QueueKind;
use tidegate_worker::{
    Broker, Coroutines, HandlerError, Handlers, Master, Policies, Policy, Selection, Settings, Stop, Task, TaskContext,
    Verdict,
};

use crate::support::{name, on_loop, one, open_kind, python, settle, subscribe};

/// What tasks have noted.
#[derive(Default)]
struct Notes {
    all: RefCell<Vec<Value>>,
    changed: Event,
}

impl Notes {
    fn add(&self, note: Value) {
        self.all.borrow_mut().push(note);
        self.changed.notify_all();
    }

    async fn wait(&self, count: usize) {
        while self.all.borrow().len() < count {
            self.changed.wait().await;
        }
    }
}

fn handlers(notes: &Rc<Notes>) -> Handlers {
    let (noted, tries) = (Rc::clone(notes), Rc::clone(notes));
    Handlers::new()
        .task("add", |a: i64, b: i64| async move { Ok::<_, HandlerError>(a + b) })
        .task("note", move |first: Value, second: Option<Value>| {
            noted.add(json!([first, second]));
            async { Ok::<_, HandlerError>(()) }
        })
        .task("flaky", move |context: TaskContext| {
            let retries = context.retries();
            if retries == 2 {
                tries.add(json!(["flaky", retries]));
            }
            async move { if retries < 2 { Err(HandlerError::failed("not yet")) } else { Ok(()) } }
        })
        .task("fail", |message: String| async move { Err::<(), _>(HandlerError::failed(message)) })
        .task("forever", || async { std::future::pending::<Result<(), HandlerError>>().await })
}

#[test]
fn dramatiqs_producers_keep_their_delays_retries_pipelines_and_dead_letters() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Dramatiq).await);
        let queue = name("dramatiq");
        let notes = Rc::new(Notes::default());
        let mut settings = Settings::new([queue.as_str()]);
        settings.decode = Rc::new(dramatiq::decode);
        // What the messages say themselves comes first.
        settings.policies = Policies::new(Policy { retries_max: 0, ..Policy::default() });
        let master = Master::new(broker.clone(), Rc::new(Coroutines::new(handlers(&notes))), settings);
        let handle = master.handle();
        let running = spawn(master.run());
        let told = python("dramatiq_producer.py", &[&queue]).await;

        notes.wait(5).await;
        let others = open_kind(QueueKind::Dramatiq).await;
        // The last of its two tries, and the one that took too long.
        let wait = async |id: &Value| others.wait_result(&id.as_str().unwrap().into()).await.unwrap();
        let (failed, slow) = (wait(&told["failed"]).await, wait(&told["slow"]).await);
        assert_eq!(failed.error.unwrap().message, "no luck");
        assert_eq!(slow.error.unwrap().kind, "TimeLimit");
        let mut all: Vec<String> = notes.all.borrow().iter().map(ToString::to_string).collect();
        all.sort();
        let expected =
            [r#"["delayed",null]"#, r#"["flaky",2]"#, r#"["ignored",null]"#, r#"["pipeline",6]"#, r#"["plain",null]"#];
        assert_eq!(all, expected);

        let letters = others.dead(Some(&queue), 10).await.unwrap();
        let failed = letters.iter().find(|letter| letter.envelope.id.as_str() == told["failed"]).unwrap();
        assert!(failed.reason.contains("tried 2 times"), "{}", failed.reason);
        let message = dramatiq::read(&failed.envelope).unwrap();
        assert_eq!((message.retries(), &message.options["traceback"]), (1, &json!("Error: no luck")));
        assert_eq!(others.dead_drop(Selection::Queue(queue.clone())).await.unwrap(), 2, "in QUEUE.XQ");
        others.close().await.unwrap();
        handle.stop(Stop::Warm);
        running.await.unwrap().unwrap();
    });
}

#[test]
fn dramatiqs_workers_run_our_tasks_and_those_that_failed_with_us() {
    on_loop(async {
        let broker = open_kind(QueueKind::Dramatiq).await;
        let queue = name("dramatiq-worker");
        let task = |id: &str, arg: Value| {
            let mut task = Task::new("join").arg(arg).kwarg("to", "a@example.org");
            task.id = id.into();
            task
        };
        let now = broker.now();
        // One that we have tried before.
        broker.publish(vec![dramatiq::encode(&task("tried", json!(1)), &queue, None, now)]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 1).await;
        let delivery = one(&consumer).await;
        settle(&consumer, delivery.tag, Verdict::Retry { at: now + Duration::from_millis(300) }).await;
        consumer.close().await.unwrap();
        let eta = Some(now + Duration::from_millis(900));
        let late = dramatiq::encode(&task("late", json!("late")), &queue, eta, now);
        let plain = dramatiq::encode(&task("plain", json!([2])), &queue, None, now);
        broker.publish(vec![late, plain]).await.unwrap();
        let seen = python("dramatiq_worker.py", &[&queue, "3"]).await;
        let to = json!({"to": "a@example.org"});
        let mut seen: Vec<Value> = seen.as_array().unwrap().clone();
        seen.sort_by_key(ToString::to_string);
        let expected = [json!(["late", ["late"], to, 0]), json!(["plain", [[2]], to, 0]), json!(["tried", [1], to, 1])];
        assert_eq!(seen, expected);
        broker.close().await.unwrap();
    });
}
