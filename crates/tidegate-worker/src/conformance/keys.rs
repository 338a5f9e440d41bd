//! Unique keys when several publish, when publishing fails, and when publishers die.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_loop::spawn;
use tidegate_sync::Event;

use super::*;
use crate::broker::{BrokerError, Capabilities, DeadLetter, Published, Selection, TaskResult};
use crate::task::{TaskId, Unique};
use crate::{BODY_BYTES_MAX, Coroutines, HandlerError, Handlers, Master, Settings, Stop, TaskContext};

const LONG: Duration = Duration::from_secs(3_600);

fn keyed(name: &str, key: &str) -> Envelope {
    let mut envelope = task(name);
    envelope.unique = Some(Unique { key: key.into(), hold: LONG, past_settle: true });
    envelope
}

/// As workers publish an occurrence of a schedule: each of them, at the same time, under the same id.
pub async fn the_same_key_and_id_from_several_connections_is_one_task(subject: Rc<dyn Subject>) {
    let envelope = keyed("tick", "tick");
    let publishes: Vec<_> = {
        let mut publishes = Vec::new();
        for _ in 0..3 {
            let (broker, envelope) = (subject.connect().await, envelope.clone());
            publishes.push(spawn(async move { broker.publish(vec![envelope]).await.unwrap().remove(0) }));
        }
        publishes
    };
    let mut stored = 0;
    for publish in publishes {
        match publish.await.unwrap() {
            Published::Stored => stored += 1,
            other => assert_eq!(other, Published::Duplicate(envelope.id.clone())),
        }
    }
    assert_eq!(stored, 1);
    let broker = subject.connect().await;
    // Once more, by a process that has started again; and twice in one batch.
    let again = broker.publish(vec![envelope.clone(), envelope.clone(), task("last")]).await.unwrap();
    let duplicate = Published::Duplicate(envelope.id);
    assert_eq!(again, [duplicate.clone(), duplicate, Published::Stored]);
    assert_eq!(names(&consumer(&broker, 10).await, 2).await, ["tick", "last"]);
}

/// As an asker publishes the pages of a file: over one connection, without waiting for the one before.
pub async fn many_keys_that_are_published_at_once_are_one_task_each(subject: Rc<dyn Subject>) {
    const COUNT: usize = 40;
    let broker = subject.connect().await;
    let mut publishes = Vec::new();
    for number in 0..COUNT {
        let envelope = keyed(&format!("task {number}"), &format!("key {number}"));
        let broker = Rc::clone(&broker);
        publishes.push(spawn(async move { broker.publish(vec![envelope]).await.unwrap().remove(0) }));
    }
    for publish in publishes {
        assert_eq!(publish.await.unwrap(), Published::Stored);
    }
    assert_eq!(broker.publish(vec![task("last")]).await.unwrap(), [Published::Stored]);
    let reader = consumer(&broker, COUNT + 1).await;
    let mut found = Vec::new();
    while found.last().is_none_or(|name| name != "last") {
        for incoming in reader.recv_all().await.unwrap() {
            let Incoming::Delivery(delivery) = incoming else { panic!("{incoming:?}") };
            found.push(name(&delivery));
            settle(&reader, &delivery, Verdict::Ack).await;
        }
    }
    found.sort();
    let mut expected: Vec<String> =
        (0..COUNT).map(|number| format!("task {number}")).chain(["last".to_owned()]).collect();
    expected.sort();
    assert_eq!(found, expected);
}

/// The next publish is not a duplicate of a task that does not exist.
pub async fn a_refused_publish_leaves_its_key_free(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    let mut large = keyed("large", "the key");
    large.body = vec![0; BODY_BYTES_MAX + 1];
    assert!(matches!(broker.publish(vec![large]).await, Err(BrokerError::Refused { .. })));
    assert_eq!(broker.publish(vec![keyed("small", "the key")]).await.unwrap(), [Published::Stored]);
    assert_eq!(names(&consumer(&broker, 10).await, 1).await, ["small"]);
}

