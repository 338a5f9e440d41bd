//! The processes: what they do, and how they are started and read.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tidegate_worker::{
    Broker as _, Envelope, Incoming, Settlement, SqliteBroker, Subscription, TaskId, Verdict, sqlite,
};

/// Short, so that what a killed worker had comes back soon.
const LEASE: Duration = Duration::from_millis(700);

/// Where no worker is killed, none loses its lease because the machine is busy.
const LEASE_OF_THE_LIVING: Duration = Duration::from_secs(60);

pub(crate) fn options(file: &Path) -> sqlite::Options {
    let mut options = sqlite::Options::new(file);
    options.lease = LEASE;
    options
}

/// What a child does until it is killed or finished.
pub(crate) fn run(role: &str, file: &Path, name: &str) {
    let (role, file, name) = (role.to_owned(), file.to_owned(), name.to_owned());
    tidegate_loop::run(async move {
        let mut options = options(&file);
        if role.starts_with("live=") {
            options.lease = LEASE_OF_THE_LIVING;
        }
        let broker = match SqliteBroker::open_with(options).await {
            Ok(broker) => broker,
            Err(error) => return say(&format!("error {error}")),
        };
        match role.split_once('=') {
            Some(("produce", count)) => produce(&broker, &name, count.parse().unwrap()).await,
            Some(("work" | "live", prefetch)) => work(&broker, &name, prefetch.parse().unwrap()).await,
            _ => panic!("no role: {role}"),
        }
    })
    .unwrap();
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// Says `stored N` once the first N tasks are known to be kept.
async fn produce(broker: &SqliteBroker, name: &str, count: usize) {
    let mut stored = 0;
    while stored < count {
        let batch: Vec<Envelope> = (stored..(stored + 50).min(count)).map(|n| task(name, n)).collect();
        stored += batch.len();
        broker.publish(batch).await.unwrap();
        say(&format!("stored {stored}"));
    }
    broker.close().await.unwrap();
}

pub(crate) fn task(name: &str, n: usize) -> Envelope {
    let mut envelope = Envelope::new("q", vec![b'x'; 100]);
    envelope.id = TaskId::from(format!("{name}-{n}").as_str());
    envelope
}

/// Says `got ID CRASHES` before it settles anything.
async fn work(broker: &SqliteBroker, name: &str, prefetch: usize) {
    let what = Subscription { queues: vec!["q".into()], prefetch, consumer: name.to_owned() };
    let consumer = broker.subscribe(what).await.unwrap();
    say("ready");
    loop {
        let mut batch = Vec::new();
        let mut lines = String::new();
        for incoming in consumer.recv_all().await.unwrap() {
            let Incoming::Delivery(delivery) = incoming else { continue };
            lines += &format!("got {} {}\n", delivery.envelope.id, delivery.crashes);
            batch.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
        }
        if !lines.is_empty() {
            say(lines.trim_end());
        }
        consumer.settle(batch).await.unwrap();
    }
}

/// A child and what it says.
pub(crate) struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    pub(crate) name: String,
}

impl Process {
    pub(crate) fn start(role: &str, file: &Path, name: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--child", role])
            .arg(file)
            .arg(name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines, name: name.to_owned() }
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// The next line; `None` when it has gone.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        // The last line of a killed child may be incomplete.
        (read > 0 && line.ends_with('\n')).then(|| line.trim_end().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
