//! Many requests from a file, their answers into another: OpenAI's batch format in and out, or Gemini's, answered now and
//! by any server, within the gate's limits.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_batch::jsonl::{Batch, Input, Output};
//! use tidegate_batch::{Caller, Dialect};
//! use tidegate_limit::{Gate, Limit};
//! use tidegate_rehearsal::Server;
//!
//! let directory = tempfile::tempdir().unwrap();
//! let (requests, results) = (directory.path().join("requests.jsonl"), directory.path().join("results.jsonl"));
//! let line = r#"{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"Why?"}]}}"#;
//! std::fs::write(&requests, line).unwrap();
//!
//! let (from, to) = (Input::File(requests), Output::File(results.clone()));
//! let summary = tidegate_loop::run(async {
//!     let server = Server::builder().start().await.unwrap();
//!     let gate = Gate::builder().limit(Limit::concurrency("global", 200)).limit(Limit::rpm(60)).build().unwrap();
//!     let caller = Caller::new(&gate, Dialect::OpenAi, &format!("{}/v1", server.base_url())).unwrap();
//!     Batch::new(from, to).run(&caller).await.unwrap()
//! })
//! .unwrap();
//! assert_eq!((summary.answered, summary.failed), (1, 0));
//! assert!(std::fs::read_to_string(results).unwrap().contains(r#""custom_id":"1","response":{"status_code":200"#));
//! ```
//!
//! # What it promises
//! - **Nothing is asked twice.** A result counts when it is on the disk. Whatever happens, the same call again sends only
//!   what has no result yet; what a crash left of a line is repaired. A crash costs what was on its way and what was in the
//!   group of results that was being written: together no more than may be in flight.
//! - **A full disk costs nothing that is paid for.** Before a request is sent, space for its answer is reserved in the result
//!   file. When there is none, nothing more is sent, and the answers in flight go into what is reserved
//!   ([`EndedEarly::Full`]). Where a file system cannot reserve space, it is only checked that it is free.
//! - **Order.** Results stand in the order in which they came; their ids say whose they are.
//! - **Memory does not grow with the files**, but for 128 bits an id: requests are read as they are needed, results
//!   written as they come.
//! - **Bodies are passed on byte for byte**, in both directions (line ends within an answer become spaces).
//! - **Failures have lines of their own**: `"error":{"code":…,"message":…}`. What would fail for every request alike (a
//!   wrong key, no credit, an unknown model while nothing was answered) ends the run instead and is no line's failure. Eight
//!   requests in a row without a usable answer end it, too; they have their lines.
//!
//! # What is wrong with a line
//! A file is read once before anything is sent, and if there is anything wrong with a line, or an id occurs twice, nothing
//! is sent: half a batch is rarely what somebody wants. [`BadLines::Skip`] passes over such lines instead and counts them.
//! Standard input cannot be read twice: there the run ends at the bad line, with the answers that are on their way.
//!
//! # Reading order
//! `line.rs` (a request, a result), `path.rs` (where a request may go) and `body.rs` (what a body costs) are plain values;
//! `input.rs` and `results.rs` are the two files, `result_file.rs` the second while it is written; `run.rs` is the run,
//! `writing.rs` its writer, `asking.rs` one request of it, `again.rs` requests that are asked again meanwhile. For readers that show
//! them to people: `scan.rs` (a file before its run), `view.rs` (its requests and results), `single.rs` (one request asked by itself).

mod again;
mod asking;
mod body;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod input;
mod line;
mod path;
mod result_file;
mod results;
mod run;
mod scan;
mod single;
mod view;
mod writing;

use std::fmt;
use std::io;
use std::time::Duration;

pub use input::{BadLine, Faults, Input};
pub use path::Paths;
pub use results::{DiskFull, Earlier, Output, ResultsError};
pub use scan::{Scan, ScanLimits, Scanned};
pub use single::{RequestAsk, RequestAskError, RequestResult};
pub use view::{AnswerView, FailureView, RequestFile, RequestView, ResultFile, ResultView, Turn, Which};

use crate::caller::Caller;
use crate::concurrency::AutoConcurrency;
use crate::plan::Tokens;
use crate::provider::Dialect;
use crate::question::Usage;
use crate::run::{Control, Event, ItemId, Unit};

