//! Applies a server's feedback to a gate. The only file of this module that reads a clock and changes a gate.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use super::steering::{Action, Steering, Timing};
use super::{Feedback, Headers, Per, Provider, Unit, Verdict};
use crate::gate::Gate;
use crate::lease::Lease;
use crate::limits::Refusal;

/// Reads each answer, applies it to the gate, and returns what it means for the request itself.
///
/// A gate with a listener finds limits that were not stated or were stated too high: it has
/// [`Limit::found`](crate::Limit::found). For that, the outcome of each request has to be [reported](Self::report).
///
/// ```
/// use tidegate_limit::feedback::{Listener, Provider, Verdict};
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
/// let gate = Gate::builder().limit(Limit::rpm(60)).limit(Limit::tpm(100_000)).build().unwrap();
/// let listener = Listener::new(&gate, Provider::OpenAi);
///
/// let mut lease = gate.enter(gate.unscoped(), Cost::tokens(900)).await.unwrap();
/// let sent = listener.now();
/// lease.sent();
/// # let (status, headers) = (429, [("retry-after", "20")]);
/// # let body = br#"{"error":{"type":"tokens","message":"Rate limit reached on tokens per min (TPM)."}}"#;
/// // … the answer arrives …
/// let feedback = listener.on_answer(sent, status, &headers, body);
/// listener.report(&mut lease, &feedback);
/// assert!(feedback.verdict.may_retry());
///
/// // That limit is paused for 20 s; no other limit is.
/// drop(lease);
/// gate.enter(gate.unscoped(), Cost::tokens(900)).await.unwrap();
/// assert_eq!((listener.now() - sent).as_secs(), 20);
/// # }).unwrap();
/// ```
pub struct Listener {
    gate: Gate,
    provider: Provider,
    steering: Mutex<Steering>,
}

impl Listener {
    /// Creates a listener to `provider` for `gate`. Limits are matched by name; see [`Steering::new`].
    pub fn new(gate: &Gate, provider: Provider) -> Listener {
        gate.find_limits();
        let steering = Steering::new(gate.stats().limits.into_iter().map(|limit| limit.name));
        Listener { gate: gate.clone(), provider, steering: Mutex::new(steering) }
    }

    /// Sets another steering, for limits with other names.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Listener, Per, Provider, Steering, Unit, Which};
    /// # use tidegate_limit::{Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60).named("flash rpm")).build().unwrap();
    /// let steering = Steering::new(["flash rpm"]).bind(Which::new(Unit::Requests, Per::Minute), "flash rpm");
    /// let listener = Listener::new(&gate, Provider::Gemini).with_steering(steering);
    /// # let _ = listener;
    /// ```
    #[must_use]
    pub fn with_steering(self, steering: Steering) -> Listener {
        *self.steering() = steering;
        self
    }

    fn steering(&self) -> MutexGuard<'_, Steering> {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the gate's clock, for `sent` of the other methods.
    pub fn now(&self) -> Instant {
        self.gate.shared.instant(self.gate.shared.now())
    }

    /// Reads an answer that has just arrived to a request that was sent at `sent`, and applies it to the gate. The caller
    /// decides by the returned feedback whether to try this request again.
    pub fn on_answer(&self, sent: Instant, status: u16, headers: &impl Headers, body: &[u8]) -> Feedback {
        let feedback = self.provider.read(status, headers, body, self.wall());
        self.on_feedback(sent, &feedback);
        feedback
    }

    /// As [`on_answer`](Self::on_answer), for one of several machines that share limits: ignores the counters, which count
    /// all machines. Also returns the actions that were applied to the gate.
    pub(crate) fn on_shared_answer(
        &self,
        sent: Instant,
        status: u16,
        headers: &impl Headers,
        body: &[u8],
    ) -> (Feedback, Vec<Action>) {
        let mut feedback = self.provider.read(status, headers, body, self.wall());
        feedback.quotas.clear();
        let actions = self.follow(sent, &feedback);
        (feedback, actions)
    }

    /// Applies an answer that was read elsewhere to the gate.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_limit::feedback::{Feedback, Listener, Provider, Stop, Verdict};
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
    /// let listener = Listener::new(&gate, Provider::OpenAi);
    /// let verdict = Verdict::Stop(Stop::InsufficientQuota);
    /// listener.on_feedback(listener.now(), &Feedback { verdict, quotas: vec![] });
    /// let error = gate.try_enter(gate.unscoped(), Cost::request()).unwrap_err();
    /// assert!(error.to_string().contains("no credit left"), "{error}");
    /// ```
    pub fn on_feedback(&self, sent: Instant, feedback: &Feedback) {
        self.follow(sent, feedback);
    }

