//! The operations that handles send to the thread that owns the file.

use std::sync::Arc;

use rusqlite::Connection;
use tidegate_sync::Queue;

use crate::broker::{BrokerError, Incoming, Published, Selection, Settled, Settlement, Subscription, TaskResult};
use crate::task::{Envelope, TaskId};

use super::oneshot::Answer;

/// One consumer of this process; other than its id in the file this never changes.
pub(super) type ReaderKey = u32;

/// What a consumer's side of the loop is given, a batch at a time. Closed when there will be no more.
pub(super) type Feed = Queue<Vec<Incoming>>;

/// Runs outside of any write transaction with the time as its argument, or gets the reason why it cannot run.
pub(super) type Read = Box<dyn FnOnce(Result<(&Connection, i64), BrokerError>) + Send>;

pub(super) enum Op {
    Write(Write),
    Read(Read),
    WaitResult {
        id: TaskId,
        answer: Answer<TaskResult>,
    },
    Stop {
        reader: ReaderKey,
        answer: Answer<()>,
    },
    /// The consumer is gone without a word: its lease ends by itself.
    Abandon {
        reader: ReaderKey,
    },
    /// Everything returns, and the file is closed.
    Close {
        answer: Answer<()>,
    },
}

/// What goes into a transaction together with others of its kind.
pub(super) enum Write {
    Publish { batch: Vec<Envelope>, answer: Answer<Vec<Published>> },
    Subscribe { what: Subscription, feed: Arc<Feed>, answer: Answer<ReaderKey> },
    Settle { reader: ReaderKey, batch: Vec<Settlement>, answer: Answer<Vec<Settled>> },
    CloseReader { reader: ReaderKey, answer: Answer<()> },
    Admin { what: Admin, answer: Answer<u64> },
}

#[derive(Debug, Clone)]
pub(super) enum Admin {
    Purge(String),
    DeadRetry(Selection),
    DeadDrop(Selection),
    Revoke(TaskId),
    ExpireLeases,
    Repair,
}

impl Write {
    /// Whether it must be on the disk before it is answered. What a lost claim or settlement costs is a second run; what a
    /// lost publish costs is the task.
    pub(super) fn must_last(&self) -> bool {
        matches!(self, Write::Publish { .. } | Write::Admin { .. })
    }

    pub(super) fn adds(&self) -> bool {
        matches!(self, Write::Publish { .. })
    }

    pub(super) fn refuse(self, error: BrokerError) {
        match self {
            Write::Publish { answer, .. } => answer.send(Err(error)),
            Write::Subscribe { answer, .. } => answer.send(Err(error)),
            Write::Settle { answer, .. } => answer.send(Err(error)),
            Write::CloseReader { answer, .. } => answer.send(Err(error)),
            Write::Admin { answer, .. } => answer.send(Err(error)),
        }
    }
}

impl Op {
    pub(super) fn refuse(self, error: BrokerError) {
        match self {
            Op::Write(write) => write.refuse(error),
            Op::WaitResult { answer, .. } => answer.send(Err(error)),
            Op::Stop { answer, .. } => answer.send(Err(error)),
            // A file that cannot be used need not be closed in order.
            Op::Close { answer } => answer.send(Ok(())),
            Op::Read(read) => read(Err(error)),
            Op::Abandon { .. } => {}
        }
    }

    /// Roughly how many bytes it brings.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Op::Write(Write::Publish { batch, .. }) => batch.iter().map(|envelope| envelope.body.len() + 128).sum(),
            Op::Write(Write::Settle { batch, .. }) => batch.len() * 64,
            _ => 64,
        }
    }
}
