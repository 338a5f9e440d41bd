//! The broker goes away and comes back.

use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_loop::spawn;
use tidegate_worker::{Broker, Incoming, Settled, Settlement, Verdict};

use crate::support::{envelope, name, node, on_loop, open, subscribe};

/// Tasks flow while the broker is stopped, killed and started; each runs, and those that ran twice were unsettled when it went.
#[test]
fn no_task_is_lost_when_the_broker_goes_away_and_comes_back() {
    on_loop(async {
        let broker = Rc::new(open().await);
        let queue = name("restarts");
        let rounds: u32 = if std::env::var_os("TIDEGATE_SOAK").is_some() { 50 } else { 2 };
        let total = 400 * (rounds + 1);
        let consumer = subscribe(&broker, &[&queue], 50).await;
        let producer = spawn({
            let (broker, queue) = (broker.clone(), queue.clone());
            async move {
                for number in 0..total {
                    let task = envelope(&queue, &number.to_string());
                    // What an outage leaves in doubt is published again, as a producer would.
                    while broker.publish(vec![task.clone()]).await.is_err() {}
                }
            }
        });
        let breaker = spawn(async move {
            for round in 0..rounds {
                node(if round % 2 == 0 { "kill" } else { "stop" }).await;
                node("start").await;
            }
        });
        let mut runs: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut lost, mut breaker) = (0, Some(breaker));
        let mut done = Vec::new();
        while runs.len() < total as usize || breaker.is_some() {
            for incoming in consumer.recv_all().await.unwrap() {
                match incoming {
                    Incoming::Delivery(delivery) => {
                        let number = std::str::from_utf8(&delivery.envelope.body).unwrap().parse().unwrap();
                        *runs.entry(number).or_default() += 1;
                        done.push(Settlement { tag: delivery.tag, verdict: Verdict::Ack, result: None });
                    }
                    Incoming::Lost(_) => lost += 1,
                    other => panic!("unexpected: {other:?}"),
                }
            }
            // Some are always unsettled, so that every outage finds work under way.
            if done.len() < 40 && runs.len() < total as usize {
                continue;
            }
            let settled = consumer.settle(std::mem::take(&mut done)).await.unwrap();
            lost += settled.iter().filter(|settled| **settled == Settled::Lost).count();
            if runs.len() == total as usize
                && let Some(breaker) = breaker.take()
            {
                breaker.await.unwrap();
            }
        }
        producer.await.unwrap();
        let again = runs.values().filter(|runs| **runs > 1).count();
        println!("{rounds} restarts, {total} tasks: all ran, {again} more than once, {lost} settled too late");
        // Only what was unsettled, or in doubt with its publisher, when the broker went.
        assert!(again <= lost + rounds as usize, "{again} ran again, but only {lost} were unsettled");
        broker.close().await.unwrap();
    });
}
