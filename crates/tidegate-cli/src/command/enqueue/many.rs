//! Many tasks from standard input, in batches, as they come.

use std::future::Future;
use std::io::BufRead as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tidegate_loop::timeout;
use tidegate_sync::Queue;
use tidegate_worker::{Broker, BrokerError, Envelope, Published, TaskId, TaskState};

use crate::broker::failed;
use crate::command::Done;
use crate::command::result::shown;
use crate::output::is_broken_pipe;
use crate::terminal;

use super::Telling;
use super::order::Order;

/// Tasks a publish: enough to share the price of a sync.
const BATCH: usize = 1_000;

/// Lines that are read ahead.
const LINES_AHEAD: usize = 4 * BATCH;

/// After this many batches in a row of which the broker took nothing, the rest is not sent: each costs the broker's patience.
const FRUITLESS_MAX: u32 = 3;

const REDRAW: Duration = Duration::from_millis(250);

type Read = std::io::Result<(u64, String)>;

#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    duplicates: u64,
    /// Not stored, and safe to enqueue again.
    refused: u64,
    /// Stored or not; the connection was lost in between.
    unknown: u64,
    drawn: Option<Instant>,
}

impl Tally {
    fn draw(&mut self) {
        if !terminal::err_is_terminal() || self.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        terminal::redraw(format!("{} stored", self.stored));
    }

