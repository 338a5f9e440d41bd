//! How a unique key is taken. Pure: the driver (`../unique.rs`) does what [`Taking::poll`] asks for and reports every answer to
//! [`Taking::handle`].
//!
//! A key is a queue whose argument names its holder: a nonce and a task id. Declaring it is atomic: one publisher succeeds, all
//! others are refused with the name of the holder. The nonce is new for each publish, so equal ids are not taken for each other.
//! Beside it the publisher has a *pending* queue of that nonce, made before the key and deleted when the task is stored and
//! confirmed, and another one that is there while the channel that publishes the task is open. They show the state of a key:
//!
//! | pending queue | channel | the key's task |
//! |---|---|---|
//! | is not there | closed | is stored: a duplicate |
//! | any | open | is being published: wait |
//! | is there | closed | its publisher died, or gave up: an orphan, to be taken over |
//!
//! An open channel is shown by a queue that is consumed over it. Unconsumed, it expires soon; so it is declared and consumed by
//! requests that follow each other without waiting for answers ([`Action::Show`]), and is shown again where the broker let it
//! expire all the same. The pending queue expires some time after the keys of its publish, or a publisher that died would leave
//! it for ever. A publish may take longer than that: then it is renewed before the next key is claimed ([`Action::Renew`]), so
//! that no key outlives the pending queue of its publisher. A request itself may take [`RENEW_AFTER`].
//!
//! Two publishers may find the same orphan. A key is deleted under a lock (an exclusive queue), and only if the holder is still
//! the same; or the second would delete the key that the first has just taken.
//!
//! The broker removes a key when its time is over. Quorum queues are removed some seconds late, so their holders also name the
//! time, by the publisher's clock. No other step compares clocks.
//!
//! A publish that is refused deletes the key first, then its pending queue. So after a look that finds no pending queue the key
//! is looked at once more: only a holder that still has it has stored its task.
//!
//! A publisher that dies between the confirm and the deletion of its pending queue leaves a stored task that looks like an
//! orphan: its task is stored twice, never lost.

use std::time::{Duration, Instant};

/// Between two looks at a key that is being published.
const PAUSE: Duration = Duration::from_millis(50);

/// How much longer than the keys of its publish a pending queue is there.
pub(in crate::rabbit) const PENDING_MARGIN: Duration = Duration::from_secs(600);

/// The other half is for the request that claims a key.
const RENEW_AFTER: Duration = Duration::from_secs(PENDING_MARGIN.as_secs() / 2);

/// The holder of a key, as the broker names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) struct Holder {
    pub(in crate::rabbit) nonce: String,
    /// The task's id; its first part, if the broker's refusal had no room for more.
    pub(in crate::rabbit) id: String,
    /// When the key is free though it is there, in milliseconds since 1970; 0: the broker removes it in time.
    pub(in crate::rabbit) until_ms: u64,
    pub(in crate::rabbit) cut: bool,
}

impl Holder {
    pub(in crate::rabbit) fn new(nonce: &str, id: &str, until_ms: u64) -> Holder {
        Holder { nonce: nonce.to_owned(), id: id.to_owned(), until_ms, cut: false }
    }

    pub(in crate::rabbit) fn text(&self) -> String {
        format!("{}:{:x}:{}", self.nonce, self.until_ms, self.id)
    }

    /// As it stands in a refusal. A holder without a nonce is [`ASKING`], left behind by a publisher that died.
    pub(in crate::rabbit) fn read(text: &str, cut: bool) -> Holder {
        let mut parts = text.splitn(3, ':');
        let (Some(nonce), Some(until), Some(id)) = (parts.next(), parts.next(), parts.next()) else {
            return Holder { cut, ..Holder::new("", "", 0) };
        };
        Holder { cut, ..Holder::new(nonce, id, u64::from_str_radix(until, 16).unwrap_or(0)) }
    }

    /// Whether it may be the holder that this publish has declared, for a task of this id.
    pub(in crate::rabbit) fn is_from(&self, nonce: &str, id: &str) -> bool {
        self.is_of(id) && (self.nonce == nonce || self.nonce.is_empty())
    }

    /// Whether it may be the holder for a task of this id.
    pub(in crate::rabbit) fn is_of(&self, id: &str) -> bool {
        if self.cut { id.starts_with(&self.id) } else { self.id == id }
    }
}

