//! `tidegate result`: what became of a task.

use std::time::Duration;

use anyhow::bail;
use tidegate_loop::timeout;
use tidegate_worker::json as exact;
use tidegate_worker::{TaskId, TaskResult, TaskState};

use crate::broker::{BrokerArgs, failed, on_loop};
use crate::command::Done;
use crate::span::span;
use crate::terminal;

/// Show what became of a task
///
/// Prints what the handler returned, as JSON. Results are kept for a time that the worker sets.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 it succeeded, 1 it failed, was revoked or expired, or nothing is known of it, 2 could \
                        not run."
)]
pub(crate) struct Args {
    /// The task's id, as `tidegate enqueue` printed it
    id: String,

    /// Wait until it has ended
    #[arg(long)]
    wait: bool,

    /// Wait no longer than this: 500ms, 10s, 5m
    #[arg(long, value_name = "TIME", value_parser = span, requires = "wait")]
    timeout: Option<Duration>,

    /// Print the whole result as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Done> {
    let (place, id) = (args.broker.clone(), TaskId::from(args.id.as_str()));
    let (waits, limit, json) = (args.wait, args.timeout, args.json);
    on_loop(async move {
        let broker = place.open_existing().await?;
        let result = match (waits, limit) {
            (false, _) => broker.result(&id).await.map_err(failed)?,
            (true, None) => Some(broker.wait_result(&id).await.map_err(failed)?),
            (true, Some(limit)) => match timeout(limit, broker.wait_result(&id)).await {
                Ok(result) => Some(result.map_err(failed)?),
                Err(_) => bail!("task {id} has not ended within {limit:?}"),
            },
        };
        broker.close().await.map_err(failed)?;
        let Some(result) = result else {
            terminal::say(format!(
                "tidegate: nothing is known of task {id}: it has not ended, never was, or its result is over; --wait waits for it"
            ));
            return Ok(Done::SomeFailed);
        };
        show(&result, json)
    })
}

/// The value, or the whole result, as one line of JSON.
pub(crate) fn shown(result: &TaskResult, json: bool) -> anyhow::Result<String> {
    let text = if json { exact::to_vec(result)? } else { exact::to_vec(&result.value)? };
    Ok(String::from_utf8(text)?)
}

/// Prints it: the value to standard output, what went wrong to standard error.
pub(crate) fn show(result: &TaskResult, json: bool) -> anyhow::Result<Done> {
    let line = shown(result, json)?;
    if json || result.state == TaskState::Succeeded {
        terminal::print_json(&format!("{line}\n"))?;
    }
    if result.state == TaskState::Succeeded {
        return Ok(Done::All);
    }
    if !json {
        terminal::say(format!("tidegate: task {}: {}", result.id, result.state.as_str()));
        if let Some(error) = &result.error {
            terminal::say(format!("{}: {}", error.kind, error.message));
            if let Some(traceback) = &error.traceback {
                terminal::say(traceback.trim_end());
            }
        }
    }
    Ok(Done::SomeFailed)
}
