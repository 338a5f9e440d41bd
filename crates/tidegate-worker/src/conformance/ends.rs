//! Deliveries end.

use std::rc::Rc;

use super::*;
use crate::broker::BrokerError;

/// An acknowledged task is gone for every consumer.
pub async fn settled_tasks_are_gone_for_good(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b", "c"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = deliveries(&reader, 3).await;
    let batch = got.iter().map(|delivery| verdict(delivery, Verdict::Ack)).collect();
    assert_eq!(reader.settle(batch).await.unwrap(), [Settled::Done; 3]);
    reader.close().await.unwrap();
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.running, now.delayed, now.dead), (0, 0, 0, 0));
}

/// The second time, and under a foreign flag, it is lost.
pub async fn a_tag_settles_once_and_only_its_own_consumers(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b"])).await.unwrap();
    let (reader, stranger) = (consumer(&broker, 2).await, consumer(&broker, 2).await);
    let got = deliveries(&reader, 2).await;
    let ack = |n: usize| verdict(&got[n], Verdict::Ack);
    assert_eq!(reader.settle(vec![ack(0), ack(0)]).await.unwrap(), [Settled::Done, Settled::Lost]);
    assert_eq!(reader.settle(vec![ack(0)]).await.unwrap(), [Settled::Lost]);
    assert_eq!(stranger.settle(vec![ack(1)]).await.unwrap(), [Settled::Lost]);
    assert_eq!(stats(&broker).await.running, 1);
    settle(&reader, &got[1], Verdict::Ack).await;
}

/// The task is the same, its consumer too, but the delivery is another: what was said of the first one does not count for it.
pub async fn a_tag_of_before_a_return_settles_nothing(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["again"])).await.unwrap();
    let reader = consumer(&broker, 1).await;
    let first = delivery(&reader).await;
    settle(&reader, &first, Verdict::Return).await;
    let second = delivery(&reader).await;
    assert_ne!(first.tag, second.tag);
    let late = [Verdict::Return, Verdict::Ack, Verdict::Retry { at: broker.now() }];
    let late = late.map(|with| verdict(&first, with)).to_vec();
    assert_eq!(reader.settle(late).await.unwrap(), [Settled::Lost; 3]);
    assert_eq!(stats(&broker).await.running, 1);
    settle(&reader, &second, Verdict::Ack).await;
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.running), (0, 0));
}

/// A return counts neither as a retry nor as a crash.
pub async fn returned_tasks_keep_their_place_and_their_counts(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b", "c"])).await.unwrap();
    let reader = consumer(&broker, 2).await;
    let got = deliveries(&reader, 2).await;
    reader.stop().await.unwrap();
    let in_place = broker.capabilities().returns_in_place;
    if in_place {
        settle(&reader, &got[1], Verdict::Return).await;
        settle(&reader, &got[0], Verdict::Return).await;
    } else {
        let together = [1, 0].map(|at: usize| verdict(&got[at], Verdict::Return)).into();
        settle_all(&reader, together).await;
    }
    let again = deliveries(&consumer(&broker, 3).await, 3).await;
    let mut order: Vec<String> = again.iter().map(name).collect();
    if !in_place {
        // Only whether they stand before or behind the third is left open.
        let third = order.iter().position(|name| name == "c").unwrap();
        order.remove(third);
        order.push("c".into());
    }
    assert_eq!(order, ["a", "b", "c"]);
    assert!(again.iter().all(|delivery| (delivery.retries, delivery.crashes) == (0, 0)));
}

/// Not before.
pub async fn a_retry_comes_at_its_time_and_is_counted(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["again"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    for retries in 0..3 {
        let got = delivery(&reader).await;
        assert_eq!((got.retries, got.crashes), (retries, 0));
        let at = after(&broker, subject.unit());
        settle(&reader, &got, Verdict::Retry { at }).await;
        let got = delivery(&reader).await;
        assert!(broker.now() >= at, "came {:?} early", at.duration_since(broker.now()));
        assert_eq!(got.retries, retries + 1);
        settle(&reader, &got, Verdict::Return).await;
    }
    let got = delivery(&reader).await;
    settle(&reader, &got, Verdict::Retry { at: broker.now() }).await;
    assert_eq!(delivery(&reader).await.retries, 4);
}

/// Beside the retries, at its time.
pub async fn a_crash_comes_at_its_time_and_is_counted_apart(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["again"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    let at = after(&broker, subject.unit());
    settle(&reader, &got, Verdict::Crash { at }).await;
    let got = delivery(&reader).await;
    assert!(broker.now() >= at, "came {:?} early", at.duration_since(broker.now()));
    assert_eq!((got.retries, got.crashes), (0, 1));
    settle(&reader, &got, Verdict::Retry { at: broker.now() }).await;
    let got = delivery(&reader).await;
    assert_eq!((got.retries, got.crashes), (1, 1));
    settle(&reader, &got, Verdict::Crash { at: broker.now() }).await;
    let got = delivery(&reader).await;
    assert_eq!((got.retries, got.crashes), (1, 2));
    settle(&reader, &got, Verdict::Ack).await;
}

/// A worker that stops takes no more, and what it has it may finish.
pub async fn stopping_gives_back_what_was_not_seen_and_settling_goes_on(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = delivery(&reader).await;
    broker.publish(tasks(&["b", "c"])).await.unwrap();
    pass(&broker, subject.unit()).await;
    reader.stop().await.unwrap();
    broker.publish(tasks(&["d"])).await.unwrap();
    let now = stats(&broker).await;
    assert_eq!((now.ready, now.running), (3, 1));
    settle(&reader, &got, Verdict::Ack).await;
    reader.close().await.unwrap();
    let next = consumer(&broker, 10).await;
    let rest = deliveries(&next, 3).await;
    assert_eq!(rest.iter().map(name).collect::<Vec<_>>(), ["b", "c", "d"]);
    assert!(rest.iter().all(|delivery| delivery.crashes == 0));
}

/// In order, so not a crash. The consumer says that it is closed.
pub async fn closing_returns_what_was_not_settled_uncounted(subject: Rc<dyn Subject>) {
    let broker = subject.connect().await;
    broker.publish(tasks(&["a", "b"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    let got = deliveries(&reader, 2).await;
    reader.close().await.unwrap();
    assert!(matches!(reader.recv_all().await, Err(BrokerError::Closed)));
    assert!(matches!(reader.settle(vec![verdict(&got[0], Verdict::Ack)]).await.as_deref(), Ok([Settled::Lost])));
    let again = deliveries(&consumer(&broker, 10).await, 2).await;
    assert!(again.iter().all(|delivery| (delivery.retries, delivery.crashes) == (0, 0)));
}

/// Its consumers are closed with it, and what they had returns.
pub async fn a_closed_broker_says_so(subject: Rc<dyn Subject>) {
    let (broker, other) = (subject.connect().await, subject.connect().await);
    broker.publish(tasks(&["a"])).await.unwrap();
    let reader = consumer(&broker, 10).await;
    delivery(&reader).await;
    broker.close().await.unwrap();
    broker.close().await.unwrap();
    assert!(matches!(broker.publish(tasks(&["b"])).await, Err(BrokerError::Closed)));
    assert!(matches!(reader.recv_all().await, Err(BrokerError::Closed)));
    assert_eq!(names(&consumer(&other, 10).await, 1).await, ["a"]);
}
