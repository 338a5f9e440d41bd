//! What can go wrong, by what the caller can do about it. Every message names the file and the way out.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_loop::process::ProcessError;

/// Why a document cannot be read at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is not there, is no file, or may not be read: correct the name or the permissions.
    #[non_exhaustive]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no PDF: leave it away.
    #[non_exhaustive]
    NotPdf {
        /// The file.
        path: PathBuf,
    },
    /// It has no pages: leave it out.
    #[non_exhaustive]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its length; 0 often means that a download failed.
        bytes: u64,
    },
    /// It can be read with a password only, see [`Reader::password`](crate::Reader::password).
    #[non_exhaustive]
    Encrypted {
        /// The file.
        path: PathBuf,
        /// A password was given, and it is wrong.
        wrong: bool,
    },
    /// It is damaged beyond repair, or uses what is not supported: get it again, or print it to a new PDF.
    #[non_exhaustive]
    Broken {
        /// The file.
        path: PathBuf,
        /// How.
        why: String,
    },
    /// It could not be read within the limits: raise them, see [`Limits`](crate::Limits), or leave it away.
    #[non_exhaustive]
    Failed {
        /// The file.
        path: PathBuf,
        /// What happened to the process that read it.
        fault: Fault,
    },
    /// No process to read it in could be started.
    #[non_exhaustive]
    NoChild {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ProcessError,
    },
}

impl OpenError {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            OpenError::Unreadable { path, .. }
            | OpenError::NotPdf { path }
            | OpenError::Empty { path, .. }
            | OpenError::Encrypted { path, .. }
            | OpenError::Broken { path, .. }
            | OpenError::Failed { path, .. }
            | OpenError::NoChild { path, .. } => path,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path().display();
        match self {
            OpenError::Unreadable { source, .. } => write!(f, "{path} cannot be read: {source}"),
            OpenError::NotPdf { .. } => write!(f, "{path} is not a PDF: it does not begin with %PDF-"),
            OpenError::Empty { bytes: 0, .. } => write!(f, "{path} is empty (0 bytes)"),
            OpenError::Empty { .. } => write!(f, "{path} has no pages"),
            OpenError::Encrypted { wrong: false, .. } => write!(f, "{path} is encrypted: give its password"),
            OpenError::Encrypted { wrong: true, .. } => write!(f, "{path} is encrypted with another password"),
            OpenError::Broken { why, .. } => {
                write!(f, "{path} is broken: {why}; get it again, or print it to a new PDF")
            }
            OpenError::Failed { fault, .. } => write!(f, "{path} cannot be opened: {fault}"),
            OpenError::NoChild { source, .. } => write!(f, "{path} cannot be read in a process of its own: {source}"),
        }
    }
}

impl StdError for OpenError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            OpenError::Unreadable { source, .. } => Some(source),
            OpenError::NoChild { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why a page cannot be read. The others can, unless it says otherwise.
#[derive(Debug)]
#[non_exhaustive]
pub enum PageError {
    /// There is no such page.
    #[non_exhaustive]
    NoSuchPage {
        /// The file.
        path: PathBuf,
        /// The page, from 1.
        page: u32,
        /// How many there are.
        pages: u32,
    },
    /// The page could not be read within the limits, or ended the process that read it.
    #[non_exhaustive]
    Failed {
        /// The file.
        path: PathBuf,
        /// The page, from 1.
        page: u32,
        /// What happened to the process.
        fault: Fault,
    },
    /// All the time for this document is used up: no page of it is read any more.
    #[non_exhaustive]
    DocumentTime {
        /// The file.
        path: PathBuf,
        /// The page, from 1.
        page: u32,
        /// [`Limits::document_time`](crate::Limits::document_time), for as many pages as it has.
        limit: Duration,
    },
    /// The file is another one than when it was opened: open it again.
    #[non_exhaustive]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// An earlier page ended the process, and the file could not be opened again.
    #[non_exhaustive]
    Reopen {
        /// The page, from 1.
        page: u32,
        /// Why.
        source: OpenError,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::NoSuchPage { path, page, pages } => {
                write!(f, "{} has no page {page}: it has {pages}", path.display())
            }
            PageError::Failed { path, page, fault } => write!(f, "page {page} of {}: {fault}", path.display()),
            PageError::DocumentTime { path, page, limit } => {
                let path = path.display();
                write!(f, "page {page} of {path} is not read: the document has used up its {limit:?} of reading time")
            }
            PageError::Changed { path } => {
                write!(f, "{} has changed while it was read: start again with the new file", path.display())
            }
            PageError::Reopen { page, source } => write!(f, "page {page}: {source}"),
        }
    }
}

impl StdError for PageError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            PageError::Reopen { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What ended, or made us end, the process that read a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fault {
    /// It took too long.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// It wanted too much memory.
    Memory {
        /// The limit, in bytes.
        limit: u64,
    },
    /// Something is nested too deeply.
    Nesting,
    /// It made a system call that its confinement does not allow, and was ended for it (SIGSYS): the file may be an attack.
    Forbidden,
    /// The PDF library gave up; a fault of its own.
    Panicked {
        /// What it said.
        message: String,
    },
    /// It ended otherwise.
    Ended {
        /// How.
        how: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TimedOut { limit } => write!(f, "it takes more than {limit:?} to read"),
            Fault::Memory { limit } => write!(f, "it takes more than {} MiB of memory to read", limit >> 20),
            Fault::Nesting => f.write_str("it is nested too deeply to be read"),
            Fault::Forbidden => f.write_str(
                "the process that read it made a forbidden system call and was ended (SIGSYS); do not trust the file",
            ),
            Fault::Panicked { message } => write!(f, "the PDF library gave up: {message}"),
            Fault::Ended { how } => write!(f, "the process that read it ended: {how}"),
        }
    }
}
