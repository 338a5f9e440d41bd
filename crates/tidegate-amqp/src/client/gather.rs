//! Decides whether a reader of many small messages should wait for more of them. A system call and a wake-up cost the same
//! for one message as for a hundred, but waiting for messages that never come wastes time.

/// Bytes that are worth a system call: some dozens of small messages.
pub(super) const MARK_BYTES: u32 = 16 * 1024;

/// A read that brings fewer messages is no flood; long ones fill a read each, and have nothing to gather for.
const FLOOD: usize = 8;

/// What a read has brought, and what may still come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) bytes: usize,
    pub(super) deliveries: usize,
    /// How many more messages the broker may send before it receives the settlements.
    pub(super) room: usize,
    /// How many messages the broker may send if everything is settled.
    pub(super) prefetch: usize,
}

impl Reading {
    /// Returns `true` if waiting for more is worth it: messages arrive in numbers, the broker may send twice as many as would be
    /// waited for, and most of those received are settled. Otherwise the worker is slow and may need the next one now.
    pub(super) fn is_flood(self) -> bool {
        if self.deliveries < FLOOD {
            return false;
        }
        let to_come = self.room.saturating_mul(self.bytes / self.deliveries);
        to_come >= 2 * MARK_BYTES as usize && self.room >= self.prefetch / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_flood_is_waited_for_and_only_if_it_can_go_on() {
        let flood = Reading { bytes: 5_000, deliveries: 20, room: 900, prefetch: 1_000 };
        assert!(flood.is_flood());
        assert!(!Reading { bytes: 250, deliveries: 1, ..flood }.is_flood(), "a message now and then");
        let small = Reading { room: 100, prefetch: 100, ..flood };
        assert!(!small.is_flood(), "the prefetch ends before the mark is reached");
        assert!(!Reading { room: 0, ..flood }.is_flood());
        assert!(!Reading { room: 300, ..flood }.is_flood(), "most of what came is being worked on");
        assert!(Reading { room: usize::MAX, prefetch: usize::MAX, ..flood }.is_flood(), "no prefetch");
        let part = Reading { bytes: 65_536, deliveries: 0, room: 1, prefetch: 1 };
        assert!(!part.is_flood(), "a part of a long message, whose end is waited for");
    }
}
