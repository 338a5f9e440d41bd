//! The tasks that are running, each with what it takes to cancel it.

/// A task's place on the roster. Stale keys are recognised: a task may end before its canceller is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    at: u32,
    age: u32,
}

const NONE: u32 = u32::MAX;

pub(crate) struct Roster<C> {
    entries: Vec<Entry<C>>,
    vacant: u32,
}

struct Entry<C> {
    /// How many tasks have had this entry; tells a key that outlived its task.
    age: u32,
    next_vacant: u32,
    canceller: Option<C>,
}

impl<C> Roster<C> {
    pub(crate) const fn new() -> Roster<C> {
        Roster { entries: Vec::new(), vacant: NONE }
    }

    #[inline]
    pub(crate) fn enter(&mut self) -> Key {
        match self.vacant {
            NONE => {
                let at = u32::try_from(self.entries.len()).expect("fewer than 4 billion tasks run");
                self.entries.push(Entry { age: 0, next_vacant: NONE, canceller: None });
                Key { at, age: 0 }
            }
            at => {
                let entry = &mut self.entries[at as usize];
                self.vacant = entry.next_vacant;
                Key { at, age: entry.age }
            }
        }
    }

    /// Files the canceller, or gives it back if the task has ended already.
    #[inline]
    pub(crate) fn file(&mut self, key: Key, canceller: C) -> Option<C> {
        let entry = &mut self.entries[key.at as usize];
        if entry.age == key.age { entry.canceller.replace(canceller) } else { Some(canceller) }
    }

    #[inline]
    pub(crate) fn strike(&mut self, key: Key) -> Option<C> {
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
    fn a_canceller_filed_after_the_end_comes_back_and_harms_nobody() {
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
