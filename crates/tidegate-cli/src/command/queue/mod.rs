//! `tidegate queue`: waiting tasks, dead letters, and the state of the queue's file.

mod dead;
mod shown;
mod table;

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;
use clap::Subcommand;
use serde_json::Value;
use tidegate_worker::{Broker as _, json as exact};

use crate::broker::{BrokerArgs, failed, on_loop};
use crate::command::Done;
use crate::terminal::{self, escape};

use shown::{as_json, as_line};
use table::Table;

/// Inspect, repair and empty queues
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tidegate queue ls\n  tidegate queue peek default --limit 3\n  \
                        tidegate queue dead ls\n  tidegate queue dead retry --all")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every queue: how many tasks are ready, delayed, running, dead; workers; the age of the oldest (- where the broker does
    /// not say)
    Ls(LsArgs),
    /// The next tasks of a queue, in the order they would run; they stay (in RabbitMQ they are taken and put back)
    Peek(PeekArgs),
    /// Delete the waiting and delayed tasks of a queue; running ones go on
    Purge(PurgeArgs),
    /// Check the file: SQLite's integrity check, that every row can be read and every task is in exactly one place
    Check(CheckArgs),
    /// Give the file's free pages back to the disk
    Vacuum(FileArgs),
    /// Delete delay queues of earlier versions as far as they are empty (RabbitMQ)
    Upgrade(UpgradeArgs),
    /// List, retry or delete dead letters: tasks that get no further attempt
    Dead(dead::Args),
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Print JSON, one object per queue
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
struct PeekArgs {
    /// Which queue
    #[arg(value_name = "QUEUE", default_value = "default")]
    name: String,

    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,

    /// Print JSON, one object per task
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
struct PurgeArgs {
    /// Which queues
    #[arg(value_name = "QUEUE", required = true)]
    names: Vec<String>,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Put in order what is found: tasks that cannot be read become dead letters
    #[arg(long)]
    repair: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
struct UpgradeArgs {
    /// Task queues
    #[arg(value_name = "QUEUE", required = true)]
    names: Vec<String>,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
struct FileArgs {
    #[command(flatten)]
    broker: BrokerArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    match args.command {
        Command::Ls(args) => on_loop(ls(args)),
        Command::Peek(args) => on_loop(peek(args)),
        Command::Purge(args) => on_loop(purge(args)),
        Command::Check(args) => on_loop(check(args)),
        Command::Vacuum(args) => on_loop(vacuum(args)),
        Command::Upgrade(args) => on_loop(upgrade(args)),
        Command::Dead(args) => dead::run(args),
    }
}

async fn ls(args: LsArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_existing().await?;
    let queues = broker.inspect().await.map_err(failed)?;
    let can = broker.capabilities();
    broker.close().await.map_err(failed)?;
    let mut out = String::new();
    if args.json {
        for queue in &queues {
            let mut object = serde_json::to_value(queue)?;
            if !can.counts_running {
                object["running"] = Value::Null;
            }
            if !can.knows_age {
                object["oldest_ms"] = Value::Null;
            }
            out += &format!("{object}\n");
        }
    } else if queues.is_empty() {
        terminal::say(format!("{} has no queue yet", broker.describe()));
    } else {
        let mut table = Table::new(&["queue", "ready", "delayed", "running", "dead", "workers", "oldest"]);
        for queue in &queues {
            table.row(vec![
                escape::line(&queue.queue).into_owned(),
                queue.ready.to_string(),
                queue.delayed.to_string(),
                if can.counts_running { queue.running.to_string() } else { "-".into() },
                queue.dead.to_string(),
                queue.consumers.to_string(),
                if can.knows_age && queue.ready > 0 { age(queue.oldest_ms) } else { "-".into() },
            ]);
        }
        out = table.to_string();
    }
    show(&out, args.json)?;
    Ok(Done::All)
}

async fn peek(args: PeekArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_existing().await?;
    let envelopes = broker.peek(&args.name, args.limit).await.map_err(failed)?;
    broker.close().await.map_err(failed)?;
    let mut out = String::new();
    for envelope in &envelopes {
        out += &if args.json { format!("{}\n", exact::to_string(&as_json(envelope))) } else { as_line(envelope) };
    }
    show(&out, args.json)?;
    Ok(Done::All)
}

async fn purge(args: PurgeArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_existing().await?;
    let queues = broker.inspect().await.map_err(failed)?;
    for name in &args.names {
        let Some(stats) = queues.iter().find(|stats| stats.queue == *name) else {
            let known: Vec<&str> = queues.iter().map(|stats| stats.queue.as_str()).collect();
            bail!("there is no queue {name:?}; there are: {}", known.join(", "));
        };
        let waiting = stats.ready + stats.delayed;
        if waiting > 0 && !confirmed(args.yes, &format!("drop {waiting} waiting tasks of queue {name:?}"))? {
            return Ok(Done::SomeFailed);
        }
        let dropped = broker.purge(name).await.map_err(failed)?;
        terminal::print(&format!("{name}: {dropped} dropped\n"))?;
    }
    broker.close().await.map_err(failed)?;
    Ok(Done::All)
}

async fn check(args: CheckArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_file().await?;
    let mut problems = broker.check().await.map_err(failed)?;
    if args.repair && !problems.is_empty() {
        terminal::print(&format!("{}\n", problems.join("\n")))?;
        let rows = broker.repair().await.map_err(failed)?;
        let advice = "`tidegate queue dead ls` lists the tasks that could not be read";
        terminal::print(&format!("{rows} rows repaired; {advice}\n"))?;
        problems = broker.check().await.map_err(failed)?;
    }
    broker.close().await.map_err(failed)?;
    if problems.is_empty() {
        terminal::print(&format!("{} is sound\n", broker.describe()))?;
        return Ok(Done::All);
    }
    terminal::print(&format!("{}\n", problems.join("\n")))?;
    Ok(Done::SomeFailed)
}

async fn vacuum(args: FileArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_file().await?;
    let bytes = broker.vacuum().await.map_err(failed)?;
    broker.close().await.map_err(failed)?;
    terminal::print(&format!("{bytes} bytes given back\n"))?;
    Ok(Done::All)
}

/// Prints a list, of JSON objects or of lines.
fn show(list: &str, json: bool) -> anyhow::Result<()> {
    if json { terminal::print_json(list) } else { terminal::print(list) }
}

async fn upgrade(args: UpgradeArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_rabbit().await?;
    let mut done = Done::All;
    for name in &args.names {
        let upgrade = broker.upgrade(name).await.map_err(failed)?;
        let mut line = format!("{name}: {} old delay queues deleted", upgrade.deleted);
        if upgrade.left > 0 {
            line += &format!(", {} left because tasks still wait; repeat this when they have run", upgrade.left);
            done = Done::SomeFailed;
        }
        terminal::print(&format!("{line}\n"))?;
    }
    broker.close().await.map_err(failed)?;
    Ok(done)
}

/// Asks for confirmation on a terminal; without one, `--yes` is needed.
fn confirmed(yes: bool, what: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        bail!("this would {what}; say so with --yes");
    }
    terminal::ask(format!("{what}? [y/N] "));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}
