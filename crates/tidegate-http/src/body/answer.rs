//! A response's body as it arrives: time-outs, decompression, and the return of its connection.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::gunzip::Gunzip;
use crate::client::Lease;
use crate::deadline::{Watchdog, now};
use crate::error::{Error, Wait, with_causes};

/// The largest piece of decompressed bytes.
const PIECE_BYTES: usize = 32 * 1024;

/// The time-outs of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// The longest time without a byte.
    pub(crate) read: Option<Duration>,
    /// The deadline for the end of the body, and the limit that it was computed from.
    pub(crate) total: Option<(Instant, Duration)>,
}

pub(crate) struct Answer {
    incoming: Incoming,
    host: Rc<str>,
    /// `Some` until the end of the body. Dropping it closes the connection; releasing it returns the connection to the pool.
    lease: Option<Lease>,
    limits: BodyLimits,
    /// Since when the reader has been waiting for the next frame. The time between its reads does not count as silence.
    waiting_since: Option<Instant>,
    watchdog: Watchdog,
    gunzip: Option<Box<PackedBody>>,
    /// Set by an error, after which the body ends.
    failed: bool,
}

struct PackedBody {
    gunzip: Gunzip,
    input: Bytes,
    piece: Box<[u8]>,
}

impl Answer {
    pub(crate) fn new(incoming: Incoming, lease: Lease, host: Rc<str>, limits: BodyLimits, gzip: bool) -> Answer {
        let gunzip = gzip.then(|| {
            let piece = vec![0; PIECE_BYTES].into_boxed_slice();
            Box::new(PackedBody { gunzip: Gunzip::new(), input: Bytes::new(), piece })
        });
        let mut answer = Answer {
            incoming,
            host,
            lease: Some(lease),
            limits,
            waiting_since: None,
            watchdog: Watchdog::default(),
            gunzip,
            failed: false,
        };
        answer.release_at_end();
        answer
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the connection with the last byte, so that the reader need not poll for the end.
    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            self.watchdog.disarm();
            lease.release();
        }
    }

    fn fail(&mut self, error: Error) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.failed = true;
        self.lease = None;
        self.watchdog.disarm();
        Poll::Ready(Some(Err(error)))
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.failed {
            return Poll::Ready(None);
        }
        loop {
            if let Some(packed) = &mut self.gunzip {
                match packed.gunzip.pull(&mut packed.input, &mut packed.piece) {
                    Ok(0) => {}
                    Ok(n) => return Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&packed.piece[..n]))))),
                    Err(reason) => {
                        let error = Error::Body { host: self.host.to_string(), reason: reason.to_owned() };
                        return self.fail(error);
                    }
                }
            }
            let mut polled = Pin::new(&mut self.incoming).poll_frame(cx);
            if polled.is_pending()
                && let Some(lease) = &self.lease
            {
                lease.drive(cx);
                polled = Pin::new(&mut self.incoming).poll_frame(cx);
            }
            match polled {
                Poll::Pending => return self.wait(cx),
                Poll::Ready(None) => return self.end(),
                Poll::Ready(Some(Err(error))) => {
                    let error = Error::Body { host: self.host.to_string(), reason: with_causes(&error) };
                    return self.fail(error);
                }
                Poll::Ready(Some(Ok(frame))) => {
                    self.waiting_since = None;
                    self.release_at_end();
                    let Some(packed) = &mut self.gunzip else { return Poll::Ready(Some(Ok(frame))) };
                    match frame.into_data() {
                        Ok(data) => packed.input = data,
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    }
                }
            }
        }
    }

    fn end(&mut self) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
        self.watchdog.disarm();
        match &self.gunzip {
            Some(packed) if !packed.gunzip.may_end() => {
                let reason = "its gzip data ends too early".to_owned();
                self.fail(Error::Body { host: self.host.to_string(), reason })
            }
            _ => Poll::Ready(None),
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let since = *self.waiting_since.get_or_insert_with(now);
        let silent = self.limits.read.map(|limit| {
            let moved = self.lease.as_ref().map_or(since, Lease::last_move);
            (since.max(moved) + limit, limit, Wait::Read)
        });
        let total = self.limits.total.map(|(deadline, limit)| (deadline, limit, Wait::Total));
        let first = match (silent, total) {
            (Some(silent), Some(total)) => Some(if total.0 <= silent.0 { total } else { silent }),
            (silent, total) => silent.or(total),
        };
        let Some((deadline, after, which)) = first else { return Poll::Pending };
        match self.watchdog.poll(cx, deadline) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => self.fail(Error::Timeout { host: self.host.to_string(), which, after }),
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.failed || (self.gunzip.is_none() && self.incoming.is_end_stream())
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.gunzip {
            Some(_) => SizeHint::new(),
            None => self.incoming.size_hint(),
        }
    }
}
