//! A client made to measure.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::ClientConfig;

use super::pool::{Pool, PoolLimits};
use super::proxy::Proxies;
use super::{Client, Inner};
use crate::error::Error;
use crate::tls::{Roots, Trust};

/// How long a request may take; `None` is without end. Of a client, or of one request among its extensions:
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
    /// For a new connection: looking up the name, connecting, the proxy, TLS. 10 seconds unless set.
    pub connect: Option<Duration>,
    /// The longest silence: nothing arrives and nothing of the request leaves, while somebody waits for it. 5 minutes
    /// unless set, for a language model may think that long.
    pub read: Option<Duration>,
    /// For everything, from the call, waiting for a connection included, to the end of the body. Not limited unless set.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: Some(Duration::from_secs(10)), read: Some(Duration::from_secs(300)), total: None }
    }
}

/// Makes a [`Client`]; see [`Client::builder`].
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
    /// The defaults.
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

    /// How many connections there may be to one host (scheme, name, port and proxy) at once; requests beyond wait their
    /// turn, first come, first served. 256 unless set.
    ///
    /// # Panics
    /// When it is 0.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().connections_per_host(4).build().unwrap();
    /// ```
    pub fn connections_per_host(mut self, limit: usize) -> Self {
        assert!(limit > 0, "a client without connections could send nothing");
        self.limits.per_host = limit;
        self
    }

    /// How many connections to one host are kept for later requests, and how long. 64 for a minute unless set; 0 keeps
    /// none.
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

    /// The time-outs of requests that bring none of their own.
    ///
    /// ```
    /// use tidegate_http::{Client, Timeouts};
    /// let client = Client::builder().timeouts(Timeouts { read: None, ..Timeouts::default() }).build().unwrap();
    /// ```
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Other proxies than the environment's.
    ///
    /// ```
    /// use tidegate_http::{Client, Proxies};
    /// let client = Client::builder().proxies(Proxies::none()).build().unwrap();
    /// ```
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// Whom to trust; the machine's authorities unless set.
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

    /// TLS exactly so (client certificates, another verifier), instead of [`roots`](Self::roots) and
    /// [`ca_file`](Self::ca_file).
    ///
    /// ```
    /// use rustls::{ClientConfig, RootCertStore, crypto::ring};
    /// use std::sync::Arc;
    /// let nobody = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
    ///     .with_safe_default_protocol_versions()
    ///     .unwrap()
    ///     .with_root_certificates(RootCertStore::empty())
    ///     .with_no_client_auth();
    /// let client = tidegate_http::Client::builder().tls(Arc::new(nobody)).build().unwrap();
    /// ```
    pub fn tls(mut self, config: Arc<ClientConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// The `User-Agent` of requests that have none; `tidegate/<version>` unless set.
    ///
    /// ```
    /// use http::HeaderValue;
    /// let client = tidegate_http::Client::builder().user_agent(HeaderValue::from_static("mine/1")).build().unwrap();
    /// ```
    pub fn user_agent(mut self, name: HeaderValue) -> Self {
        self.user_agent = name;
        self
    }

    /// Whether to ask for gzip and unpack it; on unless set. Requests with an `Accept-Encoding` or a `Range` of their own
    /// are left alone, and so are their responses.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().gzip(false).build().unwrap();
    /// ```
    pub fn gzip(mut self, on: bool) -> Self {
        self.gzip = on;
        self
    }

    /// How many redirections to follow; none unless set: the response that redirects is handed out as it is. Followed,
    /// 301, 302 and 303 turn into GET (HEAD stays HEAD), 307 and 308 repeat the request if its body is in memory; never
    /// from `https` to `http`; secrets among the headers do not go to another host.
    ///
    /// ```
    /// let client = tidegate_http::Client::builder().redirects(10).build().unwrap();
    /// ```
    pub fn redirects(mut self, limit: usize) -> Self {
        self.redirects = limit;
        self
    }

    /// The client.
    ///
    /// # Errors
    /// [`Error::Setup`] when a certificate file cannot be used.
    ///
    /// ```
    /// let client = tidegate_http::ClientBuilder::new().build().unwrap();
    /// ```
    pub fn build(self) -> Result<Client, Error> {
        let trust = match self.tls {
            Some(config) => Trust::of(config),
            None => Trust::new(self.roots, &self.ca_files)?,
        };
        let inner = Inner {
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
