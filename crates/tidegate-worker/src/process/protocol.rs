//! What a worker and a child say to each other, without I/O: bytes in, events out; orders in, bytes out. Described for
//! those who write children in `docs/process-protocol.md`.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::frame::{self, Frames, TooLong};
use crate::broker::TaskError;
use crate::json;
use crate::task::Task;

/// The version of the protocol that this worker speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// The worker's side of one child's socket.
#[derive(Debug)]
pub(super) struct Protocol {
    frames: Frames,
    /// To be written; what lies before `written` has been.
    output: Vec<u8>,
    written: usize,
    max_frame: usize,
    greeted: bool,
    last_run: u64,
    /// Unanswered, in the order in which the child runs them.
    open: VecDeque<OpenRun>,
    /// Bytes written to the child since its start.
    sent: u64,
}

/// A run that is not answered. Positions count the bytes of all orders since the child's start: an answer to an order that is
/// not written as a whole is a guess, and must not count.
#[derive(Debug)]
struct OpenRun {
    run: u64,
    /// Where its order ends.
    end: u64,
    /// Where the order to give it back ends.
    recall_end: Option<u64>,
}

/// Something the child has said.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Ready(Ready),
    /// The first of the open runs has ended.
    Answered(u64, Answer),
    /// A run that was recalled, and was not begun.
    Returned(u64),
}

/// How a child introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ready {
    /// `None`: it does not say, and finds out by trying.
    pub(super) handlers: Option<Vec<String>>,
    /// What it is, for the log.
    pub(super) name: String,
    /// SIGUSR1 makes it look at its socket while it runs something.
    pub(super) interrupt: bool,
}

/// How a run ended, as the child reports it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Done(Value),
    Failed(TaskError),
    /// It failed, and is not to be tried again.
    Final(TaskError),
    Retry {
        after: Option<Duration>,
        error: TaskError,
    },
    /// The soft limit ended it; which one, if it was the child's own.
    SoftLimit(Option<Duration>),
    Rejected(String),
}

/// A child that does not keep to the protocol. There is no way to go on with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Violation {
    TooLong {
        length: usize,
        max: usize,
    },
    NotJson {
        reason: String,
        start: String,
    },
    Version {
        theirs: Option<u64>,
    },
    /// Something else than the greeting came first, or it came again.
    Greeting {
        kind: String,
    },
    UnknownKind {
        kind: String,
    },
    /// It answers what is not the turn of.
    Order {
        run: Option<u64>,
        expected: Option<u64>,
    },
    /// It answers a run whose order was not written to it as a whole.
    NotSent {
        run: u64,
    },
    /// It gives back what was not recalled. A run that is begun would start its time limit again elsewhere.
    NotRecalled {
        run: u64,
    },
}

impl From<TooLong> for Violation {
    fn from(TooLong { length, max }: TooLong) -> Violation {
        Violation::TooLong { length, max }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::TooLong { length, max } => {
                write!(f, "it announced a frame of {length} bytes; {max} are allowed")
            }
            Violation::NotJson { reason, start } => {
                write!(f, "it sent a frame that is no message ({reason}): {start:?}")
            }
            Violation::Version { theirs: Some(theirs) } => write!(
                f,
                "it speaks version {theirs} of the protocol, this worker version {PROTOCOL_VERSION}; use a module of the \
                 worker's version"
            ),
            Violation::Version { theirs: None } => write!(f, "its greeting names no version of the protocol"),
            Violation::Greeting { kind } => {
                write!(f, "it sent `{kind}` where a greeting (`ready`) is due once and first")
            }
            Violation::UnknownKind { kind } => write!(f, "it sent a message of the unknown type `{kind}`"),
            Violation::Order { run, expected } => {
                let name = |run: &Option<u64>| run.map_or_else(|| "none".to_owned(), |run| run.to_string());
                write!(f, "it answered run {}, but {} was due", name(run), name(expected))
            }
            Violation::NotSent { run } => write!(f, "it answered run {run} before that was sent to it"),
            Violation::NotRecalled { run } => write!(f, "it gave back run {run}, which was not recalled"),
        }
    }
}

