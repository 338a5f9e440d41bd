//! One served connection: TLS, hyper and the router.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::future::RouteFuture;
use bytes::Bytes;
use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsAcceptor;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use pin_project_lite::pin_project;
use tidegate_loop::net::TcpStream;
use tower_service::Service as TowerService;

use super::connect_info::ConnectInfo;
use super::shared::ServerShared;
use super::watch::{ServerLimits, Watch, WatchPhase, WatchWaits, WatchedStream};
use crate::deadline::{Watchdog, now, until};

/// How long a connection that waits for its peer stays open when the server stops: long enough for the loop to poll the
/// selector, in case a request has arrived already.
pub(super) const LAST_LOOK: Duration = Duration::from_millis(1);

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) acceptor: Option<TlsAcceptor>,
    pub(super) limits: ServerLimits,
    pub(super) router: Router,
    pub(super) shared: Arc<ServerShared>,
}

/// Counts a connection as closed, however it ends.
struct Closing(Arc<ServerShared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed();
    }
}

impl Connection {
    pub(super) async fn serve(self) {
        let _closing = Closing(self.shared.clone());
        let Connection { stream, peer, acceptor, limits, router, shared } = self;
        // hyper writes a response in one piece, so waiting for more data to fill a segment would only delay it.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = acceptor else { return speak(stream, peer, limits, router, shared).await };
        match until(Some(now() + limits.header), pin!(acceptor.accept(stream))).await {
            Some(Ok(stream)) => speak(stream, peer, limits, router, shared).await,
            Some(Err(error)) => {
                log::debug!("no TLS with {peer}: {error}");
                shared.handshake_failed();
            }
            None => {
                shared.handshake_failed();
                shared.timed_out();
            }
        }
    }
}

async fn speak<T>(stream: T, peer: SocketAddr, limits: ServerLimits, router: Router, shared: Arc<ServerShared>)
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let watch = Watch::new();
    let waits = Rc::new(WatchWaits::default());
    let io = WatchedStream::new(stream, watch.clone(), waits.clone());
    let service = RouterService { router, peer, watch: watch.clone(), shared: shared.clone() };
    let mut connection = pin!(http1::Builder::new().serve_connection(io, service));
    let mut stopped = pin!(shared.stopped());
    let mut told: Option<Instant> = None;
    let mut ending = false;
    let mut watchdog = Watchdog::default();
    let ended = poll_fn(|cx| {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if told.is_none() && stopped.as_mut().poll(cx).is_ready() {
                told = Some(now());
            }
            let waits_for_peer = matches!(watch.phase(), WatchPhase::New | WatchPhase::Idle) && !waits.is_writing();
            // hyper would close a waiting connection at once, and lose a request that is already in the kernel.
            if told.is_some() && !waits_for_peer && !ending {
                ending = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let leave = told.filter(|_| waits_for_peer).map(|told| told + LAST_LOOK);
            let Some(deadline) = leave.or_else(|| waits.deadline(&watch, &limits)) else { return Poll::Pending };
            ready!(watchdog.poll(cx, deadline));
            if leave.is_none() {
                shared.timed_out();
            }
            return Poll::Ready(Ok(()));
        }
    });
    if let Err(error) = ended.await {
        log::debug!("connection from {peer}: {error}");
    }
}

/// The router as a service of hyper.
struct RouterService {
    router: Router,
    peer: SocketAddr,
    watch: Arc<Watch>,
    shared: Arc<ServerShared>,
}

impl hyper::service::Service<Request<Incoming>> for RouterService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = RouterFuture;

    fn call(&self, request: Request<Incoming>) -> RouterFuture {
        self.shared.requested();
        self.watch.enter(if request.body().is_end_stream() { WatchPhase::Busy } else { WatchPhase::Body });
        let mut request = request.map(|incoming| RequestBody { incoming, watch: self.watch.clone() });
        request.extensions_mut().insert(ConnectInfo(self.peer));
        // A router is always ready.
        RouterFuture { route: self.router.clone().call(request), watch: Some(self.watch.clone()) }
    }
}

pin_project! {
    struct RouterFuture {
        #[pin]
        route: RouteFuture<Infallible>,
        watch: Option<Arc<Watch>>,
    }
}

impl Future for RouterFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = match ready!(this.route.poll(cx)) {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let watch = this.watch.take().expect("a future is not polled after its end");
        Poll::Ready(Ok(response.map(|body| ResponseBody { body, watch })))
    }
}

/// A request's body that records when it has been read.
struct RequestBody {
    incoming: Incoming,
    watch: Arc<Watch>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if self.incoming.is_end_stream() || frame.is_none() {
            self.watch.body_done();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.watch.body_done();
    }
}

/// A response's body that records when hyper drops it.
struct ResponseBody {
    body: axum::body::Body,
    watch: Arc<Watch>,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.watch.enter(WatchPhase::Idle);
    }
}
