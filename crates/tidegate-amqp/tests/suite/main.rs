//! A connection on the loop with a scripted broker at the other end, for what a real one does not do on request.

mod scripted;

use tidegate_amqp::{Closed, ConnectError, Connection, Error, Message, Options, PublishError, Queue, Uri};
use tidegate_loop::{Duration, run, spawn, timeout};

use scripted::{Scripted, listen};

fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    run(async { timeout(Duration::from_secs(60), test).await.expect("the test hangs") }).unwrap()
}

fn uri(address: &str) -> Uri {
    address.parse().unwrap()
}

/// Both ends, open.
async fn pair(query: &str) -> (Connection, Scripted) {
    pair_with(query, &Options::default()).await
}

async fn pair_with(query: &str, options: &Options) -> (Connection, Scripted) {
    let (listener, host) = listen().await;
    let server = spawn(async move { Scripted::open(&listener).await });
    let connection = Connection::open(&uri(&format!("amqp://{host}{query}")), options).await.unwrap();
    (connection, server.await.unwrap())
}

#[test]
fn a_cut_connection_fails_whoever_waits() {
    on_loop(async {
        let (connection, server) = pair("").await;
        let publishing = connection.publish(&Message::to_queue("q", b"x".to_vec())).await.unwrap();
        let declare = async {
            let declared = connection.declare(&Queue::durable("q")).await;
            assert!(matches!(&declared, Err(Error::Lost { reason, .. }) if reason.contains("hung up")), "{declared:?}");
        };
        let cut = async {
            server.hear_declare().await;
            drop(server);
        };
        let ((), ()) = join(declare, cut).await;
        let unknown = publishing.await;
        assert!(matches!(&unknown, Err(PublishError::Unknown { .. })), "{unknown:?}");
        assert!(matches!(connection.recv_all().await, Err(Error::Lost { .. })));
        assert!(matches!(connection.publish(&Message::to_queue("q", Vec::new())).await, Err(Error::Lost { .. })));
        assert_eq!(connection.ended().await, Closed::Ended { opening: false });
    });
}

/// Polls both to their ends.
async fn join<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        use std::task::Poll;
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(cx)
        {
            second = Some(done);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

#[test]
fn a_silent_broker_is_dead_after_two_heartbeats_and_has_heard_ours() {
    on_loop(async {
        let (connection, server) = pair("?heartbeat=1").await;
        let end = connection.ended().await;
        assert!(matches!(end, Closed::Silent { silent } if silent >= Duration::from_secs(2)), "{end:?}");
        // At half the interval: at 0.5, 1.0 and 1.5 s, where the machine is not too busy.
        assert!(server.heartbeats().await >= 1);
    });
}

#[test]
fn a_broker_that_says_nothing_at_all_is_given_up_in_time() {
    on_loop(async {
        let (listener, host) = listen().await;
        let silent = spawn(async move { listener.accept().await.unwrap() });
        let address = uri(&format!("amqp://{host}?connection_timeout=200"));
        let error = Connection::open(&address, &Options::default()).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("no answer within 200ms"), "{error}");
        drop(silent.await.unwrap());
    });
}

#[test]
fn another_protocol_on_the_port_is_told() {
    on_loop(async {
        let (listener, host) = listen().await;
        let server = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            stream
        });
        let error = Connection::open(&uri(&format!("amqp://{host}")), &Options::default()).await.unwrap_err();
        assert!(error.to_string().contains("does not speak AMQP 0-9-1"), "{error}");
        drop(server.await.unwrap());
    });
}

#[test]
fn closing_is_told_to_the_broker_and_waits_for_its_word() {
    on_loop(async {
        let (connection, server) = pair("").await;
        let ((), ()) = join(connection.close(), server.close()).await;
        assert_eq!(connection.ended().await, Closed::ByUs);
        assert!(matches!(connection.qos(1).await, Err(Error::Closed)));
    });
}

#[test]
fn a_dropped_connection_is_closed_in_order() {
    on_loop(async {
        let (connection, server) = pair("").await;
        drop(connection);
        server.close().await;
    });
}

#[test]
fn a_loop_that_ends_closes_its_connections_in_order() {
    // The broker is on a loop of its own.
    let (tell, told) = std::sync::mpsc::channel();
    let broker = std::thread::spawn(move || {
        on_loop(async move {
            let (listener, host) = listen().await;
            tell.send(host).unwrap();
            for _ in 0..2 {
                Scripted::open(&listener).await.close().await;
            }
        });
    });
    let host = told.recv().unwrap();
    for held_by_a_task in [false, true] {
        let address = uri(&format!("amqp://{host}"));
        on_loop(async move {
            let connection = Connection::open(&address, &Options::default()).await.unwrap();
            if held_by_a_task {
                drop(spawn(async move { connection.recv_all().await.map(drop) }));
            }
        });
    }
    broker.join().unwrap();
}

#[test]
fn a_broker_that_does_not_answer_the_close_is_left() {
    on_loop(async {
        let (connection, server) = pair("").await;
        drop(connection);
        server.hung_up().await;
    });
}

/// Both ends of a connection whose reader may let messages gather for `patience`.
async fn patient_pair(patience: Duration) -> (Connection, Scripted) {
    let mut options = Options::default();
    options.read_patience = patience;
    pair_with("", &options).await
}

#[test]
fn what_floods_in_is_read_when_it_is_worth_it() {
    on_loop(async {
        let (connection, server) = patient_pair(Duration::from_secs(3600)).await;
        server.deliver(1..2).await;
        assert_eq!(connection.recv_all().await.unwrap().len(), 1, "one that comes alone is read at once");
        server.deliver(2..42).await;
        assert_eq!(connection.recv_all().await.unwrap().len(), 40);
        server.deliver(42..43).await;
        let read = timeout(Duration::from_millis(20), connection.recv_all()).await;
        assert!(read.is_err(), "it did not wait for more: {read:?}");
        server.deliver(43..243).await;
        assert_eq!(connection.recv_all().await.unwrap().len(), 201);
    });
}

#[test]
fn the_last_of_a_flood_is_read_when_patience_is_over() {
    on_loop(async {
        let (connection, server) = patient_pair(Duration::from_millis(20)).await;
        for round in 0..3 {
            let first = 1 + round * 41;
            server.deliver(first..first + 40).await;
            assert_eq!(connection.recv_all().await.unwrap().len(), 40);
            server.deliver(first + 40..first + 41).await;
            assert_eq!(connection.recv_all().await.unwrap().len(), 1);
        }
    });
}
