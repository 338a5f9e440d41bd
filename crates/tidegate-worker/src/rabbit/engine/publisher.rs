//! What becomes of each message of a batch that is published. Pure: the driver (`../link.rs`) sends what [`Publisher::poll`] asks
//! for and reports every answer to [`Publisher::handle`].
//!
//! | state | event | next |
//! |---|---|---|
//! | ready | its queue is not full, the connection is up | in flight |
//! | in flight | ack | stored |
//! | in flight | return, first time | unrouted: the driver declares, then ready |
//! | in flight | return, second time | returned |
//! | in flight | nack | ready; its queue is full |
//! | in flight | connection or channel lost, no answer in time | ready, uncertain |
//! | any | deadline | refused; unknown if uncertain or in flight, or open until that is known |
//!
//! A stored message is never sent again. *Uncertain* is sticky: an earlier attempt may be stored, so a later nack does not
//! make the message refused. While a queue is full, one message is sent to it at a time, with back-off; once that is stored, 2,
//! 4, 8 and so on per round.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use fastrand::Rng;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// A queue that took this many in one round is no longer full.
const ROUND_MAX: usize = 1_024;

/// Between two warnings of the same full queue.
pub(in crate::rabbit) const WARN_EVERY: Duration = Duration::from_secs(60);

/// How one message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) enum Fate {
    /// The broker keeps it. Final.
    Stored,
    /// No queue takes it, though what it needs was declared again if that was possible.
    Returned { reason: String },
    /// Not stored by any attempt: safe to send again.
    Refused { reason: String },
    /// It may be stored.
    Unknown { reason: String },
}

/// How a batch is published.
#[derive(Debug, Clone, Copy)]
pub(in crate::rabbit) struct Terms {
    /// After this time every message that is still open gets its fate; `None`: never.
    pub(in crate::rabbit) patience: Option<Duration>,
    /// A message without an answer for this long is sent again, though it may be stored twice then. Each further attempt waits
    /// twice as long, up to 8 times.
    pub(in crate::rabbit) silence: Option<Duration>,
    /// Whether a message whose fate a lost connection hides is sent again. Otherwise it is unknown at once.
    pub(in crate::rabbit) again_after_loss: bool,
    /// Whether the driver can declare what a returned message needs.
    pub(in crate::rabbit) declares: bool,
    /// Whether the patience does not end a message that may be stored: its answer is waited for.
    pub(in crate::rabbit) until_known: bool,
}

impl Terms {
    /// Sent again until it is stored or the patience is over.
    pub(in crate::rabbit) fn within(patience: Duration) -> Terms {
        Terms { patience: Some(patience), silence: None, again_after_loss: true, declares: true, until_known: false }
    }
}

/// What the broker, or the way to it, said of one attempt.
#[derive(Debug, Clone)]
pub(in crate::rabbit) enum Answer {
    Acked,
    Nacked,
    Returned {
        reason: String,
    },
    /// The connection or channel went before there was an answer. `missing`: the exchange whose absence closed the channel.
    Lost {
        reason: String,
        missing: Option<String>,
    },
    /// Nothing was written.
    Unsent,
    /// It can never be sent.
    Unsendable {
        reason: String,
    },
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbit) enum Action {
    Send {
        index: usize,
        attempt: u32,
    },
    /// Declare what this message needs, then call [`Publisher::declared`].
    Declare {
        index: usize,
    },
    /// Tell people of a full queue: once per minute and queue.
    Warn {
        queue: String,
        waiting: usize,
        since: Instant,
    },
    /// Wait for an answer, or until [`Publisher::poll_timeout`].
    Wait,
    Finished,
}

#[derive(Debug)]
enum PublishState {
    Ready,
    InFlight {
        since: Instant,
    },
    /// Returned once; waits for its declaration.
    Unrouted,
    Done(Fate),
}

#[derive(Debug)]
struct Outgoing {
    route: usize,
    /// Attempts that were begun.
    attempts: u32,
    refused: bool,
    declared: bool,
    /// Why an earlier attempt may be stored.
    uncertain: Option<String>,
    state: PublishState,
}

