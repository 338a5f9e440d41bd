//! One request, from its estimate to its answer: let in by the gate, sent, listened to, tried again by the class of its
//! error, settled by what the answer says it cost. Whoever has requests for an LLM server sends them through this.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, Method, Uri};
use serde_json::Value;
use tidegate_http::{Body, Client, Timeouts};
use tidegate_limit::feedback::{Feedback, Listener, PROBED_BEYOND, Report, Verdict};
use tidegate_limit::{Admission, Cost, Dimension, EnterError, Scope};
use tidegate_loop::yield_now;
use tidegate_secret::Redactor;
use tidegate_sync::{Event, Permit, Semaphore};

use crate::attempt::{Failure, Judged, NoAnswer, Tries};
use crate::base_url::{BadBaseUrl, BaseUrl};
use crate::calibration::{Calibration, Typical};
use crate::call::{Call, CallerStats, Reply, Retries};
use crate::call_error::CallError;
use crate::divided;
use crate::estimate::tokens_of_text;
use crate::key::ApiKey;
use crate::large_answers;
use crate::mended;
use crate::no_pictures;
use crate::on_the_wire::{OnTheWire, client, headers};
use crate::parameter;
use crate::presence::{Cause, Failed, Presence, Sent};
use crate::provider::{self, Dialect, Unreadable, excerpt};
use crate::question::Usage;
use crate::run::{ItemLease, ItemScope};

/// Longest time that a request to an overloaded server waits by itself; what the server asks for beyond it, it waits at the gate.
const OVERLOADED_SLEEP_MAX: Duration = Duration::from_secs(30);

/// Sends requests to one server, within a gate.
///
/// ```
/// use axum::{Router, routing::post};
/// use tidegate_batch::{Call, Caller, Dialect, Estimate};
/// use tidegate_http::serve;
/// use tidegate_limit::{Gate, Limit};
/// use tidegate_loop::{net::TcpListener, run, spawn};
///
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
///     let base = format!("http://{}/v1", listener.local_addr().unwrap());
///     let answer = r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
///     let server = spawn(serve(listener, Router::new().route("/v1/echo", post(move || async move { answer }))).run());
///
///     let gate = Gate::builder().limit(Limit::rpm(60)).limit(Limit::tpm(1_000)).build().unwrap();
///     let caller = Caller::new(&gate, Dialect::OpenAi, &base).unwrap();
///     let call = Call::new("/echo", "{}".into(), Estimate { input_tokens: 20, output_tokens: 100 });
///     let reply = caller.call_json(gate.unscoped(), &call).await.unwrap();
///     assert_eq!(reply.usage.unwrap().total(), 13);
///     assert_eq!(gate.stats().limit("tpm").unwrap().used, 13); // settled: 120 had been booked
///     server.cancel();
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Caller {
    inner: Rc<Inner>,
}

struct Inner {
    gate: Admission,
    listener: Listener,
    client: Client,
    dialect: Dialect,
    base: BaseUrl,
    key: Option<ApiKey>,
    headers: HeaderMap,
    /// Whether a key may be sent where others can read it.
    insecure_http: bool,
    /// Room for large answers.
    large_answers: Arc<Semaphore>,
    /// Removes keys and passwords from messages, also short ones.
    messages: Redactor,
    /// Removes them from answers.
    answers: Redactor,
    /// The path of the last call, and the address that it makes with the base.
    last_uri: RefCell<Option<(String, Uri)>>,
    retries: Retries,
    timeouts: Timeouts,
    /// Whether the gate counts prompts and answers apart.
    apart: bool,
    random: RefCell<fastrand::Rng>,
    stats: Cell<CallerStats>,
    calibration: RefCell<Calibration>,
    typical: Cell<Typical>,
    /// Told when estimates change.
    calibrated: Event,
    presence: RefCell<Presence>,
    /// A parameter that the model refuses, and its other name.
    rename: Cell<Option<(&'static str, &'static str)>>,
    notice: Box<dyn Fn(&str)>,
    /// Calls so far; each has its number.
    calls: Cell<u64>,
}

