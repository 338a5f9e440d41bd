//! How a delivery ends, and what follows.

use std::time::Duration;

use tidegate_worker::{Broker, BrokerError, Settled, Settlement, Tag, Verdict};

use crate::support::{body, deliveries, envelope, name, on_loop, one, open, settle, subscribe};

#[test]
fn settled_is_settled_once_and_strangers_are_lost() {
    on_loop(async {
        let broker = open().await;
        let queue = name("once");
        broker.publish(vec![envelope(&queue, "x")]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let tag = one(&consumer).await.tag;
        assert_eq!(settle(&consumer, tag, Verdict::Ack).await, Settled::Done);
        assert_eq!(settle(&consumer, tag, Verdict::Ack).await, Settled::Lost);
        let stranger = Tag { epoch: tag.epoch + 1, number: tag.number };
        assert_eq!(settle(&consumer, stranger, Verdict::Return).await, Settled::Lost);
        broker.close().await.unwrap();
        assert!(matches!(consumer.recv_all().await, Err(BrokerError::Closed)));
    });
}

#[test]
fn a_retry_comes_at_its_time_and_is_counted() {
    on_loop(async {
        let broker = open().await;
        let queue = name("retry");
        let mut task = envelope(&queue, "x");
        task.priority = 4;
        broker.publish(vec![task.clone()]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        for retries in 0..3 {
            let delivery = one(&consumer).await;
            assert_eq!((delivery.retries, delivery.crashes, &delivery.envelope.id), (retries, 0, &task.id));
            let at = broker.now() + Duration::from_millis(120);
            assert_eq!(settle(&consumer, delivery.tag, Verdict::Retry { at }).await, Settled::Done);
        }
        let last = one(&consumer).await;
        assert_eq!((last.retries, last.envelope.priority), (3, 4));
        assert!(last.envelope.eta.unwrap() <= broker.now());
        settle(&consumer, last.tag, Verdict::Ack).await;
        broker.close().await.unwrap();
    });
}

#[test]
fn a_returned_task_keeps_its_place_and_is_not_counted() {
    on_loop(async {
        let broker = open().await;
        let queue = name("return");
        broker.publish(["a", "b", "c"].map(|body| envelope(&queue, body)).into()).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 1).await;
        let first = one(&consumer).await;
        settle(&consumer, first.tag, Verdict::Return).await;
        // Whatever was on its way already, all come, and none is counted.
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let delivery = one(&consumer).await;
            assert_eq!((delivery.retries, delivery.crashes), (0, 0));
            seen.push(body(&delivery).to_owned());
            settle(&consumer, delivery.tag, Verdict::Ack).await;
        }
        assert_eq!(seen[0], "a");
        broker.close().await.unwrap();
    });
}

#[test]
fn a_worker_that_dies_is_counted_exactly() {
    on_loop(async {
        let broker = open().await;
        let queue = name("crash");
        broker.publish(vec![envelope(&queue, "x")]).await.unwrap();
        for crashes in 0..4 {
            let consumer = subscribe(&broker, &[&queue], 10).await;
            let delivery = one(&consumer).await;
            assert_eq!((delivery.crashes, delivery.retries), (crashes, 0));
            drop(consumer);
        }
        broker.close().await.unwrap();
    });
}

#[test]
fn a_close_gives_everything_back_uncounted() {
    on_loop(async {
        let broker = open().await;
        let queue = name("close");
        broker.publish((0..20).map(|number| envelope(&queue, &number.to_string())).collect()).await.unwrap();
        for _ in 0..2 {
            let consumer = subscribe(&broker, &[&queue], 20).await;
            let all = deliveries(&consumer, 5).await;
            assert!(all.iter().all(|delivery| delivery.crashes == 0));
            consumer.close().await.unwrap();
        }
        let consumer = subscribe(&broker, &[&queue], 20).await;
        let all = deliveries(&consumer, 20).await;
        let bodies: Vec<String> = all.iter().map(|delivery| body(delivery).to_owned()).collect();
        let mut sorted = bodies.clone();
        sorted.sort_by_key(|body| body.parse::<u32>().unwrap());
        sorted.dedup();
        assert_eq!(sorted.len(), 20, "each once: {bodies:?}");
        assert!(all.iter().all(|delivery| delivery.crashes == 0));
        broker.close().await.unwrap();
    });
}

#[test]
fn after_a_stop_nothing_is_handed_out_and_settling_goes_on() {
    on_loop(async {
        let (broker, other) = (open().await, open().await);
        let queue = name("stop");
        broker.publish((0..10).map(|_| envelope(&queue, "x")).collect()).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 3).await;
        let running = deliveries(&consumer, 3).await;
        consumer.stop().await.unwrap();
        let batch =
            running.iter().map(|delivery| Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
        assert_eq!(consumer.settle(batch.collect()).await.unwrap(), vec![Settled::Done; 3]);
        let rest = subscribe(&other, &[&queue], 20).await;
        let left = deliveries(&rest, 7).await;
        assert!(left.iter().all(|delivery| delivery.crashes == 0));
        broker.close().await.unwrap();
        other.close().await.unwrap();
    });
}