/// What to do with lines that make no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadLines {
    /// Send nothing, and say what is wrong.
    #[default]
    Stop,
    /// Pass over them.
    Skip,
}

/// Takes the line of a result.
type OnResult = Box<dyn Fn(ItemId, &[u8])>;

/// A run: from where, to where, and how.
#[must_use = "a batch does nothing until it is run"]
pub struct Batch {
    input: Input,
    output: Output,
    earlier: Earlier,
    bad_lines: BadLines,
    paths: Paths,
    model: Option<String>,
    waiting_max: usize,
    grace: Duration,
    control: Control,
    stdout: results::WriteStdout,
    auto: Option<AutoConcurrency>,
    on_result: OnResult,
}

/// How many requests stand in the gate's line beside those under way, unless told otherwise: enough for it to choose from.
/// Never more than may be under way.
pub const WAITING_MAX: usize = 32;

/// The code of a request that failed in an earlier run and was not asked again. Its result says why.
pub const EARLIER_RUN: &str = "earlier_run";

/// Told to stop, how long a run waits for the answers that are on their way, unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(30);

impl Batch {
    /// The requests of `input`, their results to `output`.
    pub fn new(input: Input, output: Output) -> Batch {
        Batch {
            input,
            output,
            earlier: Earlier::default(),
            bad_lines: BadLines::default(),
            paths: Paths::default(),
            model: None,
            waiting_max: WAITING_MAX,
            grace: GRACE,
            control: Control::new(Unit::Requests, std::iter::empty()),
            stdout: results::write_stdout,
            auto: None,
            on_result: Box::new(|_, _| ()),
        }
    }

    /// Writes results that go to standard output with `write`, which gets whole lines. By default they are written as they
    /// are; a program whose standard output is a terminal escapes them there.
    pub fn stdout(mut self, write: fn(&[u8]) -> std::io::Result<()>) -> Batch {
        self.stdout = write;
        self
    }

    /// What to do with the results of a run before.
    pub fn earlier(mut self, earlier: Earlier) -> Batch {
        self.earlier = earlier;
        self
    }

    /// What to do with lines that make no sense.
    pub fn bad_lines(mut self, bad_lines: BadLines) -> Batch {
        self.bad_lines = bad_lines;
        self
    }

    /// Which paths requests may go to; a line with another one makes no sense.
    pub fn paths(mut self, paths: Paths) -> Batch {
        self.paths = paths;
        self
    }

    /// Calls `on_result` with each new result's line, on the loop's thread, when it is on the disk and before its event.
    pub fn on_result(mut self, on_result: impl Fn(ItemId, &[u8]) + 'static) -> Batch {
        self.on_result = Box::new(on_result);
        self
    }

    /// Asks this model, whatever the lines say. Gemini's lines say nothing, so they need one.
    pub fn model(mut self, model: Option<String>) -> Batch {
        self.model = model;
        self
    }

    /// How many requests may stand in line, beside those under way.
    pub fn waiting_max(mut self, waiting: usize) -> Batch {
        self.waiting_max = waiting.max(1);
        self
    }

    /// Raises the gate's limit `global` as far as the stated limits and the answer times need it.
    pub fn auto_concurrency(mut self, auto: Option<AutoConcurrency>) -> Batch {
        self.auto = auto;
        self
    }

    /// Told to stop, how long to wait for the answers that are on their way.
    pub fn grace(mut self, grace: Duration) -> Batch {
        self.grace = grace;
        self
    }

    /// Calls `on_event` at everything that happens, as it happens, on the loop's thread: an item that is done is on the disk.
    pub fn on_event(self, on_event: impl Fn(&Event) + 'static) -> Batch {
        self.control.on_event(on_event);
        self
    }

