//! Documents and requests through an LLM API, within its quotas.

#![forbid(unsafe_code)]

mod call_error;
mod caller;
mod estimate;
mod key;
mod provider;
mod question;

pub use call_error::CallError;
pub use caller::{BadBaseUrl, Call, Caller, CallerStats, Reply, Retries};
pub use estimate::{ANSWER_TOKENS, Estimate, tokens_of_text};
pub use key::{ApiKey, KeyError};
pub use provider::local;
pub use provider::{Asked, Asking, Dialect, Local, Parameters, Provider, Remote, Unreadable};
pub use question::{Answer, ContextPage, Finish, Picture, Question, Usage};
pub mod plan;
