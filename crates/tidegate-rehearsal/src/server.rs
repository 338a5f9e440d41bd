//! The server: its routes, the life of a request, and the handle to all of it.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http_body::Frame;
use serde::Serialize;
use tidegate_http::{ServerHandle, local, serve};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{EventLoop, LoopHandle, sleep_until, spawn, yield_now};
use tidegate_sync::Event;

use crate::builder::{Builder, Config};
use crate::dialect::{Answer, Dialect, Reply, Task, Wrong};
use crate::error::StartError;
use crate::fault::Fault;
use crate::ledger::{Admitted, Arrival, Denied, Ledger};
use crate::stats::{Entry, Stats};
use crate::text::{answer_to, cut, fingerprint, tokens_of};
use crate::window::Now;

/// An answer is built this long before it is due.
const MAKING: Duration = Duration::from_millis(2);

/// The largest request body; pictures of pages are large.
const BODY_LEN_MAX: usize = 64 << 20;

/// Further connections wait to be accepted. The bound is high, so that clients with many connections can be tested.
const CONNECTIONS_MAX: usize = 100_000;

/// How long answers that are being sent may take after the server was asked to stop.
const GRACE: Duration = Duration::from_secs(5);

/// A strict local LLM server.
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::Client;
/// use tidegate_loop::run;
/// use tidegate_rehearsal::{Limit, Server};
///
/// run(async {
///     let server = Server::builder().rpm(Limit::new(1).per(Duration::from_secs(60))).start().await.unwrap();
///     let url = format!("{}/v1/chat/completions", server.base_url());
///     let ask = serde_json::json!({"model": "any", "messages": [{"role": "user", "content": "Why do tides turn?"}]});
///     assert_eq!(Client::new().post_json(&url, &ask).await.unwrap().status(), 200);
///     assert_eq!(Client::new().post_json(&url, &ask).await.unwrap().status(), 429);
///     let stats = server.stats();
///     assert_eq!((stats.answered, stats.refused.rpm), (1, 1));
///     server.stop().await;
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server without limits, latency or failures, to be made stricter.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// A running server. Cheap to clone, for any thread; it stops when the last one is dropped.
#[derive(Clone)]
pub struct Handle {
    owner: Arc<Owner>,
}

struct Owner {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: ServerHandle,
}

struct Shared {
    config: Config,
    /// When it started, on both clocks.
    began: Now,
    ledger: Mutex<Ledger>,
    /// Notified when the ledger changes, if a thread waits for that.
    counted: Condvar,
    /// The number of threads that wait on `counted`; changed under the ledger's lock.
    awaiting: AtomicUsize,
    /// Ends requests that are held without an answer on purpose.
    stopping: Event,
    stopped: Event,
    ended: AtomicBool,
}

impl Shared {
    /// Returns the loop's time where that is virtual, and the machine's time otherwise. A virtual calendar goes on from when
    /// the server started.
    fn now(&self) -> Now {
        match virtual_time() {
            Some(instant) => {
                let since = instant.saturating_duration_since(self.began.instant);
                Now { instant, wall: self.began.wall + since }
            }
            None => Now { instant: Instant::now(), wall: SystemTime::now() },
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger and notifies the threads that wait for a change.
    fn count<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let changed = change(&mut self.ledger());
        self.tell();
        changed
    }

    fn tell(&self) {
        // A thread that begins to wait later sees the change. Checked first, because a notification is a system call.
        if self.awaiting.load(SeqCst) > 0 {
            self.counted.notify_all();
        }
    }
}

/// Returns the time of the running loop if it is virtual.
fn virtual_time() -> Option<Instant> {
    LoopHandle::try_current().filter(|current| current.is_virtual()).map(|current| current.time())
}

impl Handle {
    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.owner.address
    }

    /// `http://` and the address. OpenAI's paths begin with `/v1`, Gemini's with `/v1beta`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.owner.address)
    }

    /// What it has counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.owner.shared.ledger().stats(self.owner.shared.now())
    }

    /// Blocks until what it has counted satisfies `condition`, or it has ended; yields the figures as they are then.
    /// Not for the thread that the server runs on.
    ///
    /// ```
    /// use tidegate_http::Client;
    /// use tidegate_rehearsal::Server;
    ///
    /// let server = Server::builder().start_in_thread().unwrap();
    /// let url = format!("{}/v1/embeddings", server.base_url());
    /// let client = std::thread::spawn(move || {
    ///     let ask = serde_json::json!({"model": "any", "input": "tides"});
    ///     tidegate_loop::run(async move { Client::new().post_json(&url, &ask).await.unwrap().status() }).unwrap()
    /// });
    /// assert_eq!(server.wait_until(|stats| stats.answered == 1).arrived, 1);
    /// assert_eq!(client.join().unwrap(), 200);
    /// ```
    pub fn wait_until(&self, mut condition: impl FnMut(&Stats) -> bool) -> Stats {
        let shared = &self.owner.shared;
        let mut ledger = shared.ledger();
        shared.awaiting.fetch_add(1, SeqCst);
        loop {
            let stats = ledger.stats(shared.now());
            if condition(&stats) || self.is_stopped() {
                shared.awaiting.fetch_sub(1, SeqCst);
                return stats;
            }
            ledger = shared.counted.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The last `count` requests, oldest first; of more than 10,000 the oldest are forgotten.
    #[must_use]
    pub fn log(&self, count: usize) -> Vec<Entry> {
        self.owner.shared.ledger().log(count)
    }

    /// Stops the server: it accepts no new request, finishes answers for up to five seconds, and ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server stops all the same.
    pub async fn stop(&self) {
        self.owner.stop();
        self.owner.shared.stopped.wait().await;
    }

    /// Returns `true` if the server has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.owner.shared.ended.load(Relaxed)
    }
}

