//! The handle of a run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use tidegate_limit::{Admission, Cost, Place};
use tidegate_sync::Event as Signal;

use super::again::{Again, RetryError, Wanted, Wish};
use super::board::Board;
use super::event::{Change, Event, Log};
use super::item::{ItemId, ItemState, Phase};
use super::progress::{FileProgress, FileState, Unit};
use crate::question::Usage;

/// Steers a run and reads how far it is. Clones are the same run.
///
/// Made by `Explain::control` and [`Batch::control`](crate::jsonl::Batch::control). It belongs to the loop's thread.
///
/// | call | what is in flight | what is not |
/// |---|---|---|
/// | [`pause`](Self::pause) | is finished and stored | waits until the run is resumed |
/// | [`finish`](Self::finish) | is finished and stored | is left to the next run |
/// | [`drop_calls`](Self::drop_calls) | is dropped: paid for and lost | is left to the next run |
#[derive(Clone)]
pub struct Control {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) board: RefCell<Board>,
    pub(super) source: RefCell<Option<Source>>,
    log: RefCell<Log>,
    listeners: RefCell<Rc<[Listener]>>,
    /// Notified of every event.
    news: Signal,
    /// Why it stops; set once.
    reason: RefCell<Option<Rc<str>>>,
    gave_up: Cell<bool>,
    stopping: Signal,
    dropping: Signal,
    /// Set while it is paused, and `running` while it is not.
    paused: Signal,
    running: Signal,
    begun: Cell<bool>,
    ended: Cell<bool>,
    /// To be asked again when the run comes to them: chosen before it began.
    chosen: RefCell<BTreeMap<ItemId, Again>>,
    /// To be asked again now.
    wanted: RefCell<Wanted>,
    /// Set while there are items in `wanted`.
    again: Signal,
    /// Returns the name of a settled item that can be asked again.
    retryable: RefCell<Option<Retryable>>,
}

type Retryable = Box<dyn Fn(ItemId) -> Option<Rc<str>>>;

type Listener = Rc<dyn Fn(&Event)>;

/// Where the figures of the gate come from.
pub(super) struct Source {
    pub(super) gate: Admission,
    /// What an item costs at the gate, about.
    pub(super) cost: Box<dyn Fn() -> Cost>,
}

/// How an item ended.
pub(crate) struct Settled {
    pub(crate) state: ItemState,
    pub(crate) usage: Option<Usage>,
}

impl Control {
    pub(crate) fn new(unit: Unit, names: impl Iterator<Item = String>) -> Control {
        let inner = Inner {
            board: RefCell::new(Board::new(unit, names, super::now())),
            source: RefCell::default(),
            log: RefCell::default(),
            listeners: RefCell::new(Rc::new([])),
            news: Signal::new(),
            reason: RefCell::default(),
            gave_up: Cell::new(false),
            stopping: Signal::new(),
            dropping: Signal::new(),
            paused: Signal::new(),
            running: Signal::new(),
            begun: Cell::new(false),
            ended: Cell::new(false),
            chosen: RefCell::default(),
            wanted: RefCell::default(),
            again: Signal::new(),
            retryable: RefCell::default(),
        };
        inner.running.set();
        Control { inner: Rc::new(inner) }
    }

    /// Admits nothing more, waits for what is in flight, and ends the run. Returns `true` if nothing had stopped it before.
    pub fn finish(&self, reason: impl Into<String>) -> bool {
        self.stop(reason.into(), false)
    }

    /// As [`finish`](Self::finish), without waiting for what is in flight: it is paid for and lost.
    pub fn drop_calls(&self, reason: impl Into<String>) {
        self.finish(reason);
        self.inner.dropping.set();
    }

    /// Stops the run because no item would succeed.
    pub(crate) fn give_up(&self, reason: impl Into<String>) {
        self.stop(reason.into(), true);
    }

    fn stop(&self, reason: String, gave_up: bool) -> bool {
        let reason: Rc<str> = reason.into();
        let is_first = self.inner.reason.borrow().is_none() && !self.inner.ended.get();
        if is_first {
            *self.inner.reason.borrow_mut() = Some(Rc::clone(&reason));
            self.inner.gave_up.set(gave_up);
            self.inner.stopping.set();
            // Items that wait for the end of a pause have to see this.
            self.inner.running.set();
            self.emit(Change::Stopping { reason, gave_up });
        }
        is_first
    }

    /// Admits nothing until the run is [resumed](Self::resume); what is in flight is finished and stored. Returns `true` if the
    /// run was not paused.
    pub fn pause(&self) -> bool {
        let was_running = !self.is_paused() && !self.is_stopping() && !self.inner.ended.get();
        if was_running {
            self.inner.running.clear();
            self.inner.paused.set();
            self.emit(Change::Paused);
        }
        was_running
    }

