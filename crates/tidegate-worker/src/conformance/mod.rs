//! What every broker must do, as one suite: each case is a claim, and every implementation passes all of them. Where a broker
//! says that it cannot keep a part of the contract ([`Capabilities`](crate::Capabilities)), a case asks for what holds instead.
//!
//! ```text
//! mod memory {
//!     fn run(case: tidegate_worker::conformance::Case) { /* a loop, a Subject on an empty store, the case on it */ }
//!     tidegate_worker::broker_conformance!(run);
//! }
//! ```
//!
//! No case sleeps: time passes by waiting for a delayed task, in virtual time at once, in real time for a few
//! [`unit`](Subject::unit)s.

mod ends;
mod flow;
mod keep;
mod keys;
mod losses;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;

use crate::broker::{
    Broker, Consumer, Delivery, Incoming, Local, QueueStats, Settled, Settlement, Subscription, Verdict,
};
use crate::task::Envelope;

pub use ends::*;
pub use flow::*;
pub use keep::*;
pub use keys::*;
pub use losses::*;

/// One case of the suite.
pub type Case = fn(Rc<dyn Subject>) -> Local<'static, ()>;

/// A broker under test, on an empty store of its own.
pub trait Subject {
    /// A connection to the store; another one each time.
    fn connect(&self) -> Local<'_, Rc<dyn Broker>>;

    /// Every consumer loses what it has, as after a network failure or a lease that ran out.
    fn lose_leases(&self) -> Local<'_, ()>;

    /// A span that the implementation can tell from none at all; a few of them pass in most cases.
    fn unit(&self) -> Duration;
}

/// Makes one `#[test]` of every case; `$run` takes a [`Case`].
#[macro_export]
macro_rules! broker_conformance {
    ($run:path) => {
        $crate::broker_conformance!(@ $run:
            what_is_published_arrives_as_it_was
            a_batch_with_one_bad_task_is_refused_whole
            no_more_than_the_prefetch_is_out_at_a_time
            higher_priorities_come_first_and_equal_ones_in_order
            several_queues_are_served_side_by_side
            two_consumers_never_get_the_same_task
            cancelling_a_receive_loses_nothing
            a_receiver_that_waits_is_woken_by_a_publish
            settled_tasks_are_gone_for_good
            a_tag_settles_once_and_only_its_own_consumers
            a_tag_of_before_a_return_settles_nothing
            returned_tasks_keep_their_place_and_their_counts
            a_retry_comes_at_its_time_and_is_counted
            a_crash_comes_at_its_time_and_is_counted_apart
            stopping_gives_back_what_was_not_seen_and_settling_goes_on
            closing_returns_what_was_not_settled_uncounted
            a_closed_broker_says_so
            delayed_tasks_come_at_their_time_and_take_no_prefetch
            expired_tasks_are_dropped_told_and_known_as_expired
            dead_letters_are_kept_listed_retried_and_dropped
            a_unique_key_is_held_while_its_task_lives
            a_unique_key_is_free_again_after_its_time
            a_unique_key_may_outlast_its_task
            the_same_key_and_id_from_several_connections_is_one_task
            many_keys_that_are_published_at_once_are_one_task_each
            a_refused_publish_leaves_its_key_free
            a_publisher_that_dies_at_any_point_leaves_no_key_without_a_task
            workers_with_one_schedule_run_an_occurrence_once
            the_same_id_is_stored_once
            purging_drops_what_waits_and_nothing_else
            peeking_shows_the_order_and_takes_nothing
            inspecting_counts_every_place
            large_bodies_pass_and_larger_ones_are_refused_by_name
            names_and_priorities_that_cannot_be_are_refused
            revoking_a_waiting_task_drops_it
            revoking_a_running_task_tells_its_worker_and_ends_it
            revoking_a_task_to_come_drops_it_on_arrival
            results_are_kept_with_the_settlement
            results_keep_integers_of_any_size
            waiting_for_a_result_ends_with_the_last_one
            results_are_forgotten_after_their_time
            lost_deliveries_are_told_and_go_to_somebody_else
            tags_of_before_a_loss_settle_nothing
            a_consumer_that_vanishes_gives_its_tasks_back_counted
        );
    };
    (@ $run:path: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $run(|subject| ::std::boxed::Box::pin($crate::conformance::$case(subject)));
            }
        )*
    };
}