impl Owner {
    fn stop(&self) {
        self.shared.stopping.set();
        self.server.stop();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("address", &self.owner.address).field("stopped", &self.is_stopped()).finish()
    }
}

/// Marks the server as ended when it is dropped, whatever the reason.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        // Under the ledger's lock, so that no thread is between its check of the flag and its wait.
        self.0.count(|_| self.0.ended.store(true, Relaxed));
        self.0.stopped.set();
    }
}

pub(crate) async fn start(config: Config) -> Result<Handle, StartError> {
    let address = config.listen;
    let began = Now { instant: virtual_time().unwrap_or_else(Instant::now), wall: SystemTime::now() };
    let ledger = Ledger::new(config.clone(), began.instant).map_err(StartError::Zone)?;
    let failed = |error| StartError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let shared = Arc::new(Shared {
        config,
        began,
        ledger: Mutex::new(ledger),
        counted: Condvar::new(),
        awaiting: AtomicUsize::new(0),
        stopping: Event::new(),
        stopped: Event::new(),
        ended: AtomicBool::new(false),
    });
    let server = serve(listener, router(shared.clone())).connections(CONNECTIONS_MAX).grace(GRACE);
    let handle = Handle { owner: Arc::new(Owner { address, shared: shared.clone(), server: server.handle() }) };
    if shared.config.awake {
        let shared = shared.clone();
        spawn(async move {
            while !shared.ended.load(Relaxed) {
                yield_now().await;
            }
        });
    }
    spawn(async move {
        let _ending = Ending(shared);
        // A failing listener shows in the next request, which cannot connect.
        let _ = server.run().await;
    });
    Ok(handle)
}

pub(crate) fn start_in_thread(config: Config) -> Result<Handle, StartError> {
    let (sender, receiver) = mpsc::channel();
    let serving = async move {
        let started = start(config).await;
        let shared = started.as_ref().map(|handle| handle.owner.shared.clone()).ok();
        // If the receiver is gone, the handle is dropped here, and the server ends with it.
        let _ = sender.send(started);
        if let Some(shared) = shared {
            shared.stopped.wait().await;
        }
    };
    let thread = std::thread::Builder::new().name("rehearsal".to_owned()).spawn(move || {
        // Whatever keeps the loop from running drops the sender, and the receiver notices.
        let _ = EventLoop::new().map(|event_loop| event_loop.run_until_complete(serving));
    });
    thread.map_err(StartError::Thread)?;
    receiver.recv().unwrap_or_else(|_| Err(StartError::Thread(std::io::Error::other("its loop did not start"))))
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|state, headers, body| chat(state, headers, body, Dialect::OpenAi, Task::Chat)),
        )
        .route("/v1/embeddings", post(|state, headers, body| chat(state, headers, body, Dialect::OpenAi, Task::Embed)))
        .route("/v1/messages", post(|state, headers, body| chat(state, headers, body, Dialect::Anthropic, Task::Chat)))
        .route("/v1/models", get(|state| list(state, Dialect::OpenAi)))
        .route("/v1beta/models", get(|state| list(state, Dialect::Gemini)))
        .route("/v1beta/models/{call}", post(generate))
        .route("/rehearsal/stats", get(stats))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .with_state(shared)
}

async fn chat(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
    dialect: Dialect,
    task: Task,
) -> Response {
    local(handle(shared, headers, body, dialect, None, task)).await
}

/// Gemini names the model and the method in one piece of the path.
async fn generate(
    State(shared): State<Arc<Shared>>,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match call.rsplit_once(':') {
        Some((model, "generateContent")) => {
            local(handle(shared, headers, body, Dialect::Gemini, Some(model.to_owned()), Task::Chat)).await
        }
        _ => respond(reject(&shared, Dialect::Gemini, &Wrong::Path(format!("/v1beta/models/{call}")))),
    }
}

async fn list(State(shared): State<Arc<Shared>>, dialect: Dialect) -> Response {
    let any = ["rehearsal".to_owned()];
    let models = if shared.config.models.is_empty() { &any[..] } else { &shared.config.models };
    respond(Reply::new(200, &dialect.models(models)))
}

#[derive(serde::Deserialize)]
struct Asked {
    /// How many entries of the log.
    #[serde(default)]
    log: usize,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    stats: Stats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<Entry>,
}

