//! `tidegate enqueue`: tasks into a queue, one from the command line or many from standard input.

mod many;
mod order;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tidegate_loop::timeout;
use tidegate_worker::json as exact;
use tidegate_worker::{Published, TaskId};

use crate::broker::{BodyArgs, BrokerArgs, Kind, failed, on_loop};
use crate::command::worker::logging;
use crate::command::{Done, result};
use crate::span::{instant, span};
use crate::terminal;

use order::Order;

/// Put a task into a queue, or many from standard input
///
/// Prints the task's id. With `-` in place of a task, standard input is read as JSON lines,
/// {"task":"NAME","args":[…],"kwargs":{…},"queue":"Q",…}; members that are left out are taken from the options. Lines may also
/// have id, priority, countdown, eta, expires, unique, unique_for, soft_limit, hard_limit and headers.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate enqueue mail.send --args '[7]' --kwargs '{\"to\":\"a@example.org\"}'\n  \
                  tidegate enqueue report --countdown 10m --expires 1h --unique report-42\n  \
                  tidegate enqueue add --args '[1,2]' --wait\n  \
                  tidegate enqueue - < tasks.jsonl\n  \
                  tidegate enqueue add --args '[1,2]' --broker amqp://localhost --codec celery --queue celery\n\nExit codes: 0 done, 1 some lines were refused or a task that was waited \
                  for failed, 2 could not run."
)]
pub(crate) struct Args {
    /// The task's name, as a worker knows it; `-` reads JSON lines
    task: String,

    /// The queue it waits in
    #[arg(long, value_name = "Q", default_value = "default")]
    queue: String,

    /// Arguments by position: a JSON array, or @FILE
    #[arg(long, value_name = "JSON")]
    args: Option<String>,

    /// Arguments by name: a JSON object, or @FILE
    #[arg(long, value_name = "JSON")]
    kwargs: Option<String>,

    /// Not before this time has passed: 500ms, 10s, 5m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "eta")]
    countdown: Option<Duration>,

    /// Not before this instant: 2026-11-16T08:00:00Z
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    eta: Option<Timestamp>,

    /// 0 to 9, higher first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,

    /// Dropped if it still waits after this time
    #[arg(long, value_name = "TIME", value_parser = span)]
    expires: Option<Duration>,

    /// At most one task with this key at a time; a second one is answered with the first one's id
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,

    /// For how long the key is held at most
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1d")]
    unique_for: Duration,

    /// An id of your own choice
    #[arg(long)]
    id: Option<String>,

    /// Soft time limit: after this long the handler is asked to end
    #[arg(long, value_name = "TIME", value_parser = span)]
    soft_limit: Option<Duration>,

    /// After this time it is ended
    #[arg(long, value_name = "TIME", value_parser = span)]
    hard_limit: Option<Duration>,

    /// How the task is written: as tidegate's workers read it, or as others do; those write no results that --wait could see
    #[arg(long, value_enum, default_value_t = Codec::Native)]
    codec: Codec,

    /// Wait for the result and print it instead of the id
    #[arg(long)]
    wait: bool,

    /// Wait no longer than this
    #[arg(long, value_name = "TIME", value_parser = span, requires = "wait")]
    timeout: Option<Duration>,

    /// Print JSON: {"id":…,"duplicate":…}, one a task; with --wait the results
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    broker: BrokerArgs,

    #[command(flatten)]
    bodies: BodyArgs,
}

/// Whose workers are to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Codec {
    /// JSON, for tidegate's workers
    Native,
    /// Celery's, protocol 2
    Celery,
    /// dramatiq's
    Dramatiq,
}

impl Codec {
    /// In RabbitMQ each has its own kind of queues.
    fn queues(self, broker: BrokerArgs) -> BrokerArgs {
        match self {
            Codec::Native => broker,
            Codec::Celery => broker.kind_unless_given(Kind::Plain),
            Codec::Dramatiq => broker.kind_unless_given(Kind::Dramatiq),
        }
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy)]
struct Telling {
    wait: bool,
    limit: Option<Duration>,
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    // A publish may wait for a full queue or a broker that is away, and says so.
    logging::start(logging::Format::Text, "warn")?;
    let telling = Telling { wait: args.wait, limit: args.timeout, json: args.json };
    let place = args.codec.queues(args.broker.clone()).with_bodies(args.bodies);
    let task = args.task.clone();
    let defaults = Order::of(args)?;
    if task == "-" {
        if defaults.id.is_some() {
            bail!("--id names one task; with - every line has its own \"id\"");
        }
        return on_loop(async move { many::run(&*place.open_shared().await?, &defaults, telling).await });
    }
    let mut order = defaults;
    order.task = Some(task);
    let envelope = order.envelope(Timestamp::now())?;
    on_loop(async move {
        let broker = place.open_shared().await?;
        let own = envelope.id.clone();
        let published = broker.publish(vec![envelope]).await.map_err(failed)?;
        let (id, duplicate) = match published.into_iter().next() {
            Some(Published::Stored) => (own, false),
            Some(Published::Duplicate(id)) => (id, true),
            Some(Published::Refused { reason }) => bail!("task {own} was not stored: {reason}"),
            Some(Published::Unknown { reason }) => bail!(
                "task {own} may be stored or not: {reason}; look with `tidegate result {own}`, or enqueue it again with --id {own}"
            ),
            other => bail!("the broker gave an answer that this version does not know: {other:?}"),
        };
        let done = if telling.wait {
            let waited = broker.wait_result(&id);
            let result = match telling.limit {
                None => waited.await,
                Some(limit) => timeout(limit, waited).await.map_err(|_| {
                    anyhow!("task {id} has not ended within {limit:?}; `tidegate result {id}` asks later")
                })?,
            };
            result::show(&result.map_err(failed)?, telling.json)?
        } else {
            told(&id, duplicate, telling.json)?;
            Done::All
        };
        broker.close().await.map_err(failed)?;
        Ok(done)
    })
}

fn told(id: &TaskId, duplicate: bool, json: bool) -> anyhow::Result<()> {
    if json {
        let line = json!({"id": id.as_str(), "duplicate": duplicate});
        return terminal::print_json(&format!("{line}\n"));
    }
    if duplicate {
        terminal::say("tidegate: not stored: its unique key, or its id, is that of this task");
    }
    terminal::print(&format!("{id}\n"))
}

fn read(option: &str, text: &str) -> anyhow::Result<Value> {
    let from_file = match text.strip_prefix('@') {
        Some(path) => Some(std::fs::read_to_string(path).with_context(|| format!("--{option}: cannot read {path}"))?),
        None => None,
    };
    exact::from_slice(from_file.as_deref().unwrap_or(text).as_bytes()).with_context(|| format!("--{option} is no JSON"))
}

fn array(text: &str) -> anyhow::Result<Vec<Value>> {
    match read("args", text)? {
        Value::Array(items) => Ok(items),
        other => bail!("--args must be a JSON array, such as [1, \"two\"], not {other}"),
    }
}

fn object(text: &str) -> anyhow::Result<Map<String, Value>> {
    match read("kwargs", text)? {
        number if exact::integer(&number).is_some() => bail!("--kwargs must be a JSON object, not a number"),
        Value::Object(members) => Ok(members),
        other => bail!("--kwargs must be a JSON object, such as {{\"to\": \"me\"}}, not {other}"),
    }
}
