//! A site: pages, actions, API routes and topics put together, then served. Every request goes through the guard here, and
//! every change into the audit log.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
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
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_http::{ConnectInfo, ServerHandle, Stopped, local, serve};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{OnLoop, spawn};

use crate::answer::{Answer, Failure, Kind, local_path};
use crate::api::{Api, Doc, ErrorBody, ErrorText};
use crate::assets;
use crate::audit::{Audit, Change};
use crate::guard::{Guard, Head, Token, Verdict, Who, cookies, secure};
use crate::live::{Family, Hub, Source, Values};
use crate::page::{self, Page, Theme, Visit};
use crate::request::Request;

/// Answers of a page that are smaller are not compressed.
const GZIP_MIN: usize = 1024;

/// Connections at once; a browser has a handful.
const CONNECTIONS_MAX: usize = 2_000;

type Answering = Pin<Box<dyn Future<Output = Result<Answer, Failure>>>>;
type Cell = Rc<dyn Fn() -> StripCell>;
type AddValues = Rc<dyn Fn(&mut Values)>;
type Handler = Rc<dyn Fn(Request) -> Answering>;

/// An entry of the navigation.
#[derive(Debug, Clone, Copy)]
pub struct NavEntry {
    /// The heading it stands under: `Documents`, `Tasks` or `Runtime`.
    pub group: &'static str,
    /// Its words.
    pub title: &'static str,
    /// The path it leads to.
    pub href: &'static str,
    /// The key of a text of the topic `sys` shown behind it, such as `nav.jobs`.
    pub count: Option<&'static str>,
}

/// A part of the system strip, which stands on top of every page.
#[derive(Debug, Clone)]
pub struct StripCell {
    /// The classes that give it its width: `grow`, `w-s`, `w-m`, `w-l`, `with-spark`, `opt`.
    pub class: &'static str,
    /// Its `dt` and `dd` elements.
    pub content: Markup,
}

/// How a site is served.
#[derive(Debug)]
pub struct Options {
    /// Where to listen.
    pub address: SocketAddr,
    /// Host names the server answers to besides its address and `localhost`.
    pub hosts: Vec<String>,
    /// What visitors have to bring; an address that is not a loopback one needs one.
    pub token: Option<Token>,
    /// Nothing can be changed through the site.
    pub read_only: bool,
    /// Where changes are written down.
    pub audit: Audit,
    /// How long the whole body of one request may keep the server waiting.
    pub body_timeout: Duration,
}

impl Options {
    /// Serves at `address`, without token or host names.
    #[must_use]
    pub fn new(address: SocketAddr) -> Options {
        Options {
            address,
            hosts: Vec::new(),
            token: None,
            read_only: false,
            audit: Audit::to_log(),
            body_timeout: Duration::from_secs(30),
        }
    }
}

struct Route {
    method: Method,
    path: String,
    /// What a change is called in the audit log; `None` for what only reads.
    action: Option<&'static str>,
    handler: Handler,
}

/// A site that is being put together. Sections add themselves to it; then it is [bound](Site::bind).
pub struct Site {
    nav: Vec<NavEntry>,
    routes: Vec<Route>,
    api: Api,
    hub: Rc<Hub>,
    strip: Vec<Cell>,
    sys: Vec<AddValues>,
}

impl Default for Site {
    fn default() -> Site {
        Site::new()
    }
}

impl Site {
    /// A site without pages.
    #[must_use]
    pub fn new() -> Site {
        Site {
            nav: Vec::new(),
            routes: Vec::new(),
            api: Api::default(),
            hub: Hub::new(),
            strip: Vec::new(),
            sys: Vec::new(),
        }
    }

    /// Adds an entry to the navigation. The first one is where `/` leads.
    pub fn nav(&mut self, entry: NavEntry) {
        self.nav.push(entry);
    }

