//! Documents and requests through an LLM API, within its quotas.

#![forbid(unsafe_code)]

mod call_error;
mod caller;
mod estimate;
mod explain;
pub mod jsonl;
mod key;
mod output;
mod outputs;
pub mod plan;
mod provider;
mod question;
mod quotas;
mod rebuild;
mod store;

pub use call_error::CallError;
pub use caller::{BadBaseUrl, Call, Caller, CallerStats, Reply, Retries};
pub use estimate::{ANSWER_TOKENS, Estimate, tokens_of_text};
pub use explain::{
    BadSelection, DEFAULT_PROMPT, Event, Explain, ExplainError, FileProgress, FileState, Input, InputError, Options,
    PageStatus, Progress, Prompt, PromptError, Selection, Size, Stop, Variables, Watch, find_pdfs,
};
pub use key::{ApiKey, KeyError};
pub use output::{
    Entry, Explanations, FailureGroup, FailureNote, FileReport, LimitReport, NotExplanations, REPORT_SCHEMA, Report,
    SCHEMA, SeenAs, Status, Totals, to_markdown,
};
pub use provider::local;
pub use provider::{Asked, Asking, Dialect, Local, Parameters, Provider, Remote, Unreadable};
pub use question::{Answer, ContextPage, Finish, Picture, Question, Usage};
pub use quotas::{GLOBAL_CONCURRENCY, QuotaError, Quotas, WindowKind};
pub use rebuild::{REBUILD_CONCURRENCY, Rebuild, RebuildError, Rebuilt, RebuiltFiles, find_json};
pub use store::{Kept, Key, Promise, Record, Store, StoreError, StoreStats};
