//! What a caller puts on the wire: its connections, the headers of a request, and a body that reports when it leaves.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http::HeaderMap;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use tidegate_http::Client;
use tidegate_limit::Admission;

use crate::base_url::BaseUrl;
use crate::concurrency::AUTO_CONCURRENCY_MAX;
use crate::key::ApiKey;
use crate::provider::Dialect;

/// Connections, where the gate does not say how many requests there may be at once.
const CONNECTIONS: usize = 256;

/// Servers close connections by themselves before that.
const KEPT_IDLE: Duration = Duration::from_secs(60);

/// Of a request, about.
const HEADERS: usize = 12;

/// As many connections as requests may be in flight, also when the limit is raised later, and none of them closed between two.
pub(crate) fn client(gate: &Admission) -> Client {
    let at_once = gate.stats().limits.iter().filter(|limit| limit.dimension.is_none()).map(|limit| limit.amount).min();
    let in_flight = at_once.map(|amount| amount.max(AUTO_CONCURRENCY_MAX));
    let connections = in_flight.map_or(CONNECTIONS, |amount| usize::try_from(amount).unwrap_or(usize::MAX));
    let builder = Client::builder().connections_per_host(connections).keep_idle(connections, KEPT_IDLE);
    builder.build().expect("no file is named that could be missing")
}

pub(crate) fn headers(dialect: Dialect, base: &BaseUrl, key: Option<&ApiKey>) -> HeaderMap {
    let json = HeaderValue::from_static("application/json");
    let fixed = [(CONTENT_TYPE, json.clone()), (ACCEPT, json)];
    // Copied for each request, to which the client adds its own: they fit without another table.
    let mut headers = HeaderMap::with_capacity(HEADERS);
    // A key that goes into the same header counts first.
    let user = base.authorization().map(|value| (AUTHORIZATION, value));
    for (name, value) in fixed.into_iter().chain(user).chain(dialect.headers(key)) {
        headers.insert(name, value);
    }
    headers
}

/// A body that calls a function when it is first polled: the request leaves then, after its connection is made.
pub(crate) struct OnTheWire {
    bytes: Option<Bytes>,
    first: Option<Box<dyn FnOnce()>>,
}

impl OnTheWire {
    pub(crate) fn new(bytes: Bytes, first: impl FnOnce() + 'static) -> OnTheWire {
        OnTheWire { bytes: Some(bytes), first: Some(Box::new(first)) }
    }
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
