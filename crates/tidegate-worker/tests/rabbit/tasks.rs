//! Publishing, waiting, expiring, revoking, and looking.

use std::time::Duration;

use tidegate_amqp::{Connection, Message};
use tidegate_loop::timeout;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{
    Broker, BrokerError, Incoming, Published, Selection, Settlement, TaskResult, TaskState, Unique, Verdict,
};

use crate::support::{body, ctl, deliveries, envelope, host, name, on_loop, one, open, open_kind, settle, subscribe};

#[test]
fn tasks_come_as_they_were_published_by_priority_then_in_order() {
    on_loop(async {
        let broker = open().await;
        let queue = name("priority");
        let mut batch: Vec<_> = ["a", "b", "c", "d"].map(|body| envelope(&queue, body)).into();
        batch[2].priority = 9;
        batch[3].priority = 9;
        batch[0].headers.insert("k".into(), serde_json::json!([1, {"x": null}]));
        let published = broker.publish(batch.clone()).await.unwrap();
        assert_eq!(published, vec![Published::Stored; 4]);
        let consumer = subscribe(&broker, &[&queue], 1).await;
        for expected in [&batch[2], &batch[3], &batch[0], &batch[1]] {
            let delivery = one(&consumer).await;
            assert_eq!(*delivery.envelope, *expected);
            assert_eq!((delivery.retries, delivery.crashes), (0, 0));
            settle(&consumer, delivery.tag, Verdict::Ack).await;
        }
        broker.close().await.unwrap();
    });
}

#[test]
fn never_more_than_the_prefetch_over_all_queues() {
    on_loop(async {
        let broker = open().await;
        let queues = [name("share"), name("share"), name("share")];
        for queue in &queues {
            broker.publish((0..10).map(|_| envelope(queue, "x")).collect()).await.unwrap();
        }
        let consumer = subscribe(&broker, &queues.each_ref().map(String::as_str), 4).await;
        let mut running: Vec<_> = deliveries(&consumer, 4).await;
        for done in 0..30 {
            assert!(running.len() <= 4);
            let delivery = running.remove(0);
            settle(&consumer, delivery.tag, Verdict::Ack).await;
            if done + running.len() + 1 < 30 {
                running.extend(deliveries(&consumer, 1).await);
            }
        }
        broker.close().await.unwrap();
    });
}

#[test]
fn a_delayed_task_waits_in_the_broker_and_comes_when_it_is_due() {
    on_loop(async {
        let broker = open().await;
        let queue = name("eta");
        // The first delayed task of a queue takes a moment of its own: the way for it is made.
        let mut first = envelope(&queue, "first");
        first.eta = Some(broker.now() + Duration::from_secs(3600));
        broker.publish(vec![first]).await.unwrap();
        // Due tasks come from a queue of their own, so a worker that starts later may get them before "now".
        let consumer = subscribe(&broker, &[&queue], 1).await;
        let mut late = envelope(&queue, "late");
        late.eta = Some(broker.now() + Duration::from_millis(1500));
        let mut soon = envelope(&queue, "soon");
        soon.eta = Some(broker.now() + Duration::from_millis(300));
        broker.publish(vec![late.clone(), soon.clone(), envelope(&queue, "now")]).await.unwrap();
        let listed = broker.inspect().await.unwrap();
        let stats = listed.iter().find(|stats| stats.queue == queue).unwrap();
        assert!(stats.delayed >= 1, "{stats:?}");
        for expected in ["now", "soon", "late"] {
            let delivery = one(&consumer).await;
            assert_eq!(body(&delivery), expected);
            assert!(delivery.envelope.eta.is_none_or(|eta| eta <= broker.now()), "{expected} came before it was due");
            settle(&consumer, delivery.tag, Verdict::Ack).await;
        }
        broker.close().await.unwrap();
    });
}

