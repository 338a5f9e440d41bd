//! The body of a request that reports when it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

/// A body that calls `first` when it is first polled: the connection is made, and the request is sent now.
pub(crate) struct OnTheWire {
    pub(crate) bytes: Option<Bytes>,
    pub(crate) first: Option<Box<dyn FnOnce()>>,
}

impl Stream for OnTheWire {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            first();
        }
        Poll::Ready(self.bytes.take().map(Ok))
    }
}