    /// Reports the outcome of a request whose answer is `feedback` to the gate: whether a limit refused it, and whether the
    /// server is up. Returns what it means for the request.
    ///
    /// ```
    /// use tidegate_limit::feedback::{Listener, Provider};
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::concurrency("global", 200)).build().unwrap();
    /// let listener = Listener::new(&gate, Provider::OpenAi);
    /// let mut lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
    /// let sent = listener.now();
    /// lease.sent();
    /// let feedback = listener.on_answer(sent, 429, &[("retry-after", "20")], b"");
    /// let report = listener.report(&mut lease, &feedback);
    /// assert_eq!(report.wait.unwrap().as_secs(), 20, "this request waits; others may go");
    /// ```
    pub fn report(&self, lease: &mut Lease, feedback: &Feedback) -> Report {
        let mut report = Report::default();
        match &feedback.verdict {
            verdict if self.steering().takes_care_of(verdict) => {}
            Verdict::Wait { delay, .. } => {
                lease.refused(refusal(feedback, Some(*delay)));
                report.wait = Some(*delay);
            }
            Verdict::BackOff { .. } => lease.refused(refusal(feedback, None)),
            Verdict::Overloaded { .. } => report = Report::absent(lease),
            Verdict::Other { status } if is_absent(*status) => report = Report::absent(lease),
            // A daily quota or an account without credit is not a limit that can be found.
            Verdict::Park { .. } | Verdict::Stop(_) => {}
            Verdict::Proceed | Verdict::TooLarge { .. } | Verdict::Other { .. } => lease.served(),
        }
        report
    }

    fn follow(&self, sent: Instant, feedback: &Feedback) -> Vec<Action> {
        let answered = self.now();
        let timing = Timing { sent: sent.min(answered), answered, answered_wall: self.wall() };
        let actions = self.steering().on_feedback(feedback, timing);
        actions.iter().for_each(|action| self.carry_out(action, timing.sent));
        actions
    }

    fn carry_out(&self, action: &Action, sent: Instant) {
        let gate = &self.gate;
        let applied = match action {
            Action::Pause { limit, delay } => gate.pause(limit, *delay),
            Action::Park { limit, until, probe_every } => {
                gate.park(limit, SystemTime::from(*until), Some(*probe_every))
            }
            Action::Resume { limit } => gate.resume(limit),
            Action::Shut { limit, reason } => gate.shut(limit, reason.clone()),
            Action::Tighten { limit, remaining, full_in } => gate.tighten_as_of(sent, limit, *remaining, *full_in),
        };
        // Fails only for a steering that was made for another gate, with names that this one does not have.
        let _ = applied;
    }

    fn wall(&self) -> Timestamp {
        let shared = &self.gate.shared;
        let now = shared.tell_time();
        let wall = shared.lock_at(now).limits.wall_of(now.moment);
        Timestamp::try_from(wall).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// Returns whether a gateway uses this status for a server that is down; 521 to 524 are Cloudflare's.
fn is_absent(status: u16) -> bool {
    matches!(status, 502 | 504 | 521..=524)
}

/// Returns what a refusal states about the limit.
fn refusal(feedback: &Feedback, delay: Option<Duration>) -> Refusal {
    let per_minute = |quota: &&super::Quota| quota.which == super::Which::new(Unit::Requests, Per::Minute);
    let capacity = feedback.quotas.iter().find(per_minute).and_then(|quota| quota.capacity);
    Refusal { delay, window: capacity.map(|capacity| (capacity, Duration::from_secs(60))) }
}

/// What an answer means for its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// How long this request has to wait before it is tried again, if the server states it.
    pub wait: Option<Duration>,
    /// The answer means that the server is down or overloaded.
    pub absent: bool,
    /// For how long the server has been down, if it is.
    pub down_for: Option<Duration>,
}

impl Report {
    fn absent(lease: &mut Lease) -> Report {
        Report { absent: true, down_for: lease.failed(), ..Report::default() }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("provider", &self.provider).finish_non_exhaustive()
    }
}
