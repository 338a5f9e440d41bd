//! The audit log: one line per change made through the page or the API. Who, from where, what, when, with what result.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::guard::Who;

/// Writes one JSON object per line to a file that only its owner can read, or to the program's log.
#[derive(Debug, Default)]
pub struct Audit {
    file: Option<Mutex<File>>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    who: &'a str,
    peer: String,
    action: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    status: u16,
}

/// A change that was made, or tried.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) who: Who,
    pub(crate) peer: SocketAddr,
    pub(crate) action: &'a str,
    pub(crate) path: &'a str,
    pub(crate) detail: Option<&'a str>,
    pub(crate) status: u16,
}

impl Audit {
    /// Appends to this file, which is made if there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn to_file(path: &Path) -> io::Result<Audit> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Audit { file: Some(Mutex::new(file)) })
    }

    /// Writes to the program's log (target `tidegate_web::audit`, level info).
    #[must_use]
    pub fn to_log() -> Audit {
        Audit::default()
    }

    pub(crate) fn write(&self, change: &Change<'_>) {
        let line = Line {
            at: jiff::Timestamp::now().to_string(),
            who: change.who.name(),
            peer: change.peer.to_string(),
            action: change.action,
            path: change.path,
            detail: change.detail,
            status: change.status,
        };
        let Ok(mut line) = serde_json::to_string(&line) else { return };
        let Some(file) = &self.file else { return log::info!(target: "tidegate_web::audit", "{line}") };
        line.push('\n');
        // One call: lines of several processes do not mix.
        if let Err(error) = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()) {
            log::error!("web: cannot write to the audit log: {error}; the line was: {}", line.trim_end());
        }
    }
}
