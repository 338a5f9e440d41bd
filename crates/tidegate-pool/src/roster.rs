//! The running tasks, each with its canceller.

/// A task's entry in the roster. Stale keys are recognised, because a task may end before its canceller is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RosterKey {
    at: u32,
    age: u32,
}

const NONE: u32 = u32::MAX;

pub(crate) struct Roster<C> {
    entries: Vec<RosterEntry<C>>,
    vacant: u32,
}

struct RosterEntry<C> {
    /// Number of tasks that have had this entry before. A key with another age has outlived its task.
    age: u32,
    next_vacant: u32,
    canceller: Option<C>,
}

impl<C> Roster<C> {
    pub(crate) const fn new() -> Roster<C> {
        Roster { entries: Vec::new(), vacant: NONE }
    }

    #[inline]
    pub(crate) fn enter(&mut self) -> RosterKey {
        match self.vacant {
            NONE => {
                let at = u32::try_from(self.entries.len()).expect("fewer than 4 billion tasks run");
                self.entries.push(RosterEntry { age: 0, next_vacant: NONE, canceller: None });
                RosterKey { at, age: 0 }
            }
            at => {
                let entry = &mut self.entries[at as usize];
                self.vacant = entry.next_vacant;
                RosterKey { at, age: entry.age }
            }
        }
    }

    /// Stores the canceller. Returns it if the task has ended already.
    #[inline]
    pub(crate) fn file(&mut self, key: RosterKey, canceller: C) -> Option<C> {
        let entry = &mut self.entries[key.at as usize];
        if entry.age == key.age { entry.canceller.replace(canceller) } else { Some(canceller) }
    }

    #[inline]
    pub(crate) fn strike(&mut self, key: RosterKey) -> Option<C> {
        let entry = &mut self.entries[key.at as usize];
        debug_assert_eq!(entry.age, key.age, "a task ends once");
        entry.age = entry.age.wrapping_add(1);
        entry.next_vacant = self.vacant;
        self.vacant = key.at;
        entry.canceller.take()
    }

    pub(crate) fn cancellers(&self) -> impl Iterator<Item = &C> {
        self.entries.iter().filter_map(|entry| entry.canceller.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceller_filed_after_the_end_comes_back_and_cancels_no_other_task() {
        let mut roster = Roster::new();
        let gone = roster.enter();
        assert_eq!(roster.strike(gone), None);
        let next = roster.enter();
        assert_eq!(roster.file(gone, "late"), Some("late"));
        assert_eq!(roster.file(next, "next"), None);
        assert_eq!(roster.cancellers().copied().collect::<Vec<_>>(), ["next"]);
        assert_eq!(roster.strike(next), Some("next"));
    }

    #[test]
    fn entries_are_used_again() {
        let mut roster = Roster::<()>::new();
        for _ in 0..10 {
            let keys = [roster.enter(), roster.enter()];
            for key in keys {
                roster.strike(key);
            }
        }
        assert_eq!(roster.entries.len(), 2);
    }
}
