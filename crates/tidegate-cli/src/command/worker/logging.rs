//! Log lines on standard error.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines to read
    Text,
    /// One JSON object per line
    Json,
}

pub(crate) fn start(format: Format, filter: &str) -> anyhow::Result<()> {
    let filter: Targets = filter
        .parse()
        .with_context(|| format!("--log {filter:?} is not a level or a list such as info,tidegate_worker=debug"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        Format::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}
