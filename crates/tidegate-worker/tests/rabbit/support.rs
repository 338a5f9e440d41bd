//! The broker that tests/rabbit/node.sh has started.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use tidegate_loop::{timeout, to_thread};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{
    Broker, Consumer, Delivery, Envelope, Incoming, Settled, Settlement, Subscription, Tag, Verdict,
};

/// Nothing here takes this long unless it hangs: a broker may need a minute to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);

pub(crate) fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    tidegate_loop::run(async { timeout(PATIENCE, test).await.expect("the test hangs") }).unwrap()
}

pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run: ./test --only rabbitmq"))
}

pub(crate) fn host() -> String {
    variable("TIDEGATE_RABBIT_PLAIN")
}

/// A name nobody else uses.
pub(crate) fn name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

pub(crate) async fn open() -> RabbitBroker {
    open_with(Options::default()).await
}

pub(crate) async fn open_kind(kind: QueueKind) -> RabbitBroker {
    let mut options = Options::default();
    options.kind = kind;
    open_with(options).await
}

pub(crate) async fn open_with(options: Options) -> RabbitBroker {
    // The short heartbeat is what a cut connection is noticed by, where nobody says a word.
    RabbitBroker::open(&format!("amqp://{}?heartbeat=2", host()), options).await.unwrap()
}

pub(crate) async fn subscribe(broker: &RabbitBroker, queues: &[&str], prefetch: usize) -> Rc<dyn Consumer> {
    let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
    broker.subscribe(Subscription { queues, prefetch, consumer: "test".into() }).await.unwrap()
}

/// The next delivery, and only that.
pub(crate) async fn one(consumer: &Rc<dyn Consumer>) -> Delivery {
    let mut all = deliveries(consumer, 1).await;
    assert_eq!(all.len(), 1);
    all.remove(0)
}

pub(crate) async fn deliveries(consumer: &Rc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        for incoming in consumer.recv_all().await.unwrap() {
            match incoming {
                Incoming::Delivery(delivery) => all.push(delivery),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    all
}

pub(crate) async fn settle(consumer: &Rc<dyn Consumer>, tag: Tag, verdict: Verdict) -> Settled {
    loop {
        let settlement = Settlement { tag, verdict: verdict.clone(), result: None };
        match consumer.settle(vec![settlement]).await.unwrap()[0] {
            Settled::Pending => {}
            settled => return settled,
        }
    }
}

pub(crate) fn envelope(queue: &str, body: &str) -> Envelope {
    Envelope::new(queue, body.into())
}

pub(crate) fn body(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.envelope.body).unwrap()
}

pub(crate) fn script() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rabbit/node.sh"));
    command.stdin(Stdio::null());
    command
}

fn checked(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether there is time for the long versions.
pub(crate) fn soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some()
}

/// Does something to the broker: `stop`, `kill`, `start`.
pub(crate) async fn node(verb: &'static str) {
    node_at(verb, Path::new(&variable("TIDEGATE_RABBIT_DIR")), None).await;
}

/// Does something to the broker in a directory, with another one in mind.
pub(crate) async fn node_at(verb: &'static str, dir: &Path, peer: Option<&Path>) {
    let arguments: Vec<PathBuf> = std::iter::once(dir).chain(peer).map(Path::to_owned).collect();
    let run = move || script().arg(verb).args(arguments).output().unwrap();
    checked(&to_thread(run).await.unwrap());
}

/// rabbitmqctl, while everything else waits; what it prints.
pub(crate) fn ctl(arguments: &[&str]) -> String {
    let output = script().arg("ctl").arg(variable("TIDEGATE_RABBIT_DIR")).args(arguments).output().unwrap();
    checked(&output);
    text(&output.stdout)
}

/// As [`ctl`], while the loop goes on.
pub(crate) async fn ctl_aside(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || ctl(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    to_thread(run).await.unwrap()
}

/// Runs one of the scripts in peers/ while the loop goes on; its first argument is the broker's address.
pub(crate) async fn python(script: &str, arguments: &[&str]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rabbit/peers").join(script);
    run_python(&variable("TIDEGATE_PYTHON"), vec![path.to_str().unwrap().to_owned()], arguments).await
}

/// As [`python`], with one of the [`pythons`].
pub(crate) async fn python_of(interpreter: &str, script: &str, arguments: &[&str]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rabbit/peers").join(script);
    run_python(interpreter, vec![path.to_str().unwrap().to_owned()], arguments).await
}

/// Runs a script that is given as text.
pub(crate) async fn python_text(script: &str, arguments: &[&str]) -> Value {
    run_python(&variable("TIDEGATE_PYTHON"), vec!["-c".to_owned(), script.to_owned()], arguments).await
}

/// The interpreters that have Celery, the newest first: that one has dramatiq and Flower as well.
pub(crate) fn pythons() -> Vec<String> {
    let older = variable("TIDEGATE_PYTHONS_OLDER");
    std::iter::once(variable("TIDEGATE_PYTHON")).chain(older.split(':').map(ToOwned::to_owned)).collect()
}

fn peer(interpreter: &str, mut line: Vec<String>, arguments: &[&str]) -> Command {
    line.push(format!("amqp://guest:guest@{}//", host()));
    line.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let mut command = Command::new(interpreter);
    command.args(line).stdin(Stdio::null());
    command
}

/// One of the scripts in peers/ that runs until it is dropped.
pub(crate) struct Peer(Child);

impl Peer {
    pub(crate) fn start(interpreter: &str, script: &str, arguments: &[&str]) -> Peer {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rabbit/peers").join(script);
        Peer(
            peer(interpreter, vec![path.to_str().unwrap().to_owned()], arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn run_python(interpreter: &str, line: Vec<String>, arguments: &[&str]) -> Value {
    let mut command = peer(interpreter, line, arguments);
    let run = move || command.output().unwrap();
    let output = to_thread(run).await.unwrap();
    checked(&output);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}{}", text(&output.stdout), text(&output.stderr)))
}

/// A connection of the test's own.
pub(crate) async fn connect() -> tidegate_amqp::Connection {
    let uri = format!("amqp://{}", host()).parse().unwrap();
    tidegate_amqp::Connection::open(&uri, &tidegate_amqp::Options::default()).await.unwrap()
}
