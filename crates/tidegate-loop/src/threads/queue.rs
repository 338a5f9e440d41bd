//! The line of jobs that no thread has taken yet: first come, first served; one whose awaiter is gone is taken out from
//! wherever it stands.

use std::collections::VecDeque;

use super::job::{JobName, Work};

/// Empty places are cleared away when there are more of them than this and than of the others.
const EMPTY_MAX: usize = 64;

pub(super) struct Queue {
    /// In the order of their ids. A place is empty when its job was taken out.
    places: VecDeque<QueuePlace>,
    jobs: usize,
    next_id: u64,
}

struct QueuePlace {
    id: u64,
    job: Option<Queued>,
}

pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) name: JobName,
    pub(super) work: Box<dyn Work>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { places: VecDeque::new(), jobs: 0, next_id: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs
    }

    pub(super) fn push(&mut self, name: JobName, work: Box<dyn Work>) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.places.push_back(QueuePlace { id, job: Some(Queued { id, name, work }) });
        self.jobs += 1;
        id
    }

    /// The first in line.
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let job = std::iter::from_fn(|| self.places.pop_front()).find_map(|place| place.job)?;
        self.jobs -= 1;
        Some(job)
    }

    /// Takes a job out; `None` if it is not in line any more.
    pub(super) fn remove(&mut self, id: u64) -> Option<Queued> {
        let at = self.places.binary_search_by_key(&id, |place| place.id).ok()?;
        let job = self.places[at].job.take()?;
        self.jobs -= 1;
        let empty = self.places.len() - self.jobs;
        if empty > EMPTY_MAX && empty > self.jobs {
            self.places.retain(|place| place.job.is_some());
        }
        Some(job)
    }

    /// Everything that is in line, in order.
    pub(super) fn take(&mut self) -> Vec<Queued> {
        self.jobs = 0;
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.job).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Work for Nothing {
        fn run(&mut self) -> bool {
            false
        }

        fn fail(&mut self, _: super::super::job::JobError) {}
    }

    fn push(queue: &mut Queue) -> u64 {
        queue.push(JobName::here(None, std::panic::Location::caller()), Box::new(Nothing))
    }

    #[test]
    fn the_first_in_line_that_is_still_there_comes_first() {
        let mut queue = Queue::new();
        let ids: Vec<u64> = (0..5).map(|_| push(&mut queue)).collect();
        assert!(queue.remove(ids[0]).is_some() && queue.remove(ids[2]).is_some());
        assert!(queue.remove(ids[2]).is_none(), "it was taken out already");
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.pop().unwrap().id, ids[1]);
        assert!(queue.remove(ids[1]).is_none(), "it was popped");
        assert_eq!(queue.take().iter().map(|job| job.id).collect::<Vec<_>>(), ids[3..]);
        assert_eq!((queue.len(), queue.pop().is_none()), (0, true));
    }

    #[test]
    fn places_that_were_left_do_not_pile_up() {
        let mut queue = Queue::new();
        let stays = push(&mut queue);
        for _ in 0..10_000 {
            let id = push(&mut queue);
            queue.remove(id).unwrap();
            assert!(queue.places.len() <= 2 * (EMPTY_MAX + 1));
        }
        assert_eq!(queue.pop().unwrap().id, stays);
    }
}
