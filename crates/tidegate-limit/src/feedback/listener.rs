//! A gate that listens to what the server says: the one place where feedback meets a clock and a gate.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use jiff::Timestamp;

use super::steering::{Action, Steering, Timing};
use super::{Feedback, Headers, Provider, Verdict};
use crate::gate::Gate;

/// Reads each answer, tells the gate what follows for everybody, and says what follows for the request itself.
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
/// // … the answer comes …
/// let feedback = listener.on_answer(sent, status, &headers, body);
/// assert!(feedback.verdict.may_retry());
///
/// // Nobody gets past that limit for 20 s; no other limit is touched.
/// drop(lease);
/// gate.enter(gate.unscoped(), Cost::tokens(900)).await.unwrap();
/// assert_eq!((listener.now() - sent).as_secs(), 20);
/// # }).unwrap();
/// ```
pub struct Listener {
    gate: Gate,
    provider: Provider,
    state: Mutex<State>,
}

struct State {
    steering: Steering,
    /// SplitMix64: back-off needs spread, not secrecy.
    random: u64,
}

impl Listener {
    /// Listens to `provider` for `gate`, by the names its limits have; see [`Steering::new`].
    pub fn new(gate: &Gate, provider: Provider) -> Listener {
        let steering = Steering::new(gate.stats().limits.into_iter().map(|limit| limit.name));
        let random = RandomState::new().build_hasher().finish();
        Listener { gate: gate.clone(), provider, state: Mutex::new(State { steering, random }) }
    }

    /// The same with another steering: other names, another back-off.
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
        self.state().steering = steering;
        self
    }

    /// The same with random numbers from a seed: equal runs back off equally.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Listener {
        self.state().random = seed;
        self
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate's clock: take `sent` from it.
    pub fn now(&self) -> Instant {
        self.gate.shared.instant(self.gate.shared.now())
    }

    /// Reads an answer that has just come to a request that left at `sent`, and tells the gate. What is handed back is
    /// for the caller: whether this request is to be tried again.
    pub fn on_answer(&self, sent: Instant, status: u16, headers: &impl Headers, body: &[u8]) -> Feedback {
        let feedback = self.provider.read(status, headers, body, self.wall());
        self.on_feedback(sent, &feedback);
        feedback
    }

    /// The same for one of several machines: what is left is left for all of them, and not to be held against what this one
    /// has used. And what the gate was told.
    pub(crate) fn hear_for_all(
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

    /// Tells the gate of an answer that was read elsewhere.
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

    fn follow(&self, sent: Instant, feedback: &Feedback) -> Vec<Action> {
        let answered = self.now();
        let timing = Timing { sent: sent.min(answered), answered, answered_wall: self.wall() };
        let actions = {
            let mut state = self.state();
            state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let random = mix(state.random);
            state.steering.on_feedback(feedback, timing, random)
        };
        if came_too_close(feedback, &actions) {
            self.gate.refused();
        }
        actions.iter().for_each(|action| self.carry_out(action, timing.sent));
        actions
    }

    fn carry_out(&self, action: &Action, sent: Instant) {
        let gate = &self.gate;
        let told = match action {
            Action::Pause { limit, delay } => gate.pause(limit, *delay),
            Action::Park { limit, until, probe_every } => {
                gate.park(limit, SystemTime::from(*until), Some(*probe_every))
            }
            Action::Resume { limit } => gate.resume(limit),
            Action::Shut { limit, reason } => gate.shut(limit, reason.clone()),
            Action::Tighten { limit, remaining, full_in } => gate.tighten_as_of(sent, limit, *remaining, *full_in),
        };
        // A name that the gate does not have can only be in a steering that was made for another.
        let _ = told;
    }

    fn wall(&self) -> Timestamp {
        let shared = &self.gate.shared;
        let now = shared.tell_time();
        let wall = shared.lock_at(now).limits.wall_of(now.moment);
        Timestamp::try_from(wall).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// What the gate let through should have fitted; if it did not, it came too close to the one before.
pub(crate) fn came_too_close(feedback: &Feedback, actions: &[Action]) -> bool {
    let throttled = matches!(feedback.verdict, Verdict::Wait { .. } | Verdict::BackOff { .. });
    throttled && actions.iter().any(|action| matches!(action, Action::Pause { .. }))
}

fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("provider", &self.provider).finish_non_exhaustive()
    }
}
