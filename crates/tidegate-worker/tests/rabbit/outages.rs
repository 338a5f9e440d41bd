//! The broker goes away and comes back, or the way to it does, while tasks flow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_amqp::Connection;
use tidegate_loop::{sleep, spawn};
use tidegate_sync::Event;
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{Broker, Consumer, Incoming, Published, Settled, Settlement, Tag, Verdict};

use crate::keys::keyed;
use crate::proxy::Proxy;
use crate::support::{body, deliveries, envelope, host, name, node, on_loop, one, open_with, settle, soak, subscribe};

const PREFETCH: usize = 50;

/// Published and not yet run, at most.
const UNDER_WAY: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Outage {
    /// The broker's process is killed, and started again.
    Kill,
    /// It is stopped in order, and started again.
    Stop,
    /// Every connection ends.
    Cut,
}

/// What was seen.
#[derive(Default)]
struct Flow {
    /// By task: over which connection each run came.
    runs: RefCell<BTreeMap<u32, Vec<Tag>>>,
    /// Their publisher was in doubt, and published them again.
    doubtful: RefCell<HashSet<u32>>,
    /// Beginnings and ends of outages: odd while one lasts.
    outages: Cell<u32>,
    /// Deliveries that were taken back, and settlements that came too late.
    lost: Cell<usize>,
    /// The first delivery over the newest connection.
    resumed: Cell<Option<(u32, Instant)>>,
    /// Counted though nobody has died but the broker.
    crashes: Cell<u32>,
    failed: Cell<bool>,
    /// Tasks below this number may be published. It rises with every outage that has ended, so that tasks are left for the next.
    released: Cell<usize>,
    changed: Event,
}

/// A test that waits for a task that has failed would wait for ever.
struct Failing(Rc<Flow>);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.set(true);
            self.0.changed.notify_all();
        }
    }
}

impl Flow {
    fn count(&self) -> usize {
        self.runs.borrow().len()
    }

    async fn until(&self, reached: impl Fn(&Flow) -> bool) {
        while !reached(self) {
            assert!(!self.failed.get(), "the worker has failed");
            self.changed.wait().await;
        }
    }

    fn release(&self, more: usize) {
        self.released.set(self.released.get() + more);
        self.changed.notify_all();
    }

    fn hear(&self, number: u32, tag: Tag) {
        if self.resumed.get().is_none_or(|(epoch, _)| epoch < tag.epoch) {
            self.resumed.set(Some((tag.epoch, Instant::now())));
        }
        self.runs.borrow_mut().entry(number).or_default().push(tag);
        self.changed.notify_all();
    }
}

async fn produce(flow: Rc<Flow>, broker: Rc<RabbitBroker>, queue: String, total: u32) {
    for first in (0..total).step_by(20) {
        flow.until(|flow| flow.released.get().min(flow.count() + UNDER_WAY) > first as usize).await;
        let numbers = first..total.min(first + 20);
        let mut batch: Vec<_> = numbers.clone().map(|number| envelope(&queue, &number.to_string())).collect();
        let before = flow.outages.get();
        let mut again = false;
        while !batch.is_empty() {
            if let Ok(published) = broker.publish(batch.clone()).await {
                let mut published = published.into_iter();
                batch.retain(|_| published.next() != Some(Published::Stored));
            }
            again |= !batch.is_empty();
        }
        // What is sent again after a lost confirmation may be there twice.
        if again || before % 2 == 1 || flow.outages.get() != before {
            flow.doubtful.borrow_mut().extend(numbers);
        }
    }
}

