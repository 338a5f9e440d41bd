//! Which publishes the broker has spoken of, and which came back.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Published on this channel since it was opened; numbers start at 1, as the broker counts.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// The number before `open[0]`: all up to here were confirmed.
    done_to: u64,
    /// Whether each was spoken of.
    open: VecDeque<bool>,
    /// Mandatory ones that were not spoken of yet, by number: to tell which one came back.
    mandatory: VecDeque<(u64, u64)>,
}

impl Confirms {
    pub(super) fn published(&mut self, fingerprint: Option<u64>) -> u64 {
        self.open.push_back(false);
        let number = self.done_to + self.open.len() as u64;
        if let Some(fingerprint) = fingerprint {
            self.mandatory.push_back((number, fingerprint));
        }
        number
    }

    /// The first and last number meant, if the broker may speak of them.
    pub(super) fn spoken(&mut self, tag: u64, multiple: bool) -> Option<(u64, u64)> {
        // Zero with `multiple` means all there are.
        let tag = if tag == 0 && multiple { self.done_to + self.open.len() as u64 } else { tag };
        let at = usize::try_from(tag.checked_sub(self.done_to + 1)?).ok()?;
        if *self.open.get(at)? {
            return None;
        }
        let first = if multiple { self.done_to + 1 } else { tag };
        let from = if multiple { 0 } else { at };
        self.open.range_mut(from..=at).for_each(|spoken| *spoken = true);
        while self.open.front() == Some(&true) {
            self.open.pop_front();
            self.done_to += 1;
        }
        let open = |number: u64| number > self.done_to && !self.open[(number - self.done_to - 1) as usize];
        self.mandatory.retain(|(number, _)| open(*number));
        Some((first, tag))
    }

    /// Returns the publish that came back: the oldest with the same fingerprint. Two with the same one are routed alike, so it
    /// does not matter which.
    pub(super) fn returned(&mut self, fingerprint: u64) -> Option<u64> {
        let at = self.mandatory.iter().position(|(_, published)| *published == fingerprint)?;
        self.mandatory.remove(at).map(|(number, _)| number)
    }
}

/// What a returned message is known by again. Properties are left out: a broker may write them differently.
pub(super) fn fingerprint(exchange: &str, routing_key: &str, body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (exchange, routing_key, body).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_at_once_leave_out_those_spoken_of_before() {
        let mut confirms = Confirms::default();
        (1..=5).for_each(|number| assert_eq!(confirms.published(None), number));
        assert_eq!(confirms.spoken(3, false), Some((3, 3)));
        assert_eq!(confirms.spoken(2, true), Some((1, 2)));
        assert_eq!(confirms.spoken(3, false), None);
        assert_eq!(confirms.spoken(6, true), None);
        assert_eq!(confirms.spoken(0, true), Some((4, 5)));
        assert_eq!(confirms.published(None), 6);
    }

    #[test]
    fn equal_messages_come_back_oldest_first() {
        let mut confirms = Confirms::default();
        let same = fingerprint("", "gone", b"x");
        confirms.published(Some(same));
        confirms.published(Some(fingerprint("", "gone", b"y")));
        confirms.published(Some(same));
        assert_eq!(confirms.returned(same), Some(1));
        assert_eq!(confirms.returned(same), Some(3));
        assert_eq!(confirms.returned(same), None);
        confirms.spoken(3, true);
        assert_eq!(confirms.returned(fingerprint("", "gone", b"y")), None);
    }
}
