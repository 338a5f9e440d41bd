//! Pauses: a limit that has room is blocked because a server's feedback says so.

use std::sync::Arc;
use std::time::Duration;

use crate::moment::Moment;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    #[default]
    Open,
    Paused {
        until: Moment,
    },
    /// One entry is admitted at `probe_at`, and the next one `probe_every` later.
    Parked {
        until: Moment,
        probe_every: Duration,
        probe_at: Moment,
    },
    Shut {
        reason: Arc<str>,
    },
}

impl Hold {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Hold::Open)
    }

    pub(crate) fn lets_through(&self, now: Moment) -> bool {
        self.ready_at(now).is_none()
    }

    /// Returns when the next entry may pass, or `None` if one may pass now.
    pub(crate) fn ready_at(&self, now: Moment) -> Option<Moment> {
        let at = match *self {
            Hold::Open => return None,
            Hold::Paused { until } => until,
            Hold::Parked { until, probe_at, .. } => until.min(probe_at),
            Hold::Shut { .. } => Moment::NEVER,
        };
        (now < at).then_some(at)
    }

    /// Returns the end of the pause, if there is one.
    pub(crate) fn until(&self, now: Moment) -> Option<Moment> {
        match *self {
            Hold::Paused { until } | Hold::Parked { until, .. } => (now < until).then_some(until),
            Hold::Shut { .. } => Some(Moment::NEVER),
            Hold::Open => None,
        }
    }

    /// An entry has passed.
    #[inline]
    pub(crate) fn passed(&mut self, now: Moment) {
        if !self.is_open() {
            self.note_passed(now);
        }
    }

    #[cold]
    fn note_passed(&mut self, now: Moment) {
        match self {
            Hold::Parked { until, probe_every, probe_at } if now < *until => *probe_at = now + *probe_every,
            Hold::Paused { .. } | Hold::Parked { .. } => *self = Hold::Open,
            Hold::Open | Hold::Shut { .. } => {}
        }
    }

    /// Adds a pause: the one that lasts longer counts.
    pub(crate) fn paused(self, until: Moment) -> Hold {
        match self {
            Hold::Open => Hold::Paused { until },
            Hold::Paused { until: before } => Hold::Paused { until: before.max(until) },
            // No probe before the pause is over.
            Hold::Parked { until: before, probe_every, probe_at } => {
                Hold::Parked { until: before.max(until), probe_every, probe_at: probe_at.max(until) }
            }
            shut @ Hold::Shut { .. } => shut,
        }
    }

    /// Adds a parking; it does not end before an earlier pause does.
    pub(crate) fn parked(self, until: Moment, probe_every: Option<Duration>, now: Moment) -> Hold {
        let until = match self {
            Hold::Shut { .. } => return self,
            Hold::Paused { until: before } | Hold::Parked { until: before, .. } => until.max(before),
            Hold::Open => until,
        };
        match probe_every {
            None => Hold::Paused { until },
            Some(probe_every) => Hold::Parked { until, probe_every, probe_at: now + probe_every },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn a_pause_is_never_shortened_by_a_shorter_one() {
        let hold = Hold::Open.paused(at(9)).paused(at(5));
        assert_eq!(hold.ready_at(at(0)), Some(at(9)));
        assert_eq!(hold.ready_at(at(9)), None);
    }

    #[test]
    fn parked_it_lets_one_through_at_a_time() {
        let mut hold = Hold::Open.parked(at(100), Some(Duration::from_secs(10)), at(0));
        assert_eq!(hold.ready_at(at(3)), Some(at(10)));
        assert!(hold.lets_through(at(10)));
        hold.passed(at(12));
        assert_eq!(hold.ready_at(at(12)), Some(at(22)));
        assert_eq!(hold.ready_at(at(95)), None);
        hold.passed(at(95));
        assert_eq!(hold.ready_at(at(95)), Some(at(100)), "the end comes before the next probe");
        hold.passed(at(100));
        assert_eq!(hold, Hold::Open);
    }

    #[test]
    fn shut_is_shut() {
        let hold = Hold::Shut { reason: "no credit".into() };
        assert_eq!(hold.clone().paused(at(1)).parked(at(2), None, at(0)), hold);
        assert_eq!(hold.ready_at(at(1_000_000)), Some(Moment::NEVER));
    }
}
