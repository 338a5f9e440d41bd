//! A whole worker for Celery's producers and tools: Celery and Flower from PyPI at the other end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_amqp::Queue;
use tidegate_loop::{JoinHandle, spawn, timeout};
use tidegate_sync::Event;
use tidegate_worker::codec::celery;
use tidegate_worker::rabbit::{Presence, PresenceOptions, QueueKind, RabbitBroker};
use tidegate_worker::{
    Backoff, Coroutines, Decode, HandlerError, Handlers, Master, MasterError, MasterHandle, Policies, Policy, Report,
    Settings, Stop, TaskContext, TaskError,
};

use crate::support::{connect, name, on_loop, open_kind, python};

fn value_error(message: &str) -> HandlerError {
    let traceback = Some("Traceback (most recent call last):\n  …".to_owned());
    HandlerError::Failed(TaskError { kind: "ValueError".into(), message: message.into(), traceback })
}

/// What tasks have noted, for the task that waits until there are so many.
#[derive(Default)]
struct Notes {
    all: RefCell<Vec<Value>>,
    changed: Event,
}

fn handlers() -> Handlers {
    let notes = Rc::new(Notes::default());
    let noted = Rc::clone(&notes);
    Handlers::new()
        .task("add", |a: i64, b: i64| async move { Ok::<_, HandlerError>(a + b) })
        .task("total", |all: Vec<i64>| async move { Ok::<_, HandlerError>(all.iter().sum::<i64>()) })
        .task("same", |one: Value| async move { Ok::<_, HandlerError>(one) })
        .task("echo", |one: Value, rest: Value| async move { Ok::<_, HandlerError>(json!([one, rest])) })
        .task("fail", |message: String| async move { Err::<Value, _>(value_error(&message)) })
        .task("flaky", |context: TaskContext| async move {
            match context.retries() {
                0 | 1 => Err(value_error("not yet")),
                retries => Ok(retries),
            }
        })
        .task("forever", || async { std::future::pending::<Result<Value, HandlerError>>().await })
        .task("hold", |_name: String| async { std::future::pending::<Result<Value, HandlerError>>().await })
        .task("note", move |first: Value, second: Option<Value>| {
            let notes = Rc::clone(&notes);
            async move {
                notes.all.borrow_mut().push(json!([first, second]));
                notes.changed.notify_all();
                Ok::<_, HandlerError>(first)
            }
        })
        .task("notes", move |count: usize| {
            let notes = Rc::clone(&noted);
            async move {
                while notes.all.borrow().len() < count {
                    notes.changed.wait().await;
                }
                Ok::<_, HandlerError>(Value::Array(notes.all.borrow().clone()))
            }
        })
}

/// A worker as it stands beside Celery's.
pub(crate) struct Worker {
    pub(crate) handle: MasterHandle,
    pub(crate) presence: Presence,
    running: JoinHandle<Result<Report, MasterError>>,
}

impl Worker {
    /// One that refuses parts of chords.
    pub(crate) fn start(broker: &Rc<RabbitBroker>, queue: &str, slots: usize, options: PresenceOptions) -> Worker {
        Worker::start_with(broker, queue, slots, options, Rc::new(celery::decode), 10)
    }

    /// One whose broker counts them.
    pub(crate) fn counting(broker: &Rc<RabbitBroker>, queue: &str, slots: usize, options: PresenceOptions) -> Worker {
        let decode: Decode = Rc::new(|envelope, retries| celery::read(envelope, retries).map(|message| message.task));
        Worker::start_with(broker, queue, slots, options, decode, 10)
    }

    /// One that has nothing in hand but what it runs: the broker decides what comes next.
    fn start_one_by_one(broker: &Rc<RabbitBroker>, queue: &str) -> Worker {
        Worker::start_with(broker, queue, 1, PresenceOptions::new(&name("worker")), Rc::new(celery::decode), 1)
    }

