//! One request and its response: waits for a connection, sends, receives, and makes the one retry that is safe.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, HOST, HeaderName,
    PROXY_AUTHORIZATION, RANGE, SET_COOKIE, USER_AGENT,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;

use super::ClientInner;
use super::builder::Timeouts;
use super::connect::connect;
use super::endpoint::Endpoint;
use super::link::{Link, Meter, Metered};
use super::pool::{Lease, PoolKey, PoolTurn};
use super::proxy::{Proxy, basic};
use crate::body::{Answer, Body, BodyLimits};
use crate::deadline::{Watchdog, now, until};
use crate::error::{Error, Wait, with_causes};

/// Headers that services use for API keys.
pub(super) static API_KEYS: [HeaderName; 4] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("x-auth-token"),
];

/// Other headers whose values must not be printed.
static SECRET: [HeaderName; 4] = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE];

/// Sends `request` and waits for the response's head. The request is boxed because each future here that waits would
/// contain it twice, which adds up with ten thousand requests in flight.
pub(crate) async fn exchange(client: &ClientInner, mut request: Box<Request<Body>>) -> Result<Response<Body>, Error> {
    let timeouts = request.extensions_mut().remove::<Timeouts>().unwrap_or(client.timeouts);
    let (endpoint, proxy) = Endpoint::of(client, request.uri())?;
    let gzip = prepare(client, &mut request, &endpoint, proxy)?;
    let limits = BodyLimits { read: timeouts.read, total: timeouts.total.map(|limit| (now() + limit, limit)) };
    let attempt = Attempt { client, proxy, key: &endpoint.key, host: &endpoint.host, timeouts, limits };
    let head_only = *request.method() == Method::HEAD;
    let (lease, response) = match until(limits.total.map(|(deadline, _)| deadline), pin!(attempt.run(request))).await {
        Some(done) => done?,
        None => {
            let after = timeouts.total.unwrap_or_default();
            return Err(Error::Timeout { host: endpoint.host.to_string(), which: Wait::Total, after });
        }
    };
    Ok(finish(response, lease, endpoint.host.clone(), limits, gzip && !head_only))
}

struct Attempt<'a> {
    client: &'a ClientInner,
    proxy: Option<&'a Proxy>,
    key: &'a Rc<PoolKey>,
    host: &'a Rc<str>,
    timeouts: Timeouts,
    limits: BodyLimits,
}

impl Attempt<'_> {
    async fn run(&self, mut request: Box<Request<Body>>) -> Result<(Lease, Response<Incoming>), Error> {
        let mut turn = self.client.pool.admit(self.key).await;
        loop {
            let mut lease = match turn.idle() {
                Ok(lease) => lease,
                Err(turn) => self.connect(turn).await?,
            };
            match self.send(&mut lease, request).await {
                Ok(response) => return Ok((lease, response)),
                // The peer may have closed a kept connection. Each is tried once, so the loop ends with a new one.
                Err(LostExchange { again: Some(again), .. }) if lease.reused => {
                    request = again;
                    turn = lease.discard();
                }
                Err(LostExchange { error, .. }) => return Err(error),
            }
        }
    }

    async fn connect(&self, turn: PoolTurn) -> Result<Lease, Error> {
        // Boxed, so that the memory for connecting is freed before the connection allocates its own.
        let link = Box::pin(self.reach()).await?;
        let meter = Meter::new();
        let (sender, driver) = http1::handshake(Metered::new(link, meter.clone()))
            .await
            .map_err(|error| Error::Protocol { host: self.host.to_string(), reason: with_causes(&error) })?;
        Ok(turn.fresh(sender, meter, driver))
    }

    async fn reach(&self) -> Result<Link, Error> {
        let deadline = self.timeouts.connect.map(|limit| now() + limit);
        let making = connect(&self.key.target, self.proxy, &self.client.trust);
        until(deadline, pin!(making)).await.unwrap_or_else(|| {
            let after = self.timeouts.connect.unwrap_or_default();
            Err(Error::Timeout { host: self.host.to_string(), which: Wait::Connect, after })
        })
    }

    async fn send(&self, lease: &mut Lease, request: Box<Request<Body>>) -> Result<Response<Incoming>, LostExchange> {
        let connection = lease.connection();
        let meter = connection.meter.clone();
        let before = meter.received();
        let copy = if is_idempotent(request.method()) { copy_of(&request).map(Box::new) } else { None };
        let drive = Rc::clone(&connection.drive);
        // Moved out of the box within this block, so that the box is freed before the answer comes.
        let mut sent = pin!(connection.sender.try_send_request({
            let boxed = request;
            *boxed
        }));
        let answered = poll_fn(|cx| drive.poll_for(cx, sent.as_mut()));
        let Some(answered) = while_moving(&meter, self.limits.read, pin!(answered)).await else {
            let after = self.timeouts.read.unwrap_or_default();
            let error = Error::Timeout { host: self.host.to_string(), which: Wait::Read, after };
            return Err(LostExchange { error, again: None });
        };
        answered.map_err(|mut failed| {
            // hyper returns the request if no byte of it was sent.
            let unsent = failed.take_message().map(Box::new);
            let unanswered = meter.received() == before;
            let again = unsent.or_else(|| copy.filter(|_| unanswered));
            LostExchange { error: self.explain(&failed.into_error()), again }
        })
    }

    fn explain(&self, error: &hyper::Error) -> Error {
        let host = self.host.to_string();
        let reason = with_causes(error);
        // If the request's own body failed, its error says more than hyper's.
        let own = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Error>());
        if let Some(Error::Body { reason, .. }) = own {
            return Error::Body { host, reason: reason.clone() };
        }
        if error.is_parse() {
            return Error::Protocol { host, reason: format!("its answer is not HTTP/1.1 ({reason})") };
        }
        if error.is_user() {
            return Error::Protocol { host, reason: format!("the request cannot be sent ({reason})") };
        }
        Error::Closed { host, reason }
    }
}