#[test]
fn an_expired_task_is_dropped_and_told() {
    on_loop(async {
        let broker = open().await;
        let queue = name("expired");
        let mut old = envelope(&queue, "old");
        old.expires = Some(broker.now() - Duration::from_secs(1));
        broker.publish(vec![old.clone(), envelope(&queue, "fresh")]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let mut all = Vec::new();
        while all.len() < 2 {
            all.extend(consumer.recv_all().await.unwrap());
        }
        assert!(matches!(&all[0], Incoming::Expired(id) if *id == old.id), "{all:?}");
        assert!(matches!(&all[1], Incoming::Delivery(delivery) if body(delivery) == "fresh"), "{all:?}");
        assert_eq!(broker.wait_result(&old.id).await.unwrap().state, TaskState::Expired);
        broker.close().await.unwrap();
    });
}

#[test]
fn a_revoked_task_is_dropped_before_it_runs_and_told_while_it_does() {
    on_loop(async {
        let broker = open().await;
        let queue = name("revoked");
        let (waiting, running) = (envelope(&queue, "waiting"), envelope(&queue, "running"));
        broker.revoke(&waiting.id).await.unwrap();
        broker.publish(vec![waiting.clone(), running.clone()]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let delivery = one(&consumer).await;
        assert_eq!(body(&delivery), "running");
        broker.revoke(&running.id).await.unwrap();
        let told = consumer.recv_all().await.unwrap();
        assert!(matches!(&told[..], [Incoming::Revoked(id)] if *id == running.id), "{told:?}");
        // Whatever the verdict, it does not come back.
        settle(&consumer, delivery.tag, Verdict::Return).await;
        assert_eq!(broker.wait_result(&waiting.id).await.unwrap().state, TaskState::Revoked);
        assert_eq!(broker.wait_result(&running.id).await.unwrap().state, TaskState::Revoked);
        assert!(broker.peek(&queue, 10).await.unwrap().is_empty());
        broker.close().await.unwrap();
    });
}

#[test]
fn a_unique_key_is_one_tasks_until_that_has_left() {
    on_loop(async {
        let broker = open().await;
        let queue = name("unique");
        let keyed = |body: &str| {
            let mut envelope = envelope(&queue, body);
            envelope.unique = Some(Unique { key: queue.clone(), hold: Duration::from_secs(60), past_settle: false });
            envelope
        };
        let (first, second, third) = (keyed("1"), keyed("2"), keyed("3"));
        assert_eq!(broker.publish(vec![first.clone()]).await.unwrap(), [Published::Stored]);
        let mut longer = second.clone();
        longer.unique.as_mut().unwrap().hold = Duration::from_secs(90);
        for duplicate in [second, longer] {
            assert_eq!(broker.publish(vec![duplicate]).await.unwrap(), [Published::Duplicate(first.id.clone())]);
        }
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let delivery = one(&consumer).await;
        assert_eq!(*delivery.envelope, first);
        settle(&consumer, delivery.tag, Verdict::Ack).await;
        assert_eq!(broker.publish(vec![third]).await.unwrap(), [Published::Stored]);
        broker.close().await.unwrap();
    });
}

/// A reader forgets what is of no use after each 10,000 entries, and not the entry that a question waits for.
#[test]
fn a_question_for_a_result_is_answered_wherever_the_log_is_swept() {
    on_loop(async {
        let vhost = name("swept");
        ctl(&["add_vhost", &vhost]);
        ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"]);
        let address = format!("amqp://{}/{vhost}", host());
        let first = RabbitBroker::open(&address, Options::default()).await.unwrap();
        assert_eq!(first.result(&"unknown".into()).await.unwrap(), None);
        first.close().await.unwrap();
        // That was one entry.
        let connection = Connection::open(&address.parse().unwrap(), &tidegate_amqp::Options::default()).await.unwrap();
        let mut publishing = Vec::new();
        for _ in 1..10_000 {
            let entry = Message::to_queue("tidegate.results", b"{\"marker\": \"of another process\"}".to_vec());
            publishing.push(connection.publish(&entry).await.unwrap());
        }
        for confirmed in publishing {
            confirmed.await.unwrap();
        }
        connection.close().await;
        let second = RabbitBroker::open(&address, Options::default()).await.unwrap();
        let found = timeout(Duration::from_secs(60), second.result(&"unknown".into())).await;
        assert_eq!(found.expect("it is answered").unwrap(), None);
        second.close().await.unwrap();
        ctl(&["delete_vhost", &vhost]);
    });
}

#[test]
fn results_are_kept_for_those_who_ask_and_for_those_who_wait() {
    on_loop(async {
        let (broker, other) = (open().await, open().await);
        let queue = name("results");
        let task = envelope(&queue, "x");
        broker.publish(vec![task.clone()]).await.unwrap();
        assert_eq!(other.result(&task.id).await.unwrap(), None);
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let delivery = one(&consumer).await;
        let result = TaskResult {
            id: task.id.clone(),
            state: TaskState::Succeeded,
            value: serde_json::json!({"sum": 3}),
            error: None,
            ttl: Duration::from_secs(60),
        };
        let settlement = Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: Some(result) };
        consumer.settle(vec![settlement]).await.unwrap();
        let found = other.wait_result(&task.id).await.unwrap();
        assert_eq!((found.state, found.value), (TaskState::Succeeded, serde_json::json!({"sum": 3})));
        assert_eq!(other.result(&task.id).await.unwrap().unwrap().state, TaskState::Succeeded);
        broker.close().await.unwrap();
        other.close().await.unwrap();
    });
}

#[test]
fn peeking_takes_nothing_and_counts_nothing() {
    on_loop(async {
        let broker = open().await;
        let queue = name("peek");
        let batch: Vec<_> = ["a", "b", "c"].map(|body| envelope(&queue, body)).into();
        broker.publish(batch.clone()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(broker.peek(&queue, 2).await.unwrap(), batch[..2]);
        }
        let consumer = subscribe(&broker, &[&queue], 10).await;
        for (delivery, expected) in deliveries(&consumer, 3).await.iter().zip(&batch) {
            assert_eq!((&*delivery.envelope, delivery.crashes), (expected, 0));
        }
        assert!(broker.peek("nobody-has-this", 5).await.unwrap().is_empty());
        broker.close().await.unwrap();
    });
}

#[test]
fn purging_drops_what_waits_delayed_tasks_too() {
    on_loop(async {
        let broker = open().await;
        let queue = name("purge");
        let mut late = envelope(&queue, "late");
        late.eta = Some(broker.now() + Duration::from_secs(3600));
        broker.publish(vec![envelope(&queue, "a"), late, envelope(&queue, "b")]).await.unwrap();
        assert_eq!(broker.purge(&queue).await.unwrap(), 3);
        assert_eq!(broker.purge(&queue).await.unwrap(), 0);
        assert_eq!(broker.purge("nobody-has-this").await.unwrap(), 0);
        broker.close().await.unwrap();
    });
}

#[test]
fn dead_letters_are_listed_retried_and_dropped() {
    on_loop(async {
        let broker = open().await;
        let queue = name("dead");
        let batch: Vec<_> = ["a", "b", "c"].map(|body| envelope(&queue, body)).into();
        broker.publish(batch.clone()).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        for delivery in deliveries(&consumer, 3).await {
            let (reason, traceback) = (format!("{} failed", body(&delivery)), Some("line 1\nline 2".to_owned()));
            settle(&consumer, delivery.tag, Verdict::Dead { reason, traceback }).await;
        }
        let letters = broker.dead(Some(&queue), 10).await.unwrap();
        let told: Vec<_> = letters.iter().map(|letter| (letter.envelope.id.clone(), letter.reason.as_str())).collect();
        let expected: Vec<_> =
            batch.iter().zip(["a failed", "b failed", "c failed"]).map(|(task, why)| (task.id.clone(), why)).collect();
        assert_eq!(told, expected);
        assert_eq!(letters[0].traceback.as_deref(), Some("line 1\nline 2"));
        assert!(broker.dead(None, 1000).await.unwrap().len() >= 3);
        assert_eq!(broker.dead_retry(Selection::Ids(vec![batch[1].id.clone()])).await.unwrap(), 1);
        let again = one(&consumer).await;
        assert_eq!((&*again.envelope, again.retries, again.crashes), (&batch[1], 0, 0));
        settle(&consumer, again.tag, Verdict::Ack).await;
        assert_eq!(broker.dead_drop(Selection::Queue(queue.clone())).await.unwrap(), 2);
        assert!(broker.dead(Some(&queue), 10).await.unwrap().is_empty());
        broker.close().await.unwrap();
    });
}

#[test]
fn a_queue_of_another_kind_is_refused_with_what_differs() {
    on_loop(async {
        let (classic, quorum) = (open().await, open_kind(QueueKind::Quorum).await);
        let queue = name("kinds");
        classic.publish(vec![envelope(&queue, "x")]).await.unwrap();
        match quorum.publish(vec![envelope(&queue, "y")]).await {
            Err(BrokerError::Refused { message }) => {
                assert!(message.contains(&queue) && message.contains("x-"), "{message}");
            }
            other => panic!("unexpected: {other:?}"),
        }
        classic.close().await.unwrap();
        quorum.close().await.unwrap();
    });
}

#[test]
fn quorum_queues_hold_tasks_too() {
    on_loop(async {
        let broker = open_kind(QueueKind::Quorum).await;
        let queue = name("quorum");
        broker.publish(vec![envelope(&queue, "x")]).await.unwrap();
        let first = subscribe(&broker, &[&queue], 10).await;
        let delivery = one(&first).await;
        assert_eq!((body(&delivery), delivery.crashes), ("x", 0));
        drop(first);
        let second = subscribe(&broker, &[&queue], 10).await;
        let again = one(&second).await;
        assert_eq!((body(&again), again.crashes), ("x", 1));
        settle(&second, again.tag, Verdict::Retry { at: broker.now() + Duration::from_millis(50) }).await;
        let retried = one(&second).await;
        assert_eq!((retried.retries, retried.crashes), (1, 1));
        settle(&second, retried.tag, Verdict::Ack).await;
        broker.close().await.unwrap();
    });
}

#[test]
fn a_wrong_address_is_told_at_once() {
    on_loop(async {
        let refused = RabbitBroker::open(&format!("amqp://x:y@{}", host()), Options::default()).await.unwrap_err();
        assert!(matches!(&refused, BrokerError::Refused { message } if message.contains("\"x\"")), "{refused}");
        let away = RabbitBroker::open("amqp://127.0.0.1:1", Options::default()).await.unwrap_err();
        assert!(matches!(&away, BrokerError::Retry { .. }), "{away:?}");
        let nonsense = RabbitBroker::open("redis://h", Options::default()).await.unwrap_err();
        assert!(matches!(&nonsense, BrokerError::Refused { message } if message.contains("amqp://")), "{nonsense}");
    });
}