/// Polls a future a number of times, then drops it; `true` if it has ended by then.
async fn polled<T>(mut future: Local<'_, T>, times: u32) -> bool {
    let mut left = times;
    poll_fn(move |cx| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending if left == 0 => Poll::Ready(false),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Between the key and the task, for instance: the next publisher stores the task, or the task is there.
pub async fn a_publisher_that_dies_at_any_point_leaves_no_key_without_a_task(subject: Rc<dyn Subject>) {
    let survivor = subject.connect().await;
    let mut count = 0;
    loop {
        let envelope = keyed(&format!("task {count}"), &format!("key {count}"));
        let mortal = subject.connect().await;
        let ended = polled(mortal.publish(vec![envelope.clone()]), count).await;
        drop(mortal);
        match survivor.publish(vec![envelope.clone()]).await.unwrap().remove(0) {
            Published::Stored => {}
            other => assert_eq!(other, Published::Duplicate(envelope.id), "dropped after {count} polls"),
        }
        count += 1;
        if ended {
            break;
        }
        assert!(count < 200, "it does not end");
    }
    let reader = consumer(&survivor, 10).await;
    let mut missing: std::collections::BTreeSet<String> = (0..count).map(|number| format!("task {number}")).collect();
    while !missing.is_empty() {
        for incoming in reader.recv_all().await.unwrap() {
            let Incoming::Delivery(delivery) = incoming else { panic!("{incoming:?}") };
            missing.remove(&name(&delivery));
            settle(&reader, &delivery, Verdict::Ack).await;
        }
    }
}

/// What became of the publishes of several workers.
#[derive(Default)]
struct Occurrences {
    /// With the id of the occurrence.
    answers: RefCell<Vec<(TaskId, Published)>>,
    changed: Event,
}

/// A broker with its clock set, so that a schedule is due soon; notes what became of what is published.
struct Shifted {
    inner: Rc<dyn Broker>,
    by: SignedDuration,
    seen: Rc<Occurrences>,
}

impl Broker for Shifted {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.inner.now() + self.by
    }

    fn publish(&self, batch: Vec<Envelope>) -> Local<'_, Result<Vec<Published>, BrokerError>> {
        Box::pin(async {
            let ids: Vec<TaskId> = batch.iter().map(|envelope| envelope.id.clone()).collect();
            let published = self.inner.publish(batch).await?;
            self.seen.answers.borrow_mut().extend(ids.into_iter().zip(published.iter().cloned()));
            self.seen.changed.notify_all();
            Ok(published)
        })
    }

    fn subscribe(&self, what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>> {
        self.inner.subscribe(what)
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        self.inner.inspect()
    }

    fn peek(&self, queue: &str, limit: usize) -> Local<'_, Result<Vec<Envelope>, BrokerError>> {
        self.inner.peek(queue, limit)
    }

    fn purge(&self, queue: &str) -> Local<'_, Result<u64, BrokerError>> {
        self.inner.purge(queue)
    }

    fn dead(&self, queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<DeadLetter>, BrokerError>> {
        self.inner.dead(queue, limit)
    }

    fn dead_retry(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.inner.dead_retry(which)
    }

    fn dead_drop(&self, which: Selection) -> Local<'_, Result<u64, BrokerError>> {
        self.inner.dead_drop(which)
    }

    fn revoke(&self, id: &TaskId) -> Local<'_, Result<(), BrokerError>> {
        self.inner.revoke(id)
    }

    fn result(&self, id: &TaskId) -> Local<'_, Result<Option<TaskResult>, BrokerError>> {
        self.inner.result(id)
    }

    fn wait_result(&self, id: &TaskId) -> Local<'_, Result<TaskResult, BrokerError>> {
        self.inner.wait_result(id)
    }

    fn close(&self) -> Local<'_, Result<(), BrokerError>> {
        self.inner.close()
    }
}

/// Three workers with one schedule.
pub async fn workers_with_one_schedule_run_an_occurrence_once(subject: Rc<dyn Subject>) {
    const WORKERS: usize = 3;
    /// Where schedules publish unless they say otherwise.
    const SCHEDULED: &str = "default";
    let runs = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::new(Occurrences::default());
    let handlers = Handlers::new().task("beat", {
        let runs = Rc::clone(&runs);
        move |context: TaskContext| {
            runs.borrow_mut().push(context.id().to_string());
            async { Ok::<_, HandlerError>(()) }
        }
    });
    let mut brokers = Vec::new();
    for _ in 0..WORKERS {
        brokers.push(subject.connect().await);
    }
    // Two units before the next minute.
    let now = brokers[0].now();
    let minute = now.as_second().div_euclid(60) * 60 + 60;
    let before = Timestamp::from_second(minute).unwrap() - SignedDuration::try_from(subject.unit() * 2).unwrap();
    let by = before.duration_since(now);
    let workers: Vec<_> = brokers
        .into_iter()
        .map(|inner| {
            let broker = Shifted { inner, by, seen: Rc::clone(&seen) };
            let mut settings = Settings::new([SCHEDULED]);
            settings.schedules = vec!["every: * * * * * => beat".parse().unwrap()];
            let master = Master::new(Rc::new(broker), Rc::new(Coroutines::new(handlers.clone())), settings);
            (master.handle(), spawn(master.run()))
        })
        .collect();
    while seen.answers.borrow().len() < WORKERS {
        seen.changed.wait().await;
    }
    for (worker, running) in workers {
        worker.stop(Stop::Warm);
        running.await.unwrap().unwrap();
    }
    let answers = seen.answers.take();
    // On a slow machine the next minute may begin before the last worker has its answer about this one.
    let mut stored: Vec<&TaskId> =
        answers.iter().filter(|(_, answer)| *answer == Published::Stored).map(|(id, _)| id).collect();
    stored.sort();
    let occurrences: BTreeSet<&TaskId> = answers.iter().map(|(id, _)| id).collect();
    assert_eq!(stored, occurrences.into_iter().collect::<Vec<_>>(), "{answers:?}");
    let left: u64 = subject.connect().await.inspect().await.unwrap().iter().map(|stats| stats.ready).sum();
    let runs = runs.take();
    let distinct: BTreeSet<&String> = runs.iter().collect();
    assert_eq!((runs.len(), runs.len() as u64 + left), (distinct.len(), stored.len() as u64), "{runs:?}");
}
