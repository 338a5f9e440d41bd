//! No task starves, and nothing runs when there is nothing to do.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{LoopHandle, SelectorKind, sleep, spawn, yield_now};

use super::support::{connections, listener, loop_of, on, pair};

pub(crate) fn a_stream_that_is_always_ready_starves_nobody(kind: SelectorKind) {
    on(kind, async {
        let listener = listener().await;
        let (pings, timers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (near, far) = pair(&listener).await;
        spawn(async move {
            let mut byte = [0];
            while far.read_exact(&mut byte).await.is_ok() {
                far.write_all(&byte).await.unwrap();
            }
        });
        let counted = pings.clone();
        let pinging = spawn(async move {
            let mut byte = [0];
            loop {
                near.write_all(&[1]).await.unwrap();
                near.read_exact(&mut byte).await.unwrap();
                counted.set(counted.get() + 1);
            }
        });
        let counted = timers.clone();
        let timing = spawn(async move {
            loop {
                sleep(Duration::from_nanos(1)).await;
                counted.set(counted.get() + 1);
            }
        });
        let (busy, full) = pair(&listener).await;
        full.write_all(&[7; 64]).await.unwrap();
        let mut buffer = [0; 64];
        const OPERATIONS: u32 = 20_000;
        for _ in 0..OPERATIONS {
            // What was looked at is still there: this never has a reason to wait.
            assert!(busy.peek(&mut buffer).await.unwrap() > 0);
        }
        pinging.cancel();
        timing.cancel();
        // A turn every 128 operations; a ping takes a few turns.
        let turns = OPERATIONS / 128;
        assert!(timers.get() >= turns / 2, "{} timers in {turns} turns", timers.get());
        assert!(pings.get() >= turns / 8, "{} pings in {turns} turns", pings.get());
    });
}

/// Times the selector was asked while nothing happens but the end of a sleep: in the quietest of some naps. On a busy machine
/// the kernel delivers late what the set-up left there; what wakes the loop for no reason wakes it in every nap.
async fn polls_during_a_nap() -> u64 {
    let polls = || LoopHandle::current().metrics().polls;
    // What the set-up left in the kernel is reported first.
    sleep(Duration::from_millis(5)).await;
    let mut fewest = u64::MAX;
    for _ in 0..NAPS {
        let before = polls();
        sleep(Duration::from_millis(25)).await;
        fewest = fewest.min(polls() - before);
        if fewest <= POLLS_A_NAP {
            break;
        }
    }
    fewest
}

/// A nap is a wait of whole milliseconds and one for the rest, which may be interrupted.
const POLLS_A_NAP: u64 = 4;

const NAPS: usize = 20;

pub(crate) fn an_idle_loop_does_not_wake_up(kind: SelectorKind) {
    on(kind, async move {
        let listener = listener().await;
        let mut ends = Vec::new();
        for _ in 0..connections(kind, 200) {
            let (near, far) = pair(&listener).await;
            spawn(async move { far.read(&mut [0; 8]).await });
            ends.push(near);
        }
        spawn(async move { listener.accept().await });
        let polls = polls_during_a_nap().await;
        assert!(polls <= POLLS_A_NAP, "{polls} wake-ups of an idle server");
    });
}

pub(crate) fn what_nobody_waits_for_does_not_wake_the_loop(kind: SelectorKind) {
    on(kind, async move {
        let listener = listener().await;
        let mut ends = Vec::new();
        for number in 0..60 {
            let (near, far) = pair(&listener).await;
            let far = Rc::new(far);
            // Waited for once, so that it is registered, and then no more.
            let waiting = spawn({
                let far = far.clone();
                async move { far.read(&mut [0; 8]).await }
            });
            yield_now().await;
            yield_now().await;
            waiting.cancel();
            near.write_all(b"never to be read!").await.unwrap();
            match number % 3 {
                0 => ends.push((Some(near), far)),
                1 => ends.push((None, far)),
                _ => {
                    near.set_linger(Some(Duration::ZERO)).unwrap();
                    ends.push((None, far));
                }
            }
        }
        let polls = polls_during_a_nap().await;
        assert!(polls <= POLLS_A_NAP, "{polls} wake-ups for what no task waits for");
        // And it is still there for a later reader.
        for (number, (_near, far)) in ends.into_iter().enumerate() {
            let read = far.read(&mut [0; 64]).await;
            assert!(matches!(read, Ok(17)) || number % 3 == 2 && read.is_err(), "{number}: {read:?}");
        }
    });
}

pub(crate) fn the_loop_is_rung_for_from_other_threads(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    for _ in 0..20 {
        let remote = event_loop.remote();
        let thread = std::thread::spawn(move || {
            for _ in 0..10 {
                remote.call_soon_threadsafe(|| ()).unwrap();
            }
            remote.call_soon_threadsafe(|| LoopHandle::current().stop()).unwrap();
        });
        event_loop.run_forever().unwrap();
        thread.join().unwrap();
    }
    // A bell that has rung is silent again.
    let polls = event_loop.run_until_complete(polls_during_a_nap()).unwrap();
    assert!(polls <= POLLS_A_NAP, "{polls} wake-ups after the bell");
}