/// A message from the child. One flat record for all kinds: an enum by tag would be parsed twice.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "type")]
    kind: String,
    run: Option<u64>,
    #[serde(default)]
    value: Value,
    error: Option<TaskError>,
    after_ms: Option<Value>,
    limit_ms: Option<Value>,
    reason: Option<String>,
    version: Option<u64>,
    handlers: Option<Vec<String>>,
    name: Option<String>,
    #[serde(default)]
    interrupt: bool,
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// What is asked of a message that could not be read as a whole: who it is for.
#[derive(Deserialize)]
struct Skeleton {
    #[serde(rename = "type")]
    kind: String,
    run: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Order<'a> {
    Hello {
        version: u32,
        max_frame: usize,
    },
    Run {
        run: u64,
        id: &'a str,
        task: &'a str,
        args: &'a [Value],
        kwargs: &'a Map<String, Value>,
        retries: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        soft_ms: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        hard_ms: Option<f64>,
    },
    Soft {
        run: u64,
    },
    Recall {
        run: u64,
    },
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Bytes of the output that are kept when all of it is written.
const OUTPUT_KEEP: usize = 256 << 10;

impl Protocol {
    /// The greeting is the first thing in the output.
    pub(super) fn new(max_frame: usize) -> Protocol {
        let mut protocol = Protocol {
            frames: Frames::new(max_frame),
            output: Vec::new(),
            written: 0,
            max_frame,
            greeted: false,
            last_run: 0,
            open: VecDeque::new(),
            sent: 0,
        };
        protocol.say(&Order::Hello { version: PROTOCOL_VERSION, max_frame }).expect("a greeting is short");
        protocol
    }

    fn say(&mut self, order: &Order<'_>) -> Result<(), TooLong> {
        frame::append(&mut self.output, self.max_frame, |output| {
            json::append(output, order).expect("strings, numbers and values always serialize");
        })
    }

    /// Sends a task; by which number it runs.
    ///
    /// # Errors
    /// When it is longer than a frame may be. Nothing was sent.
    pub(super) fn run(&mut self, task: &Task, soft: Option<Duration>, hard: Option<Duration>) -> Result<u64, TooLong> {
        let run = self.last_run + 1;
        self.say(&Order::Run {
            run,
            id: task.id.as_str(),
            task: &task.name,
            args: &task.args,
            kwargs: &task.kwargs,
            retries: task.retries,
            soft_ms: soft.map(millis),
            hard_ms: hard.map(millis),
        })?;
        self.last_run = run;
        self.open.push_back(OpenRun { run, end: self.output_end(), recall_end: None });
        Ok(run)
    }

    /// Says that a run has passed its soft limit.
    pub(super) fn soft(&mut self, run: u64) {
        self.say(&Order::Soft { run }).expect("short");
    }

    /// Asks for a run back that the child has not begun.
    pub(super) fn recall(&mut self, run: u64) {
        self.say(&Order::Recall { run }).expect("short");
        let end = self.output_end();
        if let Some(open) = self.open.iter_mut().find(|open| open.run == run) {
            open.recall_end = Some(end);
        }
    }

    /// Where the output ends, counted from the child's start.
    fn output_end(&self) -> u64 {
        self.sent + self.output().len() as u64
    }

    /// What is to be written.
    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Notes that `count` bytes were written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        self.sent += count as u64;
        if self.written == self.output.len() {
            self.output.clear();
            self.output.shrink_to(OUTPUT_KEEP);
            self.written = 0;
        }
    }