    fn start_with(
        broker: &Rc<RabbitBroker>,
        queue: &str,
        slots: usize,
        options: PresenceOptions,
        decode: Decode,
        prefetch: usize,
    ) -> Worker {
        let mut settings = Settings::new([queue]);
        settings.decode = decode;
        let quick = Backoff { min: Duration::from_millis(100), max: Duration::from_millis(200) };
        let once = Policy { retries_max: 0, backoff: quick, ..Policy::default() };
        let patient = Policy { retries_max: 3, ..once.clone() };
        settings.policies = Policies::new(once).task("flaky", patient);
        settings.prefetch = Some(prefetch);
        let presence = Presence::new(broker, options);
        presence.attach(&mut settings);
        let mode = Rc::new(Coroutines::new(handlers()).with_slots(slots));
        let master = Master::new(broker.clone(), mode, settings);
        let handle = master.handle();
        presence.start(master.handle());
        Worker { handle, presence, running: spawn(master.run()) }
    }

    pub(crate) async fn ended(self) -> Report {
        let report = self.running.await.unwrap().unwrap();
        self.presence.stop().await;
        report
    }
}

#[test]
fn celerys_producers_get_results_failures_and_everything_that_follows() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("celery");
        let mut options = PresenceOptions::new(&name("worker"));
        options.track_started = true;
        let worker = Worker::start(&broker, &queue, 100, options);
        let told = python("celery_results.py", &[&queue]).await;
        worker.handle.stop(Stop::Warm);
        worker.ended().await;

        assert_eq!(told["plain"], json!([3, ["STARTED", "SUCCESS"]]));
        assert_eq!(told["keywords"], json!([1, {"x": {"y": [null, 1.5]}}]));
        assert_eq!(told["long"], json!(true), "integers of any size stay integers");
        assert_eq!(told["countdown"], json!(7));
        assert_eq!(told["failure"], json!(["builtins.ValueError", "no luck"]));
        assert_eq!(
            (&told["traceback"], &told["state"]),
            (&json!("Traceback (most recent call last):\n  …"), &json!("FAILURE"))
        );
        assert_eq!(told["unknown"][0], json!("celery.exceptions.NotRegistered"), "{}", told["unknown"]);
        assert_eq!(told["ignored"], Value::Null);

        assert_eq!(told["flaky"][0], json!(2));
        assert_eq!(told["flaky"][1], json!(["STARTED", "RETRY", "STARTED", "RETRY", "STARTED", "SUCCESS"]));
        assert_eq!(told["retries"], json!(2), "the message's own count is where it goes on from");
        for limit in ["limit", "soft limit"] {
            assert_eq!(told[limit][0], json!("billiard.exceptions.TimeLimitExceeded"), "{}", told[limit]);
        }
        assert_eq!(told["expired"], json!(["celery.exceptions.TaskRevokedError", "expired"]));

        assert_eq!(told["chain"], json!(36));
        assert_eq!(told["broken chain"], json!(["builtins.ValueError", "midway"]));
        assert_eq!(told["group"], json!([0, 2, 4, 6, 8]));
        assert_eq!(told["fan out"], json!([13, 23]));
        assert_eq!(told["group of chains"], json!([101, 102, 103]));
        assert_eq!((&told["linked"], &told["children"], &told["nested"]), (&json!(5), &json!(2), &json!(10)));
        assert_eq!(told["errored"], json!(["builtins.ValueError", "linked"]));
        assert!(told["chord"].as_str().unwrap().contains("does not support chords"), "{}", told["chord"]);
        let mut notes: Vec<String> = told["notes"].as_array().unwrap().iter().map(ToString::to_string).collect();
        notes.sort();
        let sorry = format!(r#"[{},"sorry"]"#, told["errored id"]);
        let mut expected =
            vec![r#"["still",null]"#.to_owned(), r#"[17,"chained"]"#.to_owned(), r#"[5,"linked"]"#.to_owned(), sorry];
        expected.sort();
        assert_eq!(notes, expected);
    });
}

