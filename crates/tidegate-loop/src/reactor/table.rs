//! What is registered with the selector: the loop's bell, descriptors with callbacks, and sources. Turns what the
//! selector found into what is due.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::callbacks::{IoCallback, Side, Watched};
use super::describe::Waits;
use super::source::SharedSource;
use crate::kernel::Kernel;
use crate::mailbox::name::Name;
use crate::reactor::selector::{self, Interest, Opened, Readiness, Ready, Selector, SelectorKind, Token};
use crate::reactor::uring::{self, Ring};

/// What became due because a descriptor is ready. Collected while the table is lent and acted on afterwards: wakers and
/// observers are foreign code.
pub(crate) enum Due {
    Task(Name),
    Wake(Waker),
    Call(Rc<IoCallback>),
    /// The kernel has finished with a socket that was dropped: it can be closed.
    Gone(uring::Owner),
}

/// Collects the wake-ups of one selector call. Tasks of this loop go straight to the ready queue (that needs no `IoTable`);
/// foreign wakers and callbacks are deferred to `due` until the table is no longer borrowed. Once something is deferred,
/// everything after it is too, so that events keep their order.
pub(super) struct Sink<'a> {
    pub(super) due: &'a mut Vec<Due>,
    /// `None`: everything is deferred, as while the loop is observed.
    pub(super) kernel: Option<&'a Kernel>,
    pub(super) woken: usize,
}

impl Sink<'_> {
    #[inline]
    pub(super) fn task(&mut self, name: Name) {
        match self.kernel {
            Some(kernel) if self.due.is_empty() && name.loop_id() == kernel.registration.id => {
                kernel.wake(name);
                self.woken += 1;
            }
            _ => self.due.push(Due::Task(name)),
        }
    }
}

pub(crate) struct IoTable {
    selector: Box<dyn Selector>,
    kind: SelectorKind,
    /// Where streams and listeners complete, if the selector is one.
    ring: Option<Rc<Ring>>,
    edge: bool,
    bell: &'static OwnedFd,
    watched: HashMap<RawFd, Watched>,
    sources: Sources,
    ready: Vec<Readiness>,
    /// Descriptors closed by this loop so far.
    closed: u64,
    /// Who found the process out of descriptors, and waits for one to be closed.
    starved: Vec<Waker>,
}

/// Descriptors are small numbers, and sources have the highest bit; this is none of them.
const BELL: Token = Token(1 << 62);

impl IoTable {
    pub(crate) fn new(kind: SelectorKind, bell: &'static OwnedFd) -> io::Result<IoTable> {
        let Opened { mut selector, kind, ring } = selector::open(kind)?;
        let edge = selector.is_edge_triggered();
        selector.register(bell.as_fd(), BELL, Interest { readable: true, writable: false, edge: true })?;
        Ok(IoTable {
            selector,
            kind,
            ring,
            edge,
            bell,
            watched: HashMap::new(),
            sources: Sources::default(),
            ready: Vec::new(),
            closed: 0,
            starved: Vec::new(),
        })
    }

    pub(crate) fn kind(&self) -> SelectorKind {
        self.kind
    }

    pub(crate) fn ring(&self) -> Option<Rc<Ring>> {
        self.ring.clone()
    }

    /// Which task waits at which descriptor now.
    pub(crate) fn waits(&self) -> Waits {
        let mut waits = Waits::default();
        self.sources.all().iter().for_each(|source| waits.add(source));
        waits
    }

    #[inline]
    pub(crate) fn has_watchers(&self) -> bool {
        self.sources.registered > 0 || !self.watched.is_empty() || self.ring.as_ref().is_some_and(|ring| ring.is_busy())
    }

    /// Whether it has to be asked before the loop sleeps. A ring has: it may have something to submit.
    pub(crate) fn is_needed(&self) -> bool {
        self.ring.is_some() || self.has_watchers()
    }

    /// Watches `fd` on one side; a callback that was there before comes back, cancelled.
    pub(super) fn add(
        &mut self,
        fd: BorrowedFd<'_>,
        side: Side,
        callback: Rc<IoCallback>,
    ) -> io::Result<Option<Rc<IoCallback>>> {
        let raw = fd.as_raw_fd();
        let token = Token(raw as u64);
        let known = self.watched.contains_key(&raw);
        let watched = self.watched.entry(raw).or_default();
        let before = watched.side(side).replace(callback);
        let interest = watched.interest();
        let mut registered = if known { self.selector.modify(fd, token, interest) } else { Ok(()) };
        // Known here and not there: the descriptor was closed without a word, and this is its number's next owner.
        let forgotten = registered.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if !known || forgotten {
            registered = self.selector.register(fd, token, interest);
        }
        if let Err(error) = registered {
            let watched = self.watched.get_mut(&raw).expect("entered above");
            *watched.side(side) = before;
            if !known {
                self.watched.remove(&raw);
            }
            return Err(already_used(error, raw));
        }
        if let Some(before) = &before {
            before.cancel();
        }
        Ok(before)
    }

