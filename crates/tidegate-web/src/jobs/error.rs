//! Why an action on a job was refused, by what the caller can do about it.

use std::fmt;
use std::io;

use super::model::{IllegalAction, JobId};
use super::store::StoreError;
use super::upload::UploadError;

/// Why an action on a job was refused, or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// There is no such job.
    NoJob(JobId),
    /// There is no such file, page or version in it.
    NotFound(&'static str),
    /// The job's state does not allow it.
    Illegal(IllegalAction),
    /// A value in the form is wrong.
    Invalid(String),
    /// The upload was refused.
    Upload(UploadError),
    /// The job cannot be stored.
    Store(StoreError),
    /// A file cannot be read or written.
    Disk(io::Error),
    /// The PDF cannot be read.
    Unreadable(String),
    /// The server ends.
    Stopping,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::NoJob(id) => write!(f, "there is no job {id}; it may have been deleted"),
            JobError::NotFound(what) => write!(f, "there is no such {what} in this job"),
            JobError::Illegal(error) => error.fmt(f),
            JobError::Invalid(reason) | JobError::Unreadable(reason) => f.write_str(reason),
            JobError::Upload(error) => error.fmt(f),
            JobError::Store(error) => error.fmt(f),
            JobError::Disk(error) if error.kind() == io::ErrorKind::StorageFull => {
                f.write_str("the disk is full; free some space, then try again")
            }
            JobError::Disk(error) => write!(f, "the job's files cannot be read or written: {error}"),
            JobError::Stopping => f.write_str("the server is stopping; try again when it is back"),
        }
    }
}

impl std::error::Error for JobError {}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> JobError {
        JobError::Store(error)
    }
}

impl From<UploadError> for JobError {
    fn from(error: UploadError) -> JobError {
        JobError::Upload(error)
    }
}

impl From<io::Error> for JobError {
    fn from(error: io::Error) -> JobError {
        JobError::Disk(error)
    }
}

impl From<IllegalAction> for JobError {
    fn from(error: IllegalAction) -> JobError {
        JobError::Illegal(error)
    }
}
