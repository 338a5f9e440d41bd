//! The queue within one process.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_loop::{EventLoop, Runner, spawn};
use tidegate_worker::{Broker, Consumer, Envelope, Incoming, Settlement, SqliteBroker, Subscription, Verdict, sqlite};

use crate::harness::Sample;

/// Tasks a sample.
const TASKS: usize = 20_000;

/// A directory beside the build's output: where a real disk is more likely than in /tmp. Emptied each time.
pub(super) fn scratch(name: &str) -> Result<PathBuf, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
    let directory = target.join("bench-queues").join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    Ok(directory)
}

/// Does nothing.
pub(super) const NOTHING: &[u8] =
    br#"{"task":"nothing","args":[1,2,3],"kwargs":{"name":"a body of about a hundred bytes"}}"#;

/// Sleeps for a moment.
pub(super) const PAUSE: &[u8] =
    br#"{"task":"pause","args":[1,2,3],"kwargs":{"name":"a body of about a hundred bytes"}}"#;

pub(super) fn envelope(body: &[u8]) -> Envelope {
    Envelope::new("q", body.to_vec())
}

pub(super) fn task() -> Envelope {
    envelope(NOTHING)
}

pub(super) async fn subscribe(broker: &SqliteBroker, prefetch: usize) -> Rc<dyn Consumer> {
    let what = Subscription { queues: vec!["q".into()], prefetch, consumer: "bench".into() };
    broker.subscribe(what).await.expect("the queue takes consumers")
}

/// Takes what there is and acknowledges it; how many that were.
pub(super) async fn take(consumer: &Rc<dyn Consumer>) -> usize {
    let incoming = consumer.recv_all().await.expect("the queue lives");
    let acks = incoming.into_iter().filter_map(|incoming| match incoming {
        Incoming::Delivery(delivery) => Some(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None }),
        _ => None,
    });
    consumer.settle(acks.collect()).await.expect("the queue lives").len()
}

/// Every task is published by a call of its own, `in_flight` of them at a time.
pub(super) fn through(in_flight: usize) -> Sample {
    let directory = scratch("through")?;
    let path = directory.join("queue.db");
    let count = if in_flight == 1 { TASKS / 20 } else { TASKS };
    let took = run(async move {
        let broker = Rc::new(SqliteBroker::open(&path).await.expect("a new queue opens"));
        let consumer = subscribe(&broker, 1_000).await;
        let began = Instant::now();
        let producers: Vec<_> = (0..in_flight)
            .map(|_| {
                let broker = Rc::clone(&broker);
                spawn(async move {
                    for _ in 0..count / in_flight {
                        broker.publish(vec![task()]).await.expect("the disk has room");
                    }
                })
            })
            .collect();
        let mut done = 0;
        while done < count {
            done += take(&consumer).await;
        }
        let took = began.elapsed();
        for producer in producers {
            producer.await.expect("it has published");
        }
        broker.close().await.expect("it closes");
        took
    })?;
    let _ = std::fs::remove_dir_all(&directory);
    Ok(took.as_secs_f64() * 1e6 / count as f64)
}

pub(super) fn run<T: 'static>(program: impl Future<Output = T> + 'static) -> Result<T, String> {
    let event_loop = EventLoop::new().map_err(|error| error.to_string())?;
    Runner::new(event_loop).run(program).map_err(|error| error.to_string())
}

/// Of a backlog: taken in a sample, and by one claim.
const TAKEN: usize = 5_000;
const AT_A_TIME: usize = 100;

/// A queue that already has tasks, kept from round to round.
pub(super) struct Backlog {
    waiting: usize,
    path: Option<PathBuf>,
}

impl Backlog {
    pub(super) fn of(waiting: usize) -> Backlog {
        Backlog { waiting, path: None }
    }

    /// Claims and settles some at a time, as many in front of a short queue as of a long one. What was taken is put back in
    /// between, untimed, before the queue is half empty.
    pub(super) fn sample(&mut self) -> Sample {
        let path = match &self.path {
            Some(path) => path.clone(),
            None => {
                let path = scratch(&format!("backlog-{}", self.waiting))?.join("queue.db");
                fill(path.clone(), self.waiting)?;
                self.path.insert(path).clone()
            }
        };
        let waiting = self.waiting;
        run(async move {
            let mut options = sqlite::Options::new(&path);
            options.sync_publishes = false;
            let broker = SqliteBroker::open_with(options).await.expect("the queue opens");
            let (mut done, mut took) = (0, Duration::ZERO);
            while done < TAKEN {
                let consumer = subscribe(&broker, AT_A_TIME).await;
                take(&consumer).await;
                let until = TAKEN.min(done + waiting / 2);
                let began = Instant::now();
                while done < until {
                    done += take(&consumer).await;
                }
                took += began.elapsed();
                consumer.close().await.expect("it closes");
                let missing = waiting as u64 - broker.inspect().await.expect("it lives")[0].ready;
                broker.publish((0..missing).map(|_| task()).collect()).await.expect("the disk has room");
            }
            broker.close().await.expect("it closes");
            took.as_secs_f64() * 1e6 / done as f64
        })
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if let Some(directory) = self.path.as_ref().and_then(|path| path.parent()) {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn fill(path: PathBuf, waiting: usize) -> Result<(), String> {
    run(async move {
        let mut options = sqlite::Options::new(&path);
        options.sync_publishes = false;
        let broker = SqliteBroker::open_with(options).await.expect("a new queue opens");
        for _ in 0..waiting / 1_000 {
            broker.publish((0..1_000).map(|_| task()).collect()).await.expect("the disk has room");
        }
        broker.close().await.expect("it closes");
    })
}
