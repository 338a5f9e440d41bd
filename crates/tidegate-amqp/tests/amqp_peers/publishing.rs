//! Messages out, and what the broker says of them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::Command;
use std::task::Poll;

use tidegate_amqp::{Exchange, Message, PublishError, Queue};
use tidegate_loop::to_thread;

use crate::support::{file, name, on_loop, open, queue};

#[test]
fn what_no_queue_takes_comes_back_to_its_publisher() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "routed").await;
        let mut publishing = Vec::new();
        for number in 0..60u8 {
            let key = if number % 3 == 1 { "nowhere-at-all" } else { queue.as_str() };
            let message = Message::to_queue(key, vec![number / 2]).mandatory(true);
            publishing.push((number, connection.publish(&message).await.unwrap()));
        }
        for (number, confirmed) in publishing {
            match confirmed.await {
                Ok(()) => assert_ne!(number % 3, 1),
                Err(PublishError::Returned(returned)) => {
                    assert_eq!((number % 3, returned.code, &returned.body[..]), (1, 312, &[number / 2][..]));
                    let text = PublishError::Returned(returned).to_string();
                    assert!(text.contains("nowhere-at-all") && text.contains("declare the queue"), "{text}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(connection.stats().unconfirmed, 0);
        connection.close().await;
    });
}

#[test]
fn a_full_queue_rejects() {
    on_loop(async {
        let connection = open().await;
        let name = name("full");
        let full = Queue::exclusive(&name).argument("x-max-length", 1).argument("x-overflow", "reject-publish");
        connection.declare(&full).await.unwrap();
        connection.publish(&Message::to_queue(&name, b"1".to_vec())).await.unwrap().await.unwrap();
        let refused = connection.publish(&Message::to_queue(&name, b"2".to_vec())).await.unwrap().await;
        assert!(matches!(refused, Err(PublishError::Rejected)), "{refused:?}");
        connection.close().await;
    });
}

#[test]
fn an_exchange_that_is_not_there_takes_the_channel_and_the_publisher_hears() {
    on_loop(async {
        let connection = open().await;
        let lost = connection.publish(&Message::new("no-such-exchange", "k", Vec::new())).await.unwrap().await;
        match lost {
            Err(PublishError::Unknown { reason }) => assert!(reason.contains("no-such-exchange"), "{reason}"),
            other => panic!("unexpected: {other:?}"),
        }
        let queue = queue(&connection, "after").await;
        connection.publish(&Message::to_queue(&queue, Vec::new()).mandatory(true)).await.unwrap().await.unwrap();
        connection.close().await;
    });
}

#[test]
fn exchanges_route_by_key() {
    on_loop(async {
        let connection = open().await;
        let (one, two) = (name("one"), name("two"));
        for exchange in [&one, &two] {
            let mut exchange = Exchange::durable(exchange, "topic");
            (exchange.durable, exchange.auto_delete) = (false, true);
            connection.declare_exchange(&exchange).await.unwrap();
        }
        let queue = queue(&connection, "by-key").await;
        connection.bind(&queue, &two, "*.wanted").await.unwrap();
        connection.bind_exchange(&two, &one, "#").await.unwrap();
        let wanted = connection.publish(&Message::new(&one, "a.wanted", Vec::new()).mandatory(true)).await.unwrap();
        wanted.await.unwrap();
        let other = connection.publish(&Message::new(&one, "a.other", Vec::new()).mandatory(true)).await.unwrap();
        assert!(matches!(other.await, Err(PublishError::Returned(_))));
        connection.close().await;
    });
}

async fn rabbitmqctl(arguments: &'static [&'static str]) {
    let node = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rabbit/node.sh");
    let run = move || Command::new(node).arg("ctl").arg(file("")).args(arguments).output().unwrap();
    let output = to_thread(run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nothing_is_published_while_the_broker_is_short_of_memory() {
    on_loop(async {
        let connection = open().await;
        let queue = queue(&connection, "blocked").await;
        rabbitmqctl(&["set_vm_memory_high_watermark", "0.000001"]).await;
        let message = Message::to_queue(&queue, b"x".to_vec());
        // The broker says so once it has seen us publish.
        let mut waiting = Vec::new();
        while !connection.stats().blocked {
            waiting.push(connection.publish(&message).await.unwrap());
            tidegate_loop::yield_now().await;
        }
        let published = connection.stats().published;
        {
            let mut refused = pin!(connection.publish(&message));
            poll_fn(|cx| match refused.as_mut().poll(cx) {
                Poll::Pending => Poll::Ready(()),
                Poll::Ready(_) => panic!("published though the broker is blocked"),
            })
            .await;
        }
        assert_eq!(connection.stats().published, published);
        rabbitmqctl(&["set_vm_memory_high_watermark", "0.4"]).await;
        waiting.push(connection.publish(&message).await.unwrap());
        for confirmed in waiting {
            confirmed.await.unwrap();
        }
        connection.close().await;
    });
}
