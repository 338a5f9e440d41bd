//! Why jobs cannot be stored, by what can be done about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the file of the jobs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Another server has it open.
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
    /// Another program wrote it.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later version of tidegate wrote it.
    TooNew {
        /// The file.
        path: PathBuf,
        /// The version of its tables.
        version: i64,
    },
    /// It is damaged.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Another error.
    Failed {
        /// The file.
        path: PathBuf,
        /// The message of SQLite.
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
                write!(f, "another server has {} open; stop it, or choose another directory", path.display())
            }
            StoreError::Full { path } => {
                write!(f, "the disk is full: {} cannot grow; free some space, then try again", path.display())
            }
            StoreError::ReadOnly { path } => {
                write!(f, "cannot write {}; change its permissions, or choose another directory", path.display())
            }
            StoreError::Foreign { path } => {
                write!(f, "{} is not a file of jobs; choose another directory", path.display())
            }
            StoreError::TooNew { path, version } => {
                write!(f, "a later tidegate wrote {} (version {version} of its tables); use that one", path.display())
            }
            StoreError::Corrupt { path, detail } => {
                write!(f, "{} is damaged ({detail}); restore it from a backup, or move it away", path.display())
            }
            StoreError::Failed { path, detail } => write!(f, "{} failed: {detail}", path.display()),
        }
    }
}

impl std::error::Error for StoreError {}