/// Where messages go: those of one exchange and key are refused together.
#[derive(Debug)]
struct Route {
    exchange: String,
    key: String,
    ready: BTreeSet<usize>,
    in_flight: usize,
    /// At most this many in flight; `None`: any number, the queue is not full.
    limit: Option<usize>,
    /// A message of this round was refused.
    refused: bool,
    /// Rounds in a row that ended with a refusal.
    failures: u32,
    not_before: Option<Instant>,
    full_since: Option<Instant>,
    warn_at: Option<Instant>,
}

impl Route {
    fn may_send(&self, now: Instant) -> bool {
        !self.refused
            && self.limit.is_none_or(|limit| self.in_flight < limit)
            && self.not_before.is_none_or(|instant| instant <= now)
    }

    /// The last answer of a round has come: the next one is larger, or one message after a pause.
    fn end_round(&mut self, now: Instant, rng: &mut Rng) {
        if self.in_flight > 0 {
            return;
        }
        if self.refused {
            let full = BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
            self.not_before = Some(now + full.mul_f64(0.5 + rng.f64() / 2.0));
            self.failures += 1;
            (self.limit, self.refused) = (Some(1), false);
            self.full_since.get_or_insert(now);
            self.warn_at.get_or_insert(now);
        } else if let Some(limit) = self.limit {
            (self.failures, self.not_before) = (0, None);
            self.limit = Some(limit * 2).filter(|limit| *limit <= ROUND_MAX);
            if self.limit.is_none() {
                (self.full_since, self.warn_at) = (None, None);
            }
        }
    }
}

/// The messages of one batch, by their index in it.
#[derive(Debug)]
pub(in crate::rabbit) struct Publisher {
    terms: Terms,
    deadline: Option<Instant>,
    messages: Vec<Outgoing>,
    routes: Vec<Route>,
    unrouted: BTreeSet<usize>,
    /// Messages without a fate.
    open: usize,
    /// Nothing is sent before: the connection is down.
    up_at: Option<Instant>,
    /// No message can be silent for too long before.
    silent_at: Option<Instant>,
    rng: Rng,
}

