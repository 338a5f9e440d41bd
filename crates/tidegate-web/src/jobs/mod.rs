//! Jobs: files in, explanations out, across restarts of the server. Called by the pages and the API; what it sends goes through the
//! run engine of `tidegate-batch` and an upstream's gate.
//!
//! Reading order: `model.rs` (jobs as plain values), `service.rs` (what can be done with them), `run.rs` (a job on the engine),
//! `read.rs` (PDFs before the start, pictures of pages), `ask.rs` (one page again, to compare), `files.rs` (uploads, rebuilds),
//! `downloads.rs` (results as files), `view.rs` (what pages and API show). Below: `store/` (SQLite), `upload/` (forms to disk), `place.rs` (directories), `plan.rs`,
//! `upstream.rs`, `zip.rs`.
//!
//! # What it promises
//! - A job that runs goes on after a restart, also after `kill -9`; a page whose answer is on the disk is not paid for again.
//! - No name from outside becomes a path: uploads are stored under random names.
//! - Passwords of PDFs are in memory alone. After a restart such a file waits for its password again.

mod ask;
mod downloads;
mod error;
mod files;
mod model;
mod place;
mod plan;
mod read;
mod run;
mod service;
mod steer;
mod store;
mod upload;
mod upstream;
mod view;
mod zip;

pub use downloads::{Download, Format};
pub use error::JobError;
pub use model::{
    Action, Counts, FileKind, FileStatus, IllegalAction, Job, JobFile, JobId, JobKind, JobOptions, JobState, PageState,
};
pub use plan::{JobPlan, PlanSlice};
pub use service::{Jobs, Settings, Stopped};
pub use store::StoreError;
pub use upload::{UploadError, UploadLimits};
pub use upstream::Upstream;
pub(crate) use view::neighbours;
pub use view::{BlockedBy, Cost, FailureView, FileView, JobStatus, JobView, PageView, VersionView};
