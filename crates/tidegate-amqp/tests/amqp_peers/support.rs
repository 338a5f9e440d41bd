//! The broker that tests/rabbit/node.sh has started.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tidegate_amqp::{Connection, Delivery, Incoming, Options, Queue, Uri};
use tidegate_loop::{Duration, timeout};

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    tidegate_loop::run(async { timeout(PATIENCE, test).await.expect("the test hangs") }).unwrap()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run: ./test --only rabbitmq"))
}

pub(crate) fn plain_host() -> String {
    variable("TIDEGATE_RABBIT_PLAIN")
}

pub(crate) fn tls_host() -> String {
    variable("TIDEGATE_RABBIT_TLS")
}

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(variable("TIDEGATE_RABBIT_DIR")).join(name)
}

pub(crate) fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

pub(crate) async fn open() -> Connection {
    Connection::open(&uri(&format!("amqp://{}", plain_host())), &Options::default()).await.unwrap()
}

/// A unique name.
pub(crate) fn name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// A queue that is gone with its connection.
pub(crate) async fn queue(connection: &Connection, what: &str) -> String {
    let name = name(what);
    connection.declare(&Queue::exclusive(&name)).await.unwrap();
    name
}

/// Receives until there are `count`.
pub(crate) async fn deliveries(connection: &Connection, count: usize) -> Vec<Delivery> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        for incoming in connection.recv_all().await.unwrap() {
            match incoming {
                Incoming::Delivery(delivery) => all.push(delivery),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    all
}
