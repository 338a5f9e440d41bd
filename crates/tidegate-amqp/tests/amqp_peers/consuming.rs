//! Messages in, settled in every way.

use std::rc::Rc;
use std::time::Duration;

use tidegate_amqp::{Consume, Error, Incoming, Message, Queue, Settle, types::BasicProperties};
use tidegate_loop::{spawn, timeout};

use crate::support::{deliveries, name, on_loop, open, queue};

#[test]
fn a_thousand_messages_are_acknowledged_in_any_order() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "thousand").await;
        let mut publishing = Vec::new();
        for number in 0..1000u32 {
            let message = Message::to_queue(&queue, number.to_be_bytes().to_vec()).mandatory(true);
            publishing.push(connection.publish(&message).await.unwrap());
        }
        for confirmed in publishing {
            confirmed.await.unwrap();
        }
        connection.qos(100).await.unwrap();
        connection.consume(&Consume::from(&queue)).await.unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let (mut seen, mut held) = (0u32, Vec::new());
        while seen < 1000 {
            for delivery in deliveries(&connection, 1).await {
                assert_eq!(delivery.body, seen.to_be_bytes());
                assert!(!delivery.redelivered);
                seen += 1;
                held.push(delivery.tag);
            }
            random.shuffle(&mut held);
            for tag in held.drain(random.usize(..held.len())..) {
                assert!(connection.settle(tag, Settle::Ack));
                assert!(!connection.settle(tag, Settle::Ack), "once is enough");
            }
        }
        for tag in held {
            connection.settle(tag, Settle::Ack);
        }
        // Answered behind the acknowledgements: were one wrong, the channel would be closed.
        assert_eq!(connection.declare(&Queue::passive(&queue)).await.unwrap().messages, 0);
        assert_eq!((connection.stats().unsettled, connection.epoch()), (0, 1));
        connection.close().await;
    });
}

#[test]
fn requests_of_many_tasks_over_one_connection_get_their_own_answers() {
    on_loop(async {
        let connection = Rc::new(open().await);
        let mut tasks = Vec::new();
        for _ in 0..40 {
            let connection = Rc::clone(&connection);
            tasks.push(spawn(async move {
                for _ in 0..5 {
                    let queue = queue(&connection, "many").await;
                    let mut consume = Consume::from(&queue);
                    consume.tag.clone_from(&queue);
                    assert_eq!(connection.consume(&consume).await.unwrap(), queue);
                    assert_eq!(connection.declare(&Queue::passive(&queue)).await.unwrap().consumers, 1);
                    connection.cancel(&queue).await.unwrap();
                    assert_eq!(connection.declare(&Queue::passive(&queue)).await.unwrap().name, queue);
                    connection.delete(&queue).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(connection.epoch(), 1);
        connection.close().await;
    });
}

#[test]
fn bodies_of_any_size_come_whole() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "sizes").await;
        connection.consume(&Consume::from(&queue)).await.unwrap();
        for size in [0, 1, 131_063, 131_064, 131_065, 262_128, 1_000_003, 20_000_000] {
            let body: Vec<u8> = (0..size).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let properties = BasicProperties::default().with_message_id(size.to_string().as_str().into());
            let message = Message::to_queue(&queue, body.clone()).properties(&properties);
            connection.publish(&message).await.unwrap().await.unwrap();
            let delivery = deliveries(&connection, 1).await.remove(0);
            assert!(delivery.body == body, "{size}");
            assert_eq!(delivery.properties.read().unwrap(), properties);
            connection.settle(delivery.tag, Settle::Ack);
        }
        connection.close().await;
    });
}

#[test]
fn a_body_beyond_the_limit_is_left_with_the_broker() {
    on_loop(async {
        let uri = crate::support::uri(&format!("amqp://{}", crate::support::plain_host()));
        let mut options = tidegate_amqp::Options::default();
        options.body_bytes_max = 1000;
        let connection = tidegate_amqp::Connection::open(&uri, &options).await.unwrap();
        let name = queue(&connection, "limited").await;
        connection.consume(&Consume::from(&name)).await.unwrap();
        connection.publish(&Message::to_queue(&name, vec![7; 300_000])).await.unwrap().await.unwrap();
        let tag = match &connection.recv_all().await.unwrap()[..] {
            [Incoming::Oversized { bytes: 300_000, tag, .. }] => *tag,
            other => panic!("unexpected: {other:?}"),
        };
        connection.publish(&Message::to_queue(&name, vec![7; 1000])).await.unwrap().await.unwrap();
        assert_eq!(deliveries(&connection, 1).await[0].body.len(), 1000);
        // It is still the broker's: it comes again.
        assert_eq!(connection.stats().unsettled, 2);
        assert!(connection.settle(tag, Settle::Requeue));
        match &connection.recv_all().await.unwrap()[..] {
            [Incoming::Oversized { bytes: 300_000, .. }] => {}
            other => panic!("unexpected: {other:?}"),
        }
        connection.close().await;
    });
}

#[test]
fn requeued_comes_again_and_rejected_goes_where_the_queue_says() {
    on_loop(async {
        let connection = open().await;
        let dead = queue(&connection, "dead").await;
        let name = name("settled");
        let letters = Queue::exclusive(&name).argument("x-dead-letter-exchange", "");
        connection.declare(&letters.argument("x-dead-letter-routing-key", dead.as_str())).await.unwrap();
        for body in [b"a", b"b", b"c"] {
            connection.publish(&Message::to_queue(&name, body.to_vec())).await.unwrap().await.unwrap();
        }
        let consumer = connection.consume(&Consume::from(&name)).await.unwrap();
        let first = deliveries(&connection, 3).await;
        connection.settle(first[0].tag, Settle::Requeue);
        connection.settle(first[1].tag, Settle::Reject);
        connection.settle(first[2].tag, Settle::Ack);
        let again = deliveries(&connection, 1).await.remove(0);
        assert_eq!((again.body.as_slice(), again.redelivered), (&b"a"[..], true));
        connection.cancel(&consumer).await.unwrap();
        connection.settle(again.tag, Settle::Ack);
        let letter = loop {
            if let Some(letter) = connection.get(&dead).await.unwrap() {
                break letter;
            }
        };
        assert_eq!(letter.body, b"b");
        assert!(connection.get(&name).await.unwrap().is_none());
        connection.settle(letter.tag, Settle::Ack);
        connection.close().await;
    });
}

#[test]
fn what_was_not_settled_returns_when_the_connection_closes() {
    on_loop(async {
        let (first, second) = (open().await, open().await);
        let name = name("returns");
        first.declare(&Queue::durable(&name)).await.unwrap();
        first.publish(&Message::to_queue(&name, b"kept".to_vec())).await.unwrap().await.unwrap();
        first.consume(&Consume::from(&name)).await.unwrap();
        deliveries(&first, 1).await;
        first.close().await;
        second.consume(&Consume::from(&name)).await.unwrap();
        let again = deliveries(&second, 1).await.remove(0);
        assert!(again.redelivered);
        second.settle(again.tag, Settle::Ack);
        assert_eq!(second.delete(&name).await.unwrap(), 0);
        second.close().await;
    });
}

#[test]
fn a_deleted_queue_cancels_its_consumer() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "deleted").await;
        let tag = connection.consume(&Consume::from(&queue)).await.unwrap();
        connection.delete(&queue).await.unwrap();
        match &connection.recv_all().await.unwrap()[..] {
            [Incoming::ConsumerCancelled { consumer }] => assert_eq!(*consumer, tag),
            other => panic!("unexpected: {other:?}"),
        }
        connection.close().await;
    });
}

