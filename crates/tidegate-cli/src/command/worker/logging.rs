//! Log lines on standard error.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines to read
    Text,
    /// One JSON object a line
    Json,
}

pub(crate) fn start(format: Format, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(filter).with_context(|| format!("--log {filter:?} makes no sense"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
        Format::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