    /// Stops watching one side. The callback comes back cancelled: it does not run even if it is ready already.
    pub(super) fn remove(&mut self, fd: BorrowedFd<'_>, side: Side) -> Option<Rc<IoCallback>> {
        let raw = fd.as_raw_fd();
        let watched = self.watched.get_mut(&raw)?;
        let removed = watched.side(side).take()?;
        removed.cancel();
        let interest = watched.interest();
        // Refused means that the descriptor was closed, and with it the registration.
        let _ = if interest.readable || interest.writable {
            self.selector.modify(fd, Token(raw as u64), interest)
        } else {
            self.watched.remove(&raw);
            self.selector.deregister(fd)
        };
        Some(removed)
    }

    /// Makes sure that a source is watched on that side. Called just before a task waits.
    pub(super) fn arm(&mut self, source: &Rc<SharedSource>, side: u8) -> io::Result<()> {
        let before = source.interest.get();
        let wanted = if self.edge { Ready::READ | Ready::WRITE } else { before | side };
        let registered = if before == 0 {
            let token = self.sources.insert(source);
            let registered = self.selector.register(source.fd(), token, self.interest(wanted));
            if registered.is_err() {
                self.sources.remove(token);
            }
            registered
        } else {
            let token = source.token.get().expect("a source that is watched has a token");
            self.selector.modify(source.fd(), token, self.interest(wanted))
        };
        registered.map_err(|error| already_used(error, source.fd().as_raw_fd()))?;
        source.interest.set(wanted);
        Ok(())
    }

    /// Gives a source to the ring, if there is one: from now on completions wake it, and it is not polled.
    pub(super) fn adopt(&mut self, source: &Rc<SharedSource>) -> Option<(Rc<Ring>, Token)> {
        let ring = self.ring.clone()?;
        self.disarm(source);
        let token = self.sources.insert(source);
        source.interest.set(Ready::READ | Ready::WRITE);
        source.completes.set(true);
        Some((ring, token))
    }

    fn interest(&self, sides: u8) -> Interest {
        Interest { readable: sides & Ready::READ != 0, writable: sides & Ready::WRITE != 0, edge: self.edge }
    }

    /// Stops watching a source, before its descriptor is closed: a copy of it elsewhere must not go on telling.
    pub(super) fn disarm(&mut self, source: &SharedSource) -> Option<Rc<SharedSource>> {
        let token = source.token.get()?;
        if !source.completes.get() {
            // Refused means that other code has closed the descriptor.
            let _ = self.selector.deregister(source.fd());
        }
        self.sources.remove(token)
    }

    /// A source is about to close its descriptor: it is not watched any more, and tasks that had found no free descriptor may try again.
    pub(super) fn closing(&mut self, source: &SharedSource) -> (Option<Rc<SharedSource>>, Vec<Waker>) {
        self.closed += 1;
        (self.disarm(source), std::mem::take(&mut self.starved))
    }

    pub(crate) fn closed(&self) -> u64 {
        self.closed
    }

    /// Wakes `waker` when a descriptor is closed.
    pub(crate) fn wait_for_closing(&mut self, waker: &Waker) {
        if !self.starved.iter().any(|known| known.will_wake(waker)) {
            self.starved.push(waker.clone());
        }
    }

    /// Waits. Tasks that became ready are queued; what else is due is put into `due`. How much there was.
    pub(crate) fn poll(&mut self, timeout: Option<Duration>, kernel: &Kernel, due: &mut Vec<Due>) -> usize {
        self.ready.clear();
        if let Err(error) = self.selector.wait(timeout, &mut self.ready) {
            // The selector is ours and so are its arguments: a refusal is a fault of this program, not of its input.
            panic!("the selector refused to wait: {error}");
        }
        let mut sink = Sink { due, kernel: (!kernel.watch.is_on()).then_some(kernel), woken: 0 };
        for at in 0..self.ready.len() {
            let event = self.ready[at];
            if event.token.0 & SOURCE != 0 {
                self.source_ready(event, &mut sink);
            } else {
                self.descriptor_ready(event, &mut sink);
            }
        }
        let woken = sink.woken;
        if let Some(ring) = &self.ring {
            due.extend(ring.take_gone().into_iter().map(Due::Gone));
        }
        woken + due.len()
    }

