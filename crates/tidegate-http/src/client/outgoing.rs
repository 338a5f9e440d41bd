//! A request's body on its way out.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::link::Meter;
use crate::body::Body;
use crate::error::Error;

/// Where a connection is with the request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sending {
    #[default]
    Done,
    UnderWay,
}

/// The body, and a word to the connection's meter when hyper is through with it.
pub(crate) struct Outgoing {
    body: Body,
    meter: Rc<Meter>,
}

impl Outgoing {
    pub(crate) fn new(body: Body, meter: Rc<Meter>) -> Outgoing {
        meter.set_sending(Sending::UnderWay);
        Outgoing { body, meter }
    }

    pub(crate) fn into_body(mut self) -> Body {
        std::mem::take(&mut self.body)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.meter.set_sending(Sending::Done);
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
