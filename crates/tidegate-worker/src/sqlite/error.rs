//! What SQLite and the system say, as what to do next.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use rustix::fs::{Access, access};

use crate::broker::BrokerError;

/// The file that every message names.
#[derive(Debug, Clone)]
pub(super) struct Place {
    path: Arc<PathBuf>,
}

impl Place {
    pub(super) fn of(path: &Path) -> Place {
        Place { path: Arc::new(path.to_owned()) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn say(&self, what: impl Display) -> String {
        format!("the queue {} {what}", self.path.display())
    }

    pub(super) fn retry(&self, what: String) -> BrokerError {
        BrokerError::Retry { message: self.say(what) }
    }

    pub(super) fn refused(&self, what: String) -> BrokerError {
        BrokerError::Refused { message: self.say(what) }
    }

    pub(super) fn damaged(&self, what: String) -> BrokerError {
        BrokerError::Damaged { message: self.say(what) }
    }

    pub(super) fn sqlite(&self, error: &rusqlite::Error) -> BrokerError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => self.retry(
                "is locked by another process; try again, or end the program that keeps a transaction open on it".into(),
            ),
            Some(ErrorCode::NotADatabase) => {
                self.refused("is not a SQLite database: choose another path, or move the file away".into())
            }
            Some(ErrorCode::DatabaseCorrupt) => self.damaged(format!(
                "is damaged ({error}): stop everything that uses it, then save what can be saved with the sqlite3 shell's \
                 .recover"
            )),
            Some(ErrorCode::DiskFull) => self.full(),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => self.read_only(),
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => self.unopenable(error),
            Some(ErrorCode::TooBig) => self.refused(format!("cannot take a value that large ({error})")),
            _ => self.refused(format!("could not be used: {error}")),
        }
    }

    pub(super) fn io(&self, error: &io::Error) -> BrokerError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.full(),
            _ => self.unopenable(error),
        }
    }

    pub(super) fn full(&self) -> BrokerError {
        self.refused(
            "could not be written: the disk is full. Nothing of this was stored; make room, then try again".into(),
        )
    }

    fn read_only(&self) -> BrokerError {
        let directory = directory(&self.path);
        self.refused(format!(
            "cannot be written to: give this user permission to write to the file and to its directory {} (SQLite makes \
             files beside it)",
            directory.display()
        ))
    }

    /// SQLite does not say why it could not; looking at the path does.
    fn unopenable(&self, error: impl Display) -> BrokerError {
        let directory = directory(&self.path);
        if !directory.is_dir() {
            return self.refused(format!("has no directory {}: make it first", directory.display()));
        }
        if self.path.is_dir() {
            return self.refused("is a directory: name a file in it".into());
        }
        let writable = access(directory, Access::WRITE_OK).is_ok()
            && (!self.path.exists() || access(self.path(), Access::WRITE_OK | Access::READ_OK).is_ok());
        if !writable {
            return self.read_only();
        }
        self.refused(format!("could not be used: {error}"))
    }
}

/// Whether an error comes from the content of rows (a type, a range, a constraint), not from the disk, memory, a lock or the file
/// as a whole.
pub(super) fn is_about_rows(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as Sql;
    match error {
        Sql::FromSqlConversionFailure(..)
        | Sql::IntegralValueOutOfRange(..)
        | Sql::Utf8Error(..)
        | Sql::InvalidColumnType(..)
        | Sql::QueryReturnedNoRows => true,
        _ => matches!(error.sqlite_error_code(), Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)),
    }
}

/// Where the file lies; a bare name lies here.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
