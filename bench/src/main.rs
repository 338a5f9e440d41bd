//! Contestants side by side: one run, interleaved rounds, medians, ratios.
//!
//! `cargo run --release -p bench -- loop [--rounds N] [--line PART] [--json]`
//!
//! Reading order: `harness.rs` (what a line, a contestant and a goal are), `report.rs` (table and
//! JSON rows), then one file or folder a group, each of which only lists its lines. A new group is
//! a function that returns `Vec<Line>` and a variant of [`Group`].
#![deny(unsafe_code)]

mod batch;
mod cpus;
mod harness;
#[allow(unsafe_code, reason = "a global allocator cannot be written without it")]
mod heap;
mod host;
mod io;
mod limit;
mod loop_group;
mod pool;
mod python;
mod rabbit;
mod report;
mod shared;
mod sync;
mod wakeful;
mod web;
mod worker;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};

use harness::{Line, Measured};

const ROUNDS_DEFAULT: u32 = 21;

/// Measures tidegate beside its peers.
///
/// Every line runs all its contestants in interleaved rounds within this one process; medians are
/// compared. What the host of a virtual machine took the cores away from is run again. ratio = contestant / tidegate in cost: above 1, tidegate is ahead.
#[derive(Parser)]
#[command(name = "bench")]
struct Args {
    /// What to measure.
    group: Group,

    /// Measured rounds a line (lines with long batches take fewer); one more warms up.
    #[arg(long, value_name = "N", default_value_t = ROUNDS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Only lines whose name contains PART.
    #[arg(long, value_name = "PART")]
    line: Option<String>,

    /// One JSON object a contestant and line instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Group {
    /// The event loop: tasks, switches, timers, wake-ups, memory.
    Loop,
    /// The primitives: semaphore and queue.
    Sync,
    /// Bounded pools: tasks of 0 ms and 1 ms.
    Pool,
    /// The gate: admissions, lateness, windows, wake-ups; a strict server.
    Limit,
    /// The gate shared through Redis: admissions, commands over the pipeline.
    Shared,
    /// Sockets: echo over TCP, instructions a message, HTTP.
    Io,
    /// Consumers of RabbitMQ and whole workers: wall and CPU time a message or task.
    Rabbit,
    /// Requests to a strict LLM server: refusals, quota, cost of a call, memory; plans.
    Batch,
    /// The queue in a file: through it, in front of a million, between processes.
    Worker,
    /// The web page: files, pages, a grid in Chromium, a thousand browsers, idleness.
    Web,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Group::Loop => "loop",
            Group::Sync => "sync",
            Group::Pool => "pool",
            Group::Limit => "limit",
            Group::Shared => "shared",
            Group::Io => "io",
            Group::Rabbit => "rabbit",
            Group::Batch => "batch",
            Group::Worker => "worker",
            Group::Web => "web",
        }
    }

    fn lines(self) -> Vec<Line> {
        match self {
            Group::Loop => loop_group::lines(),
            Group::Sync => sync::lines(),
            Group::Pool => pool::lines(),
            Group::Limit => limit::lines(),
            Group::Shared => shared::lines(),
            Group::Io => io::lines(),
            Group::Rabbit => rabbit::lines(),
            Group::Batch => batch::lines(),
            Group::Worker => worker::lines(),
            Group::Web => web::lines(),
        }
    }

    /// What follows from several lines together.
    fn summary(self, measured: &[Measured]) -> Option<Measured> {
        match self {
            Group::Io => io::summary(measured),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    if let Some(done) = io::serve_if_asked().or_else(batch::run_if_asked).or_else(worker::child_if_asked) {
        return done;
    }
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("bench: a debug build; the figures mean nothing. Use cargo run --release.");
    }
    let mut lines = chosen(args.group, args.line.as_deref())?;
    let mut out = std::io::stdout().lock();
    let count = lines.len();
    let mut measured = Vec::with_capacity(count);
    for (at, line) in lines.iter_mut().enumerate() {
        let result = line.measure(args.rounds, &host::Kernel, &mut |progress| {
            eprintln!("[{}/{count}] {progress}", at + 1);
        });
        if args.json {
            // Row by row, so that a reader sees them come and an interrupted run is not lost.
            report::write_json(&mut out, args.group.name(), &result)?;
            out.flush().context("writing the rows")?;
        }
        measured.push(result);
    }
    if let Some(result) = args.group.summary(&measured) {
        if args.json {
            report::write_json(&mut out, args.group.name(), &result)?;
        }
        measured.push(result);
    }
    if !args.json {
        report::write_table(&mut out, &measured)?;
    }
    Ok(())
}

fn chosen(group: Group, part: Option<&str>) -> anyhow::Result<Vec<Line>> {
    let mut lines = group.lines();
    let Some(part) = part else { return Ok(lines) };
    let names: Vec<String> = lines.iter().map(|line| line.name().to_owned()).collect();
    lines.retain(|line| line.name().contains(part));
    if lines.is_empty() {
        bail!("no line of group {} contains {part:?}; its lines are:\n  {}", group.name(), names.join("\n  "));
    }
    Ok(lines)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
