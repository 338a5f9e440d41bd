use std::time::Duration;

use tidegate_batch::{AutoConcurrency, ItemState};
use tidegate_limit::{Admission, Gate, Limit, SetError};
use tidegate_loop::sleep;
use tidegate_rehearsal::{Latency, Limit as ServerLimit, Server};

use crate::support::{
    LATENCY, Place, STEP, check_figures, in_virtual_time, keep_time, most_per_minute, secs, sent_times, sleep_until,
    start, time,
};

fn gate(global: u64, rpm: u64) -> Gate {
    Gate::builder().limit(Limit::concurrency("global", global)).limit(Limit::rpm(rpm)).build().unwrap()
}

#[test]
fn a_limit_is_raised_and_lowered_live_and_never_exceeded() {
    let place = Place::new();
    let batch = place.batch("a", 250);
    in_virtual_time(async move {
        let server = Server::builder().rpm(ServerLimit::new(60)).latency(Latency::Fixed(LATENCY));
        let server = server.start().await.unwrap();
        let gate = gate(20, 20);
        let admission = Admission::from(&gate);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        check_figures(&control, &gate);
        let sent = sent_times(&control);
        let running = start(batch, &gate, &server);
        while server.stats().arrived < 20 {
            sleep(STEP).await;
        }
        let began = time();
        sleep_until(began + secs(30)).await;
        assert_eq!(sent.borrow().len(), 20);
        assert_eq!(gate.stats().blocked_by.as_deref(), Some("rpm"));

        admission.set("rpm", 60).unwrap();
        sleep_until(began + secs(58)).await;
        assert_eq!(sent.borrow().len(), 60, "forty more went before the first window was over");
        sleep_until(began + secs(130)).await;
        let before = sent.borrow().len();
        assert!(before >= 140, "{before}");

        let lowered = time();
        admission.set("rpm", 30).unwrap();
        assert!(gate.stats().limit("rpm").unwrap().is_set);
        let summary = running.await.unwrap().unwrap();
        assert_eq!((summary.answered, summary.failed), (250, 0));
        let sent = sent.borrow();
        assert!(most_per_minute(&sent, began) <= 60);
        assert!(most_per_minute(&sent, lowered) <= 30, "{}", most_per_minute(&sent, lowered));
        let rest = u32::try_from((250 - before) / 30).unwrap();
        let took = *sent.last().unwrap() - lowered;
        assert!(took >= secs(60) * rest && took < secs(60) * (rest + 2), "the lower limit was used, too: {took:?}");
        let stats = server.stats();
        assert_eq!(stats.refused.total(), 0, "{stats}");
        assert!(stats.limits.iter().all(|limit| limit.worst_offered <= limit.amount), "{:?}", stats.limits);
        assert!(matches!(admission.set("tpm", 5), Err(SetError::Unknown(_))));
        clock.cancel();
    });
}

#[test]
fn the_concurrency_is_changed_live_also_where_it_is_derived() {
    for auto in [false, true] {
        let place = Place::new();
        let batch = place.batch("a", 600);
        in_virtual_time(async move {
            let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
            let gate = gate(10, 6_000);
            let auto = auto.then(|| AutoConcurrency::new(&[Limit::rpm(6_000)]).requests_max(10));
            let batch = batch.auto_concurrency(auto);
            let clock = keep_time(&gate, &server);
            let control = batch.control();
            check_figures(&control, &gate);
            let running = start(batch, &gate, &server);
            while server.stats().in_flight < 10 {
                sleep(STEP).await;
            }
            let began = time();
            Admission::from(&gate).set("global", 40).unwrap();
            sleep_until(began + secs(8)).await;
            assert_eq!((gate.stats().peak, control.progress().in_flight), (40, 40), "more connections were made, too");
            Admission::from(&gate).set("global", 3).unwrap();
            sleep_until(began + secs(14)).await;
            assert_eq!((control.progress().in_flight, server.stats().in_flight), (3, 3));
            assert_eq!(gate.stats().limit("global").unwrap().amount, 3, "what a person sets stays");
            Admission::from(&gate).set("global", 60).unwrap();
            assert_eq!(running.await.unwrap().unwrap().answered, 600);
            clock.cancel();
        });
    }
}

#[test]
fn what_would_happen_with_another_limit_is_what_happens() {
    // From, to, and the items that are sent 30 s after the start.
    for (from, to) in [(20, 50), (60, 20), (30, 30)] {
        let place = Place::new();
        let batch = place.batch("a", 200);
        in_virtual_time(async move {
            let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
            let gate = gate(50, from);
            let clock = keep_time(&gate, &server);
            let control = batch.control();
            let sent = sent_times(&control);
            let running = start(batch, &gate, &server);
            while (server.stats().arrived) < from.min(50) {
                sleep(STEP).await;
            }
            let began = time();
            sleep_until(began + secs(30)).await;
            let seq = control.seq();
            let foretold = control.what_if(&[("rpm", to)]).unwrap();
            assert_eq!(gate.stats().limit("rpm").unwrap().amount, from, "nothing was touched");
            assert_eq!(control.seq(), seq);
            let asked = time();
            Admission::from(&gate).set("rpm", to).unwrap();
            running.await.unwrap().unwrap();
            let came = *sent.borrow().last().unwrap() + LATENCY - asked;
            let off = foretold.abs_diff(came);
            assert!(off < secs(3), "from {from} to {to}: {foretold:?} was foretold, {came:?} came");
            clock.cancel();
        });
    }
}

#[test]
fn each_blocked_item_says_by_which_limit_and_until_when_and_is_sent_then() {
    let place = Place::new();
    let batch = place.batch("a", 50);
    in_virtual_time(async move {
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).start().await.unwrap();
        let gate = gate(15, 10);
        let clock = keep_time(&gate, &server);
        let control = batch.control();
        let sent = sent_times(&control);
        let running = start(batch, &gate, &server);
        while server.stats().arrived < 10 {
            sleep(STEP).await;
        }
        let began = time();
        sleep_until(began + secs(20)).await;
        let (now, wall) = (time(), gate.stats().at);
        let mut until: Vec<Duration> = control
            .items()
            .into_iter()
            .filter_map(|item| match item.state {
                ItemState::Blocked { limit, until } => {
                    assert_eq!(limit, "rpm");
                    Some(until.unwrap().duration_since(wall).unwrap())
                }
                _ => None,
            })
            .collect();
        assert_eq!(until.len(), 30, "as many as may be in flight, and as many more");
        until.sort_unstable();
        running.await.unwrap().unwrap();
        for (foretold, sent) in until.into_iter().zip(&sent.borrow()[10..]) {
            let came = *sent - now;
            assert!(foretold.abs_diff(came) < secs(1), "{foretold:?} was foretold, {came:?} came");
        }
        clock.cancel();
    });
}
