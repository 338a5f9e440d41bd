//! What a connection and its driver have in common. Wakers are only called once nothing is borrowed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::connection::Incoming;
use super::error::{Error, PublishError};
use crate::message::Returned;
use crate::session::{Closed, Event, Refusal, Reply, Session};

/// A value that arrives once, for one waiter.
pub(super) struct Slot<T>(Rc<RefCell<SlotState<T>>>);

struct SlotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Slot(self.0.clone())
    }
}

impl<T> Slot<T> {
    pub(super) fn new() -> Slot<T> {
        Slot(Rc::new(RefCell::new(SlotState { value: None, waker: None })))
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                keep(&mut state.waker, cx);
                Poll::Pending
            }
        }
    }

    fn fill(&self, value: T, wakes: &mut Vec<Waker>) {
        let mut state = self.0.borrow_mut();
        state.value = Some(value);
        wakes.extend(state.waker.take());
    }
}

fn keep(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

pub(super) type Confirmation = Result<(), PublishError>;

type Answer = Slot<Result<Reply, Error>>;

pub(super) struct Shared {
    pub(super) inner: RefCell<Inner>,
    driver: RefCell<Option<Waker>>,
    /// The connection was dropped, or its loop ends: the driver closes it. Never cleared.
    pub(super) abandoned: Cell<bool>,
    /// `host/vhost`, for errors.
    pub(super) place: String,
}

pub(super) struct Inner {
    pub(super) session: Session,
    pub(super) inbox: Vec<Incoming>,
    receiver: Option<Waker>,
    /// Outstanding requests, oldest first, with what each asked for.
    requests: VecDeque<(u64, String, Answer)>,
    /// Waits for the channel: after opening, and after it was closed by a refusal.
    opened: Vec<Slot<Result<(), Error>>>,
    /// Published and not confirmed, by number; the first has number `confirmed_to + 1`.
    publishing: VecDeque<Option<Slot<Confirmation>>>,
    confirmed_to: u64,
    returned: Vec<(u64, Returned)>,
    pub(super) blocked: bool,
    /// Wait until there is room to publish.
    room: Vec<Waker>,
    pub(super) end: Option<Closed>,
    /// Wait for the end.
    enders: Vec<Waker>,
    pub(super) delivered: u64,
    pub(super) published: u64,
    pub(super) confirmed: u64,
}

/// Room for this many in the next inbox at most, whatever the last one had.
const INBOX_START_MAX: usize = 256;

/// More than this waiting to be sent, and publishers wait.
const OUT_BYTES_HIGH: usize = 1 << 20;

impl Shared {
    pub(super) fn new(session: Session, place: String) -> Shared {
        let inner = Inner {
            session,
            inbox: Vec::new(),
            receiver: None,
            requests: VecDeque::new(),
            opened: Vec::new(),
            publishing: VecDeque::new(),
            confirmed_to: 0,
            returned: Vec::new(),
            blocked: false,
            room: Vec::new(),
            end: None,
            enders: Vec::new(),
            delivered: 0,
            published: 0,
            confirmed: 0,
        };
        Shared { inner: RefCell::new(inner), driver: RefCell::new(None), abandoned: Cell::new(false), place }
    }

    /// There is something to send.
    pub(super) fn nudge(&self) {
        let driver = self.driver.borrow_mut().take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    pub(super) fn keep_driver(&self, cx: &Context<'_>) {
        keep(&mut self.driver.borrow_mut(), cx);
    }

    /// Lets `f` at the session, hands out what happened and wakes whom it concerns.
    pub(super) fn with_session<T>(&self, f: impl FnOnce(&mut Session) -> T) -> T {
        let mut wakes = Vec::new();
        let result = {
            let mut inner = self.inner.borrow_mut();
            let result = f(&mut inner.session);
            inner.hand_out(&self.place, &mut wakes);
            result
        };
        wakes.into_iter().for_each(Waker::wake);
        result
    }
}

impl Inner {
    fn hand_out(&mut self, place: &str, wakes: &mut Vec<Waker>) {
        let before = self.inbox.len();
        while let Some(event) = self.session.poll_event() {
            self.hear(event, place, wakes);
        }
        if self.inbox.len() > before {
            wakes.extend(self.receiver.take());
        }
        if self.has_room() {
            wakes.append(&mut self.room);
        }
    }

    fn hear(&mut self, event: Event, place: &str, wakes: &mut Vec<Waker>) {
        match event {
            Event::Delivery(delivery) => {
                self.delivered += 1;
                self.inbox.push(Incoming::Delivery(delivery));
            }
            Event::Confirmed { first, last, acked } => self.confirm(first, last, acked, wakes),
            Event::Reply { request, reply } => {
                // Mostly the first one; answers about consumers may be late.
                let at = self.requests.iter().position(|(number, ..)| *number == request);
                let asked = at.and_then(|at| self.requests.remove(at));
                let (_, _, slot) = asked.expect("the session answers what was asked");
                slot.fill(Ok(reply), wakes);
            }
            Event::Open { epoch } => {
                self.confirmed_to = 0;
                self.opened.drain(..).for_each(|slot| slot.fill(Ok(()), wakes));
                if epoch > 1 {
                    self.inbox.push(Incoming::Reopened { epoch });
                }
            }
            Event::Returned { number: Some(number), returned } => self.returned.push((number, returned)),
            Event::Returned { number: None, returned } => self.inbox.push(Incoming::Returned(returned)),
            Event::Oversized { tag, consumer, bytes } => {
                self.inbox.push(Incoming::Oversized { tag, consumer, bytes });
            }
            Event::ConsumerCancelled { consumer } => self.inbox.push(Incoming::ConsumerCancelled { consumer }),
            Event::Blocked { reason } => {
                tracing::warn!(broker = place, reason, "the broker takes no messages");
                self.blocked = true;
            }
            Event::Unblocked => {
                tracing::info!(broker = place, "the broker takes messages again");
                self.blocked = false;
            }
            Event::ChannelClosed(refusal) => {
                self.fail_channel(&refusal, place, wakes);
                self.session.reopen();
            }
            Event::Closed(closed) => self.fail_all(closed, place, wakes),
        }
    }

    fn confirm(&mut self, first: u64, last: u64, acked: bool, wakes: &mut Vec<Waker>) {
        for number in first..=last {
            let Some(at) = number.checked_sub(self.confirmed_to + 1) else { continue };
            let Some(slot) = self.publishing.get_mut(at as usize).and_then(Option::take) else { continue };
            self.confirmed += 1;
            let returned = self.returned.iter().position(|(returned, _)| *returned == number);
            slot.fill(
                match (returned, acked) {
                    (Some(at), _) => Err(PublishError::Returned(Box::new(self.returned.swap_remove(at).1))),
                    (None, true) => Ok(()),
                    (None, false) => Err(PublishError::Rejected),
                },
                wakes,
            );
        }
        while matches!(self.publishing.front(), Some(None)) {
            self.publishing.pop_front();
            self.confirmed_to += 1;
        }
    }

    fn fail_publishing(&mut self, reason: &str, wakes: &mut Vec<Waker>) {
        for slot in self.publishing.drain(..).flatten() {
            slot.fill(Err(PublishError::Unknown { reason: reason.to_owned() }), wakes);
        }
        self.confirmed_to = 0;
        self.returned.clear();
    }

    /// Fails the outstanding requests: the oldest caused the refusal, those behind it were void when they arrived.
    fn fail_channel(&mut self, refusal: &Refusal, place: &str, wakes: &mut Vec<Waker>) {
        for (_, what, slot) in self.requests.drain(..) {
            slot.fill(Err(Error::Refused { what, place: place.to_owned(), refusal: refusal.clone() }), wakes);
        }
        self.fail_publishing(&refusal.to_string(), wakes);
        self.inbox.push(Incoming::ChannelClosed(refusal.clone()));
    }

    fn fail_all(&mut self, closed: Closed, place: &str, wakes: &mut Vec<Waker>) {
        let error = Error::of_end(place, &closed);
        for (_, _, slot) in self.requests.drain(..) {
            slot.fill(Err(error.clone()), wakes);
        }
        self.opened.drain(..).for_each(|slot| slot.fill(Err(error.clone()), wakes));
        self.fail_publishing(&closed.to_string(), wakes);
        self.blocked = false;
        wakes.extend(self.receiver.take());
        wakes.append(&mut self.room);
        wakes.append(&mut self.enders);
        self.end = Some(closed);
    }

    pub(super) fn has_room(&self) -> bool {
        self.end.is_some() || (!self.blocked && self.session.transmit_bytes() < OUT_BYTES_HIGH)
    }

    pub(super) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        self.room.push(cx.waker().clone());
        Poll::Pending
    }

    /// Woken when something is there, or at the end.
    pub(super) fn poll_inbox(&mut self, cx: &Context<'_>) -> Poll<()> {
        if !self.inbox.is_empty() || self.end.is_some() {
            return Poll::Ready(());
        }
        keep(&mut self.receiver, cx);
        Poll::Pending
    }

    pub(super) fn take_inbox(&mut self) -> Vec<Incoming> {
        // As much is likely to come again; what grows step by step is moved as often.
        let next = Vec::with_capacity(self.inbox.len().min(INBOX_START_MAX));
        std::mem::replace(&mut self.inbox, next)
    }

    pub(super) fn poll_end(&mut self, cx: &Context<'_>) -> Poll<Closed> {
        if let Some(end) = &self.end {
            return Poll::Ready(end.clone());
        }
        self.enders.push(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn ask(&mut self, number: u64, what: String) -> Answer {
        let slot = Slot::new();
        self.requests.push_back((number, what, slot.clone()));
        slot
    }

    /// The epoch the slot waits behind has gone wrong, or has not begun.
    pub(super) fn wait_open(&mut self) -> Slot<Result<(), Error>> {
        let slot = Slot::new();
        self.opened.push(slot.clone());
        slot
    }

    pub(super) fn note_publish(&mut self) -> Slot<Confirmation> {
        let slot = Slot::new();
        self.published += 1;
        self.publishing.push_back(Some(slot.clone()));
        slot
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.publishing.iter().flatten().count()
    }
}
