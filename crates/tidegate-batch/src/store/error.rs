//! Why results could not be kept.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// What is wrong with the file of results, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process uses it.
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It, or its directory, cannot be written to.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// It is somebody else's.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later version of tidegate has written it.
    TooNew {
        /// The file.
        path: PathBuf,
        /// The version it is in.
        version: i64,
    },
    /// It is closed.
    Closed {
        /// The file.
        path: PathBuf,
    },
    /// Something else.
    Failed {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        detail: String,
    },
}

impl StoreError {
    pub(super) fn of_io(path: &Path, error: &io::Error) -> StoreError {
        let (path, detail) = (path.to_owned(), error.to_string());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
                StoreError::ReadOnly { path }
            }
            _ => StoreError::Failed { path, detail },
        }
    }

    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> StoreError {
        let (path, detail) = (path.to_owned(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
            Some(ErrorCode::DiskFull) => StoreError::Full { path },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                StoreError::ReadOnly { path }
            }
            Some(ErrorCode::DatabaseCorrupt) => StoreError::Corrupt { path, detail },
            Some(ErrorCode::NotADatabase) => StoreError::Foreign { path },
            _ => StoreError::Failed { path, detail },
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Locked { path } => {
                let path = path.display();
                write!(f, "another tidegate works with {path}; wait for it, or choose another --out")
            }
            StoreError::Full { path } => {
                let path = path.display();
                write!(
                    f,
                    "the disk is full: {path} cannot grow; make room and run the same command again, nothing that was \
                           written is lost"
                )
            }
            StoreError::ReadOnly { path } => {
                write!(f, "{} cannot be written; choose another --out, or change its permissions", path.display())
            }
            StoreError::Corrupt { path, detail } => {
                let path = path.display();
                write!(f, "{path} is damaged ({detail}); restore it, or move it away to pay for its results again")
            }
            StoreError::Foreign { path } => {
                write!(f, "{} is not a file of tidegate's results; choose another --out", path.display())
            }
            StoreError::TooNew { path, version } => {
                let path = path.display();
                write!(f, "{path} was written by a later tidegate (version {version} of the file); use that one")
            }
            StoreError::Closed { path } => write!(f, "{} is closed", path.display()),
            StoreError::Failed { path, detail } => write!(f, "{} failed: {detail}", path.display()),
        }
    }
}

impl std::error::Error for StoreError {}