    /// The handle to steer the run and to read how far it is. The number of requests is known once the input has been checked,
    /// before anything is sent; of a stream, and where bad lines are skipped, when all of it has been read.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Sends what has no result yet, as fast as the caller's gate allows. Other runs may use the same gate: the
    /// program that made it closes it when all of them have ended.
    ///
    /// # Errors
    /// See [`BatchError`]. What was answered until then is in the output.
    ///
    /// # Cancel safety
    /// Dropped, requests in flight are lost and nothing of the run goes on; what was written stays, and the same call goes on
    /// from there.
    pub async fn run(self, caller: &Caller) -> Result<Summary, BatchError> {
        let _end = self.control.end_when_dropped();
        run::run(self, caller).await
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("input", &self.input).field("output", &self.output).finish_non_exhaustive()
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Answered in this run.
    pub answered: u64,
    /// Failed in this run; each has a line.
    pub failed: u64,
    /// Had a result from an earlier run.
    pub cached: u64,
    /// Of those, failures: `RetryFailed` asks them again.
    pub cached_failed: u64,
    /// Lines passed over.
    pub skipped: u64,
    /// Answers that were paid for and could not be written: the disk was full. They count nowhere else.
    pub unkept: u64,
    /// Tokens that the answers say were used.
    pub usage: Usage,
    /// Why not everything was done: it was told to stop, or no request would have succeeded.
    pub ended_early: Option<EndedEarly>,
}

/// Why a run ended before its input did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndedEarly {
    /// It was told to.
    Stopped,
    /// No request will succeed until somebody acts.
    Shut(
        /// What has to be done.
        String,
    ),
    /// A line of a stream made no sense.
    BadLine(
        /// Which, and why.
        BadLine,
    ),
    /// There is no space for more answers. Those that were in flight are in the output, but for [`Summary::unkept`].
    Full(
        /// How much is needed.
        DiskFull,
    ),
}

/// Why a run could not run, or not go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum BatchError {
    /// The input cannot be read.
    Input {
        /// Which.
        input: Input,
        /// Why.
        error: io::Error,
    },
    /// Lines of the input make no sense; nothing was sent.
    BadLines {
        /// Which input.
        input: Input,
        /// The first of them.
        faults: Vec<BadLine>,
        /// How many more there are.
        more: u64,
    },
    /// There is not one request in the input.
    NoRequests {
        /// Which.
        input: Input,
    },
    /// The output cannot be used, or written any further.
    Output {
        /// Which.
        output: Output,
        /// Why.
        error: ResultsError,
    },
    /// Gemini's lines name no model, and neither did anybody else.
    NoModel,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchError::Input { input, error } => write!(f, "cannot read {input}: {error}"),
            BatchError::BadLines { input, faults, more } => {
                write!(f, "{input} has lines that make no sense; nothing was sent")?;
                for fault in faults {
                    write!(f, "\n  {fault}")?;
                }
                if *more > 0 {
                    write!(f, "\n  and {more} more")?;
                }
                write!(f, "\ncorrect them, or pass over them with --skip-bad-lines")
            }
            BatchError::NoRequests { input } => match input {
                Input::File(path) if path.metadata().is_ok_and(|about| about.is_file() && about.len() == 0) => {
                    write!(f, "{input} is empty (0 bytes)")
                }
                _ => write!(f, "{input} has no requests"),
            },
            BatchError::Output { output: Output::Stdout, error: ResultsError::Io(error) } => {
                let lost =
                    "what was written stays, the answers in flight are lost, and the next run asks for everything";
                write!(f, "cannot write standard output: {error}; {lost}")
            }
            BatchError::Output { output, error: ResultsError::Io(error) } => {
                write!(
                    f,
                    "cannot write {output}: {error}; what was written so far is kept, and the same command goes on from there"
                )
            }
            BatchError::Output { output, error: ResultsError::Full(full) } => {
                write!(f, "{output} has no space for more answers, so nothing was sent: {full}")
            }
            BatchError::Output { output, error: ResultsError::Busy } => {
                write!(f, "another process is writing to {output}; wait for it, or choose another output")
            }
            BatchError::Output { output, error: ResultsError::Foreign { line, reason } } => write!(
                f,
                "{output} is not a file of results (line {line}: {reason}); choose another output, or move the file away"
            ),
            BatchError::NoModel => {
                f.write_str("lines in Gemini's format do not say which model to ask; give one with --model")
            }
        }
    }
}

impl std::error::Error for BatchError {}

/// What the requests of a file would cost, one by one, for a [plan](crate::plan). Answers count as long as they may be.
///
/// # Errors
/// [`BatchError::Input`] and [`BatchError::BadLines`].
pub fn costs(input: &Input, dialect: Dialect) -> Result<Vec<Tokens>, BatchError> {
    run::costs(input, dialect)
}
