//! Documents and requests through an LLM API, within its quotas.
//!
//! PDFs are explained page by page ([`Explain`]): pages of a file and files are under way at once, each page with its
//! neighbours as context, through one gate that holds every limit. What was paid for is kept ([`Store`]) before it counts,
//! so that a run can be stopped at any moment and the same one again asks only for what is missing.
//!
//! ```text
//! files ─► Document (a child process reads it) ─► Question ─► kept already? ─► Pool ─► Provider ─► Store ─► Entry ─► outputs
//!  shares of SHARES, by size      page.rs             store/       2 × cap of the file │     synced      json, md, html
//!                                                                                     ▼
//!                              Caller: estimate ─► Gate ─► HTTP ─► feedback to the gate ─► settle ─► answer, or again
//! ```
//!
//! Called by the commands `explain` and `rebuild`, and by whatever has requests for an LLM server ([`Caller`]). It leaves
//! out showing progress: [`Control`], [`Progress`] and [`Event`] say how far a run is, others draw.
//!
//! # What it promises
//! - **Nothing is paid for twice.** After `kill -9` at any moment at most the pages are asked about again that were sent
//!   and not yet on the disk: never more than twice a file's page concurrency.
//! - **One bad file, one bad page fails alone**, with its reason. What no page could escape (a wrong key, no credit, a full
//!   disk) stops the run in order, and what is done is kept.
//! - **Nobody holds a slot while waiting**: neither for quota nor between two attempts.
//! - **Memory is bounded** by the pages under way and by a cap on the bytes of their pictures, not by the files' size.
//! - **Keys are shown to nobody**: not in a log, not in a message, not by `Debug`.
//! - The same results give the same JSON, byte for byte.
//!
//! # Where to read
//! `caller.rs` is one request, `call.rs` what goes in and comes out, `call_error.rs` how it can end, `provider/` who is asked and in which dialect, `estimate.rs`
//! what it will cost, `quotas.rs` the limits, `concurrency.rs` how many requests in flight use them up, `pace.rs` how long it takes. `run/` is what every run has in common: its handle, its items, its events. `explain/job.rs`, `file.rs`, `page.rs` are a run from the outside in,
//! `store/` what is kept, `output/` what is written, `outputs.rs` writing it, `rebuild.rs` making it again.
//!
//! # Without PDFs
//! The feature `pdf` (on by default) is the PDF reader and everything that needs it: `explain/`, `output/`, `outputs.rs` and
//! `rebuild.rs`. Without it, requests ([`Caller`], [`jsonl`], [`plan`]), providers and the store remain.

#![cfg_attr(
    not(feature = "pdf"),
    allow(rustdoc::broken_intra_doc_links, reason = "what is left out cannot be linked to")
)]
#![forbid(unsafe_code)]

mod account;
mod answer_sizes;
mod attempt;
mod base_url;
mod calibration;
mod call;
mod call_error;
mod caller;
mod concurrency;
mod divided;
mod estimate;
#[cfg(feature = "pdf")]
mod explain;
mod found;
pub mod jsonl;
mod key;
mod large_answers;
mod mended;
mod no_pictures;
mod on_the_wire;
#[cfg(feature = "pdf")]
mod output;
#[cfg(feature = "pdf")]
mod outputs;
mod owned;
mod pace;
mod parameter;
pub mod plan;
mod presence;
mod provider;
mod question;
mod quotas;
#[cfg(feature = "pdf")]
mod rebuild;
#[cfg_attr(not(feature = "pdf"), allow(dead_code, unused_imports, reason = "files and pages are those of PDFs"))]
pub mod run;
mod store;

pub use account::account_name;
pub use base_url::{BadBaseUrl, BaseUrl};
pub use call::{Call, CallerStats, Reply, Retries};
pub use call_error::{CallError, ErrorScope};
pub use caller::Caller;
pub use concurrency::{AUTO_CONCURRENCY_MAX, AUTO_FILES_MAX, AutoConcurrency, Wanted};
pub use estimate::{ANSWER_TOKENS, Estimate, tokens_of_text};
#[cfg(feature = "pdf")]
pub use explain::{
    BadSelection, DEFAULT_PROMPT, Explain, ExplainError, Input, InputError, Options, Outputs, PageAnswer, PageAsk,
    PageAskError, Prompt, PromptError, Results, Selection, Size, Variables, find_pdfs,
};
pub use found::FoundReport;
pub use key::{ApiKey, KeyError};
#[cfg(feature = "pdf")]
pub use output::{
    Entry, Explanations, FailureGroup, FailureNote, FileReport, LimitReport, NotExplanations, REPORT_SCHEMA, Report,
    SCHEMA, SeenAs, Status, Totals, WarningGroup, markdown_to_html, to_markdown,
};
#[cfg(feature = "pdf")]
pub use outputs::write_html_page;
pub use pace::{LastMinute, Look, Pace};
pub use provider::local;
pub use provider::{Asked, Asking, BadModel, Dialect, Local, Parameters, Provider, Remote, Unreadable};
pub use question::{Answer, ContextPage, Finish, Picture, Question, Usage};
pub use quotas::{GLOBAL_CONCURRENCY, QuotaError, Quotas, WindowKind, WindowLengths};
#[cfg(feature = "pdf")]
pub use rebuild::{REBUILD_CONCURRENCY, Rebuild, RebuildError, Rebuilt, RebuiltFiles, find_json, write_indexes};
pub use run::{
    Change, Control, Event, FileProgress, FileState, Item, ItemId, ItemLease, ItemScope, ItemState, Progress,
    RetryError, Unit,
};
pub use store::{Kept, Key, Promise, Record, Store, StoreError, StoreStats};
