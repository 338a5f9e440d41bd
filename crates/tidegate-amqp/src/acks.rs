//! Which deliveries are settled, and with how few frames the broker can be told. Pure bookkeeping of one channel's epoch.

use std::collections::VecDeque;

/// How a delivery is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Done: the broker forgets it.
    Ack,
    /// Back to its queue, marked as redelivered.
    Requeue,
    /// Not again: dead-lettered where the queue says so, otherwise dropped.
    Reject,
}

/// One frame that settles deliveries: all outstanding ones up to `tag`, or just that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckFrame {
    /// The delivery, or the last of a run.
    pub tag: u64,
    /// Whether everything outstanding before it is meant as well.
    pub multiple: bool,
    /// What happens to them.
    pub settle: Settle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Outstanding,
    Settled(Settle),
    /// The broker has been told.
    Told,
}

/// The deliveries of one channel. Settlements are sent in as few frames as the protocol allows: runs from the oldest
/// outstanding delivery on as one `multiple` each, those behind a gap singly.
///
/// A tag is sent at most once, whatever the caller does: an unknown tag would make the broker close the channel.
///
/// ```
/// use tidegate_amqp::{AckFrame, AckTracker, Settle};
///
/// let mut tracker = AckTracker::default();
/// for tag in 1..=5 {
///     tracker.delivered(tag);
/// }
/// for tag in [2, 1, 3, 5] {
///     assert!(tracker.settle(tag, Settle::Ack));
/// }
/// let mut frames = Vec::new();
/// tracker.flush(|frame| frames.push(frame));
/// let ack = |tag, multiple| AckFrame { tag, multiple, settle: Settle::Ack };
/// assert_eq!(frames, [ack(3, true), ack(5, false)]);
/// assert_eq!(tracker.outstanding(), 1);
/// ```
#[derive(Debug, Default)]
pub struct AckTracker {
    /// The tag before `window[0]`: everything up to here has been told.
    told_to: u64,
    window: VecDeque<Mark>,
    /// Settled since the last flush, in the order it happened.
    fresh: Vec<u64>,
    outstanding: usize,
}

impl AckTracker {
    /// Notes a delivery. Tags rise; one that does not is ignored and answered with `false`.
    pub fn delivered(&mut self, tag: u64) -> bool {
        self.note(tag, Mark::Outstanding)
    }

    /// Notes a delivery that the broker regards as settled already, as it does for a consumer without acknowledgements.
    pub fn delivered_settled(&mut self, tag: u64) -> bool {
        self.note(tag, Mark::Told)
    }

    fn note(&mut self, tag: u64, mark: Mark) -> bool {
        let next = self.told_to + self.window.len() as u64 + 1;
        // A broker counts one by one; a jump would make us remember every number in between.
        if tag != next {
            return false;
        }
        if mark == Mark::Told && self.window.is_empty() {
            self.told_to = tag;
            return true;
        }
        self.outstanding += usize::from(mark == Mark::Outstanding);
        self.window.push_back(mark);
        true
    }

    /// Settles a delivery; `false` if it is unknown or was settled before.
    pub fn settle(&mut self, tag: u64, settle: Settle) -> bool {
        let Some(at) = tag.checked_sub(self.told_to + 1).and_then(|at| usize::try_from(at).ok()) else { return false };
        match self.window.get_mut(at) {
            Some(mark @ Mark::Outstanding) => {
                *mark = Mark::Settled(settle);
                self.fresh.push(tag);
                self.outstanding -= 1;
                true
            }
            _ => false,
        }
    }

