//! A writer that takes data at once; a task of its own passes it on.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as PollContext, Poll, Waker};

use futures_io::AsyncWrite;

use crate::task::{Task, spawn};

/// With more than this waiting to be written [`StreamWriter::drain`] waits, unless
/// [`StreamWriter::with_marks`] says otherwise: 64 KiB. It waits until a quarter of that is left.
pub const HIGH_MARK: usize = 64 << 10;

/// Takes data at once and writes it in the background. [`write`](Self::write) never waits; [`drain`](Self::drain) waits
/// while more than the high mark is left to write, until it is down to the low mark. A task that writes in a loop
/// and drains in it goes as fast as its peer reads, and no faster.
///
/// Dropped, what it has taken is still written; then its side ends.
///
/// ```
/// use tidegate_loop::{pipe::pipe, run, stream::{StreamReader, StreamWriter}};
/// run(async {
///     let (writer, reader) = pipe().unwrap();
///     let writer = StreamWriter::new(writer);
///     writer.write(b"all of ");
///     writer.write(b"this");
///     drop(writer);
///     assert_eq!(StreamReader::new(reader).read_to_end().await.unwrap(), b"all of this");
/// })
/// .unwrap();
/// ```
pub struct StreamWriter {
    shared: Rc<WriterShared>,
    pump: Task,
}

struct WriterShared {
    /// To be written.
    waiting: RefCell<Vec<u8>>,
    /// What of the pump's piece is not written yet.
    in_hand: Cell<usize>,
    high: usize,
    low: usize,
    /// Above the high mark, and not yet down to the low one.
    paused: Cell<bool>,
    /// No more is taken; what is left is written, then the side ends.
    closing: Cell<bool>,
    ended: Cell<bool>,
    failure: RefCell<Option<Rc<io::Error>>>,
    pump: RefCell<Option<Waker>>,
    drainers: RefCell<Vec<Waker>>,
}

impl WriterShared {
    fn left(&self) -> usize {
        self.waiting.borrow().len() + self.in_hand.get()
    }

    fn wake_pump(&self) {
        let pump = self.pump.take();
        if let Some(pump) = pump {
            pump.wake();
        }
    }

    fn wake_drainers(&self) {
        let drainers = self.drainers.take();
        for drainer in drainers {
            drainer.wake();
        }
    }

    fn wrote(&self, count: usize) {
        self.in_hand.set(self.in_hand.get() - count);
        if self.paused.get() && self.left() <= self.low {
            self.paused.set(false);
            self.wake_drainers();
        }
    }

    fn end(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failure.replace(Some(Rc::new(error)));
            self.waiting.take();
        }
        self.in_hand.set(0);
        self.ended.set(true);
        self.wake_drainers();
    }

    /// Every waiting task gets the error; an `io::Error` cannot be cloned, but its kind and its text can.
    fn failure(&self) -> Option<io::Error> {
        self.failure.borrow().as_ref().map(|error| io::Error::new(error.kind(), error.clone().to_string()))
    }

    /// The next piece to write; ready without one at the end.
    fn poll_piece(&self, cx: &PollContext<'_>, piece: &mut Vec<u8>) -> Poll<bool> {
        piece.clear();
        std::mem::swap(piece, &mut self.waiting.borrow_mut());
        self.in_hand.set(piece.len());
        if !piece.is_empty() {
            return Poll::Ready(true);
        }
        if self.closing.get() {
            return Poll::Ready(false);
        }
        self.pump.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

async fn pump(shared: Rc<WriterShared>, mut inner: impl AsyncWrite + Unpin) {
    let result = pump_all(&shared, &mut inner).await;
    shared.end(result);
}

async fn pump_all(shared: &WriterShared, inner: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    // Two buffers take turns: one is filled while the other is written.
    let mut piece = Vec::new();
    while poll_fn(|cx| shared.poll_piece(cx, &mut piece)).await {
        let mut at = 0;
        while at < piece.len() {
            match poll_fn(|cx| Pin::new(&mut *inner).poll_write(cx, &piece[at..])).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => {
                    at += count;
                    shared.wrote(count);
                }
            }
        }
        poll_fn(|cx| Pin::new(&mut *inner).poll_flush(cx)).await?;
    }
    poll_fn(|cx| Pin::new(&mut *inner).poll_close(cx)).await
}

impl StreamWriter {
    /// Writes to `inner`, with [`HIGH_MARK`].
    ///
    /// # Panics
    /// Outside of a running loop.
    #[track_caller]
    pub fn new(inner: impl AsyncWrite + Unpin + 'static) -> StreamWriter {
        StreamWriter::with_marks(inner, HIGH_MARK, HIGH_MARK / 4)
    }