#[test]
fn celerys_tools_see_the_worker_and_its_tasks_and_tell_it_what_to_do() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("control");
        let worker = Worker::start(&broker, &queue, 1, PresenceOptions::new(&name("tidegate")));
        let node = worker.presence.hostname().to_owned();
        let told = spawn({
            let (queue, node) = (queue.clone(), node.clone());
            async move { python("celery_control.py", &[&queue, &node]).await }
        });
        // It is told to stop by remote control.
        let report = worker.ended().await;
        let told = told.await.unwrap();
        let of = |what: &str| told[what][&node].clone();

        assert_eq!(
            (&told["heartbeat"]["hostname"], &told["heartbeat"]["sw_ident"]),
            (&json!(node), &json!("tidegate"))
        );
        assert_eq!(of("ping"), json!({"ok": "pong"}));
        assert_eq!(told["enabled"], json!([{&node: {"ok": "task events enabled"}}]));
        assert_eq!(of("active")[0]["args"], json!(["first"]));
        assert!(of("active")[0]["time_start"].as_f64().unwrap() > 1.7e9);
        assert_eq!(
            (of("reserved")[0]["args"].clone(), of("reserved").as_array().unwrap().len()),
            (json!(["second"]), 1)
        );
        assert_eq!(of("scheduled"), json!([]), "what is delayed waits in the broker");
        assert!(of("registered").as_array().unwrap().contains(&json!("add")));
        assert_eq!(told["queues"], json!([queue]));
        assert_eq!(of("stats")["pool"]["max-concurrency"], json!(1));
        assert_eq!(of("stats")["broker"]["transport"], json!("amqp"));
        let states: Vec<&Value> = told["query"].as_object().unwrap().values().collect();
        assert!(states.contains(&&json!("active")) && states.contains(&&json!("reserved")) && states.len() == 2);
        assert!(of("conf")["broker_url"].as_str().unwrap().starts_with("amqp://"));
        assert!(!of("conf").to_string().contains("guest:guest"), "no password is shown");
        let line = told["command line"].as_str().unwrap();
        assert!(line.contains(&node) && line.contains("pong"), "{line}");
        assert!(told["unknown"][0][&node]["error"].as_str().unwrap().contains("--limit"), "{}", told["unknown"]);

        assert_eq!(told["waiting"], json!(["revoked", "revoked"]));
        assert_eq!(told["spared"], json!([true]), "a revoke spares what runs unless it says otherwise");
        assert_eq!(told["running"], json!(["revoked", "revoked"]));
        assert_eq!(told["later"], json!(["revoked", "revoked"]));
        assert_eq!(told["revoked"], json!(true));

        assert_eq!((&told["done"], &told["succeeded"]["result"]), (&json!(7), &json!("7")));
        assert!(told["succeeded"]["runtime"].as_f64().is_some());
        let received = (&told["received"]["name"], &told["received"]["args"]);
        assert_eq!(received, (&json!("add for Ada"), &json!("(3, 4)")), "monitors see the shadow");
        assert_eq!(told["failed"]["exception"], json!("ValueError('no luck')"));
        assert_eq!((&told["flaky"], &told["retried"]["exception"]), (&json!(2), &json!("ValueError('not yet')")));
        assert_eq!(report.unsettled, 0);
    });
}

#[test]
fn flower_lists_the_worker_and_its_tasks() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("flower");
        let worker = Worker::start(&broker, &queue, 10, PresenceOptions::new(&name("tidegate")));
        let node = worker.presence.hostname().to_owned();
        let told = python("celery_flower.py", &[&queue, &node]).await;
        worker.handle.stop(Stop::Warm);
        worker.ended().await;

        let shown = &told["worker"];
        assert_eq!(shown["active_queues"][0]["name"], json!(queue));
        assert!(shown["registered"].as_array().unwrap().contains(&json!("add")), "{shown}");
        assert_eq!(shown["stats"]["pool"]["max-concurrency"], json!(10));
        assert_eq!(told["status"], json!(true), "online");
        let done = &told["done"];
        assert_eq!((&done["name"], &done["args"], &done["result"]), (&json!("add"), &json!("(3, 4)"), &json!("7")));
        assert_eq!((&done["worker"], &done["state"]), (&json!(node), &json!("SUCCESS")));
        assert_eq!(told["failed"]["exception"], json!("ValueError('no luck')"));
    });
}