impl Caller {
    /// A caller to the server at `base`, without a key, through a [`Gate`](tidegate_limit::Gate) or one in front of limits
    /// that machines have in common.
    ///
    /// # Errors
    /// [`BadBaseUrl`].
    pub fn new(gate: impl Into<Admission>, dialect: Dialect, base: &str) -> Result<Caller, BadBaseUrl> {
        let base = BaseUrl::parse(base)?;
        let gate = gate.into();
        let apart = [Dimension::INPUT_TOKENS, Dimension::OUTPUT_TOKENS].map(Dimension::name);
        let apart =
            gate.stats().limits.iter().filter_map(|limit| limit.dimension.as_deref()).any(|it| apart.contains(&it));
        let client = client(&gate);
        let (messages, answers) = redactors(&base, None, &client);
        let inner = Inner {
            large_answers: large_answers::room(),
            listener: Listener::new(gate.gate(), dialect.feedback()),
            client,
            gate,
            dialect,
            headers: headers(dialect, &base, None),
            messages,
            answers,
            base,
            key: None,
            insecure_http: false,
            last_uri: RefCell::default(),
            retries: Retries::default(),
            timeouts: Timeouts { total: Some(Duration::from_secs(300)), ..Timeouts::default() },
            apart,
            random: RefCell::new(fastrand::Rng::new()),
            stats: Cell::default(),
            calibration: RefCell::default(),
            typical: Cell::default(),
            calibrated: Event::new(),
            presence: RefCell::default(),
            rename: Cell::new(None),
            notice: Box::new(|_| ()),
            calls: Cell::new(0),
        };
        Ok(Caller { inner: Rc::new(inner) })
    }

    /// The same with a key. To be called before the caller is cloned or used, like everything that begins with `with`.
    #[must_use]
    pub fn with_key(self, key: Option<ApiKey>) -> Caller {
        self.with(|inner| {
            inner.headers = headers(inner.dialect, &inner.base, key.as_ref());
            inner.key = key;
            (inner.messages, inner.answers) = redactors(&inner.base, inner.key.as_ref(), &inner.client);
        })
    }

    /// The same, allowed to send a key or a password over plain http to another machine. Without this such a call fails before
    /// anything is sent.
    #[must_use]
    pub fn with_insecure_http(self, allowed: bool) -> Caller {
        self.with(|inner| inner.insecure_http = allowed)
    }

    /// The same with another HTTP client: other connections, proxies, authorities.
    #[must_use]
    pub fn with_client(self, client: Client) -> Caller {
        self.with(|inner| inner.client = client)
    }

    /// The same with other retries.
    #[must_use]
    pub fn with_retries(self, retries: Retries) -> Caller {
        self.with(|inner| inner.retries = retries)
    }

    /// The same with another limit for each request, from the connection to the end of the answer; five minutes unless
    /// set.
    #[must_use]
    pub fn with_timeout(self, total: Duration) -> Caller {
        self.with(|inner| inner.timeouts = Timeouts { total: Some(total), ..Timeouts::default() })
    }

    /// The same, calling `notice` with a line for people when it changes requests by itself.
    #[must_use]
    pub fn with_notice(self, notice: impl Fn(&str) + 'static) -> Caller {
        self.with(|inner| inner.notice = Box::new(notice))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Caller {
        change(Rc::get_mut(&mut self.inner).expect("set up before it is shared"));
        self
    }

    /// The gate that its requests go through.
    #[must_use]
    pub fn gate(&self) -> &Admission {
        &self.inner.gate
    }

    /// What the server speaks.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.inner.dialect
    }

