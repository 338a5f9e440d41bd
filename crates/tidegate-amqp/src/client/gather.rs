//! Whether a reader of a flood is better off waiting until more of it has come. Each visit to the kernel costs the same for
//! one message as for a hundred, and so does each wake-up; but who waits for what will never come wastes time.

/// So many bytes are worth a visit: some dozens of small messages.
pub(super) const MARK_BYTES: u32 = 16 * 1024;

/// A read that brings fewer is no flood.
const FLOOD_BYTES: usize = 2 * 1024;

/// What a read has brought, and what may still come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) bytes: usize,
    pub(super) deliveries: u64,
    /// The broker may send so many more before it is told of what is settled.
    pub(super) room: usize,
}

impl Reading {
    /// Whether the next is worth waiting for: it floods, and the broker may send twice as much as would be waited for.
    pub(super) fn is_flood(self) -> bool {
        let each = self.bytes / usize::try_from(self.deliveries).unwrap_or(usize::MAX).max(1);
        self.bytes >= FLOOD_BYTES && self.room.saturating_mul(each) >= 2 * MARK_BYTES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_flood_is_waited_for_and_only_if_it_can_go_on() {
        let flood = Reading { bytes: 5_000, deliveries: 20, room: 900 };
        assert!(flood.is_flood());
        assert!(!Reading { bytes: 250, deliveries: 1, ..flood }.is_flood(), "a message now and then");
        assert!(!Reading { room: 100, ..flood }.is_flood(), "the prefetch ends before the mark is reached");
        assert!(!Reading { room: 0, ..flood }.is_flood());
        assert!(Reading { room: usize::MAX, ..flood }.is_flood(), "no prefetch");
        assert!(Reading { bytes: 65_536, deliveries: 0, room: 1 }.is_flood(), "a part of a long message");
    }
}
