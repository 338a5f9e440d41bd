//! Whether a reader of a flood is better off waiting until more of it has come. Each visit to the kernel costs the same for
//! one message as for a hundred, and so does each wake-up; but who waits for what will never come wastes time.

/// So many bytes are worth a visit: some dozens of small messages.
pub(super) const MARK_BYTES: u32 = 16 * 1024;

/// A read that brings fewer messages is no flood; long ones fill a read each, and have nothing to gather for.
const FLOOD: usize = 8;

/// What a read has brought, and what may still come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) bytes: usize,
    pub(super) deliveries: usize,
    /// The broker may send so many more before it is told of what is settled.
    pub(super) room: usize,
    /// How many it may send to somebody who has settled everything.
    pub(super) prefetch: usize,
}

impl Reading {
    /// Whether the next is worth waiting for: it floods, the broker may send twice as much as would be waited for, and what
    /// came is mostly settled: somebody who works on it for longer may be in want of it now.
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
