//! Pages that are sent as pictures, where they have a concurrency of their own: how many of a file are in flight at once, and the
//! order of a file's pages when one finds no room. Pages that are sent as text do not wait for them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_limit::{Admission, Snapshot};
use tidegate_loop::LoopHandle;
use tidegate_pool::Pool;
use tidegate_sync::{Permit, Semaphore};

use crate::output::report::LimitReport;
use crate::owned::OwnedPool;
use crate::run::ItemHandle;

/// The limit's name, in the report and for pages that it blocks.
pub(super) const PICTURES_OF_A_FILE: &str = "pictures of a file";

/// The limit on pictures in flight per file, and how long it held pages back; one for a run.
pub(super) struct PictureLimit {
    /// Per file; `None`: pictures count as other pages.
    most: Option<u32>,
    gate: Admission,
    tally: RefCell<Tally>,
}

#[derive(Default)]
struct Tally {
    /// Pages that wait for this limit.
    waiting: u64,
    /// Since when at least one does, and for how long the limits of the gate had blocked by then.
    since: Option<(Instant, Duration)>,
    blocked: u64,
    blocked_for: Duration,
}

impl PictureLimit {
    pub(super) fn new(most: Option<u32>, gate: &Admission) -> Rc<PictureLimit> {
        Rc::new(PictureLimit { most: most.map(|most| most.max(1)), gate: gate.clone(), tally: RefCell::default() })
    }

    /// Opens the pictures of a file; `None` if they count as its other pages.
    pub(super) fn open(self: &Rc<Self>) -> Option<Pictures> {
        let most = self.most? as usize;
        let in_flight = Arc::new(Semaphore::new(most));
        // As many again are ready when one is answered.
        Some(Pictures { pool: OwnedPool(Pool::new(most * 2)), in_flight, limit: Rc::clone(self) })
    }

    /// Returns how far it held the run back: the time during which pictures waited for it, and nothing at the gate for another
    /// limit. `None` without a limit.
    pub(super) fn report(&self) -> Option<LimitReport> {
        let (most, tally) = (self.most?, self.tally.borrow());
        Some(LimitReport {
            name: PICTURES_OF_A_FILE.into(),
            amount: most.into(),
            blocked: tally.blocked,
            blocked_seconds: (tally.blocked_for + self.still_blocked(&tally)).as_secs_f64(),
        })
    }

    fn still_blocked(&self, tally: &Tally) -> Duration {
        let Some((since, by_others)) = tally.since else { return Duration::ZERO };
        let by_others = blocked_for(&self.gate.stats()).saturating_sub(by_others);
        LoopHandle::current().time().saturating_duration_since(since).saturating_sub(by_others)
    }

    fn wait(self: &Rc<Self>) -> Waiting {
        let mut tally = self.tally.borrow_mut();
        tally.blocked += 1;
        tally.waiting += 1;
        if tally.since.is_none() {
            tally.since = Some((LoopHandle::current().time(), blocked_for(&self.gate.stats())));
        }
        Waiting(Rc::clone(self))
    }
}

/// The time during which something at the gate waited, for whichever limit.
fn blocked_for(stats: &Snapshot) -> Duration {
    stats.limits.iter().map(|limit| limit.blocked_for).sum::<Duration>() + stats.blocked_by_scopes_for
}

/// A page waits for the limit.
struct Waiting(Rc<PictureLimit>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut tally = self.0.tally.borrow_mut();
        tally.waiting -= 1;
        if tally.waiting == 0 {
            let time = self.0.still_blocked(&tally);
            tally.blocked_for += time;
            tally.since = None;
        }
    }
}

/// The pictures of one file.
pub(super) struct Pictures {
    pool: OwnedPool,
    in_flight: Arc<Semaphore>,
    limit: Rc<PictureLimit>,
}

/// Admits pictures of one file.
#[derive(Clone)]
pub(super) struct Slots {
    in_flight: Arc<Semaphore>,
    limit: Rc<PictureLimit>,
}

impl Pictures {
    pub(super) fn pool(&self) -> &Pool {
        &self.pool.0
    }

    pub(super) fn slots(&self) -> Slots {
        Slots { in_flight: Arc::clone(&self.in_flight), limit: Rc::clone(&self.limit) }
    }

    pub(super) fn running(&self) -> u64 {
        self.pool.0.stats().running as u64
    }

    /// Returns `true` if one more can be prepared without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.pool.0.stats().running < self.pool.0.cap()
    }
}

impl Slots {
    /// Waits until one more may be in flight; meanwhile `item` is blocked. Held until it is answered.
    pub(super) async fn acquire(&self, item: &ItemHandle) -> Option<Permit<Arc<Semaphore>>> {
        if let Ok(slot) = self.in_flight.try_acquire_owned() {
            return Some(slot);
        }
        let _waiting = self.limit.wait();
        let _blocked = item.block(PICTURES_OF_A_FILE);
        self.in_flight.acquire_owned().await.ok()
    }
}

/// The pages of a file in the order in which they are prepared: as they come, but pictures without room later.
pub(super) struct Order<'a> {
    pages: std::slice::Iter<'a, u32>,
    later: VecDeque<u32>,
}

impl<'a> Order<'a> {
    pub(super) fn new(pages: &'a [u32]) -> Order<'a> {
        Order { pages: pages.iter(), later: VecDeque::new() }
    }

    /// Returns the next page, and whether it may be put off if it turns out to be a picture.
    pub(super) fn next(&mut self, pictures: Option<&Pictures>) -> Option<(u32, bool)> {
        let has_room = pictures.is_none_or(Pictures::has_room);
        if has_room && let Some(page) = self.later.pop_front() {
            return Some((page, false));
        }
        match self.pages.next() {
            Some(page) => Some((*page, !has_room)),
            None => self.later.pop_front().map(|page| (page, false)),
        }
    }

    pub(super) fn put_off(&mut self, page: u32) {
        self.later.push_back(page);
    }
}