impl Publisher {
    pub(in crate::rabbit) fn new<'a>(
        messages: impl Iterator<Item = (&'a str, &'a str)>,
        terms: Terms,
        now: Instant,
        seed: u64,
    ) -> Publisher {
        let mut publisher = Publisher {
            terms,
            deadline: terms.patience.and_then(|patience| now.checked_add(patience)),
            messages: Vec::with_capacity(messages.size_hint().0),
            routes: Vec::with_capacity(1),
            unrouted: BTreeSet::new(),
            open: 0,
            up_at: None,
            silent_at: None,
            rng: Rng::with_seed(seed),
        };
        let mut known = HashMap::new();
        for (exchange, key) in messages {
            let route = match publisher.routes.last() {
                Some(last) if (last.exchange.as_str(), last.key.as_str()) == (exchange, key) => {
                    publisher.routes.len() - 1
                }
                _ => *known.entry((exchange, key)).or_insert_with(|| publisher.add_route(exchange, key)),
            };
            publisher.routes[route].ready.insert(publisher.messages.len());
            publisher.messages.push(Outgoing {
                route,
                attempts: 0,
                refused: false,
                declared: false,
                uncertain: None,
                state: PublishState::Ready,
            });
        }
        publisher.open = publisher.messages.len();
        publisher
    }

    fn add_route(&mut self, exchange: &str, key: &str) -> usize {
        self.routes.push(Route {
            exchange: exchange.to_owned(),
            key: key.to_owned(),
            ready: BTreeSet::new(),
            in_flight: 0,
            limit: None,
            refused: false,
            failures: 0,
            not_before: None,
            full_since: None,
            warn_at: None,
        });
        self.routes.len() - 1
    }

    /// By then every message has its fate.
    pub(in crate::rabbit) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns `true` if nothing was ever sent.
    pub(in crate::rabbit) fn is_untouched(&self) -> bool {
        self.messages.iter().all(|message| message.attempts == 0)
    }

    /// One fate per message, in their order. Those without one are unknown: ask once [`Action::Finished`] was returned.
    pub(in crate::rabbit) fn into_fates(self) -> Vec<Fate> {
        let open = || Fate::Unknown { reason: "publishing was given up".to_owned() };
        self.messages
            .into_iter()
            .map(|message| if let PublishState::Done(fate) = message.state { fate } else { open() })
            .collect()
    }

    pub(in crate::rabbit) fn poll(&mut self, now: Instant) -> Action {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.expire();
        }
        if self.open == 0 {
            return Action::Finished;
        }
        if self.silent_at.is_some_and(|instant| instant <= now) {
            self.find_silent(now);
        }
        if let Some(index) = self.unrouted.pop_first() {
            return Action::Declare { index };
        }
        if let Some(warning) = self.warning(now) {
            return warning;
        }
        self.up_at = self.up_at.filter(|instant| *instant > now);
        if self.up_at.is_some() {
            return Action::Wait;
        }
        let sendable = self.routes.iter_mut().filter(|route| route.may_send(now));
        let next = sendable.filter_map(|route| Some((*route.ready.first()?, route))).min_by_key(|(index, _)| *index);
        let Some((index, route)) = next else { return Action::Wait };
        route.ready.pop_first();
        route.in_flight += 1;
        let message = &mut self.messages[index];
        message.attempts += 1;
        message.state = PublishState::InFlight { since: now };
        let attempt = message.attempts;
        if let Some(silence) = self.silence(attempt) {
            self.silent_at = Some(self.silent_at.map_or(now + silence, |at| at.min(now + silence)));
        }
        Action::Send { index, attempt }
    }

    /// When [`poll`](Self::poll) may have something new to say without any event.
    pub(in crate::rabbit) fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.routes.iter().filter(|route| !route.ready.is_empty());
        // What could be sent is not while the connection is down.
        let rounds = waiting.flat_map(|route| {
            let next = route.not_before.filter(|_| route.in_flight == 0 && self.up_at.is_none());
            [next, route.warn_at]
        });
        rounds.chain([self.deadline, self.up_at, self.silent_at]).flatten().min()
    }

    /// The answer to an attempt. Whatever comes for a message that has its fate is ignored.
    pub(in crate::rabbit) fn handle(&mut self, index: usize, attempt: u32, answer: Answer, now: Instant) {
        let message = &mut self.messages[index];
        let current = message.attempts == attempt && matches!(message.state, PublishState::InFlight { .. });
        if matches!(message.state, PublishState::Done(_)) {
            return;
        }
        if !current {
            // A late answer to an attempt that was given up as silent. Only good news changes anything.
            if matches!(answer, Answer::Acked) {
                self.end(index, Fate::Stored, now);
            }
            return;
        }
        match answer {
            Answer::Acked => self.end(index, Fate::Stored, now),
            Answer::Nacked => {
                message.refused = true;
                let route = message.route;
                self.routes[route].refused = true;
                self.again(index, now);
            }
            Answer::Returned { reason } => self.unroute(index, reason, now),
            Answer::Lost { reason, missing } => {
                message.uncertain.get_or_insert_with(|| reason.clone());
                if missing.is_some_and(|exchange| exchange == self.routes[message.route].exchange) {
                    self.unroute(index, reason, now);
                } else if self.terms.again_after_loss {
                    self.again(index, now);
                } else {
                    self.end(index, Fate::Unknown { reason }, now);
                }
            }
            Answer::Unsent => {
                message.attempts -= 1;
                self.again(index, now);
            }
            Answer::Unsendable { reason } => self.end(index, Fate::Refused { reason }, now),
        }
    }

    /// What a returned message needs is there again, or cannot be.
    pub(in crate::rabbit) fn declared(&mut self, index: usize, declared: Result<(), String>, now: Instant) {
        if !matches!(self.messages[index].state, PublishState::Unrouted) {
            return;
        }
        match declared {
            Ok(()) => {
                self.messages[index].state = PublishState::Ready;
                let route = self.messages[index].route;
                self.routes[route].ready.insert(index);
            }
            Err(reason) => {
                let fate = self.refusal(index, reason);
                self.end(index, fate, now);
            }
        }
    }

    /// The connection is down: nothing is sent before this instant.
    pub(in crate::rabbit) fn down(&mut self, until: Instant) {
        self.up_at = Some(until);
    }

    /// Ends everything that is open: the broker will not be reached.
    pub(in crate::rabbit) fn give_up(&mut self, reason: &str, now: Instant) {
        for index in 0..self.messages.len() {
            let fate = match &self.messages[index].state {
                PublishState::Done(_) => continue,
                PublishState::InFlight { .. } => Fate::Unknown { reason: reason.to_owned() },
                _ => self.refusal(index, reason.to_owned()),
            };
            self.end(index, fate, now);
        }
    }

    fn end(&mut self, index: usize, fate: Fate, now: Instant) {
        let message = &mut self.messages[index];
        let before = std::mem::replace(&mut message.state, PublishState::Done(fate));
        let route = &mut self.routes[message.route];
        self.open -= 1;
        match before {
            PublishState::InFlight { .. } => {
                route.in_flight -= 1;
                route.end_round(now, &mut self.rng);
            }
            PublishState::Ready => _ = route.ready.remove(&index),
            PublishState::Unrouted => _ = self.unrouted.remove(&index),
            PublishState::Done(_) => unreachable!("a fate is final"),
        }
    }

    /// From in flight to ready.
    fn again(&mut self, index: usize, now: Instant) {
        let message = &mut self.messages[index];
        message.state = PublishState::Ready;
        let route = &mut self.routes[message.route];
        route.ready.insert(index);
        route.in_flight -= 1;
        route.end_round(now, &mut self.rng);
    }

    fn unroute(&mut self, index: usize, reason: String, now: Instant) {
        let message = &mut self.messages[index];
        if message.declared || !self.terms.declares {
            let fate = match message.uncertain.take() {
                Some(reason) if message.attempts > 1 => Fate::Unknown { reason },
                _ => Fate::Returned { reason },
            };
            return self.end(index, fate, now);
        }
        message.declared = true;
        message.state = PublishState::Unrouted;
        let route = &mut self.routes[message.route];
        route.in_flight -= 1;
        route.end_round(now, &mut self.rng);
        self.unrouted.insert(index);
    }

    /// The fate of a message that is not in flight.
    fn refusal(&self, index: usize, reason: String) -> Fate {
        match &self.messages[index].uncertain {
            Some(reason) => Fate::Unknown { reason: reason.clone() },
            None => Fate::Refused { reason },
        }
    }

    fn expire(&mut self) {
        let (Some(now), patience) = (self.deadline, self.terms.patience.unwrap_or_default()) else { return };
        for index in 0..self.messages.len() {
            let message = &self.messages[index];
            let is_in_flight = matches!(message.state, PublishState::InFlight { .. });
            if self.terms.until_known && (is_in_flight || message.uncertain.is_some()) {
                continue;
            }
            let fate = match &message.state {
                PublishState::Done(_) => continue,
                PublishState::InFlight { .. } => {
                    Fate::Unknown { reason: format!("the broker did not answer within {patience:?}") }
                }
                _ if message.refused || self.routes[message.route].full_since.is_some() => {
                    self.refusal(index, format!("queue {} is full", self.routes[message.route].key))
                }
                _ => self.refusal(index, format!("the broker took nothing within {patience:?}")),
            };
            self.end(index, fate, now);
        }
        if self.terms.until_known {
            // What is left may be refused yet.
            self.deadline = now.checked_add(patience.max(BACKOFF_MIN));
        }
    }

    fn find_silent(&mut self, now: Instant) {
        self.silent_at = None;
        for index in 0..self.messages.len() {
            let message = &self.messages[index];
            let PublishState::InFlight { since } = message.state else { continue };
            let Some(silence) = self.silence(message.attempts) else { return };
            if since + silence <= now {
                self.messages[index].uncertain.get_or_insert_with(|| format!("no answer within {silence:?}"));
                self.again(index, now);
            } else {
                self.silent_at = Some(self.silent_at.map_or(since + silence, |at| at.min(since + silence)));
            }
        }
    }

    /// How long this attempt of a message may go without an answer.
    fn silence(&self, attempt: u32) -> Option<Duration> {
        self.terms.silence.map(|silence| silence.saturating_mul(1 << (attempt.max(1) - 1).min(3)))
    }

    fn warning(&mut self, now: Instant) -> Option<Action> {
        let due = |route: &&mut Route| !route.ready.is_empty() && route.warn_at.is_some_and(|at| at <= now);
        let route = self.routes.iter_mut().find(due)?;
        route.warn_at = Some(now + WARN_EVERY);
        let since = route.full_since.unwrap_or(now);
        Some(Action::Warn { queue: route.key.clone(), waiting: route.ready.len(), since })
    }
}

#[cfg(test)]
#[path = "publisher_tests.rs"]
mod tests;
