//! Live pages: topics whose parts change, sent to browsers as server-sent events.
//!
//! A topic is a function that returns its [`Values`]. While at least one browser listens to it, the hub calls it four times
//! a second, encodes what has changed once, and hands the same bytes to every listener. Without a listener nothing runs.
//! A browser that reconnects with the id of its last event gets what it missed, or everything if that is no longer kept.
//!
//! `values.rs` is what a topic returns, `stream.rs` the body of a response, this file the hub between them.

mod stream;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tidegate_loop::{LoopHandle, Task, sleep};

pub(crate) use stream::Stream;
pub use values::Values;

/// The time between two updates.
const PERIOD: Duration = Duration::from_millis(250);

/// A beat is sent once per this many updates. A page that receives nothing for five seconds treats its connection as lost.
const BEAT_EVERY: u64 = 4;

/// Updates that a topic keeps for those who reconnect or are slow.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 512 << 10;

/// Topics that one page can listen to.
const TOPICS_MAX: usize = 8;

/// Returns the current content of a topic.
pub type Source = Rc<dyn Fn() -> Values>;

/// Returns the source of one topic of a family, such as `job/17`, if there is one.
pub type Family = Rc<dyn Fn(&str) -> Option<Source>>;

/// The topics, and the browsers that listen to them.
pub(crate) struct Hub {
    sources: RefCell<HashMap<String, Source>>,
    families: RefCell<Vec<(String, Family)>>,
    /// Those with listeners.
    topics: RefCell<BTreeMap<String, Rc<Topic>>>,
    /// First part of each event id; differs between processes.
    epoch: String,
    /// The number of the last update of any topic.
    last: Cell<u64>,
    ticks: Cell<u64>,
    beat: RefCell<(u64, Bytes)>,
    listeners: Cell<usize>,
    next_listener: Cell<u64>,
    waiting: RefCell<HashMap<u64, Waker>>,
    ticker: RefCell<Option<Task>>,
    closed: Cell<bool>,
}

/// A topic with at least one listener.
struct Topic {
    source: Source,
    listeners: Cell<usize>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    values: Values,
    /// Updates, oldest first, with their numbers.
    kept: VecDeque<(u64, Bytes)>,
    kept_bytes: usize,
    /// Every update with a greater number is in `kept`.
    floor: u64,
    /// The number of the last update, and everything as of then.
    last: u64,
    whole: Option<(u64, Bytes)>,
}