    /// Takes what was read.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// The next thing the child has said.
    ///
    /// # Errors
    /// When it is not what the protocol says. Nothing more can be read then.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Violation> {
        let Some(range) = self.frames.next()? else { return Ok(None) };
        let content = self.frames.content(range);
        match json::from_slice::<Message>(content) {
            Ok(message) => self.heard(message).map(Some),
            Err(error) => match unreadable_result(content, &error) {
                Some((run, answer)) => self.answered(Some(run), answer).map(Some),
                None => Err(Violation::NotJson { reason: error.to_string(), start: start_of(content) }),
            },
        }
    }

    fn heard(&mut self, message: Message) -> Result<Event, Violation> {
        let Message {
            kind,
            run,
            value,
            error,
            after_ms,
            limit_ms,
            reason,
            version,
            handlers,
            name,
            interrupt,
            is_final,
        } = message;
        if kind == "ready" && !self.greeted {
            if version != Some(u64::from(PROTOCOL_VERSION)) {
                return Err(Violation::Version { theirs: version });
            }
            self.greeted = true;
            return Ok(Event::Ready(Ready { handlers, name: name.unwrap_or_default(), interrupt }));
        }
        if !self.greeted || kind == "ready" {
            return Err(Violation::Greeting { kind });
        }
        let error = || {
            error.unwrap_or_else(|| TaskError {
                kind: "Unknown".into(),
                message: "the handler failed and did not say why".into(),
                traceback: None,
            })
        };
        let answer = match &*kind {
            "done" => Answer::Done(value),
            "failed" if is_final => Answer::Final(error()),
            "failed" => Answer::Failed(error()),
            "retry" => Answer::Retry { after: milliseconds("after_ms", after_ms)?.and_then(duration), error: error() },
            "soft-limit" => Answer::SoftLimit(milliseconds("limit_ms", limit_ms)?.and_then(duration)),
            "rejected" => Answer::Rejected(reason.unwrap_or_else(|| "the child does not say why".into())),
            "returned" => return self.returned(run),
            _ => return Err(Violation::UnknownKind { kind }),
        };
        self.answered(run, answer)
    }

    fn answered(&mut self, run: Option<u64>, answer: Answer) -> Result<Event, Violation> {
        match (run, self.open.front()) {
            (Some(run), Some(due)) if run == due.run => {
                if self.sent < due.end {
                    return Err(Violation::NotSent { run });
                }
                self.open.pop_front();
                Ok(Event::Answered(run, answer))
            }
            (run, due) => Err(Violation::Order { run, expected: due.map(|due| due.run) }),
        }
    }

    fn returned(&mut self, run: Option<u64>) -> Result<Event, Violation> {
        let position = self.open.iter().position(|open| Some(open.run) == run);
        match (run, position) {
            (Some(run), Some(position)) => {
                if self.open[position].recall_end.is_none_or(|end| self.sent < end) {
                    return Err(Violation::NotRecalled { run });
                }
                self.open.remove(position);
                Ok(Event::Returned(run))
            }
            _ => Err(Violation::Order { run, expected: self.open.back().map(|last| last.run) }),
        }
    }
}

/// A result that is JSON but beyond what is read here (nested too deeply, a number out of range) is its handler's failure,
/// not its child's.
fn unreadable_result(content: &[u8], error: &serde_json::Error) -> Option<(u64, Answer)> {
    let skeleton: Skeleton = serde_json::from_slice(content).ok()?;
    let message = format!("the result cannot be read: {error}");
    (skeleton.kind == "done").then(|| {
        (skeleton.run, Answer::Failed(TaskError { kind: "UnreadableResult".into(), message, traceback: None }))
    })
}

/// A delay in milliseconds. One that is too long for a `Duration` is the longest there is; the caller bounds it further.
/// Reads a number of milliseconds of any size.
fn milliseconds(field: &'static str, value: Option<Value>) -> Result<Option<f64>, Violation> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_f64().or_else(|| json::integer(&value)?.parse().ok());
    number.map(Some).ok_or_else(|| Violation::NotJson {
        reason: format!("{field} is not a number"),
        start: start_of(json::to_string(&value).as_bytes()),
    })
}

fn duration(millis: f64) -> Option<Duration> {
    (millis >= 0.0).then(|| Duration::try_from_secs_f64(millis / 1e3).unwrap_or(Duration::MAX))
}

/// Enough of a message to recognize it.
pub(super) fn start_of(content: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = String::from_utf8_lossy(&content[..content.len().min(SHOWN)]).into_owned();
    if content.len() > SHOWN { text + "…" } else { text }
}

#[cfg(test)]
mod tests;

/// For the fuzz target: what a child sends, from its greeting on. The first byte says in which pieces it comes.
#[cfg(fuzzing)]
pub fn fuzz(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut protocol = Protocol::new(1 << 12);
        for _ in 0..4 {
            let _ = protocol.run(&Task::new("a"), None, None);
        }
        protocol.recall(2);
        protocol.recall(4);
        // The last order is not written as a whole.
        protocol.wrote(protocol.output().len() - 1);
        let mut events = Vec::new();
        for piece in pieces {
            protocol.receive(piece);
            loop {
                match protocol.next_event() {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(violation) => return (events, Some(violation)),
                }
            }
        }
        (events, None)
    };
    let whole = run(&mut std::iter::once(bytes));
    let pieces = run(&mut bytes.chunks(usize::from(*size).max(1)));
    assert_eq!(whole, pieces, "the same in pieces");
}
