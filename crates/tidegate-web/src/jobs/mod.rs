//! Jobs: documents in, explanations out; requests in, answers out; across restarts of the server. Called by the pages and the API;
//! what it sends goes through the run engine of `tidegate-batch` and an upstream's gate.
//!
//! Reading order: `model/` (jobs as plain values), `service.rs` (all jobs) and `actions.rs` (what is done to them), `engine.rs` (what
//! the engine does for a job: pages or requests) and `run.rs` (a run followed and recorded, whatever its items are), `files.rs`
//! (uploads, rebuilds), `read.rs` (PDFs before the start, pictures of pages), `requests.rs` (files of requests, their results),
//! `ask.rs` (one item again, to compare), `downloads.rs` (results as files), `view.rs` (what pages and API show). Below: `store/`
//! (SQLite), `upload/` (forms to disk), `place.rs` (directories), `plan.rs`, `upstream.rs`, `zip.rs`.
//!
//! # What it promises
//! - A job that runs goes on after a restart, also after `kill -9`; what has an answer on the disk is not paid for again.
//! - No name from outside becomes a path: uploads are stored under random names. A request goes to no other path of its server than
//!   the provider's own batches take.
//! - Passwords of PDFs are in memory alone. After a restart such a file waits for its password again.

mod actions;
mod ask;
mod downloads;
mod engine;
mod error;
mod files;
mod model;
mod place;
mod plan;
mod read;
mod requests;
mod run;
mod service;
mod steer;
mod store;
mod upload;
mod upstream;
mod view;
mod zip;

pub use actions::Stopped;
pub(crate) use ask::How;
pub use downloads::{Download, Format};
pub use error::JobError;
pub(crate) use files::has_requests;
pub use model::{
    Action, Counts, FileKind, FileStatus, IllegalAction, Job, JobFile, JobId, JobKind, JobOptions, JobState, PageState,
};
pub use plan::{JobPlan, PlanSlice};
pub use requests::{BadLineView, BadLines, MessageText, RequestText};
pub use service::{Jobs, Settings};
pub use store::StoreError;
pub use upload::{UploadError, UploadLimits};
pub use upstream::Upstream;
pub(crate) use view::neighbours;
pub use view::{BlockedBy, Cost, FailureView, FileView, JobStatus, JobView, PageView, VersionView};
