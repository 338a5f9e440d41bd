//! What a run leaves behind: per file JSON, Markdown and a page of HTML, and a report. `document.rs` is what is written,
//! `foreign.rs` reads what others wrote, `markdown.rs` (through `filter.rs`) and `html.rs` (through `render.rs`) show it; `mark.rs` says which files
//! may be replaced, `atomic.rs` puts it on the disk.

pub(crate) mod atomic;
pub(crate) mod document;
mod filter;
mod foreign;
pub(crate) mod html;
pub(crate) mod mark;
mod markdown;
pub(crate) mod render;
pub(crate) mod report;

pub(crate) use document::BLANK;
pub use document::{Entry, Explanations, FailureNote, SCHEMA, SeenAs, Status};
pub use foreign::NotExplanations;
pub use markdown::to_markdown;
pub use report::{FailureGroup, FileReport, LimitReport, REPORT_SCHEMA, Report, Totals, WarningGroup};