    /// The server's address, without user information and without a slash at the end.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.inner.base.as_str()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> CallerStats {
        self.inner.stats.get()
    }

    /// Returns the parameter that the model has refused, and the name by which it is sent since, if there is one.
    #[must_use]
    pub fn renamed_parameter(&self) -> Option<(&'static str, &'static str)> {
        self.inner.rename.get()
    }

    /// What a request costs at the gate, about: the mean of what the last ones came to.
    #[must_use]
    pub fn typical_cost(&self) -> Cost {
        let usage = self.inner.typical.get().usage();
        self.inner.cost(usage.input_tokens, usage.output_tokens)
    }

    /// Sends a request, within `scope`; the answer has to be JSON.
    ///
    /// # Errors
    /// [`CallError`].
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub async fn call_json(&self, scope: &Scope, call: &Call) -> Result<Reply<Value>, CallError> {
        self.call(scope, call, provider::json).await
    }

    /// Sends a request, within `scope`, and has its answer read by `read`. It is sent again as often as [`Retries`] allow,
    /// each time through the gate; nothing is held while it waits.
    ///
    /// # Errors
    /// [`CallError`], when there have been enough attempts.
    ///
    /// # Cancel safety
    /// Dropped while it waits, nothing has happened; dropped after the request was sent, that counts and its answer is
    /// lost.
    pub async fn call<T>(
        &self,
        scope: &Scope,
        call: &Call,
        read: impl Fn(&[u8]) -> Result<T, Unreadable>,
    ) -> Result<Reply<T>, CallError> {
        Ok(self.call_within(&scope.into(), call, read, None).await?.0)
    }

    /// As [`call`](Self::call), sent only with a permit of `unsaved`, which is returned with the answer. Whoever holds it until
    /// the answer is saved bounds what is in flight and what is not saved together. It is acquired after the gate has admitted
    /// the request, so that the gate sees all that wait.
    pub(crate) async fn call_within<T>(
        &self,
        scope: &ItemScope,
        call: &Call,
        read: impl Fn(&[u8]) -> Result<T, Unreadable>,
        unsaved: Option<&Arc<Semaphore>>,
    ) -> Result<(Reply<T>, Option<Permit<Arc<Semaphore>>>), CallError> {
        let inner = &*self.inner;
        inner.check_private()?;
        let number = inner.calls.get();
        inner.calls.set(number + 1);
        let mut tries = Tries::default();
        loop {
            let lease = inner.enter(scope, call).await?;
            let renamed = inner.renamed(call);
            let sent = renamed.as_ref().unwrap_or(call);
            let permit = match unsaved {
                Some(unsaved) => {
                    let permit = unsaved.acquire_owned().await.ok();
                    if scope.is_stopping() || inner.gate.gate().is_closed() {
                        return Err(CallError::Closed);
                    }
                    permit
                }
                None => None,
            };
            tries.attempts += 1;
            let attempt = inner.presence.borrow().sent(number);
            let (failure, cause, down_for) = match inner.exchange(lease, sent).await {
                Ok(mut answered) => {
                    let (feedback, report) = inner.hear(&mut answered).await;
                    let cause = match feedback.verdict {
                        Verdict::Overloaded { .. } => inner.failed(attempt, Failed::Overloaded, report.down_for),
                        _ if report.absent => inner.failed(attempt, Failed::Lost, report.down_for),
                        _ => Cause::Request,
                    };
                    let judged = inner.judge(&answered, feedback, &read, &mut tries);
                    if renamed.is_none() && judged.as_ref().is_err_and(|error| inner.rename(error, call)) {
                        continue;
                    }
                    match judged? {
                        Judged::Served(value) => {
                            let Answered { status, usage, request_id, took, .. } = answered;
                            let attempts = tries.attempts;
                            return Ok((Reply { value, status, usage, attempts, request_id, took }, permit));
                        }
                        Judged::Throttled => {
                            drop((answered, permit));
                            if let Some(wait) = report.wait {
                                scope.sleep(wait).await;
                            }
                            continue;
                        }
                        Judged::Again(failure) => (failure, cause, report.down_for),
                    }
                }
                Err(NoAnswer { error, down_for }) => {
                    inner.count(|stats| stats.failed += 1);
                    let how = if is_unsent(&error) { Failed::Unsent } else { Failed::Lost };
                    let cause = inner.failed(attempt, how, down_for);
                    let reason = inner.messages.redact(&error.to_string()).into_owned();
                    (Failure { reason, delay: None }, cause, down_for)
                }
            };
            drop(permit);
            if let Some(down_for) = down_for.filter(|_| cause == Cause::Away) {
                if down_for >= inner.retries.outage_max {
                    return Err(CallError::Shut { reason: inner.away_too_long(down_for, &failure.reason) });
                }
                // The gate lets one request at a time try.
                continue;
            }
            let random = inner.random.borrow_mut().u64(..);
            if cause == Cause::Away {
                let delay = inner.retries.backoff.with_retries(u32::MAX).delay(tries.unsent, random, None);
                tries.unsent = tries.unsent.saturating_add(1).min(u32::MAX - 1);
                scope.sleep(delay.unwrap_or_default()).await;
                continue;
            }
            let Some(delay) = inner.retries.backoff.delay(tries.failed, random, failure.delay) else {
                return Err(match cause {
                    Cause::Unreached => CallError::Shut { reason: inner.unreached(tries.attempts, &failure.reason) },
                    _ => CallError::Unavailable { attempts: tries.attempts, reason: failure.reason },
                });
            };
            tries.failed += 1;
            tracing::debug!(reason = failure.reason, ?delay, "trying again");
            let outages = inner.presence.borrow().outages();
            scope.sleep(delay).await;
            // The first failures of an outage come before it is known as one.
            if inner.presence.borrow().outages() > outages {
                tries.failed -= 1;
            }
        }
    }
}