    fn summary(&self) -> String {
        let mut text = format!("{} stored", self.stored);
        for (count, what) in [(self.duplicates, "duplicates"), (self.refused, "refused"), (self.unknown, "unknown")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

pub(super) async fn run(broker: &dyn Broker, defaults: &Order, telling: Telling) -> anyhow::Result<Done> {
    let lines = read_lines();
    let mut tally = Tally::default();
    let mut waiting = Vec::new();
    let (mut stopped, mut fruitless) = (None, 0);
    while let Ok(read) = lines.recv_up_to(BATCH).await {
        let mut batch: Vec<(u64, Envelope)> = Vec::with_capacity(read.len());
        for line in read {
            let (number, text) = line.context("cannot read standard input")?;
            if text.trim().is_empty() {
                continue;
            }
            match defaults.line(&text).and_then(|order| order.envelope(broker.now())) {
                Ok(envelope) => batch.push((number, envelope)),
                Err(error) => refuse(&mut tally, telling, number, &format!("{error:#}"))?,
            }
        }
        let last = batch.last().map(|(number, _)| *number);
        fruitless = if publish(broker, batch, telling, &mut tally, &mut waiting).await? { 0 } else { fruitless + 1 };
        if fruitless == FRUITLESS_MAX {
            stopped = last;
            break;
        }
        tally.draw();
    }
    if tally.drawn.is_some() {
        terminal::redraw("");
    }
    terminal::say(tally.summary());
    if let Some(line) = stopped {
        terminal::say(format!(
            "tidegate: stopped: the broker took none of the last tasks; nothing behind line {line} was sent"
        ));
    }
    let failures = wait_for(broker, waiting, telling).await?;
    broker.close().await.map_err(failed)?;
    let all = tally.refused == 0 && tally.unknown == 0 && stopped.is_none() && !failures;
    Ok(if all { Done::All } else { Done::SomeFailed })
}

/// Standard input blocks, so a thread reads it; a line waits for no other.
fn read_lines() -> Arc<Queue<Read>> {
    let lines: Arc<Queue<Read>> = Arc::new(Queue::bounded(LINES_AHEAD));
    let sender = Arc::clone(&lines);
    thread::spawn(move || {
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let item = line.map(|text| (number as u64 + 1, text));
            let ends = item.is_err();
            if block_on(sender.push(item)).is_err() {
                return;
            }
            if ends {
                break;
            }
        }
        sender.close();
    });
    lines
}

/// Waits for a future on a thread that has no loop.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Publishes a batch and reports each task of it; `false` if the broker took none of them.
/// A batch that is refused as a whole is published one by one: one bad line must not cost the others.
async fn publish(
    broker: &dyn Broker,
    batch: Vec<(u64, Envelope)>,
    telling: Telling,
    tally: &mut Tally,
    waiting: &mut Vec<TaskId>,
) -> anyhow::Result<bool> {
    if batch.is_empty() {
        return Ok(true);
    }
    let envelopes: Vec<Envelope> = batch.iter().map(|(_, envelope)| envelope.clone()).collect();
    match broker.publish(envelopes).await {
        Ok(published) => report(&batch, published, telling, tally, waiting),
        Err(BrokerError::Refused { .. }) if batch.len() > 1 => {
            for (number, envelope) in batch {
                match broker.publish(vec![envelope.clone()]).await {
                    Ok(published) => {
                        if !report(&[(number, envelope)], published, telling, tally, waiting)? {
                            return Ok(false);
                        }
                    }
                    Err(BrokerError::Refused { message }) => refuse(tally, telling, number, &message)?,
                    Err(error) => return Err(stopped(error, tally)),
                }
            }
            Ok(true)
        }
        Err(BrokerError::Refused { message }) => {
            refuse(tally, telling, batch[0].0, &message)?;
            Ok(true)
        }
        Err(error) => Err(stopped(error, tally)),
    }
}

fn stopped(error: BrokerError, tally: &Tally) -> anyhow::Error {
    failed(error).context(format!("stopped: {}", tally.summary()))
}

/// Prints what became of each task; `false` if none of them was taken.
fn report(
    batch: &[(u64, Envelope)],
    published: Vec<Published>,
    telling: Telling,
    tally: &mut Tally,
    waiting: &mut Vec<TaskId>,
) -> anyhow::Result<bool> {
    let (mut out, mut taken) = (String::new(), false);
    for ((number, envelope), published) in batch.iter().zip(published) {
        let own = envelope.id.clone();
        let (id, state, error) = match published {
            Published::Stored => (own, "stored", None),
            Published::Duplicate(id) => (id, "duplicate", None),
            Published::Refused { reason } => (own, "refused", Some(reason)),
            Published::Unknown { reason } => (own, "unknown", Some(reason)),
            other => (own, "unknown", Some(format!("{other:?}"))),
        };
        match state {
            "stored" => tally.stored += 1,
            "duplicate" => tally.duplicates += 1,
            "refused" => tally.refused += 1,
            _ => tally.unknown += 1,
        }
        if telling.json && !telling.wait {
            let mut line =
                json!({"line": number, "id": id.as_str(), "state": state, "duplicate": state == "duplicate"});
            if let Some(error) = &error {
                line["error"] = json!(error);
            }
            out += &format!("{line}\n");
        }
        match error {
            None => {
                taken = true;
                if telling.wait {
                    waiting.push(id);
                }
            }
            Some(error) => complain(tally, *number, &format!("task {id} is {state}: {error}")),
        }
    }
    print(&out)?;
    Ok(taken)
}

/// A line that cannot be a task, or that the broker does not take as it is.
fn refuse(tally: &mut Tally, telling: Telling, number: u64, why: &str) -> anyhow::Result<()> {
    tally.refused += 1;
    complain(tally, number, why);
    if telling.json && !telling.wait {
        let line = json!({"line": number, "state": "refused", "error": why});
        print(&format!("{line}\n"))?;
    }
    Ok(())
}

/// A reader that goes away is no success here: it would not know which tasks are stored.
fn print(json: &str) -> anyhow::Result<()> {
    terminal::print_json(json).map_err(|error| match is_broken_pipe(&error) {
        true => anyhow!(
            "standard output was closed before all lines were read; what was stored until then stays, the rest was not enqueued"
        ),
        false => error,
    })
}

fn complain(tally: &mut Tally, number: u64, why: &str) {
    if tally.drawn.take().is_some() {
        terminal::say("");
    }
    terminal::say(format!("tidegate: line {number}: {why}"));
}

/// Whether one of them did not succeed.
async fn wait_for(broker: &dyn Broker, ids: Vec<TaskId>, telling: Telling) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut failures = false;
    for id in ids {
        let waited = broker.wait_result(&id);
        let result = match telling.limit {
            None => waited.await,
            Some(limit) => timeout(limit.saturating_sub(began.elapsed()), waited)
                .await
                .map_err(|_| anyhow::anyhow!("task {id} has not ended within {limit:?}"))?,
        };
        let result = result.map_err(failed)?;
        failures |= result.state != TaskState::Succeeded;
        let line = shown(&result, telling.json)?;
        terminal::print_json(&format!(
            "{line}
"
        ))?;
    }
    Ok(failures)
}