async fn work(flow: Rc<Flow>, consumer: Rc<dyn Consumer>, total: usize) {
    let _failing = Failing(flow.clone());
    let mut done = Vec::new();
    while flow.count() < total || !done.is_empty() {
        // Some are always unsettled, so that every outage finds work under way.
        if done.len() >= PREFETCH / 2 || flow.count() == total {
            let settled = consumer.settle(std::mem::take(&mut done)).await.unwrap();
            flow.lost.set(flow.lost.get() + settled.iter().filter(|settled| **settled == Settled::Lost).count());
            continue;
        }
        for incoming in consumer.recv_all().await.unwrap() {
            match incoming {
                Incoming::Delivery(delivery) => {
                    // A broker that was killed may have forgotten more acknowledgements than an outage accounts for.
                    assert!(delivery.retries == 0 && delivery.crashes <= 1, "{delivery:?}");
                    flow.crashes.set(flow.crashes.get() + delivery.crashes);
                    let number = std::str::from_utf8(&delivery.envelope.body).unwrap().parse().unwrap();
                    flow.hear(number, delivery.tag);
                    done.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
                }
                Incoming::Lost(_) => flow.lost.set(flow.lost.get() + 1),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

/// Returns when the broker lets somebody in.
async fn reachable() -> Instant {
    let uri = format!("amqp://{}", host()).parse().unwrap();
    loop {
        if Connection::open(&uri, &tidegate_amqp::Options::default()).await.is_ok() {
            return Instant::now();
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns how long after the broker was there again the first task came. Once it is there, `more` tasks are released.
async fn suffer(flow: &Flow, proxy: &Proxy, outage: Outage, more: usize) -> Duration {
    let epoch = flow.resumed.get().map_or(0, |(epoch, _)| epoch);
    flow.outages.set(flow.outages.get() + 1);
    let back = match outage {
        Outage::Cut => {
            proxy.cut();
            Instant::now()
        }
        Outage::Kill | Outage::Stop => {
            node(if outage == Outage::Kill { "kill" } else { "stop" }).await;
            let back = spawn(reachable());
            node("start").await;
            back.await.unwrap()
        }
    };
    // A publish that began in between may have been in doubt as well, though it ended before this.
    flow.outages.set(flow.outages.get() + 1);
    flow.release(more);
    flow.until(|flow| flow.resumed.get().is_some_and(|(resumed, _)| resumed > epoch)).await;
    let (_, resumed) = flow.resumed.get().unwrap();
    resumed.saturating_duration_since(back)
}

/// What such a task needs is made over another connection than the one that tasks are published over.
#[test]
fn tasks_for_new_queues_wait_for_a_broker_that_is_away() {
    on_loop(async {
        let mut options = Options::default();
        options.publish_patience = Duration::from_secs(120);
        let broker = Rc::new(open_with(options).await);
        node("stop").await;
        let (now, later, unique) = (name("new"), name("new-delayed"), name("new-unique"));
        let mut delayed = envelope(&later, "delayed");
        delayed.eta = Some(broker.now() + Duration::from_millis(100));
        let tasks = [envelope(&now, "now"), delayed, keyed(&unique, "unique", &unique)];
        let publishing: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                let broker = broker.clone();
                spawn(async move { broker.publish(vec![task]).await })
            })
            .collect();
        node("start").await;
        for published in publishing {
            assert_eq!(published.await.unwrap().unwrap(), [Published::Stored]);
        }
        let consumer = subscribe(&broker, &[&now, &later, &unique], 10).await;
        let mut bodies: Vec<_> = deliveries(&consumer, 3).await.iter().map(|one| body(one).to_owned()).collect();
        bodies.sort();
        assert_eq!(bodies, ["delayed", "now", "unique"]);
        broker.close().await.unwrap();
    });
}

fn survive(kind: QueueKind, outages: Vec<Outage>, total: u32) {
    on_loop(async move {
        let proxy = Proxy::to(&host()).await;
        let mut options = Options::default();
        options.kind = kind;
        // A producer that waits out any outage.
        options.publish_patience = Duration::from_secs(120);
        let address = format!("amqp://{}?heartbeat=5", proxy.host);
        let broker = Rc::new(RabbitBroker::open(&address, options).await.unwrap());
        let queue = name("outages");
        let consumer = subscribe(&broker, &[&queue], PREFETCH).await;
        let flow = Rc::new(Flow::default());
        let producer = spawn(produce(flow.clone(), broker.clone(), queue.clone(), total));
        let worker = spawn(work(flow.clone(), consumer, total as usize));
        let rounds = outages.len() as u32;
        let portion = total as usize / (rounds as usize + 1);
        flow.release(2 * portion);
        let mut waits = Vec::new();
        for (round, outage) in outages.into_iter().enumerate() {
            flow.until(|flow| flow.count() >= (round + 1) * portion).await;
            waits.push((suffer(&flow, &proxy, outage, portion).await, outage));
        }
        flow.release(total as usize);
        producer.await.unwrap();
        worker.await.unwrap();
        judge(&flow, rounds, total);
        let longest = waits.into_iter().max_by_key(|(wait, _)| *wait).unwrap();
        println!("  resumed at the latest {:?} after the broker was back ({:?})", longest.0, longest.1);
        assert!(longest.0 < Duration::from_secs(if soak() { 3 } else { 10 }), "{longest:?}");
        broker.close().await.unwrap();
    });
}

/// All ran; and who ran twice was not settled when a connection was lost, or was published twice.
fn judge(flow: &Flow, rounds: u32, total: u32) {
    let (runs, doubtful) = (flow.runs.borrow(), flow.doubtful.borrow());
    assert_eq!(runs.len(), total as usize);
    let again: usize = runs.values().map(|tags| tags.len() - 1).sum();
    println!(
        "{rounds} outages, {total} tasks: all ran, {again} runs more than tasks, {} taken back or settled too late, {} \
         published in doubt, {} counted as a crash",
        flow.lost.get(),
        doubtful.len(),
        flow.crashes.get()
    );
    for (number, tags) in runs.iter() {
        let other_connection = tags.windows(2).all(|pair| pair[1].epoch > pair[0].epoch);
        assert!(other_connection || doubtful.contains(number), "task {number} came again for no reason: {tags:?}");
    }
    // An acknowledgement has no answer: what was said last on a connection that broke may not have been heard.
    assert!(again <= flow.lost.get() + doubtful.len() + rounds as usize * PREFETCH);
}

fn outages(rounds: usize, kinds: &[Outage]) -> Vec<Outage> {
    kinds.iter().copied().cycle().take(rounds).collect()
}

#[test]
fn no_task_is_lost_when_the_broker_or_the_way_to_it_fails() {
    let (rounds, total) = if soak() { (50, 20_000) } else { (5, 4_000) };
    survive(QueueKind::Classic, outages(rounds, &[Outage::Kill, Outage::Cut, Outage::Stop, Outage::Cut]), total);
}

#[test]
fn no_task_of_a_quorum_queue_is_lost_either() {
    let (rounds, total) = if soak() { (12, 6_000) } else { (2, 1_000) };
    survive(QueueKind::Quorum, outages(rounds, &[Outage::Cut, Outage::Kill]), total);
}

#[test]
fn a_broker_that_says_nothing_is_given_up_after_two_heartbeats() {
    on_loop(async {
        let proxy = Proxy::to(&host()).await;
        let heartbeat = Duration::from_secs(1);
        let address = format!("amqp://{}?heartbeat={}&connection_timeout=500", proxy.host, heartbeat.as_secs());
        let broker = RabbitBroker::open(&address, Options::default()).await.unwrap();
        let queue = name("silence");
        broker.publish(vec![envelope(&queue, "x")]).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 10).await;
        let first = one(&consumer).await;
        proxy.silence(true);
        let silent = Instant::now();
        match consumer.recv_all().await.unwrap().as_slice() {
            [Incoming::Lost(tag)] => assert_eq!(*tag, first.tag),
            other => panic!("unexpected: {other:?}"),
        }
        // The last byte may have come just before.
        let noticed = silent.elapsed();
        println!("noticed after {noticed:?} of silence");
        assert!(noticed >= heartbeat && noticed < 3 * heartbeat, "{noticed:?}");
        proxy.silence(false);
        let again = one(&consumer).await;
        assert_eq!((again.envelope.id == first.envelope.id, again.crashes), (true, 0));
        assert_eq!(settle(&consumer, first.tag, Verdict::Ack).await, Settled::Lost);
        assert_eq!(settle(&consumer, again.tag, Verdict::Ack).await, Settled::Done);
        broker.close().await.unwrap();
    });
}

#[test]
fn a_broker_short_of_memory_is_waited_for_and_what_it_has_is_run_meanwhile() {
    on_loop(async {
        let mut options = Options::default();
        options.publish_patience = Duration::from_secs(2);
        let broker = Rc::new(RabbitBroker::open(&format!("amqp://{}", host()), options).await.unwrap());
        let queue = name("blocked");
        broker.publish((0..10).map(|number| envelope(&queue, &number.to_string())).collect()).await.unwrap();
        let consumer = subscribe(&broker, &[&queue], 1).await;
        crate::support::ctl(&["set_vm_memory_high_watermark", "0.000001"]);
        // It blocks the connection with the first publish, which it may read later.
        let late = broker.publish(vec![envelope(&queue, "late")]).await.unwrap();
        assert!(matches!(late[..], [Published::Unknown { .. }]), "{late:?}");
        // The second is not sent any more, and the caller knows.
        let refused = broker.publish(vec![envelope(&queue, "never")]).await;
        assert!(matches!(refused, Err(tidegate_worker::BrokerError::Retry { .. })), "{refused:?}");
        for _ in 0..10 {
            let delivery = one(&consumer).await;
            assert_eq!(settle(&consumer, delivery.tag, Verdict::Ack).await, Settled::Done);
        }
        crate::support::ctl(&["set_vm_memory_high_watermark", "0.4"]);
        while !matches!(broker.publish(vec![envelope(&queue, "later")]).await.as_deref(), Ok([Published::Stored])) {}
        // The first one was on its way all the time.
        let last = deliveries(&consumer, 1).await;
        assert_eq!(body(&last[0]), "late");
        settle(&consumer, last[0].tag, Verdict::Ack).await;
        broker.close().await.unwrap();
    });
}