/// The failure of a request that got no response.
struct LostExchange {
    error: Error,
    /// The request, if it is safe to send again.
    again: Option<Box<Request<Body>>>,
}

/// Returns `future`'s output, or `None` if no byte has been sent or received on the connection for `limit`.
async fn while_moving<F: Future>(meter: &Meter, limit: Option<Duration>, mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut watchdog = Watchdog::default();
    let start: Instant = now();
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let Some(limit) = limit else { return Poll::Pending };
        watchdog.poll(cx, start.max(meter.last_move()) + limit).map(|()| None)
    })
    .await
}

/// RFC 9110, 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE | Method::OPTIONS | Method::TRACE)
}

pub(super) fn copy_of(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().again()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Puts the request into the form in which it is sent. Returns whether gzip was requested here, so that the response is to
/// be decompressed here.
fn prepare(
    client: &ClientInner,
    request: &mut Request<Body>,
    endpoint: &Endpoint,
    proxy: Option<&Proxy>,
) -> Result<bool, Error> {
    *request.version_mut() = Version::HTTP_11;
    let user = request.uri().authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let authorization = user.map(|(user, _)| basic(user)).transpose().map_err(|reason| Error::BadUrl {
        url: super::target::without_user(request.uri()),
        reason: reason.to_owned(),
    })?;

    let through = proxy.filter(|_| !endpoint.key.target.tls);
    // hyper sends the URI as it is: a path to a server, the whole URL to a proxy that fetches it.
    let uri = match through {
        Some(_) => {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let form = format!("http://{}{path}", endpoint.host);
            form.parse::<Uri>().map_err(|error| Error::BadUrl { url: form, reason: error.to_string() })?
        }
        None => {
            let path = request.uri().path_and_query().cloned();
            Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        }
    };
    *request.uri_mut() = uri;

    let headers = request.headers_mut();
    headers.entry(HOST).or_insert_with(|| endpoint.header.clone());
    headers.entry(USER_AGENT).or_insert_with(|| client.user_agent.clone());
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    if let Some(authorization) = authorization {
        headers.entry(AUTHORIZATION).or_insert(authorization);
    }
    if let Some(authorization) = through.and_then(|proxy| proxy.authorization.clone()) {
        headers.entry(PROXY_AUTHORIZATION).or_insert(authorization);
    }
    let gzip = client.gzip && !headers.contains_key(ACCEPT_ENCODING) && !headers.contains_key(RANGE);
    if gzip {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    }
    hide_secrets(headers);
    Ok(gzip)
}

fn hide_secrets(headers: &mut HeaderMap) {
    for (name, value) in headers.iter_mut() {
        if SECRET.contains(name) || API_KEYS.contains(name) {
            value.set_sensitive(true);
        }
    }
}

fn finish(
    response: Response<Incoming>,
    lease: Lease,
    host: Rc<str>,
    limits: BodyLimits,
    unpack: bool,
) -> Response<Body> {
    let (mut head, incoming) = response.into_parts();
    hide_secrets(&mut head.headers);
    let packed = head.headers.get(CONTENT_ENCODING).is_some_and(|coding| {
        coding.as_bytes().eq_ignore_ascii_case(b"gzip") || coding.as_bytes().eq_ignore_ascii_case(b"x-gzip")
    });
    let bare = head.status == StatusCode::NO_CONTENT || head.status == StatusCode::NOT_MODIFIED;
    let gzip = unpack && packed && !bare;
    if gzip {
        // These headers describe the compressed body.
        head.headers.remove(CONTENT_ENCODING);
        head.headers.remove(CONTENT_LENGTH);
    }
    let answer = Answer::new(incoming, lease, host, limits, gzip);
    Response::from_parts(head, Body::answer(answer))
}
