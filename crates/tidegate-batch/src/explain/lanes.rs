//! The files whose pages are asked about, and how many pages of each are in flight at once.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use tidegate_limit::Scope;
use tidegate_pool::Pool;

use super::pictures::{PictureLimit, Pictures};
use crate::concurrency::AutoConcurrency;
use crate::owned::OwnedPool;

/// Pages in memory beyond those in flight, at most: the next wait at the gate, and the last for the disk.
const AHEAD_MAX: u32 = 64;

/// The open files.
pub(super) struct Lanes {
    pub(super) pictures: Rc<PictureLimit>,
    open: RefCell<Vec<Weak<Lane>>>,
    /// The highest cap that any file has had.
    cap_max: Cell<u32>,
}

/// One open file.
pub(super) struct Lane {
    scope: Scope,
    pool: OwnedPool,
    /// The pages that are sent as pictures, if they have a limit of their own.
    pictures: Option<Pictures>,
    /// Pages in flight by the file's size, or as stated.
    own: u32,
    cap: Cell<u32>,
    /// Pages that are not prepared yet.
    left: Cell<u64>,
}

impl Lanes {
    pub(super) fn new(pictures: Rc<PictureLimit>) -> Lanes {
        Lanes { pictures, open: RefCell::default(), cap_max: Cell::default() }
    }

    /// Opens the lane of a file with `pages` pages, of which `own` are in flight at first. Dropped, it is closed and its pages are
    /// cancelled.
    pub(super) fn open(&self, scope: &Scope, own: u32, pages: usize) -> Rc<Lane> {
        let lane = Rc::new(Lane {
            scope: scope.clone(),
            pool: OwnedPool(Pool::new(held(own))),
            pictures: self.pictures.open(),
            own,
            cap: Cell::new(own),
            left: Cell::new(pages as u64),
        });
        self.open.borrow_mut().push(Rc::downgrade(&lane));
        self.cap_max.set(self.cap_max.get().max(own));
        lane
    }

    fn each(&self) -> Vec<Rc<Lane>> {
        let mut open = self.open.borrow_mut();
        open.retain(|lane| lane.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }

    /// Gives each open file its part of what fills the quota.
    pub(super) fn widen(&self, needed: Option<u64>) {
        let lanes = self.each();
        for lane in &lanes {
            lane.resize(AutoConcurrency::pages_of_file(lane.own, needed, lanes.len()));
            self.cap_max.set(self.cap_max.get().max(lane.cap.get()));
        }
    }

    /// Returns the most pages of one file that could be in flight at once, of all files so far.
    pub(super) fn cap_max(&self) -> u32 {
        self.cap_max.get()
    }

    /// Returns how many files are open, and how many of their pages can be in flight together.
    pub(super) fn possible(&self) -> (usize, u64) {
        let lanes = self.each();
        let pages = lanes.iter().map(|lane| (lane.left.get() + lane.running()).min(lane.cap.get().into()));
        (lanes.len(), pages.sum())
    }
}

impl Lane {
    pub(super) fn pool(&self) -> &Pool {
        &self.pool.0
    }

    /// Returns the pages that are sent as pictures, if they have a limit of their own.
    pub(super) fn pictures(&self) -> Option<&Pictures> {
        self.pictures.as_ref()
    }

    fn running(&self) -> u64 {
        self.pool.0.stats().running as u64 + self.pictures.as_ref().map_or(0, Pictures::running)
    }

    /// One more page has been read.
    pub(super) fn prepared(&self) {
        self.left.set(self.left.get().saturating_sub(1));
    }

    fn resize(&self, cap: u32) {
        if self.cap.replace(cap) != cap {
            self.scope.resize(cap.into());
            self.pool.0.resize(held(cap));
        }
    }
}

/// Pages of a file in memory.
fn held(cap: u32) -> usize {
    cap.saturating_add(cap.min(AHEAD_MAX)) as usize
}
