//! `tidegate queue dead`: dead letters.

use clap::Subcommand;
use serde_json::json;
use tidegate_worker::json as exact;
use tidegate_worker::{Broker, DeadLetter, Selection, TaskId};

use crate::broker::{BrokerArgs, failed, on_loop};
use crate::command::Done;
use crate::command::plan::thousands;
use crate::terminal::{self, escape};

use super::confirmed;
use super::shown::{as_json, as_line};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead tasks, oldest first, with the reason
    Ls(LsArgs),
    /// Send them back to their queues, with their counts at zero
    Retry(ChoiceArgs),
    /// Forget them
    Drop(ChoiceArgs),
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Of this queue only
    #[arg(value_name = "QUEUE")]
    name: Option<String>,

    /// At most this many; if there are more, standard error says how many
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,

    /// Show tracebacks
    #[arg(long)]
    traceback: bool,

    /// Print JSON, one object per task
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["ids", "of", "all"]))]
struct ChoiceArgs {
    /// These tasks, by id
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// All of this queue
    #[arg(long, value_name = "QUEUE")]
    of: Option<String>,

    /// All
    #[arg(long)]
    all: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

impl ChoiceArgs {
    fn selection(&self) -> Selection {
        match &self.of {
            Some(queue) => Selection::Queue(queue.clone()),
            None if self.all => Selection::All,
            None => Selection::Ids(self.ids.iter().map(|id| TaskId::from(id.as_str())).collect()),
        }
    }

    /// How many that would be.
    async fn count(&self, broker: &dyn Broker) -> anyhow::Result<u64> {
        if !self.all && self.of.is_none() {
            return Ok(self.ids.len() as u64);
        }
        dead_count(broker, self.of.as_deref()).await
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Done> {
    match args.command {
        Command::Ls(args) => on_loop(ls(args)),
        Command::Retry(args) => on_loop(async move {
            let broker = args.broker.open_existing().await?;
            let count = broker.dead_retry(args.selection()).await.map_err(failed)?;
            broker.close().await.map_err(failed)?;
            told(&args, count, "sent back")
        }),
        Command::Drop(args) => on_loop(async move {
            let broker = args.broker.open_existing().await?;
            let many = args.count(&*broker).await?;
            if many > 1 && !confirmed(args.yes, &format!("forget {many} dead tasks"))? {
                return Ok(Done::SomeFailed);
            }
            let count = broker.dead_drop(args.selection()).await.map_err(failed)?;
            broker.close().await.map_err(failed)?;
            told(&args, count, "forgotten")
        }),
    }
}

/// Ids that are not there are worth an exit code.
fn told(args: &ChoiceArgs, count: u64, what: &str) -> anyhow::Result<Done> {
    terminal::print(&format!("{count} {what}\n"))?;
    let missing = !args.all && args.of.is_none() && count < args.ids.len() as u64;
    if missing {
        terminal::say(format!(
            "tidegate: {} of these ids are no dead tasks; `tidegate queue dead ls` lists them",
            args.ids.len() as u64 - count
        ));
        return Ok(Done::SomeFailed);
    }
    Ok(Done::All)
}

async fn ls(args: LsArgs) -> anyhow::Result<Done> {
    let broker = args.broker.open_existing().await?;
    // One more than is shown, to know whether there are more.
    let mut letters = broker.dead(args.name.as_deref(), args.limit.saturating_add(1)).await.map_err(failed)?;
    let more = letters.len() > args.limit;
    letters.truncate(args.limit);
    // Counted only then: on RabbitMQ that takes several requests per queue.
    let total = if more { dead_count(&*broker, args.name.as_deref()).await? } else { 0 };
    broker.close().await.map_err(failed)?;
    let mut out = String::new();
    for letter in &letters {
        if args.json {
            let mut object = as_json(&letter.envelope);
            object["reason"] = json!(letter.reason);
            object["traceback"] = json!(letter.traceback);
            object["at"] = json!(letter.at.to_string());
            object["retries"] = json!(letter.retries);
            out += &format!("{}\n", exact::to_string(&object));
        } else {
            out += &text(letter, args.traceback);
        }
    }
    super::show(&out, args.json)?;
    if more {
        let shown = letters.len() as u64;
        // RabbitMQ does not list a queue that tidegate has never used, so it is not counted.
        let of = if total > shown { format!("of {}", thousands(total)) } else { "of more".to_owned() };
        terminal::say(format!("tidegate: {} {of} dead tasks shown; show more with --limit", thousands(shown)));
    }
    Ok(Done::All)
}

/// How many dead tasks there are, in one queue or in all of them.
async fn dead_count(broker: &dyn Broker, queue: Option<&str>) -> anyhow::Result<u64> {
    let queues = broker.inspect().await.map_err(failed)?;
    Ok(queues.iter().filter(|stats| queue.is_none_or(|queue| queue == stats.queue)).map(|stats| stats.dead).sum())
}

fn text(letter: &DeadLetter, traceback: bool) -> String {
    let mut text = as_line(&letter.envelope);
    text += &format!(
        "    queue {}, {}, after {} retries: {}\n",
        escape::line(&letter.envelope.queue),
        letter.at,
        letter.retries,
        escape::line(&letter.reason)
    );
    if traceback && let Some(lines) = &letter.traceback {
        for line in lines.lines() {
            text += &format!("      {line}\n");
        }
    }
    text
}
