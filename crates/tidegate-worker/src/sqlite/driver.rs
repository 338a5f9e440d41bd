//! Who lets the engine take its turns: a thread of its own, or, where time is virtual, a task on the loop. The file blocks, so
//! in real time it must not be on the loop; in virtual time nothing else may decide the order of events.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_loop::timeout;

use crate::broker::BrokerError;
use crate::clock::{self, LoopClock};

use super::engine::{Closing, Engine, Failure, Next, Now};
use super::inbox::Inbox;
use super::oneshot::{Answer, oneshot};

/// Pause between two transactions while other processes write too. Without it the process with the lock tends to keep it.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(150);

/// Starts the thread; comes back when the file is open, or is known not to open.
pub(super) async fn start_thread(
    options: super::Options,
    inbox: Arc<Inbox>,
    failure: Failure,
) -> Result<(), BrokerError> {
    let (answer, opened) = oneshot();
    let place = super::error::Place::of(&options.path);
    let builder = thread::Builder::new().name("tidegate-sqlite".into());
    let owner = move || run(options, &inbox, failure, answer);
    builder.spawn(owner).map_err(|error| place.retry(format!("could not get a thread: {error}")))?;
    opened.await
}

fn run(options: super::Options, inbox: &Inbox, failure: Failure, opened: Answer<()>) {
    let mut engine = match Engine::open(options, failure) {
        Ok(engine) => engine,
        Err(error) => return opened.send(Err(error)),
    };
    if let Err(error) = engine.file.bell.watch() {
        tracing::warn!(%error, "the doorbell cannot be watched; looking once a second instead");
    }
    opened.send(Ok(()));
    let closing = loop {
        let (wall, mono) = clock::machine();
        let next = engine.turn(inbox.take(), Now { wall, mono });
        if next.closing.is_some() || (inbox.is_closed() && inbox.is_empty()) {
            break next.closing;
        }
        if next.yield_to_others {
            thread::sleep(PAUSE_FOR_OTHERS);
        }
        sleep(&engine, inbox, &next);
    };
    drop(engine);
    inbox.close();
    closing.into_iter().for_each(Closing::tell);
}

fn sleep(engine: &Engine, inbox: &Inbox, next: &Next) {
    // The process's own rings arrive here too; they must not cause another turn.
    engine.file.bell.drain();
    if next.within == Some(Duration::ZERO) || next.yield_to_others || !inbox.fall_asleep() {
        return;
    }
    let within = next.within.map(|within| Timespec {
        tv_sec: within.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    });
    let bell = engine.file.bell.fd();
    let mut fds = [PollFd::from_borrowed_fd(inbox.fd(), PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    // Nothing depends on other processes, so only the own inbox is watched.
    let count = if next.within.is_none() { 1 } else { 2 };
    let _ = poll(&mut fds[..count], within.as_ref());
    inbox.awake();
}

/// The same as a task of the running loop.
pub(super) async fn run_on_loop(mut engine: Engine, inbox: Arc<Inbox>, clock: LoopClock) {
    let closing = loop {
        inbox.rung.clear();
        let next = engine.turn(inbox.take(), Now { wall: clock.now(), mono: clock.instant() });
        if next.closing.is_some() || (inbox.is_closed() && inbox.is_empty()) {
            break next.closing;
        }
        if !inbox.is_empty() || next.within == Some(Duration::ZERO) {
            tidegate_loop::yield_now().await;
            continue;
        }
        match next.within {
            None => inbox.rung.wait().await,
            Some(within) => drop(timeout(within, inbox.rung.wait()).await),
        }
    };
    drop(engine);
    inbox.close();
    closing.into_iter().for_each(Closing::tell);
}
