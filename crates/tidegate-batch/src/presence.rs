//! Whether the server is there, as its callers see it: which failures count against a request, and which do not because
//! the server is away. Pure: the gate decides when the server is down, this decides what follows for a request.

use std::time::{Duration, Instant};

/// For this long after an outage a request that fails alone is not taken to be at fault: the server may be away again.
const DOUBTED_FOR: Duration = Duration::from_secs(600);

/// What a caller knows about the server.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Requests that the server has answered.
    answers: u64,
    /// Whose requests have failed since the last answer. Set by `failed`, cleared by `answered`.
    failing: Failing,
    /// Outages so far. Incremented by the first failure of an outage that is not held against its request.
    outages: u64,
    /// An outage was counted. Set by `failed`, cleared by `answered`.
    away: bool,
    /// When a failure was last held against the server.
    away_at: Option<Instant>,
}

/// An attempt at a request that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    number: u64,
    /// What the server had answered when it was sent.
    answers: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Failing {
    #[default]
    None,
    /// This request alone: the fault may be in the request.
    One(u64),
    /// More than one request, or one that cannot be at fault: it was not sent, or the server says that it is overloaded.
    Several,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Before anything of the request was sent.
    Unsent,
    /// The server says that it is overloaded (503, 529).
    Overloaded,
    /// After it was sent: a time-out, a reset, a gateway without its server (502, 504). Some requests make a server fail so.
    Lost,
}

/// What a failed attempt is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The request: the attempt counts.
    Request,
    /// The server, which has never answered: the attempt counts, and once there have been enough of them no other request
    /// is expected to do better.
    Unreached,
    /// The server, which has answered before: the attempt does not count.
    Away,
}

impl Presence {
    /// Request `number` is sent.
    pub(crate) fn sent(&self, number: u64) -> Sent {
        Sent { number, answers: self.answers }
    }

    /// The server answered, with anything but a statement that it is not there.
    pub(crate) fn answered(&mut self) {
        self.answers += 1;
        self.failing = Failing::None;
        self.away = false;
    }

    /// An attempt failed at `now`. `down_for`: how long the gate has taken the server to be down, if it does.
    pub(crate) fn failed(&mut self, sent: Sent, how: Failed, down_for: Option<Duration>, now: Instant) -> Cause {
        self.failing = match self.failing {
            _ if how != Failed::Lost => Failing::Several,
            Failing::None => Failing::One(sent.number),
            Failing::One(first) if first == sent.number => Failing::One(first),
            _ => Failing::Several,
        };
        let doubted = self.away_at.is_some_and(|at| now.saturating_duration_since(at) < DOUBTED_FOR);
        // A request that alone fails again and again may be one that the server cannot bear.
        if self.failing != Failing::Several && !doubted {
            return Cause::Request;
        }
        if self.answers == 0 {
            return Cause::Unreached;
        }
        // The gate calls a server down after some failures in a row. A request may have all of its attempts before that, so
        // a server that says itself that it is overloaded, and answers nobody else, is away from the first time on.
        let is_away = match how {
            Failed::Unsent => true,
            Failed::Overloaded => down_for.is_some() || self.answers == sent.answers,
            Failed::Lost => down_for.is_some(),
        };
        if !is_away {
            return Cause::Request;
        }
        if self.failing == Failing::Several {
            self.away_at = Some(now);
        }
        if !self.away {
            self.away = true;
            self.outages += 1;
        }
        Cause::Away
    }

    /// The number of outages so far.
    pub(crate) fn outages(&self) -> u64 {
        self.outages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Option<Duration> = Some(Duration::from_secs(1));

    /// An attempt that is sent and fails before anything is answered.
    fn fail(presence: &mut Presence, number: u64, how: Failed, down_for: Option<Duration>, now: Instant) -> Cause {
        let sent = presence.sent(number);
        presence.failed(sent, how, down_for, now)
    }

    #[test]
    fn what_was_not_sent_counts_only_before_the_first_answer() {
        let (mut presence, now) = (Presence::default(), Instant::now());
        assert_eq!(fail(&mut presence, 1, Failed::Unsent, None, now), Cause::Unreached);
        presence.answered();
        assert_eq!(fail(&mut presence, 1, Failed::Unsent, None, now), Cause::Away);
        assert_eq!(fail(&mut presence, 1, Failed::Unsent, DOWN, now), Cause::Away);
        assert_eq!(presence.outages(), 1);
    }

    #[test]
    fn a_server_that_never_answered_is_at_fault_once_two_requests_have_failed() {
        let (mut presence, now) = (Presence::default(), Instant::now());
        assert_eq!(fail(&mut presence, 1, Failed::Lost, None, now), Cause::Request);
        assert_eq!(fail(&mut presence, 1, Failed::Lost, None, now), Cause::Request);
        assert_eq!(fail(&mut presence, 2, Failed::Lost, None, now), Cause::Unreached);
        assert_eq!(fail(&mut Presence::default(), 1, Failed::Overloaded, None, now), Cause::Unreached);
    }

    #[test]
    fn a_request_that_fails_alone_is_at_fault_and_several_are_not_while_the_server_is_down() {
        let (mut presence, now) = (Presence::default(), Instant::now());
        presence.answered();
        for _ in 0..9 {
            assert_eq!(fail(&mut presence, 1, Failed::Lost, DOWN, now), Cause::Request);
        }
        assert_eq!(
            fail(&mut presence, 2, Failed::Lost, None, now),
            Cause::Request,
            "the gate does not call it an outage yet"
        );
        assert_eq!(fail(&mut presence, 1, Failed::Lost, DOWN, now), Cause::Away);
        presence.answered();
        assert_eq!(
            fail(&mut presence, 1, Failed::Overloaded, DOWN, now),
            Cause::Away,
            "that is not the request's fault"
        );
        presence.answered();
        assert_eq!(fail(&mut presence, 1, Failed::Lost, DOWN, now), Cause::Away, "the server may be away again");
        assert_eq!(fail(&mut presence, 1, Failed::Lost, DOWN, now + DOUBTED_FOR), Cause::Request, "but not for ever");
        assert_eq!(presence.outages(), 3);
    }

    #[test]
    fn an_overloaded_server_is_away_unless_it_answers_others() {
        let (mut presence, now) = (Presence::default(), Instant::now());
        presence.answered();
        let sent = presence.sent(1);
        presence.answered();
        assert_eq!(presence.failed(sent, Failed::Overloaded, None, now), Cause::Request, "another was answered");
        for _ in 0..9 {
            assert_eq!(fail(&mut presence, 1, Failed::Overloaded, None, now), Cause::Away);
        }
        assert_eq!(presence.outages(), 1);
    }
}