#[test]
fn a_revoke_is_heard_by_every_worker_and_ends_only_its_task() {
    on_loop(async {
        let queue = name("revoke");
        let mut workers = Vec::new();
        for what in ["one", "two", "three"] {
            // Each as on a machine of its own.
            let broker = Rc::new(open_kind(QueueKind::Plain).await);
            workers.push(Worker::start(&broker, &queue, 1, PresenceOptions::new(&name(what))));
        }
        // Each gets one of the first three tasks then.
        let connection = connect().await;
        let all_consume = timeout(Duration::from_secs(120), async {
            let consumers =
                async || connection.declare(&Queue::passive(&queue)).await.map_or(0, |found| found.consumers);
            while consumers().await < 3 {}
        });
        all_consume.await.unwrap();
        connection.close().await;
        let nodes: Vec<String> = workers.iter().map(|worker| worker.presence.hostname().to_owned()).collect();
        let told = python("celery_revoke.py", &[&queue, &nodes.join(" ")]).await;
        assert_eq!(told["heard"], json!(3), "each of them says that it has heard it");
        assert_eq!(told["terminated"], json!("revoked"));
        assert_eq!(told["spared"], json!(2), "the others' tasks run on");
        assert_eq!(told["waiting"], json!("revoked"));
        assert_eq!(told["later"], json!("revoked"), "one that was revoked before it was sent");
        assert_eq!(told["remembered"], json!(3));
        for worker in &workers {
            worker.handle.stop(Stop::Cold);
        }
        for worker in workers {
            worker.ended().await;
        }
        // One that starts later knows it too.
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let worker = Worker::start(&broker, &queue, 1, PresenceOptions::new(&name("late")));
        let told = python("celery_revoke.py", &[&queue, "", told["again"].as_str().unwrap()]).await;
        assert_eq!(told["again"], json!("revoked"));
        worker.handle.stop(Stop::Cold);
        worker.ended().await;
    });
}

#[test]
fn a_worker_without_remote_control_has_no_mailbox_and_runs_its_tasks() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("deaf");
        let mut options = PresenceOptions::new(&name("deaf"));
        options.remote_control = false;
        let deaf = Worker::start(&broker, &queue, 1, options);
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let listening = Worker::start(&broker, &name("listening"), 1, PresenceOptions::new(&name("listening")));
        let (silent, node) = (deaf.presence.hostname(), listening.presence.hostname());
        let told = python("celery_deaf.py", &[&queue, silent, node]).await;
        assert_eq!(told["sum"], json!(3));
        assert_eq!(told["ping"], json!([{node: {"ok": "pong"}}]));
        assert_eq!((&told["deaf"], &told["listening"]), (&json!("missing"), &json!("another connection's")));
        for worker in [deaf, listening] {
            worker.handle.stop(Stop::Cold);
            worker.ended().await;
        }
    });
}

#[test]
fn priorities_are_honoured_where_celery_has_given_its_queue_some() {
    on_loop(async {
        let broker = Rc::new(open_kind(QueueKind::Plain).await);
        let queue = name("priorities");
        python("celery_priorities.py", &[&queue, "send"]).await;
        let worker = Worker::start_one_by_one(&broker, &queue);
        let told = python("celery_priorities.py", &[&queue, "look"]).await;
        // The last ones of all are those without one, in their order.
        let expected: Vec<Value> = [9, 7, 5, 5, 3, 1, 0, 0].iter().map(|priority| json!(priority)).collect();
        assert_eq!(told["order"], Value::Array(expected), "{told}");
        worker.handle.stop(Stop::Warm);
        worker.ended().await;
    });
}
