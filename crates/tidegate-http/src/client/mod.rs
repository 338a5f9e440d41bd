//! The client.

mod builder;
mod connect;
mod drive;
mod endpoint;
mod exchange;
mod link;
mod pool;
mod proxy;
mod redirect;
mod target;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, Uri};
use serde::Serialize;
use tidegate_secret::Secret;

pub use builder::{ClientBuilder, Timeouts};
pub use pool::ClientStats;
pub(crate) use pool::Lease;
pub use proxy::Proxies;

use crate::body::Body;
use crate::error::Error;
use crate::tls::Trust;
use endpoint::Endpoint;
use pool::Pool;

/// An HTTP/1.1 client that keeps its connections. Cheap to clone; clones share connections and limits. It is not `Send`,
/// like the loop.
///
/// By default it
/// - waits in line when a host has its maximum of connections,
/// - uses the environment's [proxies](Proxies),
/// - requests gzip and decompresses it,
/// - repeats a request if a kept connection was lost before the first byte of the answer and repeating is safe: the method
///   is idempotent and the body in memory, or nothing was sent.
///
/// Other retries and cookies are left to the caller, and so are redirections unless
/// [enabled](ClientBuilder::redirects).
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_http::{Client, serve};
/// use tidegate_loop::{net::TcpListener, run, spawn};
///
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
///     let url = format!("http://{}/", listener.local_addr().unwrap());
///     let server = spawn(serve(listener, Router::new().route("/", get(|| async { "hello" }))).run());
///
///     let client = Client::new();
///     let response = client.get(&url).await.unwrap();
///     assert_eq!(response.status(), 200);
///     assert_eq!(response.into_body().text().await.unwrap(), "hello");
///     assert_eq!(client.stats().idle, 1);
///     server.cancel();
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Rc<ClientInner>,
}

struct ClientInner {
    pool: Rc<Pool>,
    proxies: Proxies,
    trust: Trust,
    timeouts: Timeouts,
    user_agent: HeaderValue,
    gzip: bool,
    redirects: usize,
    /// The last request's endpoint, because most requests are for the same one.
    last: RefCell<Option<Rc<Endpoint>>>,
}

impl Client {
    /// Creates a client with the defaults of [`ClientBuilder`].
    ///
    /// ```
    /// let client = tidegate_http::Client::new();
    /// ```
    #[must_use]
    pub fn new() -> Client {
        Client::builder().build().expect("the defaults name no file that could be missing")
    }

    /// Returns a builder for a client.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_http::{Client, Timeouts};
    ///
    /// let client = Client::builder()
    ///     .connections_per_host(8)
    ///     .timeouts(Timeouts { total: Some(Duration::from_secs(30)), ..Timeouts::default() })
    ///     .build()
    ///     .unwrap();
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Sends a request and returns when the response's head has arrived. The body is received as it is read.
    ///
    /// [`Timeouts`] in the request's extensions replace the client's. A `Host` header is added if there is none. Headers
    /// with secrets (`Authorization`, `Cookie`, `x-api-key` and similar ones) are marked sensitive, so that their values are
    /// not printed with the request.
    ///
    /// # Errors
    /// See [`Error`]. A status such as 404 or 500 is a response, not an error.
    ///
    /// # Cancel safety
    /// Dropping the future closes the request's connection, or leaves the line for one. The server may have received the
    /// request.
    ///
    /// ```no_run
    /// # tidegate_loop::run(async {
    /// use http::Request;
    /// use tidegate_http::Client;
    ///
    /// let request = Request::put("https://files.example/notes").header("x-api-key", "secret").body("text").unwrap();
    /// let response = Client::new().request(request).await.unwrap();
    /// # }).unwrap();
    /// ```
    pub fn request<B: Into<Body>>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Body>, Error>> + use<'_, B> {
        // Boxed before the first await, because the future would contain the request twice.
        let request = Box::new(request.map(Into::into));
        async move {
            match self.inner.redirects {
                0 => exchange::exchange(&self.inner, request).await,
                _ => Box::pin(redirect::follow(&self.inner, request)).await,
            }
        }
    }

    /// Returns the passwords that this client sends by itself, those of its [proxies](Proxies), for a
    /// [`Redactor`](tidegate_secret::Redactor) of what is answered.
    ///
    /// ```
    /// use tidegate_http::{Client, Proxies};
    ///
    /// let client = Client::builder().proxies(Proxies::none()).build().unwrap();
    /// assert_eq!(client.secrets().count(), 0);
    /// ```
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.inner.proxies.secrets()
    }

    /// Sends a GET request for `url`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    ///
    /// # Cancel safety
    /// As [`request`](Self::request).
    ///
    /// ```no_run
    /// # tidegate_loop::run(async {
    /// let page = tidegate_http::Client::new().get("https://example.com/").await.unwrap();
    /// println!("{}", page.into_body().text().await.unwrap());
    /// # }).unwrap();
    /// ```
    pub async fn get(&self, url: &str) -> Result<Response<Body>, Error> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = target::parse(url)?;
        self.request(request).await
    }

    /// Posts `value` as JSON.
    ///
    /// # Errors
    /// As [`request`](Self::request); [`Error::Protocol`] if `value` cannot be serialised.
    ///
    /// # Cancel safety
    /// As [`request`](Self::request).
    ///
    /// ```no_run
    /// # tidegate_loop::run(async {
    /// let question = std::collections::BTreeMap::from([("prompt", "hello")]);
    /// let response = tidegate_http::Client::new().post_json("http://localhost:8080/v1", &question).await.unwrap();
    /// let answer: std::collections::BTreeMap<String, String> = response.into_body().json().await.unwrap();
    /// # }).unwrap();
    /// ```
    pub async fn post_json<T: Serialize + ?Sized>(&self, url: &str, value: &T) -> Result<Response<Body>, Error> {
        let uri = target::parse(url)?;
        let host = target::Target::of(&uri)?.authority();
        let json = serde_json::to_vec(value)
            .map_err(|error| Error::Protocol { host, reason: format!("cannot be written as JSON: {error}") })?;
        self.post_text(uri, json).await
    }

    /// As [`post_json`](Self::post_json), with a value that has been serialised already.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    ///
    /// # Cancel safety
    /// As [`request`](Self::request).
    pub async fn post_json_text(&self, url: &str, json: Vec<u8>) -> Result<Response<Body>, Error> {
        self.post_text(target::parse(url)?, json).await
    }

    async fn post_text(&self, uri: Uri, json: Vec<u8>) -> Result<Response<Body>, Error> {
        let mut request = Request::new(Body::from(json));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json.clone());
        request.headers_mut().insert(ACCEPT, json);
        self.request(request).await
    }

    /// The figures of the client's connections.
    ///
    /// ```
    /// assert_eq!(tidegate_http::Client::new().stats().open, 0);
    /// ```
    pub fn stats(&self) -> ClientStats {
        self.inner.pool.stats()
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("proxies", &self.inner.proxies).field("stats", &self.stats()).finish()
    }
}
