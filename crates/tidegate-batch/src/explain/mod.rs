//! Files explained, page by page. `job.rs` takes the files, `file.rs` the pages of one, `page.rs` makes the question about
//! one, `record.rs` keeps what became of each, `again.rs` asks pages again while the run goes on. `ask.rs` asks about a page
//! outside of a run. `crate::run` says how far it has come and how it is stopped. The rest are plain values: what is to be done
//! (`options.rs`), which files (`inputs.rs`), which pages (`selection.rs`), how many at once (`sizes.rs`, `pictures.rs`), what is asked
//! (`prompt.rs`).

mod again;
mod ask;
mod count;
mod file;
pub(crate) mod inputs;
mod job;
mod lanes;
mod options;
mod page;
mod pictures;
mod prompt;
mod record;
mod selection;
mod sizes;

pub use ask::{PageAnswer, PageAsk, PageAskError};
pub use inputs::{Input, InputError, find_pdfs};
pub use job::{Explain, ExplainError, Results};
pub use options::{Options, Outputs};
pub use prompt::{DEFAULT_PROMPT, Prompt, PromptError, Variables};
pub use selection::{BadSelection, Selection};
pub use sizes::Size;