    #[inline]
    fn source_ready(&mut self, event: Readiness, sink: &mut Sink<'_>) {
        // A stale token: the source was dropped, and the kernel did not know that yet.
        let Some(source) = self.sources.get(event.token) else { return };
        let unwanted = source.tell(event.ready, sink);
        if unwanted != 0 && !self.edge {
            let source = source.clone();
            self.lose_interest(&source, unwanted);
        }
    }

    /// Level-triggered, a side that no task waits for would be reported by every wait from now on.
    fn lose_interest(&mut self, source: &Rc<SharedSource>, sides: u8) {
        let left = source.interest.get() & !sides;
        let token = source.token.get().expect("a source that is watched has a token");
        // An empty interest would not do: epoll tells of errors and hang-ups all the same.
        let _ = if left == 0 {
            self.sources.remove(token);
            self.selector.deregister(source.fd())
        } else {
            source.interest.set(left);
            self.selector.modify(source.fd(), token, self.interest(left))
        };
    }

    fn descriptor_ready(&self, event: Readiness, sink: &mut Sink<'_>) {
        if event.token == BELL {
            // Watched edge-triggered it need not be read: a ring while the loop is awake costs one early return, not a call.
            if self.kind == SelectorKind::Select {
                let _ = rustix::io::read(self.bell, &mut [0; 8]);
            }
            return;
        }
        let Some(watched) = self.watched.get(&(event.token.0 as RawFd)) else { return };
        let reader = watched.reader.iter().filter(|_| event.ready.has(Ready::READ));
        let writer = watched.writer.iter().filter(|_| event.ready.has(Ready::WRITE));
        sink.due.extend(reader.chain(writer).map(|callback| Due::Call(callback.clone())));
    }

    /// Forgets everything that was watched. What holds foreign code comes back for the caller to drop.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        let sources = self.sources.all();
        let mut due = Vec::new();
        for source in &sources {
            self.disarm(source);
            // A waiter was a task of this loop, which has ended, or a foreign waker, which is dropped.
            source.close(&mut due);
        }
        let starved = std::mem::take(&mut self.starved);
        (sources, std::mem::take(&mut self.watched), due, starved)
    }
}

fn already_used(error: io::Error, fd: RawFd) -> io::Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!(
                "descriptor {fd} is in use on this loop already: by a socket or pipe, or by add_reader or add_writer"
            ),
        ),
        _ => error,
    }
}

/// What a source's token has and no other.
const SOURCE: u64 = 1 << 63;
const INDEX_BITS: u32 = 32;
const GENERATION_MASK: u32 = (1 << (63 - INDEX_BITS)) - 1;

/// The registered sources by token: (generation, slot), so that an event for one that is gone is ignored.
#[derive(Default)]
struct Sources {
    slots: Vec<SourceSlot>,
    free: Vec<u32>,
    registered: usize,
}

#[derive(Default)]
struct SourceSlot {
    /// Grows with every use, so that a token is not used twice.
    generation: u32,
    source: Option<Rc<SharedSource>>,
}

impl Sources {
    fn insert(&mut self, source: &Rc<SharedSource>) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SourceSlot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.source = Some(source.clone());
        self.registered += 1;
        let token = Token(SOURCE | u64::from(slot.generation) << INDEX_BITS | u64::from(index));
        source.token.set(Some(token));
        token
    }

    #[inline]
    fn get(&self, token: Token) -> Option<&Rc<SharedSource>> {
        let slot = self.slots.get(token.0 as u32 as usize)?;
        let generation = (token.0 >> INDEX_BITS) as u32 & GENERATION_MASK;
        slot.source.as_ref().filter(|_| slot.generation == generation)
    }

    fn remove(&mut self, token: Token) -> Option<Rc<SharedSource>> {
        self.get(token)?;
        let index = token.0 as u32;
        let source = self.slots[index as usize].source.take()?;
        source.token.set(None);
        source.interest.set(0);
        self.free.push(index);
        self.registered -= 1;
        Some(source)
    }

    fn all(&self) -> Vec<Rc<SharedSource>> {
        self.slots.iter().filter_map(|slot| slot.source.clone()).collect()
    }
}
