//! The tasks of a dump, alike ones together.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_loop::trace::place;
use tidegate_loop::{TaskDump, TaskState};

/// What tasks of a group do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Running,
    Ready,
    Waiting,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Ready => "ready",
            State::Waiting => "waiting",
        }
    }
}

/// Tasks of one place that wait for the same, or one task.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) waits_for: String,
    /// The longest of them.
    pub(super) since: Duration,
    pub(super) count: u64,
    pub(super) cancelling: bool,
    pub(super) place: String,
}

/// A name without the number at its end: `Task-17` and `Task-18` are alike, so are `page 3` and `page 4`.
pub(super) fn common_name(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['-', ' ', '#', ':']);
    if stem.is_empty() { name } else { stem }
}

/// The tasks, each on its own or alike ones together; the largest groups first, tasks in their order.
pub(super) fn group(dump: &TaskDump, together: bool) -> Vec<Group> {
    let each = dump.tasks().iter().map(|task| {
        let (state, waits_for) = match &task.state {
            TaskState::Running => (State::Running, String::new()),
            TaskState::Ready => (State::Ready, "runs in the next tick".to_owned()),
            TaskState::Waiting(on) => (State::Waiting, on.to_string()),
            other => (State::Waiting, other.to_string()),
        };
        Group {
            name: if together { common_name(&task.name).to_owned() } else { task.name.to_string() },
            state,
            waits_for,
            since: task.waited,
            count: 1,
            cancelling: task.cancelling > 0,
            place: place(task.location),
        }
    });
    if !together {
        return each.collect();
    }
    let mut groups: BTreeMap<(String, String, State, bool, String), Group> = BTreeMap::new();
    for one in each {
        // Tasks differ in the numbers of what they wait for: descriptors, other tasks, ports.
        let waits_for: String = one.waits_for.chars().filter(|c| !c.is_ascii_digit()).collect();
        let key = (one.name.clone(), one.place.clone(), one.state, one.cancelling, waits_for);
        match groups.get_mut(&key) {
            Some(group) => {
                group.count += 1;
                if one.since > group.since {
                    (group.since, group.waits_for) = (one.since, one.waits_for);
                }
            }
            None => {
                groups.insert(key, one);
            }
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

#[cfg(test)]
mod tests {
    use tidegate_loop::{EventLoop, LoopHandle, sleep, spawn, yield_now};

    use super::*;

    #[test]
    fn tasks_of_one_place_that_wait_for_the_same_are_one_row() {
        EventLoop::simulated(1)
            .run_until_complete(async {
                let _many: Vec<_> = (0..5).map(|_| spawn(sleep(Duration::from_secs(60)))).collect();
                let _other = LoopHandle::current().task().name("keeper").spawn(sleep(Duration::from_secs(60)));
                // The order within a tick is drawn; after the second, every task has taken its first step.
                yield_now().await;
                yield_now().await;
                let dump = LoopHandle::current().dump();
                let groups = group(&dump, true);
                let rows: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.count, group.state)).collect();
                assert_eq!(rows.len(), 3, "{rows:?}");
                assert_eq!(rows[0], ("Task", 5, State::Waiting));
                assert!(rows.contains(&("keeper", 1, State::Waiting)));
                assert_eq!(group(&dump, false).len(), 7);
            })
            .unwrap();
    }

    #[test]
    fn a_name_is_common_without_its_number() {
        for (name, common) in [("Task-17", "Task"), ("page 3", "page"), ("reader", "reader"), ("17", "17")] {
            assert_eq!(common_name(name), common);
        }
    }
}
