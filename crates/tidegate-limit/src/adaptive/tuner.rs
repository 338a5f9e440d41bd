//! An adaptive limit at work on a gate.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Adaptive, Outcome, Sample};
use crate::error::UnknownLimit;
use crate::gate::Gate;

/// Keeps one of a gate's concurrency limits where an [`Adaptive`] wants it.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limit::adaptive::{Aimd, Outcome, Tuner};
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// let gate = Gate::builder().limit(Limit::concurrency("global", 200)).build().unwrap();
/// let tuner = Tuner::new(&gate, "global", Aimd::new(20, 4..=200)).unwrap();
/// assert_eq!(gate.stats().limit("global").unwrap().amount, 20);
///
/// let lease = gate.try_enter(gate.unscoped(), Cost::request()).unwrap();
/// // … 529 …
/// tuner.sample(Duration::from_millis(80), Outcome::Overloaded);
/// drop(lease);
/// assert_eq!(gate.stats().limit("global").unwrap().amount, 18);
/// ```
pub struct Tuner {
    gate: Gate,
    limit: String,
    state: Mutex<State>,
}

struct State {
    adaptive: Box<dyn Adaptive>,
    /// What the gate was told last.
    told: usize,
    /// Somebody is telling it, outside of the lock, and looks again afterwards.
    telling: bool,
}

impl Tuner {
    /// Takes the gate's `limit` over, and sets it to where `adaptive` begins.
    ///
    /// # Errors
    /// [`UnknownLimit`], if the gate has none of that name.
    pub fn new(gate: &Gate, limit: &str, adaptive: impl Adaptive + 'static) -> Result<Tuner, UnknownLimit> {
        let told = adaptive.limit();
        gate.set(limit, told as u64)?;
        let state = State { adaptive: Box::new(adaptive), told, telling: false };
        Ok(Tuner { gate: gate.clone(), limit: limit.to_owned(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended: how long it took from sent to answered, and what became of it. To be called while it holds
    /// its lease.
    pub fn sample(&self, latency: Duration, outcome: Outcome) {
        let now = self.gate.shared.now();
        let inflight = self.gate.shared.lock().tally.current;
        let inflight = usize::try_from(inflight).unwrap_or(usize::MAX);
        let mut state = self.state();
        state.adaptive.on_sample(&Sample { latency, inflight, outcome, now });
        // Told without the lock, since somebody may be let in by it; one at a time, so that the last word is the latest.
        while !state.telling && state.told != state.adaptive.limit() {
            state.told = state.adaptive.limit();
            state.telling = true;
            let amount = state.told as u64;
            drop(state);
            // The limit was there when the tuner was made, and limits do not go away.
            let _ = self.gate.set(&self.limit, amount);
            state = self.state();
            state.telling = false;
        }
    }

    /// Where the limit stands.
    pub fn limit(&self) -> usize {
        self.state().adaptive.limit()
    }
}

impl fmt::Debug for Tuner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tuner").field("limit", &self.limit).finish_non_exhaustive()
    }
}