/// The name under which a key is declared to learn its holder: short, so that the refusal has room for that.
pub(in crate::rabbit) const ASKING: &str = "?";

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) enum Action {
    /// Declare the own pending queue and the one of the channel, and consume the latter: one request behind the other, without
    /// waiting for answers in between.
    Show,
    /// Declare the own pending queue once more, which renews its expiry.
    Renew,
    /// Declare the key with the own name.
    Claim {
        /// As in [`Holder`].
        until_ms: u64,
    },
    /// Declare the key as [`ASKING`].
    Ask,
    /// Look at the queues of this nonce.
    Look {
        nonce: String,
    },
    /// Wait.
    Pause {
        until: Instant,
    },
    /// Declare the key's lock.
    Lock,
    /// Delete the lock.
    Unlock,
    /// Delete the key.
    Delete,
    Finished(Outcome),
}

/// What the broker answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) enum Answer {
    /// To `Claim` and `Ask`: it is declared under that name. To all others: done.
    Done,
    /// To `Show`: the queue of the channel expired before it was consumed.
    Expired,
    /// To `Claim` and `Ask`: another name has it.
    Held(Holder),
    /// To `Look`: it is not there.
    Missing,
    /// To `Look`: the channel is open (`alive`), or only the pending queue is there.
    Pending { alive: bool },
    /// To `Lock`: another publisher has it.
    Busy,
}

/// How the attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) enum Outcome {
    /// The key is ours: publish the task.
    Taken,
    /// A stored task has it.
    Duplicate(Holder),
    /// Another publisher has had it for too long without a word.
    Busy,
    /// The publish could not be shown: the broker is too slow.
    Unshown,
}

/// That the pending queues of a publish are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rabbit) struct Shown {
    renew_at: Instant,
}