/// For messages and for answers: the key, the password of the address, and those of the proxies on the way.
fn redactors(base: &BaseUrl, key: Option<&ApiKey>, client: &Client) -> (Redactor, Redactor) {
    let secrets = || base.secrets().chain(key.map(ApiKey::secret)).chain(client.secrets());
    (Redactor::new(secrets()), Redactor::for_data(secrets()))
}

/// A response, read to its end.
struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    usage: Option<Usage>,
    request_id: Option<String>,
    took: Duration,
    /// Held until the gate has heard what the answer says about limits: that comes before the next is let in. Of a refusal
    /// until it is judged.
    lease: Option<Rc<RefCell<ItemLease>>>,
    /// Held while a large body is in memory.
    _room: Option<Permit<Arc<Semaphore>>>,
}

impl Inner {
    fn count(&self, change: impl FnOnce(&mut CallerStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Refuses to send a secret where others can read it.
    fn check_private(&self) -> Result<(), CallError> {
        let secret = self.key.is_some() || self.base.has_user();
        if self.insecure_http || self.base.is_private() || !secret {
            return Ok(());
        }
        Err(self.shut(format!(
            "the key would be sent to {} unencrypted, so nothing was sent: use https, or allow it",
            self.base
        )))
    }

    fn cost(&self, input_tokens: u64, output_tokens: u64) -> Cost {
        match self.apart {
            true => self.dialect.cost(input_tokens, output_tokens),
            false => self.dialect.cost_together(input_tokens, output_tokens),
        }
    }

    /// Waits at the gate, with an estimate that follows what the last answers taught: who waits with an old one lines up
    /// again, and all of them do so in their order.
    async fn enter(&self, scope: &ItemScope, call: &Call) -> Result<ItemLease, CallError> {
        loop {
            let learnt = self.calibration.borrow().apply(call.estimate);
            // What the server counts when it admits a request is no matter of learning.
            let output = if call.admitted_tokens > 0 { call.estimate.output_tokens } else { learnt.output_tokens };
            let input = learnt.input_tokens.max(call.admitted_tokens.saturating_sub(output));
            self.typical.set(self.typical.get().booked(input, output));
            let mut entering = pin!(scope.enter(&self.gate, self.cost(input, output)));
            let mut changed = pin!(self.calibrated.wait());
            let entered = poll_fn(|cx| match entering.as_mut().poll(cx) {
                Poll::Ready(entered) => Poll::Ready(Some(entered)),
                Poll::Pending => changed.as_mut().poll(cx).map(|_| None),
            })
            .await;
            if let Some(entered) = entered {
                let lease = entered?;
                // Admitted by the very answer after which the gate was closed.
                if self.gate.gate().is_closed() {
                    return Err(EnterError::Closed.into());
                }
                return Ok(lease);
            }
        }
    }

    /// One request, under its lease, which is settled when this returns.
    async fn exchange(&self, lease: ItemLease, call: &Call) -> Result<Answered, NoAnswer> {
        let lease = Rc::new(RefCell::new(lease));
        let sent = Rc::new(Cell::new(None));
        let body = OnTheWire::new(call.body.clone(), {
            let (lease, sent) = (Rc::clone(&lease), Rc::clone(&sent));
            move || {
                sent.set(Some(Instant::now()));
                lease.borrow_mut().sent();
            }
        });
        let Some(uri) = self.uri(&call.path) else {
            // Let the client say what is wrong with it.
            let url = format!("{}{}", self.base, call.path);
            return match self.client.get(&url).await {
                Ok(_) => unreachable!("it does not parse"),
                Err(error) => Err(NoAnswer { error, down_for: None }),
            };
        };
        self.count(|stats| stats.sent += 1);
        let response = match self.client.request(self.request(uri, call, body)).await {
            Ok(response) => response,
            Err(error) => {
                let down_for = lease.borrow_mut().failed();
                return Err(NoAnswer { error, down_for });
            }
        };
        lease.borrow_mut().answered();
        let (head, body) = response.into_parts();
        let (body, room) = match large_answers::read(body, &self.large_answers).await {
            Ok(read) => read,
            Err(error) => {
                let down_for = lease.borrow_mut().failed();
                return Err(NoAnswer { error, down_for });
            }
        };
        let body = self.without_secrets(head.status.is_success(), body);
        let body = if head.status.is_success() { self.whole(body) } else { body };
        let took = sent.get().map_or(Duration::ZERO, |sent| sent.elapsed());
        let status = head.status.as_u16();
        let usage = head.status.is_success().then(|| self.dialect.usage_in(&body)).flatten();
        let stated = usage.filter(|usage| usage.total() > 0);
        if let Some(usage) = stated {
            self.count(|stats| stats.usage += usage);
        }
        if head.status.is_success() {
            let usage = stated.unwrap_or_else(|| self.counted(call, &body));
            let input = usage.input_tokens.max(call.admitted_tokens.saturating_sub(usage.output_tokens));
            lease.borrow_mut().settle(self.cost(input, usage.output_tokens));
            self.typical.set(self.typical.get().settled(Usage { input_tokens: input, ..usage }));
            if self.calibration.borrow_mut().learn(call.estimate, usage) {
                self.calibrated.notify_all();
            }
        }
        let request_id = ["x-request-id", "request-id"]
            .iter()
            .find_map(|name| head.headers.get(*name)?.to_str().ok())
            .map(|id| self.messages.redact(id).into_owned());
        Ok(Answered { status, headers: head.headers, body, usage, request_id, took, lease: Some(lease), _room: room })
    }

    /// Estimates what a request cost whose answer does not say so: by the length of its text, or of the whole body if it has no
    /// text. Without this its greatest length would stay booked until the window has passed.
    fn counted(&self, call: &Call, body: &[u8]) -> Usage {
        let output_tokens = match self.dialect.answer(body) {
            Ok(answer) => tokens_of_text(&answer.text),
            Err(_) => tokens_of_text(&String::from_utf8_lossy(body)),
        };
        let most = call.estimate.output_tokens;
        Usage { input_tokens: call.estimate.input_tokens, output_tokens: output_tokens.min(most) }
    }

    /// An answer as everything behind this sees it: some servers repeat the request with its headers. Of a success the key is
    /// removed if it is long enough to be one, because a short one may be a word of the answer; of anything else always.
    fn without_secrets(&self, success: bool, body: Bytes) -> Bytes {
        let redactor = if success { &self.answers } else { &self.messages };
        redactor.redact_bytes(&body).map_or(body, Bytes::from)
    }

    /// The body of a success, mended and put together, without a secret that stands in its joined texts alone.
    fn whole(&self, body: Bytes) -> Bytes {
        let mended = mended::json(body);
        let assembled = self.dialect.assembled(mended.clone());
        // The chunks of a stream are joined by now.
        let body = if assembled == mended { assembled } else { self.without_secrets(true, assembled) };
        divided::without_secrets(&body, self.dialect, &self.answers).map_or(body, Bytes::from)
    }

    /// Reads a successful answer. What is wrong with it is said of the body without any secret, before it is shortened.
    fn read<T>(&self, body: &[u8], read: &impl Fn(&[u8]) -> Result<T, Unreadable>) -> Result<T, Unreadable> {
        read(body).map_err(|unreadable| match self.messages.redact_bytes(body) {
            Some(clean) => read(&clean).err().unwrap_or_else(|| Unreadable::Garbled("it repeats the key".into())),
            None => unreadable,
        })
    }

    /// Most go to where the last one went.
    fn uri(&self, path: &str) -> Option<Uri> {
        let mut last = self.last_uri.borrow_mut();
        if let Some((_, uri)) = last.as_ref().filter(|(of, _)| of == path) {
            return Some(uri.clone());
        }
        let uri: Uri = format!("{}{path}", self.base).parse().ok()?;
        *last = Some((path.to_owned(), uri.clone()));
        Some(uri)
    }

    fn request(&self, uri: Uri, call: &Call, body: OnTheWire) -> http::Request<Body> {
        let mut request = http::Request::new(Body::sized_stream(call.body.len() as u64, body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request.extensions_mut().insert(self.timeouts);
        request
    }

    /// What follows from an answer for everybody: the gate is told, and if all is well the place given on. Who takes it goes
    /// first, and so do all who are let in by answers that came with this one: a page waits longer for its request to be
    /// sent than for its answer to be read.
    async fn hear(&self, answered: &mut Answered) -> (Feedback, Report) {
        let Answered { status, headers, body, took, .. } = &*answered;
        let now = self.listener.now();
        let sent = now.checked_sub(*took).unwrap_or(now);
        let feedback = self.gate.on_answer(&self.listener, sent, *status, headers, body);
        let lease = answered.lease.as_ref().expect("held until now");
        let report = lease.borrow_mut().report(&self.listener, &feedback);
        if !report.absent {
            self.presence.borrow_mut().answered();
        }
        if feedback.verdict == Verdict::Proceed {
            answered.lease = None;
            // In the first turn requests are sent, and in the second nobody's answer is read before the last of them is.
            yield_now().await;
            yield_now().await;
        }
        (feedback, report)
    }

    /// What follows from an answer for its request.
    fn judge<T>(
        &self,
        answered: &Answered,
        feedback: Feedback,
        read: &impl Fn(&[u8]) -> Result<T, Unreadable>,
        tries: &mut Tries,
    ) -> Result<Judged<T>, CallError> {
        let Answered { status, headers, body, .. } = answered;
        match feedback.verdict {
            Verdict::Proceed => match self.read(body, read) {
                Ok(value) => {
                    self.count(|stats| stats.answered += 1);
                    return Ok(Judged::Served(value));
                }
                Err(Unreadable::Declined(reason)) => {
                    self.count(|stats| stats.answered += 1);
                    return Err(CallError::Declined { reason });
                }
                Err(Unreadable::Garbled(reason)) => {
                    tries.garbled += 1;
                    self.count(|stats| stats.failed += 1);
                    if tries.garbled > self.retries.garbled_max {
                        return Err(CallError::Garbled { attempts: tries.attempts, reason });
                    }
                    return Ok(Judged::Again(Failure { reason, delay: None }));
                }
            },
            verdict @ (Verdict::Wait { .. } | Verdict::BackOff { .. }) => {
                self.count(|stats| stats.throttled += 1);
                match verdict {
                    Verdict::Wait { delay, .. } if delay > PROBED_BEYOND => {
                        tracing::warn!(
                            status,
                            ?delay,
                            "the server asks for a long pause; a request is tried now and then"
                        );
                    }
                    _ => tracing::info!(status, "refused by a limit; the gate finds out which"),
                }
                return Ok(Judged::Throttled);
            }
            Verdict::Park { until, .. } => {
                self.count(|stats| stats.throttled += 1);
                tracing::warn!(%until, "a day's quota is used up; waiting for the next");
                return Ok(Judged::Throttled);
            }
            Verdict::TooLarge { requested, limit } => {
                let known = requested.zip(limit).map(|(requested, limit)| format!(" ({requested} against {limit})"));
                let known = known.unwrap_or_default();
                return Err(CallError::TooLarge {
                    reason: format!("the server's limit{known}: {}", self.message(body)),
                });
            }
            Verdict::Stop(stop) => return Err(CallError::Shut { reason: stop.to_string() }),
            Verdict::Overloaded { delay } => {
                self.count(|stats| stats.failed += 1);
                // The gate holds all requests for the whole delay, and lets a probe through if it is long. This request must be
                // in line by then, and when the probe is answered: asleep it would be the last.
                let delay = delay.map(|delay| delay.min(OVERLOADED_SLEEP_MAX));
                return Ok(Judged::Again(Failure { reason: format!("the server is overloaded ({status})"), delay }));
            }
            _ => {}
        }
        let status = *status;
        self.count(|stats| stats.failed += 1);
        // A server may call it its own fault; it would fail the same way again.
        let is_final = no_pictures::says_so(body);
        if matches!(status, 408 | 409 | 425 | 500..=599) && !is_final {
            let reason = format!("the server failed ({status}): {}", self.message(body));
            return Ok(Judged::Again(Failure { reason, delay: None }));
        }
        if status == 401 || (status == 400 && contains(body, b"API_KEY_INVALID")) {
            return Err(self.shut(self.wrong_key(status, body)));
        }
        let message = match headers.get(LOCATION) {
            Some(target) if (300..400).contains(&status) => {
                let target = self.messages.redact(&String::from_utf8_lossy(target.as_bytes())).into_owned();
                format!("it redirects to {}; use that address if you trust it", excerpt(target.as_bytes()))
            }
            _ => self.message(body),
        };
        Err(CallError::Refused { status, message, body: body.clone() })
    }

    /// Returns the call as the model takes it, if an earlier one was refused for a parameter's name.
    fn renamed(&self, call: &Call) -> Option<Call> {
        let (from, to) = self.rename.get()?;
        let body = parameter::renamed(&call.body, from, to)?;
        Some(Call { body: body.into(), ..call.clone() })
    }

    /// Takes note of a parameter that the model refuses and that has another name. Returns `true` if that is why `call` was
    /// refused: it is sent again.
    fn rename(&self, error: &CallError, call: &Call) -> bool {
        let CallError::Refused { status: 400 | 422, body, .. } = error else { return false };
        let Some(to) = parameter::refused(body).as_deref().and_then(parameter::other_name) else { return false };
        let Some(from) = parameter::other_name(to) else { return false };
        if parameter::renamed(&call.body, from, to).is_none() {
            return false;
        }
        if self.rename.replace(Some((from, to))).is_none() {
            tracing::warn!(from, to, "the model refuses a parameter; it is sent by its other name from now on");
            (self.notice)(&format!("the model does not take {from}; {to} is sent instead"));
        }
        true
    }

    fn failed(&self, attempt: Sent, how: Failed, down_for: Option<Duration>) -> Cause {
        self.presence.borrow_mut().failed(attempt, how, down_for, self.listener.now())
    }

    /// Tells everybody who waits: none of them would fare better.
    fn shut(&self, reason: String) -> CallError {
        if let Some(limit) = self.gate.stats().limits.first() {
            let _ = self.gate.shut(&limit.name, reason.as_str());
        }
        CallError::Shut { reason }
    }

    fn away_too_long(&self, down_for: Duration, error: &str) -> String {
        let seconds = down_for.as_secs();
        format!(
            "{} has not answered for {seconds} s, which is the longest outage to wait for ({error}); run the same command \
             again when it is back",
            self.base
        )
    }

    fn unreached(&self, attempts: u32, error: &str) -> String {
        format!(
            "no answer from {} after {attempts} attempts ({error}); check the address and that the server runs, then run the \
             same command again",
            self.base
        )
    }

    fn wrong_key(&self, status: u16, body: &[u8]) -> String {
        let said = self.message(body);
        match &self.key {
            Some(key) => format!(
                "{} does not accept the key from {} ({status}): {said}; correct it and run the same command again",
                self.base,
                key.origin()
            ),
            None => format!(
                "{} wants a key ({status}): {said}; set {} or use --api-key-file, and run the same command again",
                self.base,
                self.dialect.default_key_variable()
            ),
        }
    }

    /// What an error's body says, in a line. The body has no secret any more.
    fn message(&self, body: &[u8]) -> String {
        let value: Option<Value> = serde_json::from_slice(body).ok();
        let said = value.as_ref().and_then(|value| {
            let error = value.get("error").or_else(|| value.pointer("/0/error")).unwrap_or(value);
            let said = error.as_str().or_else(|| error.get("message")?.as_str())?;
            // Again: what is escaped twice shows itself when it is read.
            Some(self.messages.redact(said).into_owned())
        });
        let line = excerpt(said.as_deref().map_or(body, str::as_bytes));
        if line.is_empty() { "(no message)".into() } else { line }
    }
}

/// Whether the server could not be reached. An address that cannot be requested is not a matter of the server.
fn is_unsent(error: &tidegate_http::Error) -> bool {
    error.is_before_sending() && !matches!(error, tidegate_http::Error::BadUrl { .. })
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("dialect", &self.inner.dialect)
            .field("base", &self.inner.base)
            .field("key", &self.inner.key)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
