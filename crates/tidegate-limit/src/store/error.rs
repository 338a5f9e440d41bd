//! Why a state file could not be used.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rustix::fs::{Access, access};

/// What is wrong with a state file, by what can be done about it.
///
/// None of these is answered by starting from zero: whoever wants that moves the file away.
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
    /// Another process does not let go of it: it holds its lock for longer than a write takes.
    Locked {
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
    /// It is a database, but somebody else's.
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
    /// It, or its directory, cannot be written to.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It was deleted, moved or replaced while it was in use.
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// It is not there, and was expected to be.
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Anything else.
    Failed {
        /// The file.
        path: PathBuf,
        /// What SQLite or the system said.
        detail: String,
    },
}

impl StoreError {
    /// What SQLite says, by what can be done about it.
    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> StoreError {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Corrupt { path, detail: error.to_string() }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly { path },
            // SQLite does not say why it could not; whether the file may be written to does.
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

    /// The file it is about.
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

/// Whether the file and its directory can be written to as far as the system is concerned. Asked without opening the file:
/// closing it would drop SQLite's lock on it.
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
                write!(f, "{path} is a database, but not a state file of tidegate; name another file")
            }
            StoreError::TooNew { version, .. } => write!(
                f,
                "the state file {path} is of version {version}, which this program does not know; use the newer \
                 tidegate that wrote it"
            ),
            StoreError::ReadOnly { .. } => write!(
                f,
                "the state file {path} cannot be written; make it and its directory writable, or name another file"
            ),
            StoreError::Full { .. } => {
                write!(f, "the disk of the state file {path} is full; free some space, nothing is lost")
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