impl Hub {
    pub(crate) fn new() -> Rc<Hub> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Rc::new(Hub {
            sources: RefCell::default(),
            families: RefCell::default(),
            topics: RefCell::default(),
            epoch: format!("{:x}", since.as_nanos()),
            last: Cell::new(0),
            ticks: Cell::new(0),
            beat: RefCell::default(),
            listeners: Cell::new(0),
            next_listener: Cell::new(0),
            waiting: RefCell::default(),
            ticker: RefCell::default(),
            closed: Cell::new(false),
        })
    }

    pub(crate) fn add(&self, name: String, source: Source) {
        self.sources.borrow_mut().insert(name, source);
    }

    pub(crate) fn add_family(&self, prefix: String, family: Family) {
        self.families.borrow_mut().push((prefix, family));
    }

    /// How many browsers listen.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.get()
    }

    /// A stream of the topics in `names` (separated by commas) from the event of this id on. `None` if there is no such
    /// topic.
    pub(crate) fn listen(self: &Rc<Self>, names: &str, last_event_id: Option<&str>) -> Option<Stream> {
        let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).take(TOPICS_MAX).collect();
        let sources: Option<Vec<(&str, Source)>> = names.iter().map(|name| Some((*name, self.find(name)?))).collect();
        let cursor = last_event_id.and_then(|id| {
            let (epoch, number) = id.split_once('.')?;
            number.parse().ok().filter(|number| epoch == self.epoch && *number <= self.last.get())
        });
        let topics = sources?.into_iter().map(|(name, source)| self.open(name, source)).collect();
        let stream = Stream::new(Rc::clone(self), topics, cursor);
        self.listeners.set(self.listeners.get() + 1);
        self.run();
        Some(stream)
    }

    fn find(&self, name: &str) -> Option<Source> {
        if let Some(source) = self.sources.borrow().get(name) {
            return Some(Rc::clone(source));
        }
        let families = self.families.borrow().clone();
        families.iter().find_map(|(prefix, family)| family(name.strip_prefix(prefix)?.strip_prefix('/')?))
    }

    fn open(&self, name: &str, source: Source) -> (String, Rc<Topic>) {
        let open = self.topics.borrow().get(name).cloned();
        let topic = open.unwrap_or_else(|| {
            // A number of its own: what changed while the topic was closed has none, so every earlier id is too old.
            let number = self.last.get() + 1;
            self.last.set(number);
            let state = State { values: source(), floor: number, last: number, ..State::default() };
            let topic = Rc::new(Topic { source, listeners: Cell::new(0), state: RefCell::new(state) });
            self.topics.borrow_mut().insert(name.to_owned(), Rc::clone(&topic));
            topic
        });
        topic.listeners.set(topic.listeners.get() + 1);
        (name.to_owned(), topic)
    }

    fn leave(&self, listener: u64, topics: &[(String, Rc<Topic>)]) {
        self.waiting.borrow_mut().remove(&listener);
        for (name, topic) in topics {
            topic.listeners.set(topic.listeners.get() - 1);
            if topic.listeners.get() == 0 {
                self.topics.borrow_mut().remove(name);
            }
        }
        self.listeners.set(self.listeners.get() - 1);
        if self.listeners.get() == 0
            && let Some(ticker) = self.ticker.borrow_mut().take()
        {
            ticker.cancel();
        }
    }

    /// Ends all streams, now and later.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    fn run(self: &Rc<Self>) {
        if self.ticker.borrow().is_some() || self.closed.get() {
            return;
        }
        let hub = Rc::downgrade(self);
        let ticker = LoopHandle::current().task().name("live pages").spawn(async move {
            loop {
                sleep(PERIOD).await;
                let Some(hub) = hub.upgrade() else { return };
                hub.tick();
            }
        });
        *self.ticker.borrow_mut() = Some(ticker.task());
    }

    /// Asks each topic once, encodes what has changed, and wakes the listeners if there is something to send.
    fn tick(&self) {
        self.ticks.set(self.ticks.get() + 1);
        let topics: Vec<Rc<Topic>> = self.topics.borrow().values().cloned().collect();
        let mut is_news = false;
        for topic in topics {
            let values = (topic.source)();
            let mut state = topic.state.borrow_mut();
            let Some(json) = values.json_since(&state.values) else { continue };
            state.values = values;
            let number = self.last.get() + 1;
            self.last.set(number);
            state.keep(number, Bytes::from(format!("id: {}.{number}\nevent: patch\ndata: {json}\n\n", self.epoch)));
            is_news = true;
        }
        if self.ticks.get().is_multiple_of(BEAT_EVERY) {
            let now = crate::format::millis(SystemTime::now());
            *self.beat.borrow_mut() = (self.ticks.get(), Bytes::from(format!("event: beat\ndata: {now}\n\n")));
            is_news = true;
        }
        if is_news {
            self.wake();
        }
    }

    fn wake(&self) {
        let waiting: Vec<Waker> = self.waiting.borrow_mut().drain().map(|(_, waker)| waker).collect();
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn keep(&mut self, number: u64, update: Bytes) {
        self.last = number;
        self.kept_bytes += update.len();
        self.kept.push_back((number, update));
        while self.kept.len() > KEPT_MAX || (self.kept_bytes > KEPT_BYTES_MAX && self.kept.len() > 1) {
            let Some((number, update)) = self.kept.pop_front() else { break };
            self.kept_bytes -= update.len();
            self.floor = number;
        }
    }

    /// The first update after `cursor`.
    fn after(&self, cursor: u64) -> Option<&(u64, Bytes)> {
        self.kept.get(self.kept.partition_point(|(number, _)| *number <= cursor))
    }

    /// Everything, encoded once until the next update. Without an id: only the last of several topics may have one.
    fn whole(&mut self) -> Bytes {
        if let Some((number, bytes)) = &self.whole
            && *number == self.last
        {
            return bytes.clone();
        }
        let bytes = Bytes::from(format!("event: patch\ndata: {}\n\n", self.values.to_json()));
        self.whole = Some((self.last, bytes.clone()));
        bytes
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("listeners", &self.listeners).field("last", &self.last).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
