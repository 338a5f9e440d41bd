//! The way of every request of a site: the guard, then the route, then the headers that every answer carries; every change goes
//! into the audit log.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::middleware::{Next, from_fn};
use axum::routing::{MethodFilter, on};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use maud::{Markup, html};
use tidegate_http::{ConnectInfo, ServerHandle, Stopped, local, serve};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{OnLoop, spawn};

use crate::answer::{Answer, Failure, Kind, local_path};
use crate::api::{ErrorBody, ErrorText};
use crate::assets;
use crate::audit::{Audit, Change};
use crate::guard::{Guard, Head, Verdict, Who, cookies, secure};
use crate::live::{Hub, Values};
use crate::page::{self, Page, Theme, Visit};
use crate::request::Request;
use crate::site::{AddValues, Cell, Handler, NavEntry, Route};

/// Answers of a page that are smaller are not compressed.
const GZIP_MIN: usize = 1024;

/// Connections at once; a browser has a handful.
const CONNECTIONS_MAX: usize = 2_000;

/// A site that listens and is not served yet.
#[must_use = "a server does nothing until run() is awaited"]
#[derive(Debug)]
pub struct Server {
    serving: tidegate_http::Server,
    shared: Rc<Shared>,
    link: String,
}

impl Server {
    pub(crate) fn new(
        listener: TcpListener,
        shared: Rc<Shared>,
        routes: Vec<Route>,
        link: String,
        body_timeout: Duration,
    ) -> Server {
        let router = router(&shared, routes);
        let serving = serve(listener, router)
            .connections(CONNECTIONS_MAX)
            .header_timeout(Duration::from_secs(10))
            .stall_timeout(Duration::from_secs(20))
            .body_timeout(body_timeout)
            .grace(Duration::from_secs(3));
        Server { serving, shared, link }
    }

    /// The address it listens at; the port is the one it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// A link that opens the site, to print once. A token that was [generated](crate::Token::generate) is part of it; any other is
    /// known to those who should have it, and stays out of logs.
    #[must_use]
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Stops the server and ends its streams, so that it needs no grace.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { handle: self.serving.handle(), hub: Rc::clone(&self.shared.hub) }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// When the listener fails.
    ///
    /// # Cancel safety
    /// Dropped, all connections are closed at once.
    pub async fn run(self) -> io::Result<Stopped> {
        self.serving.run().await
    }
}

/// Stops a [`Server`].
#[derive(Debug, Clone)]
pub struct Stopper {
    handle: ServerHandle,
    hub: Rc<Hub>,
}

impl Stopper {
    /// Accepts nothing more, ends the streams, and lets requests finish for a few seconds.
    pub fn stop(&self) {
        self.hub.close();
        self.handle.stop();
    }
}

/// What all requests of a site share.
pub(crate) struct Shared {
    address: SocketAddr,
    guard: Guard,
    audit: Audit,
    nav: Vec<NavEntry>,
    hub: Rc<Hub>,
    strip: Vec<Cell>,
    sys: Vec<AddValues>,
    /// As of the last page.
    sys_values: RefCell<Values>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        address: SocketAddr,
        guard: Guard,
        audit: Audit,
        nav: Vec<NavEntry>,
        hub: Rc<Hub>,
        strip: Vec<Cell>,
        sys: Vec<AddValues>,
    ) -> Rc<Shared> {
        let shared = Rc::new(Shared { address, guard, audit, nav, hub, strip, sys, sys_values: RefCell::default() });
        let sys = Rc::downgrade(&shared);
        let values = move || sys.upgrade().map(|sys| sys.sys_values()).unwrap_or_default();
        shared.hub.add("sys".to_owned(), Rc::new(values));
        shared
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn nav(&self) -> &[NavEntry] {
        &self.nav
    }

    pub(crate) fn strip(&self) -> impl Iterator<Item = Markup> {
        self.strip.iter().enumerate().map(|(at, cell)| {
            let cell = cell();
            html! { div class=(cell.class) data-h=(format!("sys.{at}")) { (cell.content) } }
        })
    }

    /// A text of the topic `sys`, as it is when the page is written.
    pub(crate) fn text_of(&self, key: &str) -> String {
        self.sys_values.borrow().get_text(key).unwrap_or_default().to_owned()
    }

    fn sys_values(&self) -> Values {
        let mut values = Values::new();
        for (at, cell) in self.strip.iter().enumerate() {
            values.html(format!("sys.{at}"), cell().content);
        }
        self.sys.iter().for_each(|add| add(&mut values));
        values
    }

    fn render(&self, visit: &Visit<'_>, page: &Page) -> Response<Body> {
        let values = self.sys_values();
        *self.sys_values.borrow_mut() = values;
        html_response(page.status, page::render(self, visit, page))
    }
}

