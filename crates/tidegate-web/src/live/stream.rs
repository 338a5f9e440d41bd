//! One browser's stream of events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tidegate_loop::OnLoop;

use super::{Hub, Topic};

/// The body of a response that ends when the browser leaves or the server stops. Its state stays on the loop.
pub(crate) struct Stream(OnLoop<RefCell<Listener>>);

struct Listener {
    hub: Rc<Hub>,
    id: u64,
    topics: Vec<(String, Rc<Topic>)>,
    /// The number of the last update that was sent; `None`: nothing was, or too long ago.
    cursor: Option<u64>,
    beat: u64,
    ready: VecDeque<Bytes>,
}

impl Stream {
    pub(super) fn new(hub: Rc<Hub>, topics: Vec<(String, Rc<Topic>)>, cursor: Option<u64>) -> Stream {
        let id = hub.next_listener.get();
        hub.next_listener.set(id + 1);
        let now = crate::format::millis(SystemTime::now());
        // Its browser tries again a second after the connection is lost; the first beat sets its clock.
        let hello = Bytes::from(format!("retry: 1000\nevent: beat\ndata: {now}\n\n"));
        let beat = hub.ticks.get();
        Stream(OnLoop::new(RefCell::new(Listener { hub, id, topics, cursor, beat, ready: VecDeque::from([hello]) })))
    }
}

impl Listener {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        if self.hub.closed.get() {
            return Poll::Ready(None);
        }
        if let Some(bytes) = self.ready.pop_front().or_else(|| self.next()) {
            return Poll::Ready(Some(bytes));
        }
        self.hub.waiting.borrow_mut().insert(self.id, cx.waker().clone());
        Poll::Pending
    }

    fn next(&mut self) -> Option<Bytes> {
        let kept_all = |cursor: u64| self.topics.iter().all(|(_, topic)| topic.state.borrow().floor <= cursor);
        let Some(cursor) = self.cursor.filter(|&cursor| kept_all(cursor)) else { return Some(self.everything()) };
        // In the order of their numbers: an id then says that everything before it has arrived.
        let states = self.topics.iter().map(|(_, topic)| topic.state.borrow());
        let first = states.filter_map(|state| state.after(cursor).cloned()).min_by_key(|(number, _)| *number);
        if let Some((number, bytes)) = first {
            self.cursor = Some(number);
            return Some(bytes);
        }
        let (beat, bytes) = self.hub.beat.borrow().clone();
        if beat > self.beat {
            self.beat = beat;
            return Some(bytes);
        }
        None
    }

    /// All topics as they are, in one piece; the id comes after the last of them.
    fn everything(&mut self) -> Bytes {
        let last = self.hub.last.get();
        let mut bytes = BytesMut::new();
        for (_, topic) in &self.topics {
            bytes.extend_from_slice(&topic.state.borrow_mut().whole());
        }
        bytes.extend_from_slice(format!("id: {}.{last}\nevent: whole\ndata: {{}}\n\n", self.hub.epoch).as_bytes());
        self.cursor = Some(last);
        bytes.freeze()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.hub.leave(self.id, &self.topics);
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = self.0.with(|listener| listener.borrow_mut().poll(cx));
        // Elsewhere than on its loop there is nothing to send.
        polled.unwrap_or(Poll::Ready(None)).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