/// The queue of most cases.
const QUEUE: &str = "conformance";

fn task(name: &str) -> Envelope {
    Envelope::new(QUEUE, name.as_bytes().to_vec())
}

fn tasks(names: &[&str]) -> Vec<Envelope> {
    names.iter().map(|name| task(name)).collect()
}

fn name(delivery: &Delivery) -> String {
    String::from_utf8(delivery.envelope.body.clone()).expect("bodies of the suite are names")
}

async fn consumer(broker: &Rc<dyn Broker>, prefetch: usize) -> Rc<dyn Consumer> {
    consumer_of(broker, &[QUEUE], prefetch).await
}

async fn consumer_of(broker: &Rc<dyn Broker>, queues: &[&str], prefetch: usize) -> Rc<dyn Consumer> {
    let queues = queues.iter().map(|&queue| queue.to_owned()).collect();
    broker.subscribe(Subscription { queues, prefetch, consumer: "suite".into() }).await.unwrap()
}

/// Receives until there are `count` deliveries; notices in between must not come.
async fn deliveries(consumer: &Rc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        for incoming in consumer.recv_all().await.unwrap() {
            match incoming {
                Incoming::Delivery(delivery) => all.push(delivery),
                other => panic!("expected a delivery, not {other:?}"),
            }
        }
    }
    assert_eq!(all.len(), count, "more than expected");
    all
}

async fn delivery(consumer: &Rc<dyn Consumer>) -> Delivery {
    deliveries(consumer, 1).await.pop().unwrap()
}

async fn names(consumer: &Rc<dyn Consumer>, count: usize) -> Vec<String> {
    deliveries(consumer, count).await.iter().map(name).collect()
}

fn verdict(delivery: &Delivery, verdict: Verdict) -> Settlement {
    Settlement { tag: delivery.tag, verdict, result: None }
}

async fn settle(consumer: &Rc<dyn Consumer>, delivery: &Delivery, with: Verdict) {
    settle_all(consumer, vec![verdict(delivery, with)]).await;
}

/// Settles a batch, and again what is pending, until all of it is done.
async fn settle_all(consumer: &Rc<dyn Consumer>, mut batch: Vec<Settlement>) {
    while !batch.is_empty() {
        let mut answers = consumer.settle(batch.clone()).await.unwrap().into_iter();
        batch.retain(|settlement| match answers.next() {
            Some(Settled::Pending) => true,
            answer => {
                assert_eq!(answer, Some(Settled::Done), "{settlement:?}");
                false
            }
        });
    }
}

async fn stats(broker: &Rc<dyn Broker>) -> QueueStats {
    let all: BTreeMap<String, QueueStats> =
        broker.inspect().await.unwrap().into_iter().map(|stats| (stats.queue.clone(), stats)).collect();
    all.get(QUEUE).cloned().unwrap_or(QueueStats {
        queue: QUEUE.into(),
        ready: 0,
        delayed: 0,
        running: 0,
        dead: 0,
        consumers: 0,
        oldest_ms: 0,
    })
}

/// Whole milliseconds: what every broker can keep.
fn rounded(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap()
}

fn after(broker: &Rc<dyn Broker>, by: Duration) -> Timestamp {
    rounded(broker.now().checked_add(by).unwrap())
}

/// Lets time pass, as the broker counts it: waits for a task that comes then.
async fn pass(broker: &Rc<dyn Broker>, by: Duration) {
    let clock = consumer_of(broker, &["clock"], 1).await;
    let mut bell = Envelope::new("clock", Vec::new());
    bell.eta = Some(broker.now().checked_add(by).unwrap());
    broker.publish(vec![bell]).await.unwrap();
    let rung = delivery(&clock).await;
    settle(&clock, &rung, Verdict::Ack).await;
    clock.close().await.unwrap();
}