    /// The number of unsettled deliveries.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether [`flush`](Self::flush) would say anything.
    pub fn is_dirty(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// How many were settled since the last flush.
    pub fn settled(&self) -> usize {
        self.fresh.len()
    }

    /// Says everything that was settled since the last time.
    pub fn flush(&mut self, mut say: impl FnMut(AckFrame)) {
        if self.fresh.is_empty() {
            return;
        }
        let mut run: Option<AckFrame> = None;
        while let Some(mark) = self.window.front().copied() {
            if mark == Mark::Outstanding {
                break;
            }
            self.window.pop_front();
            self.told_to += 1;
            let Mark::Settled(settle) = mark else { continue };
            let multiple = run.as_ref().is_some_and(|run| run.settle == settle);
            if let Some(ended) = run.replace(AckFrame { tag: self.told_to, multiple, settle })
                && !multiple
            {
                say(ended);
            }
        }
        if let Some(run) = run {
            say(run);
        }
        for tag in self.fresh.drain(..) {
            let Some(at) = tag.checked_sub(self.told_to + 1) else { continue };
            let mark = &mut self.window[at as usize];
            if let Mark::Settled(settle) = std::mem::replace(mark, Mark::Told) {
                say(AckFrame { tag, multiple: false, settle });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn flushed(tracker: &mut AckTracker) -> Vec<(u64, bool, Settle)> {
        let mut frames = Vec::new();
        tracker.flush(|frame| frames.push((frame.tag, frame.multiple, frame.settle)));
        frames
    }

    #[test]
    fn a_rejection_in_between_breaks_the_run() {
        let mut tracker = AckTracker::default();
        (1..=6).for_each(|tag| assert!(tracker.delivered(tag)));
        for tag in [1, 2, 4, 5] {
            tracker.settle(tag, Settle::Ack);
        }
        tracker.settle(3, Settle::Reject);
        let told = [(2, true, Settle::Ack), (3, false, Settle::Reject), (5, true, Settle::Ack)];
        assert_eq!(flushed(&mut tracker), told);
        assert_eq!(flushed(&mut tracker), []);
    }

    #[test]
    fn what_was_told_singly_is_not_told_again_by_number() {
        let mut tracker = AckTracker::default();
        (1..=4).for_each(|tag| assert!(tracker.delivered(tag)));
        tracker.settle(4, Settle::Ack);
        assert_eq!(flushed(&mut tracker), [(4, false, Settle::Ack)]);
        (1..=3).for_each(|tag| assert!(tracker.settle(tag, Settle::Ack)));
        // 4 is no longer outstanding: naming it would be an unknown tag.
        assert_eq!(flushed(&mut tracker), [(3, true, Settle::Ack)]);
        assert!(!tracker.settle(4, Settle::Ack));
    }

    #[test]
    fn unknown_repeated_and_jumping_tags_are_refused() {
        let mut tracker = AckTracker::default();
        assert!(tracker.delivered(1));
        assert!(!tracker.delivered(1) && !tracker.delivered(3) && !tracker.delivered(u64::MAX));
        assert!(!tracker.settle(0, Settle::Ack) && !tracker.settle(2, Settle::Ack));
        assert!(tracker.settle(1, Settle::Ack) && !tracker.settle(1, Settle::Requeue));
    }

    /// The broker's side: what is outstanding, and what `multiple` does to it.
    #[derive(Default)]
    struct Broker {
        outstanding: BTreeMap<u64, ()>,
        settled: BTreeMap<u64, Settle>,
    }

    impl Broker {
        fn hear(&mut self, frame: AckFrame) {
            assert!(self.outstanding.contains_key(&frame.tag), "unknown tag {}", frame.tag);
            let from = if frame.multiple { 0 } else { frame.tag };
            let meant: Vec<u64> = self.outstanding.range(from..=frame.tag).map(|(tag, ())| *tag).collect();
            for tag in meant {
                self.outstanding.remove(&tag);
                assert_eq!(self.settled.insert(tag, frame.settle), None);
            }
        }
    }

    #[test]
    fn whatever_the_order_the_broker_hears_of_each_once_and_as_it_was_meant() {
        let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 20_000 } else { 300 };
        for seed in tidegate_seeds::seeds(rounds) {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut tracker, mut broker) = (AckTracker::default(), Broker::default());
            let mut meant = BTreeMap::new();
            let (mut next, mut open) = (1, Vec::new());
            for _ in 0..200 {
                match random.u8(0..10) {
                    0..=3 => {
                        tracker.delivered(next);
                        broker.outstanding.insert(next, ());
                        open.push(next);
                        next += 1;
                    }
                    4 => {
                        tracker.delivered_settled(next);
                        next += 1;
                    }
                    5..=8 if !open.is_empty() => {
                        let tag = open.swap_remove(random.usize(..open.len().min(8)));
                        let settle =
                            *random.choice(&[Settle::Ack, Settle::Ack, Settle::Requeue, Settle::Reject]).unwrap();
                        assert!(tracker.settle(tag, settle), "seed {seed}");
                        meant.insert(tag, settle);
                    }
                    _ => tracker.flush(|frame| broker.hear(frame)),
                }
                assert_eq!(tracker.outstanding(), open.len(), "seed {seed}");
            }
            tracker.flush(|frame| broker.hear(frame));
            assert_eq!(broker.settled, meant, "seed {seed}");
        }
    }
}