    /// Writes to `inner`; draining waits above `high`, until `low`.
    ///
    /// # Panics
    /// Outside of a running loop; when `low` is above `high`.
    #[track_caller]
    pub fn with_marks(inner: impl AsyncWrite + Unpin + 'static, high: usize, low: usize) -> StreamWriter {
        assert!(low <= high, "the low mark ({low}) lies above the high one ({high})");
        let shared = Rc::new(WriterShared {
            waiting: RefCell::default(),
            in_hand: Cell::new(0),
            high,
            low,
            paused: Cell::new(false),
            closing: Cell::new(false),
            ended: Cell::new(false),
            failure: RefCell::default(),
            pump: RefCell::default(),
            drainers: RefCell::default(),
        });
        let pump = spawn(pump(shared.clone(), inner)).task();
        StreamWriter { shared, pump }
    }

    /// Takes `data`. Never waits: see [`drain`](Self::drain). After [`close`](Self::close) or an error it is dropped, and
    /// draining says so.
    pub fn write(&self, data: &[u8]) {
        let shared = &self.shared;
        if shared.closing.get() || shared.ended.get() {
            return;
        }
        shared.waiting.borrow_mut().extend_from_slice(data);
        if shared.left() > shared.high {
            shared.paused.set(true);
        }
        shared.wake_pump();
    }

    /// Waits while there is too much left to write; comes back at once if there is not.
    ///
    /// # Errors
    /// When writing has failed; [`NotConnected`](io::ErrorKind::NotConnected) after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Safe: what was taken is written all the same.
    ///
    /// ```
    /// # use tidegate_loop::{pipe::pipe, run, spawn, stream::{StreamReader, StreamWriter}};
    /// # run(async {
    /// let (writer, reader) = pipe().unwrap();
    /// let writer = StreamWriter::with_marks(writer, 1024, 256);
    /// let all = spawn(async { StreamReader::new(reader).read_to_end().await.unwrap() });
    /// for _ in 0..1_000 {
    ///     writer.write(&[7; 512]);
    ///     writer.drain().await.unwrap();
    ///     assert!(writer.buffered() <= 1024);
    /// }
    /// drop(writer);
    /// assert_eq!(all.await.unwrap().len(), 512_000);
    /// # }).unwrap();
    /// ```
    pub async fn drain(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let shared = &self.shared;
            if let Some(error) = shared.failure() {
                return Poll::Ready(Err(error));
            }
            if shared.closing.get() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, "the writer is closed")));
            }
            if !shared.paused.get() {
                return Poll::Ready(Ok(()));
            }
            self.wait(cx);
            Poll::Pending
        })
        .await
    }

    /// Takes no more. What is left is written, then this side ends; [`closed`](Self::closed) waits for that.
    pub fn close(&self) {
        self.shared.closing.set(true);
        self.shared.wake_pump();
    }

    /// Takes no more, and throws away what is left: for a peer that does not read.
    ///
    /// ```
    /// # use tidegate_loop::{pipe::pipe, run, stream::StreamWriter};
    /// # run(async {
    /// let (writer, _reader) = pipe().unwrap();
    /// let writer = StreamWriter::new(writer);
    /// writer.write(&vec![0; 1 << 20]);
    /// writer.abort();
    /// assert_eq!(writer.buffered(), 0);
    /// assert_eq!(writer.drain().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    /// # }).unwrap();
    /// ```
    pub fn abort(&self) {
        if !self.shared.ended.get() {
            self.pump.cancel();
            self.shared.closing.set(true);
            self.shared.end(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the writer was aborted")));
        }
    }

    /// Closes, and waits until everything is written and the side has ended.
    ///
    /// # Errors
    /// When writing has failed.
    ///
    /// # Cancel safety
    /// Safe: it is closed, and the rest happens by itself.
    pub async fn closed(&self) -> io::Result<()> {
        self.close();
        poll_fn(|cx| {
            if !self.shared.ended.get() {
                self.wait(cx);
                return Poll::Pending;
            }
            Poll::Ready(self.shared.failure().map_or(Ok(()), Err))
        })
        .await
    }

    fn wait(&self, cx: &PollContext<'_>) {
        let mut drainers = self.shared.drainers.borrow_mut();
        if !drainers.iter().any(|known| known.will_wake(cx.waker())) {
            drainers.push(cx.waker().clone());
        }
    }

    /// Bytes taken and not yet written.
    pub fn buffered(&self) -> usize {
        self.shared.left()
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamWriter")
            .field("buffered", &self.buffered())
            .field("paused", &self.shared.paused.get())
            .finish_non_exhaustive()
    }
}
