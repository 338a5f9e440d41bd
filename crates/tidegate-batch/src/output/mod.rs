//! What a run leaves behind: per file JSON, Markdown and HTML, a page that links them, and a report. `document.rs` is what is
//! written, `foreign.rs` reads what others wrote, `markdown.rs` (through `filter.rs`) and `html.rs` (through `render.rs`) show it;
//! `split.rs` divides the HTML of a large document, `overview.rs` links the documents of a folder, `language.rs` finds what `lang`
//! says. `mark.rs` says which files may be replaced, `atomic.rs` puts one on the disk, `page_set.rs` a folder of them.

pub(crate) mod atomic;
pub(crate) mod document;
mod filter;
mod foreign;
pub(crate) mod html;
mod language;
pub(crate) mod mark;
mod markdown;
pub(crate) mod overview;
pub(crate) mod page_set;
pub(crate) mod render;
pub(crate) mod report;
pub(crate) mod split;

pub(crate) use document::BLANK;
pub use document::{Entry, Explanations, FailureNote, SCHEMA, SeenAs, Status};
pub use foreign::NotExplanations;
pub(crate) use markdown::explained_by;
pub use markdown::to_markdown;
pub use render::markdown_to_html;
pub use report::{FailureGroup, FileReport, LimitReport, REPORT_SCHEMA, Report, Totals, WarningGroup};
