//! A site: pages, actions, API routes and topics put together. `server.rs` serves them.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::Method;
use maud::Markup;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_loop::net::TcpListener;

use crate::answer::{Answer, Failure, local_path};
use crate::api::{Api, Doc};
use crate::assets;
use crate::audit::Audit;
use crate::guard::{Guard, Token};
use crate::live::{Family, Hub, Source, Values};
use crate::page::Theme;
use crate::request::Request;
use crate::server::{Server, Shared, set_cookie};

type Answering = Pin<Box<dyn Future<Output = Result<Answer, Failure>>>>;
pub(crate) type Cell = Rc<dyn Fn() -> StripCell>;
pub(crate) type AddValues = Rc<dyn Fn(&mut Values)>;
pub(crate) type Handler = Rc<dyn Fn(Request) -> Answering>;

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

pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// What a change is called in the audit log; `None` for what only reads.
    pub(crate) action: Option<&'static str>,
    pub(crate) handler: Handler,
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
        let guard = Guard::new(bound, hosts, token, read_only);
        let shared = Shared::new(bound, guard, audit, self.nav, self.hub, self.strip, self.sys);
        Ok(Server::new(listener, shared, self.routes, link, body_timeout))
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

fn link(bound: SocketAddr, token: Option<&Token>) -> String {
    let query = token.and_then(Token::in_link).map(|token| format!("?token={token}")).unwrap_or_default();
    format!("http://{bound}/{query}")
}
