//! Coming in, and being told why not.

use tidegate_amqp::{ConnectError, Connection, Error, Options, Queue};

use crate::support::{file, name, on_loop, open, plain_host, queue, tls_host, uri};

async fn refusal(address: &str) -> ConnectError {
    Connection::open(&uri(address), &Options::default()).await.unwrap_err()
}

#[test]
fn opens_and_closes_in_order() {
    on_loop(async {
        let connection = open().await;
        assert_eq!(connection.server_property("product").as_deref(), Some("RabbitMQ"));
        assert_eq!(connection.heartbeat().unwrap().as_secs(), 30);
        connection.close().await;
    });
}

#[test]
fn a_wrong_password_is_told_with_user_and_host() {
    on_loop(async {
        let error = refusal(&format!("amqp://guest:wrong@{}", plain_host())).await;
        assert!(matches!(&error, ConnectError::Login { user, .. } if user == "\"guest\""), "{error:?}");
        assert!(!error.is_temporary() && error.to_string().contains(&plain_host()), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    });
}

#[test]
fn an_unknown_vhost_is_told_with_its_name_and_the_way_out() {
    on_loop(async {
        let error = refusal(&format!("amqp://{}/nowhere", plain_host())).await;
        assert!(matches!(&error, ConnectError::Vhost { vhost, .. } if vhost == "nowhere"), "{error:?}");
        assert!(error.to_string().contains("rabbitmqctl add_vhost"), "{error}");
    });
}

#[test]
fn the_next_host_of_the_list_is_taken_when_one_does_not_answer() {
    on_loop(async {
        let error = refusal("amqp://127.0.0.1:1,127.0.0.1:2").await;
        assert!(error.is_temporary(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("127.0.0.1:1: ") && text.contains("127.0.0.1:2: "), "{text}");
        let both = uri(&format!("amqp://127.0.0.1:1,{}", plain_host()));
        let connection = Connection::open(&both, &Options::default()).await.unwrap();
        assert_eq!(connection.place(), plain_host());
        connection.close().await;
    });
}

#[test]
fn another_argument_is_told_by_name_and_the_channel_goes_on() {
    on_loop(async {
        let connection = open().await;
        let name = name("differs");
        connection.declare(&Queue::exclusive(&name).argument("x-max-priority", 5)).await.unwrap();
        let error = connection.declare(&Queue::exclusive(&name).argument("x-max-priority", 9)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&name) && text.contains("x-max-priority is 5, asked for was 9"), "{text}");
        let missing = connection.declare(&Queue::passive("nobody-has-this")).await.unwrap_err();
        assert!(matches!(&missing, Error::Refused { refusal, .. } if refusal.code == 404), "{missing:?}");
        assert!(missing.to_string().contains("queue \"nobody-has-this\" does not exist"), "{missing}");
        assert_eq!(connection.epoch(), 3);
        queue(&connection, "after").await;
        connection.close().await;
    });
}

#[test]
fn a_self_made_certificate_is_trusted_only_where_it_is_named() {
    on_loop(async {
        let error = refusal(&format!("amqps://{}", tls_host())).await;
        assert!(matches!(error, ConnectError::Tls { .. } | ConnectError::Setup { .. }), "{error:?}");
        let address = format!("amqps://{}?cacertfile={}", tls_host(), file("ca.pem").display());
        let connection = Connection::open(&uri(&address), &Options::default()).await.unwrap();
        queue(&connection, "over-tls").await;
        connection.close().await;
    });
}

#[test]
fn a_certificate_logs_in() {
    on_loop(async {
        let (ca, own, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
        let options = format!("cacertfile={}&certfile={}&keyfile={}", ca.display(), own.display(), key.display());
        let address = format!("amqps://{}?auth_mechanism=external&{options}", tls_host());
        let connection = Connection::open(&uri(&address), &Options::default()).await.unwrap();
        queue(&connection, "external").await;
        connection.close().await;
    });
}

#[test]
fn a_broker_that_is_no_broker_is_told_so() {
    on_loop(async {
        // Speaks TLS there, and hangs up on what is none.
        let error = refusal(&format!("amqp://{}", tls_host())).await;
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    });
}

#[test]
fn a_dropped_connection_is_closed_and_its_exclusive_queues_go() {
    on_loop(async {
        let (first, second) = (open().await, open().await);
        let name = queue(&first, "cut").await;
        let locked = second.declare(&Queue::passive(&name)).await.unwrap_err();
        assert!(locked.to_string().contains("belongs to another connection"), "{locked}");
        drop(first);
        // The broker notices in its own time; it says so by the answer.
        loop {
            match second.declare(&Queue::passive(&name)).await {
                Err(Error::Refused { refusal, .. }) if refusal.code == 404 => break,
                Err(Error::Refused { refusal, .. }) if refusal.code == 405 => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        second.close().await;
    });
}

#[test]
fn an_unknown_queue_to_consume_from_is_named() {
    on_loop(async {
        let connection = open().await;
        let error = connection.consume(&tidegate_amqp::Consume::from("not-there")).await.unwrap_err();
        assert!(error.to_string().contains("queue \"not-there\" does not exist"), "{error}");
        connection.close().await;
    });
}