    /// Adds a page, or a file, at `path`, in which `{name}` stands for one segment.
    pub fn get<F, A>(&mut self, path: &str, handler: impl Fn(Request) -> F + 'static)
    where
        F: Future<Output = Result<A, Failure>> + 'static,
        A: Into<Answer>,
    {
        self.route(Method::GET, path, None, erase(handler));
    }

    /// Adds an action of a form. It is refused in read-only mode and from other sites, written to the audit log as `action`
    /// (such as `change a limit`), and goes on to its end if the browser leaves.
    pub fn post<F, A>(&mut self, path: &str, action: &'static str, handler: impl Fn(Request) -> F + 'static)
    where
        F: Future<Output = Result<A, Failure>> + 'static,
        A: Into<Answer>,
    {
        self.route(Method::POST, path, Some(action), erase(handler));
    }

    /// Adds a route of the API that returns `T` as JSON. `path` begins with `/api/v1/`.
    pub fn api_get<F, T>(&mut self, path: &str, doc: &Doc, handler: impl Fn(Request) -> F + 'static)
    where
        F: Future<Output = Result<T, Failure>> + 'static,
        T: Serialize + JsonSchema + 'static,
    {
        let returns = self.api.content::<T>();
        self.api.add(&Method::GET, path, doc, None, returns);
        self.route(
            Method::GET,
            path,
            None,
            erase(move |request| {
                let answering = handler(request);
                async move { Answer::json(&answering.await?) }
            }),
        );
    }

    /// Adds a route of the API that takes `B` and changes something; `()` where it takes no body. `method` is POST, PUT, PATCH
    /// or DELETE. Guarded and written down as [`post`](Self::post) is.
    pub fn api_action<F, B, T>(
        &mut self,
        method: Method,
        path: &str,
        action: &'static str,
        doc: &Doc,
        handler: impl Fn(Request, B) -> F + 'static,
    ) where
        F: Future<Output = Result<T, Failure>> + 'static,
        B: DeserializeOwned + JsonSchema + 'static,
        T: Serialize + JsonSchema + 'static,
    {
        let (takes, returns) = (self.api.content::<B>(), self.api.content::<T>());
        let has_body = takes.is_some();
        self.api.add(&method, path, doc, takes, returns);
        let handler = Rc::new(handler);
        self.route(
            method,
            path,
            Some(action),
            erase(move |mut request: Request| {
                let handler = Rc::clone(&handler);
                async move {
                    let body = if has_body {
                        request.json().await?
                    } else {
                        serde_json::from_str("null").map_err(|error| Failure::internal(&error))?
                    };
                    Answer::json(&handler(request, body).await?)
                }
            }),
        );
    }

    /// Adds a route whose body or answer is not JSON (an upload, a file) to the document of the API; the handler is that of
    /// [`get`](Self::get) or, with `action`, of [`post`](Self::post).
    pub fn api_raw<F>(
        &mut self,
        method: Method,
        path: &str,
        action: Option<&'static str>,
        doc: &Doc,
        handler: impl Fn(Request) -> F + 'static,
    ) where
        F: Future<Output = Result<Answer, Failure>> + 'static,
    {
        self.api.add(&method, path, doc, None, None);
        self.route(method, path, action, erase(handler));
    }

    /// Adds a topic that pages can listen to: `source` is called four times per second while at least one does.
    pub fn topic(&mut self, name: &str, source: impl Fn() -> Values + 'static) {
        self.hub.add(name.to_owned(), Rc::new(source));
    }

    /// Adds the topics `prefix/NAME`; `family` returns the source of one, if there is one of that name.
    pub fn topics(&mut self, prefix: &str, family: impl Fn(&str) -> Option<Source> + 'static) {
        let family: Family = Rc::new(family);
        self.hub.add_family(prefix.to_owned(), family);
    }

    /// Adds a cell to the system strip.
    pub fn strip(&mut self, cell: impl Fn() -> StripCell + 'static) {
        self.strip.push(Rc::new(cell));
    }

    /// Adds values to the topic `sys`, to which every page listens, such as the counts of the navigation.
    pub fn sys(&mut self, values: impl Fn(&mut Values) + 'static) {
        self.sys.push(Rc::new(values));
    }

    /// How many browsers listen, from then on.
    #[must_use]
    pub fn audience(&self) -> Audience {
        Audience(Rc::clone(&self.hub))
    }

    fn route(&mut self, method: Method, path: &str, action: Option<&'static str>, handler: Handler) {
        self.routes.push(Route { method, path: path.to_owned(), action, handler });
    }

    /// Listens, and returns a server to run. Called on the loop that is to serve it.
    ///
    /// # Errors
    /// [`BindError`]: the address is in use or not this machine's, or one that others can reach and no token is given.
    pub async fn bind(mut self, options: Options) -> Result<Server, BindError> {
        let Options { address, hosts, token, read_only, audit, body_timeout } = options;
        if !address.ip().is_loopback() && token.is_none() {
            return Err(BindError::NeedsToken { address });
        }
        let listener = TcpListener::bind(address).await.map_err(|source| BindError::Listen { address, source })?;
        let bound = listener.local_addr().map_err(|source| BindError::Listen { address, source })?;
        let link = link(bound, token.as_ref());
        self.add_own_routes();
        let api = std::mem::take(&mut self.api).document();
        self.get("/api/v1/openapi.json", move |_| {
            let answer = Answer::json(&api);
            async move { answer }
        });
        let shared = Rc::new(Shared {
            address: bound,
            guard: Guard::new(bound, hosts, token, read_only),
            audit,
            nav: self.nav,
            hub: self.hub,
            strip: self.strip,
            sys: self.sys,
            sys_values: RefCell::default(),
        });
        let sys = Rc::downgrade(&shared);
        shared
            .hub
            .add("sys".to_owned(), Rc::new(move || sys.upgrade().map(|sys| sys.sys_values()).unwrap_or_default()));
        let router = router(&shared, self.routes);
        let serving = serve(listener, router)
            .connections(CONNECTIONS_MAX)
            .header_timeout(Duration::from_secs(10))
            .stall_timeout(Duration::from_secs(20))
            .body_timeout(body_timeout)
            .grace(Duration::from_secs(3));
        Ok(Server { serving, shared, link })
    }

    fn add_own_routes(&mut self) {
        let home = self.nav.first().map_or("/", |entry| entry.href);
        if home != "/" {
            self.get("/", move |_| async move { Ok(Answer::see_other(home)) });
        }
        self.get("/assets/{digest}/{name}", |request: Request| async move {
            assets::answer(request.path("digest"), request.path("name"), request.headers()).map(Answer::response)
        });
        // Browsers ask for it where a page names no icon, as a trace's timeline.
        self.get("/favicon.ico", |request: Request| async move {
            assets::answer("", "mark.svg", request.headers()).map(Answer::response)
        });
        self.route(
            Method::POST,
            "/theme",
            None,
            erase(|mut request: Request| async move {
                let form = request.form().await?;
                let theme = form.get("theme").and_then(Theme::of);
                let theme =
                    theme.ok_or_else(|| Failure::bad_request("Unknown colours; choose auto, light or dark."))?;
                let mut answer = Answer::see_other(local_path(form.get("back").unwrap_or("/")));
                let cookie =
                    format!("tidegate-theme={}; Path=/; HttpOnly; SameSite=Lax; Max-Age=31536000", theme.name());
                set_cookie(&mut answer, &cookie);
                Ok(answer)
            }),
        );
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("nav", &self.nav).field("routes", &self.routes.len()).finish_non_exhaustive()
    }
}

/// Tells whether any browser listens; sections that sample something do so only then.
#[derive(Debug, Clone)]
pub struct Audience(Rc<Hub>);

impl Audience {
    /// Whether at least one browser listens now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.listeners() > 0
    }
}

/// A site cannot be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// The address cannot be listened at.
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Others can reach the address, and there is no token.
    NeedsToken {
        /// The address.
        address: SocketAddr,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Listen { address, source } => write!(f, "cannot listen at {address}: {source}"),
            BindError::NeedsToken { address } => {
                write!(f, "the address {address} can be reached from other machines and needs a token")
            }
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::Listen { source, .. } => Some(source),
            BindError::NeedsToken { .. } => None,
        }
    }
}

fn link(bound: SocketAddr, token: Option<&Token>) -> String {
    let query = token.map(|token| format!("?token={}", token.expose())).unwrap_or_default();
    format!("http://{bound}/{query}")
}

/// A site that listens and is not served yet.
#[must_use = "a server does nothing until run() is awaited"]
#[derive(Debug)]
pub struct Server {
    serving: tidegate_http::Server,
    shared: Rc<Shared>,
    link: String,
}

impl Server {
    /// The address it listens at; the port is the one it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// A link that opens the site, with the token if there is one: to print once.
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

fn erase<F, A>(handler: impl Fn(Request) -> F + 'static) -> Handler
where
    F: Future<Output = Result<A, Failure>> + 'static,
    A: Into<Answer>,
{
    Rc::new(move |request| {
        let answering = handler(request);
        Box::pin(async move { answering.await.map(Into::into) })
    })
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

fn set_cookie(answer: &mut Answer, cookie: &str) {
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
