//! Errors of a state file.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rustix::fs::{Access, access};

/// Error of a state file, with a variant for each remedy.
///
/// None of them leads to counting from zero; to do that, move the file away.
///
/// ```
/// use tidegate_limit::store::{Store, StoreError};
///
/// let directory = std::env::temp_dir().join(format!("tidegate-doc-error-{}", std::process::id()));
/// std::fs::create_dir_all(&directory).unwrap();
/// let file = directory.join("limits.db");
/// std::fs::write(&file, "half a state fi").unwrap();
///
/// let error = Store::open(&file).unwrap_err();
/// assert!(matches!(error, StoreError::Corrupt { .. }));
/// assert!(error.to_string().contains("limits.db"));
/// # std::fs::remove_dir_all(&directory).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has held the file's lock for longer than a write takes.
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The file is a database of another program.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later version of tidegate.
    TooNew {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        version: i64,
    },
    /// The file or its directory cannot be written to.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The file was deleted, moved or replaced while it was in use.
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The file does not exist, and was not to be created.
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another error.
    Failed {
        /// The file.
        path: PathBuf,
        /// The message of SQLite or the system.
        detail: String,
    },
}

impl StoreError {
    /// Converts an error of SQLite.
    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> StoreError {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Corrupt { path, detail: error.to_string() }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly { path },
            // SQLite does not state the cause, so the file's permissions are checked.
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) if !may_write(&path) => {
                StoreError::ReadOnly { path }
            }
            Some(ErrorCode::DiskFull) => StoreError::Full { path },
            _ => StoreError::Failed { path, detail: error.to_string() },
        }
    }

    pub(super) fn of_io(path: &Path, error: &std::io::Error) -> StoreError {
        use std::io::ErrorKind;
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { path },
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { path },
            _ => StoreError::Failed { path, detail: error.to_string() },
        }
    }

    /// Returns the path of the file.
    ///
    /// ```
    /// # use tidegate_limit::store::{Store, StoreError};
    /// let error = Store::open_existing("/nowhere/limits.db").unwrap_err();
    /// assert_eq!(error.path(), std::path::Path::new("/nowhere/limits.db"));
    /// ```
    pub fn path(&self) -> &Path {
        match self {
            StoreError::Locked { path }
            | StoreError::Corrupt { path, .. }
            | StoreError::Foreign { path }
            | StoreError::TooNew { path, .. }
            | StoreError::ReadOnly { path }
            | StoreError::Full { path }
            | StoreError::Replaced { path }
            | StoreError::Missing { path }
            | StoreError::Failed { path, .. } => path,
        }
    }
}

/// Returns whether the system allows writing to the file and its directory. The file is not opened, because closing it would
/// release SQLite's lock on it.
fn may_write(path: &Path) -> bool {
    let may = |path: &Path| access(path, Access::READ_OK | Access::WRITE_OK).is_ok();
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    may(path) && may(directory)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path().display();
        match self {
            StoreError::Locked { .. } => write!(
                f,
                "the state file {path} has been locked by another process for too long; end the program that holds it"
            ),
            StoreError::Corrupt { detail, .. } => write!(
                f,
                "the state file {path} is damaged ({detail}); restore it from a backup, or move it away to start \
                 counting from zero"
            ),
            StoreError::Foreign { .. } => {
                write!(f, "{path} is a database, but not a state file of tidegate; choose another file")
            }
            StoreError::TooNew { version, .. } => write!(
                f,
                "the state file {path} is of version {version}, which this program does not support; use the newer \
                 tidegate that wrote it"
            ),
            StoreError::ReadOnly { .. } => write!(
                f,
                "the state file {path} cannot be written; make it and its directory writable, or choose another file"
            ),
            StoreError::Full { .. } => {
                write!(f, "the disk of the state file {path} is full; free some space; no count is lost")
            }
            StoreError::Replaced { .. } => write!(
                f,
                "the state file {path} was deleted or replaced while it was in use; put it back, as a restart without it \
                 would count from zero"
            ),
            StoreError::Missing { .. } => {
                write!(f, "there is no state file {path}; check the path, or let it be created")
            }
            StoreError::Failed { detail, .. } => write!(f, "the state file {path} could not be used: {detail}"),
        }
    }
}

impl std::error::Error for StoreError {}