#[test]
fn a_stale_tag_settles_nothing_on_the_next_channel() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "stale").await;
        connection.publish(&Message::to_queue(&queue, b"x".to_vec())).await.unwrap().await.unwrap();
        connection.consume(&Consume::from(&queue)).await.unwrap();
        let old = deliveries(&connection, 1).await.remove(0);
        let refused = connection.declare(&Queue::passive("nobody-has-this")).await;
        assert!(matches!(refused, Err(Error::Refused { .. })));
        connection.opened().await.unwrap();
        assert!(!connection.settle(old.tag, Settle::Ack));
        match &connection.recv_all().await.unwrap()[..] {
            [Incoming::ChannelClosed(refusal), Incoming::Reopened { epoch: 2 }] => assert_eq!(refusal.code, 404),
            other => panic!("unexpected: {other:?}"),
        }
        connection.consume(&Consume::from(&queue)).await.unwrap();
        let again = deliveries(&connection, 1).await.remove(0);
        assert_eq!((again.tag.number, again.tag.epoch, again.redelivered), (1, 2, true));
        assert!(!connection.settle(old.tag, Settle::Ack));
        assert!(connection.settle(again.tag, Settle::Ack));
        connection.close().await;
    });
}

#[test]
fn without_acknowledgements_nothing_is_settled() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "no-ack").await;
        let mut consume = Consume::from(&queue);
        consume.no_ack = true;
        connection.consume(&consume).await.unwrap();
        for _ in 0..3 {
            connection.publish(&Message::to_queue(&queue, b"x".to_vec())).await.unwrap().await.unwrap();
        }
        let all = deliveries(&connection, 3).await;
        assert!(all.iter().all(|delivery| !connection.settle(delivery.tag, Settle::Ack)));
        assert_eq!(connection.stats().unsettled, 0);
        connection.close().await;
    });
}

#[test]
fn nothing_is_read_while_a_large_message_is_in_use() {
    on_loop(async {
        let uri = crate::support::uri(&format!("amqp://{}?heartbeat=1", crate::support::plain_host()));
        let mut options = tidegate_amqp::Options::default();
        options.pause_above = 1_000_000;
        let connection = tidegate_amqp::Connection::open(&uri, &options).await.unwrap();
        let publisher = open().await;
        let name = queue(&connection, "large").await;
        for _ in 0..3 {
            publisher.publish(&Message::to_queue(&name, vec![7; 2_000_000])).await.unwrap().await.unwrap();
        }
        connection.consume(&Consume::from(&name)).await.unwrap();
        for left in [2, 1, 0] {
            let large = deliveries(&connection, 1).await;
            // Longer than a silent broker is waited for: the silence is ours.
            let waited = timeout(Duration::from_millis(2_500), connection.recv_all()).await;
            assert!(waited.is_err() || left == 0, "{waited:?}");
            assert_eq!((large.len(), connection.stats().waiting), (1, 0));
            connection.settle(large[0].tag, Settle::Ack);
            connection.resume();
        }
        publisher.close().await;
        connection.close().await;
    });
}