impl Shown {
    /// By requests that were sent at that time.
    fn at(sent: Instant) -> Shown {
        Shown { renew_at: sent + RENEW_AFTER }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TakingState {
    /// The pending queues of the publish are not there yet.
    Showing,
    Claiming,
    /// The refusal was too short to name the holder.
    Asking,
    Looking(Holder),
    /// Its task is stored, unless the publish was refused and the key freed before the look: does it still have the key?
    Confirming(Holder),
    Pausing,
    Locking(Holder),
    /// Under the lock: is it still the same orphan?
    Checking(Holder),
    /// Under the lock.
    Deleting,
    /// Under the lock.
    Replacing,
    /// The lock is of no more use; then what the claim was answered.
    Unlocking(Answer),
    Finished(Outcome),
}

/// One publisher's attempt to take one key.
#[derive(Debug)]
pub(in crate::rabbit) struct Taking {
    state: TakingState,
    /// When the last answer came, and the next request is sent.
    now: Instant,
    /// The same time by the wall clock, in milliseconds since 1970.
    wall_ms: u64,
    deadline: Option<Instant>,
    /// How long the key lasts, where the holder names its end.
    lasts: Option<Duration>,
    shown: Option<Shown>,
}

impl Taking {
    /// `lasts`: for how long, if the broker may remove the key late. `shown`: what the key before this one has left, of the same
    /// publish.
    pub(in crate::rabbit) fn new(
        (now, wall_ms): (Instant, u64),
        patience: Duration,
        lasts: Option<Duration>,
        shown: Option<Shown>,
    ) -> Taking {
        let state = if shown.is_some() { TakingState::Claiming } else { TakingState::Showing };
        Taking { state, now, wall_ms, deadline: now.checked_add(patience), lasts, shown }
    }

    /// For the next key of the same publish.
    pub(in crate::rabbit) fn shown(&self) -> Option<Shown> {
        self.shown
    }

    pub(in crate::rabbit) fn poll(&self) -> Action {
        match &self.state {
            _ if self.must_renew() => Action::Renew,
            TakingState::Showing => Action::Show,
            TakingState::Claiming | TakingState::Replacing => Action::Claim { until_ms: self.until_ms() },
            TakingState::Asking | TakingState::Confirming(_) | TakingState::Checking(_) => Action::Ask,
            TakingState::Deleting => Action::Delete,
            TakingState::Looking(holder) => Action::Look { nonce: holder.nonce.clone() },
            TakingState::Pausing => Action::Pause { until: self.now + PAUSE },
            TakingState::Locking(_) => Action::Lock,
            TakingState::Unlocking(_) => Action::Unlock,
            TakingState::Finished(outcome) => Action::Finished(outcome.clone()),
        }
    }

    /// The end of a key that is claimed now: not of one that was waited for.
    fn until_ms(&self) -> u64 {
        let lasts_ms = |lasts: Duration| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        self.lasts.map_or(0, |lasts| self.wall_ms.saturating_add(lasts_ms(lasts)))
    }

    fn must_renew(&self) -> bool {
        let claims = matches!(self.state, TakingState::Claiming | TakingState::Replacing);
        claims && self.shown.is_some_and(|shown| shown.renew_at <= self.now)
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= self.now)
    }

    /// `wall_ms`: the wall clock, in milliseconds since 1970.
    pub(in crate::rabbit) fn handle(&mut self, answer: Answer, now: Instant, wall_ms: u64) {
        let (sent, renewed) = (self.now, self.must_renew());
        (self.now, self.wall_ms) = (now, wall_ms);
        if renewed {
            self.shown = Some(Shown::at(sent));
            return;
        }
        let (late, of_holder) = (self.is_late(), |holder| of_holder(holder, wall_ms));
        let state = std::mem::replace(&mut self.state, TakingState::Pausing);
        self.state = match (state, answer) {
            (TakingState::Showing, Answer::Expired) if late => TakingState::Finished(Outcome::Unshown),
            (TakingState::Showing, Answer::Expired) => TakingState::Showing,
            (TakingState::Showing, _) => {
                self.shown = Some(Shown::at(sent));
                TakingState::Claiming
            }
            (TakingState::Claiming, Answer::Done) => TakingState::Finished(Outcome::Taken),
            (TakingState::Claiming, Answer::Held(holder)) if holder.nonce.is_empty() && holder.cut => {
                TakingState::Asking
            }
            (TakingState::Claiming | TakingState::Asking, Answer::Held(holder)) => of_holder(holder),
            // It vanished meanwhile, and is declared as ASKING now.
            (TakingState::Asking | TakingState::Confirming(_), Answer::Done) => {
                TakingState::Locking(Holder::new("", "", 0))
            }
            (TakingState::Pausing, _) => TakingState::Claiming,
            (TakingState::Looking(holder), Answer::Missing) => TakingState::Confirming(holder),
            (TakingState::Confirming(before), Answer::Held(holder)) if holder.nonce == before.nonce => {
                TakingState::Finished(Outcome::Duplicate(holder))
            }
            (TakingState::Confirming(_), Answer::Held(holder)) => of_holder(holder),
            (TakingState::Looking(holder), Answer::Pending { alive: false }) => TakingState::Locking(holder),
            (TakingState::Looking(_) | TakingState::Locking(_), Answer::Pending { .. } | Answer::Busy) => {
                if late {
                    TakingState::Finished(Outcome::Busy)
                } else {
                    TakingState::Pausing
                }
            }
            (TakingState::Locking(holder), Answer::Done) => TakingState::Checking(holder),
            (TakingState::Checking(_), Answer::Done) => TakingState::Deleting,
            (TakingState::Checking(orphan), Answer::Held(holder)) if holder.nonce == orphan.nonce => {
                TakingState::Deleting
            }
            (TakingState::Checking(_), held @ Answer::Held(_)) => TakingState::Unlocking(held),
            (TakingState::Deleting, _) => TakingState::Replacing,
            (TakingState::Replacing, claimed) => TakingState::Unlocking(claimed),
            (TakingState::Unlocking(Answer::Done), _) => TakingState::Finished(Outcome::Taken),
            (TakingState::Unlocking(_), _) => TakingState::Claiming,
            (state, answer) => unreachable!("{answer:?} is not an answer in {state:?}"),
        };
    }
}

fn of_holder(holder: Holder, wall_ms: u64) -> TakingState {
    if !holder.nonce.is_empty() && holder.until_ms > 0 && holder.until_ms <= wall_ms {
        return TakingState::Locking(holder);
    }
    match (holder.nonce.is_empty(), holder.cut) {
        (false, _) => TakingState::Looking(holder),
        // No publisher has that name.
        (true, false) => TakingState::Locking(holder),
        // The names of the queue and the virtual host fill the refusal.
        (true, true) => TakingState::Finished(Outcome::Busy),
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
