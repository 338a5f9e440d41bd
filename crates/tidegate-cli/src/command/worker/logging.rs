//! Log lines on standard error.

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::terminal::{self, LogLines};

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
    let colored = terminal::err_is_terminal();
    let lines = tracing_subscriber::fmt::layer();
    let lines = match format {
        Format::Text if colored => lines.with_writer(LogLines::Colored).with_ansi(true).with_target(false).boxed(),
        Format::Text => lines.with_writer(LogLines::Plain).with_ansi(false).with_target(false).boxed(),
        Format::Json => lines.with_writer(LogLines::Json).json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}