fn html_response(status: StatusCode, markup: Markup) -> Response<Body> {
    let mut response = Response::new(Body::from(markup.into_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn json_error(failure: &Failure) -> Response<Body> {
    let body = ErrorBody { error: ErrorText { code: failure.status.as_u16(), message: failure.message.to_string() } };
    let mut response = Response::new(Body::from(serde_json::to_vec(&body).unwrap_or_default()));
    *response.status_mut() = failure.status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// axum's router over the routes. Handlers and what they share stay on the loop; the router holds stand-ins.
fn router(shared: &Rc<Shared>, routes: Vec<Route>) -> Router {
    let mut router = Router::new();
    for Route { method, path, action, handler } in routes {
        let filter = MethodFilter::try_from(method).expect("one of the usual methods");
        let own = Arc::new(OnLoop::new((Rc::clone(shared), handler)));
        let handle = move |request: axum::extract::Request| {
            let (shared, handler) = own.with(Clone::clone).expect("served on its own loop");
            local(handle(shared, handler, action, request))
        };
        router = router.route(&path, on(filter, handle));
    }
    let listening = Arc::new(OnLoop::new(Rc::clone(shared)));
    let live = move |request: axum::extract::Request| {
        let shared = listening.with(Rc::clone).expect("served on its own loop");
        std::future::ready(live(&shared, &request))
    };
    let lost = Arc::new(OnLoop::new(Rc::clone(shared)));
    let wrong = Arc::clone(&lost);
    let not_found = move |request: axum::extract::Request| {
        let shared = lost.with(Rc::clone).expect("served on its own loop");
        std::future::ready(shown(&shared, &request, &Failure::not_found("There is nothing at this address.")))
    };
    let not_allowed = move |request: axum::extract::Request| {
        let shared = wrong.with(Rc::clone).expect("served on its own loop");
        let failure =
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} is not possible here.", request.method()));
        std::future::ready(shown(&shared, &request, &failure))
    };
    let outer = Arc::new(OnLoop::new(Rc::clone(shared)));
    router
        .route("/live", on(MethodFilter::GET, live))
        // A method that a path does not have is found out after the guard, as everything else.
        .route("/login", on(MethodFilter::POST, not_allowed.clone()))
        .method_not_allowed_fallback(not_allowed)
        .fallback(not_found)
        .layer(from_fn(move |request: axum::extract::Request, next: Next| {
            let shared = outer.with(Rc::clone).expect("served on its own loop");
            local(admit(shared, request, next))
        }))
}

/// What the guard found out about a request, for what is behind it.
#[derive(Debug, Clone, Copy)]
struct Pass {
    who: Who,
    may_act: bool,
    theme: Theme,
    peer: SocketAddr,
}

/// The way of every request: the guard, then the route, then the headers that every answer carries.
async fn admit(shared: Rc<Shared>, mut request: axum::extract::Request, next: Next) -> Response<Body> {
    let peer = request.extensions().get::<ConnectInfo>().map(|info| info.0);
    let peer = peer.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    let theme = theme_of(request.headers());
    let gzip = assets::accepts_gzip(request.headers());
    let head = Head {
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        headers: request.headers(),
        peer: peer.ip(),
    };
    let verdict = shared.guard.decide(&head, Instant::now());
    let mut response = match verdict {
        Verdict::Refuse(failure) => refusal(&request, &failure, theme),
        Verdict::SignIn { cookie, to } => {
            let mut answer = Answer::see_other(&to);
            set_cookie(&mut answer, &cookie);
            into_response(answer)
        }
        Verdict::Pass { .. } if request.uri().path() == "/login" && request.method() == Method::POST => {
            sign_in(&shared, request, peer, theme).await
        }
        Verdict::Pass { who, may_act } => {
            request.extensions_mut().insert(Pass { who, may_act, theme, peer });
            next.run(request).await
        }
    };
    if gzip {
        response = compress(response).await;
    }
    secure(response.headers_mut());
    response
}

fn theme_of(headers: &HeaderMap) -> Theme {
    cookies(headers)
        .find(|(name, _)| *name == "tidegate-theme")
        .and_then(|(_, value)| Theme::of(value))
        .unwrap_or_default()
}

async fn sign_in(shared: &Shared, request: axum::extract::Request, peer: SocketAddr, theme: Theme) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut request = Request {
        uri: parts.uri,
        headers: parts.headers,
        parameters: Vec::new(),
        body,
        peer,
        who: Who::Anonymous,
        may_act: false,
        detail: Rc::default(),
    };
    let form = request.form().await;
    let back = form.as_ref().ok().and_then(|form| form.get("back")).map(local_path).unwrap_or("/").to_owned();
    let signed_in = form
        .and_then(|form| shared.guard.sign_in(form.get("token").unwrap_or_default().trim(), peer.ip(), Instant::now()));
    match signed_in {
        Ok(cookie) => {
            let mut answer = Answer::see_other(&back);
            set_cookie(&mut answer, &cookie);
            into_response(answer)
        }
        Err(failure) => bare(&failure, theme, &back),
    }
}

/// A refusal, with nothing of the site on it.
fn refusal(request: &axum::extract::Request, failure: &Failure, theme: Theme) -> Response<Body> {
    let uri = request.uri();
    if is_for_program(uri.path()) {
        let mut response = json_error(failure);
        add_retry_after(&mut response, failure);
        return response;
    }
    let back = match *request.method() {
        // Without the query: it may hold a wrong token.
        Method::GET => uri.path(),
        _ => "/",
    };
    bare(failure, theme, local_path(back))
}

fn bare(failure: &Failure, theme: Theme, back: &str) -> Response<Body> {
    let mut response = html_response(failure.status, page::bare_failure(failure, theme, back));
    add_retry_after(&mut response, failure);
    response
}

fn add_retry_after(response: &mut Response<Body>, failure: &Failure) {
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
    }
}

fn is_for_program(path: &str) -> bool {
    path.starts_with("/api/") || path == "/live"
}

/// A failure behind the guard: within the shell, or as JSON.
fn shown(shared: &Shared, request: &axum::extract::Request, failure: &Failure) -> Response<Body> {
    let pass = request.extensions().get::<Pass>().copied();
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    show(shared, request.uri().path(), target, pass, failure)
}

fn show(shared: &Shared, path: &str, target: &str, pass: Option<Pass>, failure: &Failure) -> Response<Body> {
    let mut response = match pass {
        Some(pass) if pass.who != Who::Anonymous && !is_for_program(path) => {
            let visit = Visit { path_and_query: target, theme: pass.theme, may_act: pass.may_act };
            shared.render(&visit, &page::failure(failure))
        }
        _ => json_error(failure),
    };
    add_retry_after(&mut response, failure);
    response
}

async fn handle(
    shared: Rc<Shared>,
    handler: Handler,
    action: Option<&'static str>,
    request: axum::extract::Request,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let Some(pass) = parts.extensions.get::<Pass>().copied() else {
        return json_error(&Failure::internal(&"a request came past the guard"));
    };
    let parameters = match RawPathParams::from_request_parts(&mut parts, &()).await {
        Ok(parameters) => parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        Err(_) => Vec::new(),
    };
    let uri = parts.uri.clone();
    let detail = Rc::new(RefCell::new(None));
    let request = Request {
        uri: parts.uri,
        headers: parts.headers,
        parameters,
        body,
        peer: pass.peer,
        who: pass.who,
        may_act: pass.may_act,
        detail: Rc::clone(&detail),
    };
    let outcome = match action {
        None => handler(request).await,
        Some(action) => {
            // On its own, so that it ends and is written down also when the browser leaves.
            let (shared, path) = (Rc::clone(&shared), uri.path().to_owned());
            let acting = spawn(async move {
                let outcome = handler(request).await;
                let status = match &outcome {
                    Ok(Answer(Kind::Response(response))) => response.status().as_u16(),
                    Ok(Answer(Kind::Page(page))) => page.status.as_u16(),
                    Err(failure) => failure.status.as_u16(),
                };
                let detail = detail.take();
                let change =
                    Change { who: pass.who, peer: pass.peer, action, path: &path, detail: detail.as_deref(), status };
                shared.audit.write(&change);
                outcome
            });
            acting.await.unwrap_or_else(|error| Err(Failure::internal(&error)))
        }
    };
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    match outcome {
        Ok(Answer(Kind::Response(response))) => response,
        Ok(Answer(Kind::Page(page))) => {
            shared.render(&Visit { path_and_query: target, theme: pass.theme, may_act: pass.may_act }, &page)
        }
        Err(failure) => show(&shared, uri.path(), target, Some(pass), &failure),
    }
}

/// The stream of the topics in the query's `on`.
fn live(shared: &Shared, request: &axum::extract::Request) -> Response<Body> {
    let query = crate::request::Form::parse(request.uri().query().unwrap_or_default().as_bytes());
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok()).or_else(|| query.get("last"));
    match shared.hub.listen(query.get("on").unwrap_or("sys"), last) {
        Some(stream) => {
            let mut response = Response::new(Body::new(stream));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            // A proxy that gathers bytes would hold events back.
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            response
        }
        None => json_error(&Failure::not_found("There is no such topic.")),
    }
}

fn into_response(answer: Answer) -> Response<Body> {
    match answer.0 {
        Kind::Response(response) => response,
        Kind::Page(_) => json_error(&Failure::internal(&"a page without its shell")),
    }
}

pub(crate) fn set_cookie(answer: &mut Answer, cookie: &str) {
    if let (Kind::Response(response), Ok(value)) = (&mut answer.0, HeaderValue::from_str(cookie)) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Compresses pages and JSON that are whole in memory; streams and files are left as they are.
async fn compress(response: Response<Body>) -> Response<Body> {
    use http_body::Body as _;
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_text = kind.starts_with("text/html") || kind.starts_with("application/json");
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    let Some(size) = size.filter(|&size| is_text && size >= GZIP_MIN) else { return response };
    if response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    match axum::body::to_bytes(body, size).await {
        Ok(bytes) => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            parts.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(assets::gzip(&bytes)))
        }
        Err(_) => Response::from_parts(parts, Body::empty()),
    }
}
