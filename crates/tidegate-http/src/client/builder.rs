//! The client's builder and time-outs.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::ClientConfig;

use super::pool::{Pool, PoolLimits};
use super::proxy::Proxies;
use super::{Client, ClientInner};
use crate::error::Error;
use crate::tls::{Roots, Trust};

/// How long a request may take; `None` means no limit. Set for a client, or for one request in its extensions:
///
/// ```
/// use http::Request;
/// use std::time::Duration;
/// use tidegate_http::Timeouts;
///
/// let patient = Timeouts { read: None, ..Timeouts::default() };
/// let request = Request::get("http://slow.example/").extension(patient).body(()).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a new connection: name lookup, connecting, the proxy, TLS. Default: 10 seconds.
    pub connect: Option<Duration>,
    /// The longest time in which no byte is sent or received while the caller waits. Default: 5 minutes, because a language
    /// model may take that long to begin its answer.
    pub read: Option<Duration>,
    /// For the whole request: from the call, including the wait for a connection, to the end of the body. Default: `None`.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: Some(Duration::from_secs(10)), read: Some(Duration::from_secs(300)), total: None }
    }
}

/// Builds a [`Client`]; see [`Client::builder`].
///
/// ```
/// use tidegate_http::ClientBuilder;
/// let client = ClientBuilder::new().gzip(false).build().unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ClientBuilder {
    limits: PoolLimits,
    timeouts: Timeouts,
    proxies: Option<Proxies>,
    roots: Roots,
    ca_files: Vec<PathBuf>,
    tls: Option<Arc<ClientConfig>>,
    user_agent: HeaderValue,
    gzip: bool,
    redirects: usize,
}

impl Default for ClientBuilder {
    fn default() -> ClientBuilder {
        ClientBuilder::new()
    }
}

impl ClientBuilder {
    /// Creates a builder with the defaults.
    ///
    /// ```
    /// let client = tidegate_http::ClientBuilder::new().build().unwrap();
    /// ```
    pub fn new() -> ClientBuilder {
        ClientBuilder {
            limits: PoolLimits { per_host: 256, idle_per_host: 64, idle_timeout: Duration::from_secs(60) },
            timeouts: Timeouts::default(),
            proxies: None,
            roots: Roots::default(),
            ca_files: Vec::new(),
            tls: None,
            user_agent: HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))),
            gzip: true,
            redirects: 0,
        }
    }

    /// The largest number of connections to one host (scheme, name, port and proxy). Further requests wait, first come,
    /// first served. Default: 256.
    ///
    /// # Panics
    /// If `limit` is 0.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().connections_per_host(4).build().unwrap();
    /// ```
    pub fn connections_per_host(mut self, limit: usize) -> Self {
        assert!(limit > 0, "the limit on connections must be at least 1");
        self.limits.per_host = limit;
        self
    }

    /// The largest number of idle connections per host that are kept for later requests, and how long. Default: 64, for
    /// one minute. With 0 none is kept.
    ///
    /// ```
    /// use std::time::Duration;
    /// let client = tidegate_http::Client::builder().keep_idle(8, Duration::from_secs(20)).build().unwrap();
    /// ```
    pub fn keep_idle(mut self, per_host: usize, timeout: Duration) -> Self {
        self.limits.idle_per_host = per_host;
        self.limits.idle_timeout = timeout;
        self
    }

    /// The time-outs of requests without time-outs of their own.
    ///
    /// ```
    /// use tidegate_http::{Client, Timeouts};
    /// let client = Client::builder().timeouts(Timeouts { read: None, ..Timeouts::default() }).build().unwrap();
    /// ```
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The proxies. Default: the environment's.
    ///
    /// ```
    /// use tidegate_http::{Client, Proxies};
    /// let client = Client::builder().proxies(Proxies::none()).build().unwrap();
    /// ```
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// The certificate authorities to trust. Default: the machine's.
    ///
    /// ```
    /// use tidegate_http::{Client, Roots};
    /// let client = Client::builder().roots(Roots::Webpki).build().unwrap();
    /// ```
    pub fn roots(mut self, roots: Roots) -> Self {
        self.roots = roots;
        self
    }

    /// Trusts the authorities of this PEM file as well.
    ///
    /// ```
    /// let error = tidegate_http::Client::builder().ca_file("/nowhere/ca.pem").build().unwrap_err();
    /// assert!(error.to_string().contains("/nowhere/ca.pem"));
    /// ```
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_files.push(file.into());
        self
    }

    /// The TLS configuration, for client certificates or another verifier. Replaces [`roots`](Self::roots) and
    /// [`ca_file`](Self::ca_file).
    ///
    /// ```
    /// use rustls::{ClientConfig, RootCertStore, crypto::ring};
    /// use std::sync::Arc;
    /// let trusts_none = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
    ///     .with_safe_default_protocol_versions()
    ///     .unwrap()
    ///     .with_root_certificates(RootCertStore::empty())
    ///     .with_no_client_auth();
    /// let client = tidegate_http::Client::builder().tls(Arc::new(trusts_none)).build().unwrap();
    /// ```
    pub fn tls(mut self, config: Arc<ClientConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// The `User-Agent` of requests that have none. Default: `tidegate/<version>`.
    ///
    /// ```
    /// use http::HeaderValue;
    /// let client = tidegate_http::Client::builder().user_agent(HeaderValue::from_static("mine/1")).build().unwrap();
    /// ```
    pub fn user_agent(mut self, name: HeaderValue) -> Self {
        self.user_agent = name;
        self
    }

    /// Whether to request gzip and decompress it. Default: `true`. Requests with their own `Accept-Encoding` or `Range`,
    /// and their responses, are not changed.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().gzip(false).build().unwrap();
    /// ```
    pub fn gzip(mut self, on: bool) -> Self {
        self.gzip = on;
        self
    }

    /// The largest number of redirections to follow in a row. Default: 0, which returns the response that redirects.
    ///
    /// 301, 302 and 303 are followed with GET (HEAD stays HEAD). 307 and 308 repeat the request if its body is in memory.
    /// A redirection from `https` to `http` is an error, and headers with secrets are not sent to another host.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().redirects(10).build().unwrap();
    /// ```
    pub fn redirects(mut self, limit: usize) -> Self {
        self.redirects = limit;
        self
    }

    /// Builds the client.
    ///
    /// # Errors
    /// [`Error::Setup`] if a certificate file cannot be used.
    ///
    /// ```
    /// let client = tidegate_http::ClientBuilder::new().build().unwrap();
    /// ```
    pub fn build(self) -> Result<Client, Error> {
        let trust = match self.tls {
            Some(config) => Trust::of(config),
            None => Trust::new(self.roots, &self.ca_files)?,
        };
        let inner = ClientInner {
            pool: Pool::new(self.limits),
            proxies: self.proxies.unwrap_or_else(Proxies::from_env),
            trust,
            timeouts: self.timeouts,
            user_agent: self.user_agent,
            gzip: self.gzip,
            redirects: self.redirects,
            last: RefCell::default(),
        };
        Ok(Client { inner: Rc::new(inner) })
    }
}
