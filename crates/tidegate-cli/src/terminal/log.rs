//! Log lines on standard error.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use super::{escape, notify};

/// Escapes log lines by their form. The subscriber writes one event per call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogLines {
    Plain,
    /// With colours, which the subscriber puts around text that it has escaped itself.
    Colored,
    Json,
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let event = String::from_utf8_lossy(bytes);
        let event = event.trim_end_matches('\n');
        // A line break within an event would let a message forge further log lines.
        let shown = match self {
            LogLines::Plain => escape::line(event).into_owned(),
            LogLines::Colored => escape::colored(event),
            LogLines::Json => escape::json(event).into_owned(),
        };
        notify(format!("{shown}\n").as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogLines {
    type Writer = LogLines;

    fn make_writer(&self) -> LogLines {
        *self
    }
}