    /// Goes on after a pause. Returns `true` if the run was paused.
    pub fn resume(&self) -> bool {
        let was_paused = self.is_paused();
        if was_paused {
            self.inner.paused.clear();
            self.inner.running.set();
            self.emit(Change::Resumed);
        }
        was_paused
    }

    /// Asks for an item again, whatever is stored: one that is settled, or, before the run begins, any page of its files and any
    /// request that failed in an earlier run. The new answer takes the place of the old one; if there is none, an answer that
    /// there was stays.
    ///
    /// # Errors
    /// [`RetryError`].
    pub fn retry(&self, item: ItemId) -> Result<(), RetryError> {
        self.want(item, Again::Ask)
    }

    /// Takes the answer to a page from the store again, where something else has put another one.
    ///
    /// # Errors
    /// [`RetryError`].
    pub fn reload(&self, item: ItemId) -> Result<(), RetryError> {
        match item {
            ItemId::Page { .. } => self.want(item, Again::Reload),
            ItemId::Request { .. } => Err(RetryError::NotKept),
        }
    }

    fn want(&self, item: ItemId, again: Again) -> Result<(), RetryError> {
        let inner = &*self.inner;
        if inner.ended.get() || self.is_stopping() {
            return Err(RetryError::Ended);
        }
        let phase = inner.board.borrow().phase(item);
        let is_to_come = !inner.begun.get() && inner.board.borrow().may_come(item);
        match phase {
            None if is_to_come => {
                inner.chosen.borrow_mut().insert(item, again);
                Ok(())
            }
            None => Err(RetryError::Unknown),
            Some(phase) if !phase.is_settled() => Err(RetryError::Busy),
            Some(_) => {
                let name = inner.retryable.borrow().as_ref().and_then(|name_of| name_of(item));
                let name = name.ok_or(RetryError::NotKept)?;
                let before = self.item(item).ok_or(RetryError::Unknown)?;
                self.set_item(item, &name, ItemState::Waiting, None, None);
                inner.wanted.borrow_mut().insert(item, Wish { again, name, before });
                inner.again.set();
                Ok(())
            }
        }
    }