async fn stats(State(shared): State<Arc<Shared>>, Query(asked): Query<Asked>) -> Response {
    let mut ledger = shared.ledger();
    let shown = Shown { stats: ledger.stats(shared.now()), log: ledger.log(asked.log) };
    drop(ledger);
    respond(Reply::new(200, &shown))
}

async fn unknown(State(shared): State<Arc<Shared>>, method: Method, uri: Uri) -> Response {
    let dialect = if uri.path().starts_with("/v1beta") { Dialect::Gemini } else { Dialect::OpenAi };
    respond(reject(&shared, dialect, &Wrong::Path(format!("{method} {}", uri.path()))))
}

fn reject(shared: &Shared, dialect: Dialect, wrong: &Wrong) -> Reply {
    shared.count(Ledger::reject);
    dialect.reject(wrong)
}

/// An accepted request. Dropped before it is answered, its client has gone.
struct Flight {
    shared: Arc<Shared>,
    admitted: Admitted,
    outcome: Option<(u16, u64)>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let (status, tokens_out) = self.outcome.map_or((None, 0), |(status, tokens)| (Some(status), tokens));
        let now = self.shared.now();
        self.shared.count(|ledger| ledger.depart(self.admitted, status, tokens_out, now));
    }
}

/// Handles one request: checks the key, reads the body, asks the ledger, then sends the answer or the injected fault.
async fn handle(
    shared: Arc<Shared>,
    headers: HeaderMap,
    body: Bytes,
    dialect: Dialect,
    model: Option<String>,
    task: Task,
) -> Response {
    // One clock reading for the windows, the log and the latency.
    let arrived = shared.now();
    let config = &shared.config;
    if config.api_key.as_ref().is_some_and(|key| dialect.key(&headers) != Some(key.expose())) {
        return respond(reject(&shared, dialect, &Wrong::Key));
    }
    let ask = match dialect.read(&body, model.as_deref(), task) {
        Ok(ask) if config.models.is_empty() || config.models.contains(&ask.model) => ask,
        Ok(ask) => return respond(reject(&shared, dialect, &Wrong::Model(ask.model))),
        Err(wrong) => return respond(reject(&shared, dialect, &wrong)),
    };
    let said = answer_to(&ask.prompt, config.answer_words);
    let (text, whole) = cut(&said, ask.max_tokens.unwrap_or(u64::MAX));
    let tokens_out = if task == Task::Embed { 0 } else { tokens_of(text) };
    let arrival = Arrival {
        model: &ask.model,
        tokens: dialect.cost(&ask, tokens_out, config.counting),
        tokens_in: ask.tokens_in,
        tokens_out: Dialect::cost_out(&ask, tokens_out, config.counting),
        fingerprint: fingerprint(&body),
    };
    let (admitted, levels) = shared.count(|ledger| {
        let admitted = ledger.arrive(&arrival, arrived);
        (admitted, if config.rate_headers { ledger.levels(arrived) } else { Vec::new() })
    });
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(Denied::Limit(refusal)) => {
            return respond(dialect.refuse(&refusal, &ask.model, config.refusals, &levels, arrived));
        }
        Err(Denied::Fault(fault)) => return respond(dialect.fail(if fault == Fault::Overloaded { 529 } else { 503 })),
    };
    drop((headers, body));
    let mut flight = Flight { shared: shared.clone(), admitted, outcome: None };
    // Made just before it is due: what this server does itself is a part of the latency, and behind it only the way out is
    // left. And not at once: those who come together with this one are counted first, when they come.
    let due = arrived.instant + admitted.latency;
    if admitted.latency > MAKING {
        sleep_until(due - MAKING).await;
    }
    let (response, outcome) = match admitted.fault {
        Some(Fault::Silence | Fault::Drop) => (hang_up(), None),
        Some(Fault::Garbage) => (garbage(admitted.number), Some((200, 0))),
        Some(_) => (respond(dialect.fail(500)), Some((500, 0))),
        None => {
            let answer = Answer { text, whole, tokens_in: ask.tokens_in, tokens_out, number: admitted.number };
            (respond(dialect.answer(&ask, &answer, &levels, arrived)), Some((200, tokens_out)))
        }
    };
    drop((ask, said, levels));
    if !admitted.latency.is_zero() {
        sleep_until(due).await;
    }
    if admitted.fault == Some(Fault::Silence) {
        shared.stopping.wait().await;
    }
    flight.outcome = outcome;
    response
}

fn respond(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, reply.body).into_response();
    response.headers_mut().extend(reply.headers);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What proxies and half-dead servers send with a good conscience.
fn garbage(number: u64) -> Response {
    const BODIES: [&str; 4] = [
        "<html><body>502 Bad Gateway</body></html>",
        "{\"choices\":[{\"message\":{\"content\":\"half an ans",
        "{}",
        "",
    ];
    let body = BODIES[usize::try_from(number).unwrap_or(0) % BODIES.len()];
    let mut response = (StatusCode::OK, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// hyper closes the connection when a body fails, and this one does before the head has left.
fn hang_up() -> Response {
    struct Broken;
    impl HttpBody for Broken {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionAborted.into())))
        }
    }
    Response::new(Body::new(Broken))
}
