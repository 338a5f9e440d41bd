//! Many tasks from standard input, in batches, as they come.

use std::future::Future;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;
use tidegate_loop::timeout;
use tidegate_sync::Queue;
use tidegate_worker::{Broker, BrokerError, Envelope, Published, TaskId, TaskState};

use crate::broker::failed;
use crate::command::Done;
use crate::output::Output;

use super::Telling;
use super::order::Order;

/// Tasks a publish: enough to share the price of a sync.
const BATCH: usize = 1_000;

/// Lines that are read ahead.
const LINES_AHEAD: usize = 4 * BATCH;

const REDRAW: Duration = Duration::from_millis(250);

type Read = std::io::Result<(u64, String)>;

#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    duplicates: u64,
    refused: u64,
    drawn: Option<Instant>,
}

impl Tally {
    fn draw(&mut self) {
        if !std::io::stderr().is_terminal() || self.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        eprint!("\r{} enqueued", self.stored);
        let _ = std::io::stderr().flush();
    }

    fn summary(&self) -> String {
        let mut text = format!("{} enqueued", self.stored);
        if self.duplicates > 0 {
            text += &format!(", {} were there already", self.duplicates);
        }
        if self.refused > 0 {
            text += &format!(", {} refused", self.refused);
        }
        text
    }
}

pub(super) async fn run(broker: &dyn Broker, defaults: &Order, telling: Telling) -> anyhow::Result<Done> {
    let lines = read_lines();
    let mut tally = Tally::default();
    let mut waiting = Vec::new();
    while let Ok(read) = lines.recv_up_to(BATCH).await {
        let mut batch: Vec<(u64, Envelope)> = Vec::with_capacity(read.len());
        for line in read {
            let (number, text) = line.context("cannot read standard input")?;
            if text.trim().is_empty() {
                continue;
            }
            match defaults.line(&text).and_then(|order| order.envelope(broker.now())) {
                Ok(envelope) => batch.push((number, envelope)),
                Err(error) => refuse(&mut tally, number, &format!("{error:#}")),
            }
        }
        publish(broker, batch, telling, &mut tally, &mut waiting).await?;
        tally.draw();
    }
    if tally.drawn.is_some() {
        eprint!("\r");
    }
    eprintln!("{}", tally.summary());
    let failures = wait_for(broker, waiting, telling).await?;
    broker.close().await.map_err(failed)?;
    Ok(if tally.refused > 0 || failures { Done::SomeFailed } else { Done::All })
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

/// What is refused as a batch is tried one by one: one bad line must not cost the others.
async fn publish(
    broker: &dyn Broker,
    batch: Vec<(u64, Envelope)>,
    telling: Telling,
    tally: &mut Tally,
    waiting: &mut Vec<TaskId>,
) -> anyhow::Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    let envelopes: Vec<Envelope> = batch.iter().map(|(_, envelope)| envelope.clone()).collect();
    match broker.publish(envelopes).await {
        Ok(published) => tell(&batch, published, telling, tally, waiting),
        Err(BrokerError::Refused { .. }) if batch.len() > 1 => {
            for (number, envelope) in batch {
                match broker.publish(vec![envelope.clone()]).await {
                    Ok(published) => tell(&[(number, envelope)], published, telling, tally, waiting)?,
                    Err(BrokerError::Refused { message }) => refuse(tally, number, &message),
                    Err(error) => return Err(failed(error)),
                }
            }
            Ok(())
        }
        Err(BrokerError::Refused { message }) => {
            refuse(tally, batch[0].0, &message);
            Ok(())
        }
        Err(error) => Err(failed(error).context(format!("stopped after {} tasks", tally.stored))),
    }
}

fn tell(
    batch: &[(u64, Envelope)],
    published: Vec<Published>,
    telling: Telling,
    tally: &mut Tally,
    waiting: &mut Vec<TaskId>,
) -> anyhow::Result<()> {
    let mut out = String::new();
    for ((number, envelope), published) in batch.iter().zip(published) {
        let (id, duplicate) = match published {
            Published::Stored => (envelope.id.clone(), false),
            Published::Duplicate(id) => (id, true),
        };
        tally.stored += u64::from(!duplicate);
        tally.duplicates += u64::from(duplicate);
        if telling.json && !telling.wait {
            out += &format!("{}\n", json!({"line": number, "id": id.as_str(), "duplicate": duplicate}));
        }
        if telling.wait {
            waiting.push(id);
        }
    }
    Output::Terminal.write(out.as_bytes())
}

fn refuse(tally: &mut Tally, number: u64, why: &str) {
    tally.refused += 1;
    if tally.drawn.take().is_some() {
        eprintln!();
    }
    eprintln!("tidegate: line {number}: {why}");
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
        let line = if telling.json { serde_json::to_string(&result)? } else { result.value.to_string() };
        Output::Terminal.write(format!("{line}\n").as_bytes())?;
    }
    Ok(failures)
}
