//! Files explained, page by page. `job.rs` takes the files, `file.rs` the pages of one, `page.rs` makes the question about
//! one; `board.rs` is who knows how far it has come, `stop.rs` how it ends early. The rest are plain values: which files
//! (`inputs.rs`), which pages (`selection.rs`), how many at once (`sizes.rs`, `pictures.rs`), what is asked (`prompt.rs`).

mod board;
mod count;
mod event;
mod file;
pub(crate) mod inputs;
mod job;
mod lanes;
mod page;
mod pictures;
mod prompt;
mod selection;
mod sizes;
mod stop;

pub use board::{FileProgress, FileState, Progress, Watch};
pub use event::{Event, PageStatus};
pub use inputs::{Input, InputError, find_pdfs};
pub use job::{Explain, ExplainError, Options};
pub use prompt::{DEFAULT_PROMPT, Prompt, PromptError, Variables};
pub use selection::{BadSelection, Selection};
pub use sizes::Size;
pub use stop::Stop;