    /// Whether the run is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.inner.paused.is_set()
    }

    /// Whether the run stops: it was asked to, or no item would succeed.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.inner.stopping.is_set()
    }

    /// Whether the run has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.inner.ended.get()
    }

    /// Why it stops, if it does.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.inner.reason.borrow().as_deref().map(str::to_owned)
    }

    /// Whether it stops by itself, because no item would succeed.
    pub(crate) fn has_given_up(&self) -> bool {
        self.inner.gave_up.get()
    }

    /// Waits until the run stops.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn stop_asked(&self) {
        let _ = self.inner.stopping.wait().await;
    }

    /// Waits until calls are to be dropped.
    pub(crate) async fn calls_dropped(&self) {
        let _ = self.inner.dropping.wait().await;
    }

    /// Waits until the run is paused.
    pub(crate) async fn pause_asked(&self) {
        let _ = self.inner.paused.wait().await;
    }

    /// Waits until the run is not paused, or stops.
    pub(crate) async fn wait_while_paused(&self) {
        while self.is_paused() && !self.is_stopping() {
            let _ = self.inner.running.wait().await;
        }
    }

    /// `future`'s output, or `None` if the run stops before.
    pub(crate) async fn unless_stopping<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tidegate_loop::race(future, self.stop_asked()).await.left()
    }

    /// Calls `listener` at every event from now on, at once and on the loop's thread. It may call everything here.
    pub fn on_event(&self, listener: impl Fn(&Event) + 'static) {
        let mut listeners = self.inner.listeners.borrow_mut();
        let added: Vec<Listener> = listeners.iter().cloned().chain([Rc::new(listener) as Listener]).collect();
        *listeners = added.into();
    }

    /// The number of the last event; 0 before the first.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.inner.log.borrow().seq()
    }

    /// Returns the events after the one with number `seq`; `None` if they are not kept any more. Then [`progress`](Self::progress)
    /// and [`items`](Self::items) tell where the run is.
    #[must_use]
    pub fn events_after(&self, seq: u64) -> Option<Vec<Event>> {
        self.inner.log.borrow().after(seq)
    }

    /// Waits until there is an event after the one with number `seq`, or the run has ended.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&self, seq: u64) {
        while self.seq() <= seq && !self.is_ended() {
            let _ = self.inner.news.wait().await;
        }
    }

    pub(crate) fn emit(&self, change: Change) {
        let event = self.inner.log.borrow_mut().push(change);
        let listeners = Rc::clone(&self.inner.listeners.borrow());
        listeners.iter().for_each(|listener| listener(&event));
        self.inner.news.notify_all();
    }

    /// The run begins: its figures are those of `gate`.
    pub(crate) fn begin(&self, gate: &Admission, cost: impl Fn() -> Cost + 'static) {
        self.connect(gate, cost);
        self.inner.begun.set(true);
        self.inner.board.borrow_mut().restart(super::now());
    }

    /// Reads the figures of `gate` from now on.
    pub(crate) fn connect(&self, gate: &Admission, cost: impl Fn() -> Cost + 'static) {
        *self.inner.source.borrow_mut() = Some(Source { gate: gate.clone(), cost: Box::new(cost) });
    }

    /// Says that the run has ended when what this returns is dropped, with the run's future.
    pub(crate) fn end_when_dropped(&self) -> impl Drop + use<> {
        End(self.clone())
    }

    /// The run has ended.
    fn end(&self) {
        self.inner.paused.clear();
        self.inner.running.set();
        for (item, wish) in self.take_all_again() {
            self.give_back(item, wish);
        }
        self.inner.retryable.borrow_mut().take();
        self.inner.ended.set(true);
        self.emit(Change::Ended);
    }

    /// `name_of` returns the name of a settled item that can be asked again.
    pub(crate) fn set_retryable(&self, name_of: impl Fn(ItemId) -> Option<Rc<str>> + 'static) {
        *self.inner.retryable.borrow_mut() = Some(Box::new(name_of));
    }

    /// Waits until an item is to be asked again.
    pub(crate) async fn again_asked(&self) {
        let _ = self.inner.again.wait().await;
    }

    /// Returns whether this item was to be asked again when the run comes to it.
    pub(crate) fn take_chosen(&self, item: ItemId) -> Option<Again> {
        self.inner.chosen.borrow_mut().remove(&item)
    }

    /// An item was not asked again: it is as it was.
    pub(crate) fn give_back(&self, item: ItemId, wish: Wish) {
        self.set_item(item, &wish.name, wish.before, None, None);
    }

    /// Takes all items that are to be asked again.
    pub(crate) fn take_all_again(&self) -> Wanted {
        self.inner.again.clear();
        self.inner.wanted.take()
    }

    /// Whether items are to be asked again.
    pub(crate) fn has_again(&self) -> bool {
        !self.inner.wanted.borrow().is_empty()
    }

    pub(crate) fn set_item(
        &self,
        item: ItemId,
        name: &Rc<str>,
        state: ItemState,
        place: Option<Place>,
        usage: Option<Usage>,
    ) {
        self.inner.board.borrow_mut().set(item, &state, place);
        self.emit(Change::Item { item, name: Rc::clone(name), state, usage });
    }

    /// An item is settled.
    pub(crate) fn settle(&self, item: ItemId, name: &Rc<str>, settled: Settled) {
        let Settled { state, usage } = settled;
        if state == ItemState::Done {
            self.inner.board.borrow_mut().answered(usage.unwrap_or_default(), super::now());
        }
        self.set_item(item, name, state, None, usage);
    }

    pub(crate) fn is_blocked(&self, item: ItemId) -> bool {
        self.inner.board.borrow().phase(item) == Some(Phase::Blocked)
    }

    pub(crate) fn tokens(&self) -> Usage {
        self.inner.board.borrow().tokens
    }
}

/// Of files.
impl Control {
    /// The chosen pages of a file are known.
    pub(crate) fn count_pages(&self, file: usize, pages: &[u32]) {
        if self.inner.board.borrow_mut().count_pages(file, pages) {
            self.emit(Change::Counted { file: file as u32, pages: pages.len() as u64 });
        }
    }

    pub(crate) fn is_counted(&self, file: usize) -> bool {
        self.inner.board.borrow().is_counted(file)
    }

    pub(crate) fn uncounted(&self) -> u64 {
        self.inner.board.borrow().uncounted()
    }

    pub(crate) fn file_state(&self, file: usize, state: FileState) {
        self.inner.board.borrow_mut().file_state(file, state);
    }

    /// One more page of a file is in its HTML output.
    pub(crate) fn page_written(&self, file: usize) {
        self.inner.board.borrow_mut().page_written(file);
    }

    pub(crate) fn file(&self, file: usize) -> FileProgress {
        self.inner.board.borrow().file(file)
    }
}

/// Of requests.
impl Control {
    pub(crate) fn count_requests(&self, total: Option<u64>) {
        self.inner.board.borrow_mut().requests.total = total;
    }

    pub(crate) fn all_requests_read(&self) {
        self.inner.board.borrow_mut().requests.all_read = true;
    }

    pub(crate) fn add_request(&self, line: u64) {
        self.inner.board.borrow_mut().add_request(line);
    }

    pub(crate) fn skip_line(&self, line: u64, reason: String) {
        self.inner.board.borrow_mut().lines_skipped += 1;
        self.emit(Change::LineSkipped { line, reason });
    }
}

/// Ends a run for its readers, also one whose future is dropped.
struct End(Control);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("seq", &self.seq())
            .field("paused", &self.is_paused())
            .field("reason", &self.reason())
            .finish_non_exhaustive()
    }
}
