//! The space that uploads share: an upload reserves what it may store before it is read, so that many at once do not store more
//! than one after the other.

use std::cell::Cell;
use std::rc::Rc;

/// What uploads have reserved and stored.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Reserved by uploads that are being received, or not yet part of a job.
    reserved: Cell<u64>,
    /// Moved to jobs so far.
    kept: Cell<u64>,
}

/// A measurement of the disk that is being made.
#[derive(Debug)]
pub(crate) struct Measuring {
    space: Rc<Space>,
    /// Moved to jobs before it began.
    kept: u64,
}

impl Measuring {
    pub(crate) fn begin(space: &Rc<Space>) -> Measuring {
        Measuring { space: Rc::clone(space), kept: space.kept.get() }
    }

    /// A reservation of nothing yet. `used` is what was found on the disk beside incomplete uploads, `max` what may be there.
    pub(crate) fn ended(self, used: u64, max: u64) -> Reservation {
        Reservation { space: self.space, free: max.saturating_sub(used), kept: self.kept, bytes: 0 }
    }
}

/// Space that an upload may use; returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    space: Rc<Space>,
    /// What was free when the disk was measured, reservations aside.
    free: u64,
    /// Moved to jobs before the disk was measured. The measurement may have missed what came later.
    kept: u64,
    bytes: u64,
}

impl Reservation {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more. Returns `false`, and reserves nothing, if there is less.
    pub(crate) fn extend(&mut self, bytes: u64) -> bool {
        let kept_since = self.space.kept.get() - self.kept;
        let reserved = self.space.reserved.get();
        if kept_since.saturating_add(reserved).saturating_add(bytes) > self.free {
            return false;
        }
        self.space.reserved.set(reserved + bytes);
        self.bytes += bytes;
        true
    }

    /// Returns all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.space.reserved.set(self.space.reserved.get() - rest);
        self.bytes -= rest;
    }

    /// Moves `bytes` of it to a job: from now on measurements of the disk find them.
    pub(crate) fn keep(&mut self, bytes: u64) {
        self.shrink_to(self.bytes.saturating_sub(bytes));
        self.space.kept.set(self.space.kept.get() + bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_share_the_space_and_return_it() {
        let space = Rc::new(Space::default());
        let begin = || Measuring::begin(&space);
        let mut first = begin().ended(20, 100);
        let mut second = begin().ended(20, 100);
        assert!(first.extend(50) && !second.extend(31) && second.extend(30));
        assert!(!first.extend(1));
        second.shrink_to(10);
        assert!(first.extend(20) && !first.extend(1));
        drop(first);
        assert!(second.extend(70) && !second.extend(1));
        assert_eq!(second.bytes(), 80);
    }

    #[test]
    fn what_is_kept_while_the_disk_is_measured_counts_once_it_may_have_been_missed() {
        let space = Rc::new(Space::default());
        let mut first = Measuring::begin(&space).ended(0, 100);
        assert!(first.extend(60));
        let measuring = Measuring::begin(&space);
        first.keep(60);
        drop(first);
        let mut missed = measuring.ended(0, 100);
        assert!(!missed.extend(41) && missed.extend(40));
        let mut found = Measuring::begin(&space).ended(60, 100);
        assert!(!found.extend(1));
        drop(missed);
        assert!(found.extend(40));
    }
}
