//! One interface for both kinds of gate: of this process alone, and in front of limits that machines share.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use crate::blocked::{Blocked, Place, SetError};
use crate::cost::Cost;
use crate::error::{EnterError, UnknownLimit};
use crate::feedback::{Action, Feedback, Headers, Listener, Report, Verdict};
use crate::gate::Gate;
use crate::lease::Lease;
use crate::scope::Scope;
use crate::stats::Snapshot;

/// Limits that are shared with other machines and counted elsewhere.
pub trait SharedLimits {
    /// Waits until all of them admit `cost`, counting all machines together.
    fn enter(&self, cost: Cost) -> EnterSharedLimits;

    /// Blocks a limit for all machines for `duration`; a pause that lasts longer stays. A limit that is not shared is
    /// ignored, here and in `resume`.
    fn pause(&self, limit: &str, duration: Duration);

    /// Ends a pause.
    fn resume(&self, limit: &str);

    /// Reports that a strict server refused an entry that these limits and the gate had admitted: requests take longer to
    /// arrive than measured.
    fn refused(&self);

    /// Completes a gate's figures with those of all machines.
    fn complete(&self, stats: &mut Snapshot);

    /// Closes the limits for this machine: waiting entries and later ones fail with `why`.
    fn close(&self, why: EnterError);
}

/// The future of [`SharedLimits::enter`]. Dropping it leaves the line.
pub type EnterSharedLimits = Pin<Box<dyn Future<Output = Result<Box<dyn SharedLimitsLease>, EnterError>>>>;

/// An admitted entry's lease of shared limits. Dropping it has the same effect as dropping a [`Lease`].
pub trait SharedLimitsLease {
    /// As [`Lease::sent`].
    fn sent(&mut self);

    /// As [`Lease::settle`].
    fn settle(&mut self, actual: Cost);

    /// As [`Lease::refund`].
    fn refund(self: Box<Self>);
}

/// A [`Gate`] of this process, alone or in front of [`SharedLimits`].
///
/// The gate has the scopes, the limits as far as this process alone could exceed them, and what servers report. An entry
/// that the gate admits then waits for the shared limits; meanwhile it holds only its slots. Without shared limits, this
/// does what the gate does.
///
/// ```
/// use tidegate_limit::{Admission, Cost, Gate, Limit};
///
/// # tidegate_loop::EventLoop::simulated(1).run_until_complete(async {
/// let gate = Gate::builder().limit(Limit::rpm(150)).build().unwrap();
/// let admission = Admission::from(&gate);
/// let mut lease = admission.enter(admission.unscoped(), Cost::request()).await.unwrap();
/// lease.sent();
/// drop(lease);
/// assert_eq!(gate.stats().limit("rpm").unwrap().used, 1);
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Admission {
    gate: Gate,
    shared: Option<Rc<dyn SharedLimits>>,
}

impl Admission {
    /// Puts `gate` in front of `shared`. The gate should have the same limits under the same names: it then applies servers'
    /// pauses to them, and an entry that this machine alone has no room for does not ask the shared limits.
    #[must_use]
    pub fn in_front_of(gate: Gate, shared: Rc<dyn SharedLimits>) -> Admission {
        Admission { gate, shared: Some(shared) }
    }

    /// Returns the gate of this process.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether there are shared limits.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// As [`Gate::scope`]. Scopes are not shared.
    #[must_use]
    pub fn scope(&self, name: impl Into<Arc<str>>, cap: u64) -> Scope {
        self.gate.scope(name, cap)
    }

    /// As [`Gate::unscoped`].
    #[must_use]
    pub fn unscoped(&self) -> &Scope {
        self.gate.unscoped()
    }

    /// Waits until `cost` fits under every limit, of the gate and shared, and books it.
    ///
    /// # Errors
    /// [`EnterError`] as soon as it is known that the entry cannot be admitted.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line and takes back what was booked.
    pub async fn enter(&self, scope: &Scope, cost: Cost) -> Result<Admitted, EnterError> {
        self.enter_noting(scope, cost, |_| ()).await
    }

    /// As [`enter`](Self::enter), but calls `blocked` when the entry has to wait: with its place in line, or without one if
    /// it waits for shared limits.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    ///
    /// # Cancel safety
    /// As [`enter`](Self::enter).
    pub async fn enter_noting(
        &self,
        scope: &Scope,
        cost: Cost,
        blocked: impl Fn(Option<Place>),
    ) -> Result<Admitted, EnterError> {
        let mut entering = self.gate.enter(scope, cost.clone());
        let here = match poll_once(&mut entering).await {
            Poll::Ready(entered) => entered?,
            Poll::Pending => {
                blocked(entering.place());
                entering.await?
            }
        };
        let Some(shared) = &self.shared else { return Ok(Admitted { here, shared: None }) };
        let mut entering = shared.enter(cost);
        let there = match poll_once(&mut entering).await {
            Poll::Ready(entered) => entered?,
            Poll::Pending => {
                blocked(None);
                entering.await?
            }
        };
        Ok(Admitted { here, shared: Some(there) })
    }

    /// As [`Gate::set`], if no limits are shared.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn set(&self, limit: &str, amount: u64) -> Result<(), SetError> {
        if self.is_shared() {
            return Err(SetError::Shared);
        }
        self.gate.set(limit, amount).map_err(SetError::Unknown)
    }

    /// As [`Gate::line`]; entries that wait for shared limits are not in it.
    #[must_use]
    pub fn line(&self) -> Vec<(Place, Blocked)> {
        self.gate.line()
    }

    /// As [`Gate::outlook_if`].
    #[must_use]
    pub fn outlook_if(&self, amounts: &[(&str, u64)], count: u64, cost: &Cost) -> Option<Duration> {
        self.gate.outlook_if(amounts, count, cost)
    }

    /// Reads an answer for `listener`, which listens for this gate, as [`Listener::on_answer`] does. With shared limits, a
    /// pause applies to all machines. What a server reports as left is ignored then, because it is not known what other
    /// machines have used since.
    pub fn on_answer(
        &self,
        listener: &Listener,
        sent: Instant,
        status: u16,
        headers: &impl Headers,
        body: &[u8],
    ) -> Feedback {
        let Some(shared) = &self.shared else { return listener.on_answer(sent, status, headers, body) };
        let (feedback, actions) = listener.on_shared_answer(sent, status, headers, body);
        // The shared limits are strict and admitted the request, so it arrived too soon after an earlier one.
        if matches!(feedback.verdict, Verdict::Wait { .. } | Verdict::BackOff { .. }) {
            shared.refused();
        }
        actions.iter().for_each(|action| apply(&**shared, action));
        feedback
    }

    /// As [`Gate::shut`], for this machine alone, because another machine may use another key.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    pub fn shut(&self, limit: &str, reason: impl Into<Arc<str>>) -> Result<(), UnknownLimit> {
        let reason = reason.into();
        self.gate.shut(limit, Arc::clone(&reason))?;
        if let Some(shared) = &self.shared {
            shared.close(EnterError::Shut { limit: limit.into(), reason });
        }
        Ok(())
    }

    /// As [`Gate::outlook`], without what other machines will use of shared limits.
    #[must_use]
    pub fn outlook(&self, count: u64, cost: &Cost) -> Option<Duration> {
        self.gate.outlook(count, cost)
    }

    /// Returns the gate's figures, with those of all machines for shared limits.
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        let mut stats = self.gate.stats();
        if let Some(shared) = &self.shared {
            shared.complete(&mut stats);
        }
        stats
    }

    /// As [`Gate::close`].
    pub fn close(&self) {
        self.gate.close();
        if let Some(shared) = &self.shared {
            shared.close(EnterError::Closed);
        }
    }
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

fn apply(shared: &dyn SharedLimits, action: &Action) {
    match action {
        Action::Pause { limit, delay } => shared.pause(limit, *delay),
        Action::Park { limit, until, probe_every } => {
            // Each machine probes, so the shared limits are paused until the next probe.
            let whole = SystemTime::from(*until).duration_since(SystemTime::now()).unwrap_or_default();
            shared.pause(limit, whole.min(*probe_every));
        }
        Action::Resume { limit } => shared.resume(limit),
        Action::Shut { limit, reason } => {
            shared.close(EnterError::Shut { limit: Arc::clone(limit), reason: Arc::clone(reason) });
        }
        // It is not known what other machines have used since.
        Action::Tighten { .. } => {}
    }
}

impl From<Gate> for Admission {
    fn from(gate: Gate) -> Admission {
        Admission { gate, shared: None }
    }
}

impl From<&Gate> for Admission {
    fn from(gate: &Gate) -> Admission {
        Admission::from(gate.clone())
    }
}

impl From<&Admission> for Admission {
    fn from(admission: &Admission) -> Admission {
        admission.clone()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("gate", &self.gate).field("shared", &self.is_shared()).finish()
    }
}

/// An entry that the gate and the shared limits have admitted; used like a [`Lease`].
#[must_use = "a lease that is dropped before `sent` is taken back"]
pub struct Admitted {
    here: Lease,
    shared: Option<Box<dyn SharedLimitsLease>>,
}

impl Admitted {
    /// As [`Lease::sent`].
    pub fn sent(&mut self) {
        self.here.sent();
        if let Some(shared) = &mut self.shared {
            shared.sent();
        }
    }

    /// As [`Lease::answered`].
    pub fn answered(&mut self) {
        self.here.answered();
    }

    /// As [`Listener::report`].
    pub fn report(&mut self, listener: &Listener, feedback: &Feedback) -> Report {
        listener.report(&mut self.here, feedback)
    }

    /// As [`Lease::failed`].
    pub fn failed(&mut self) -> Option<Duration> {
        self.here.failed()
    }

    /// As [`Lease::settle`].
    pub fn settle(&mut self, actual: Cost) {
        if let Some(shared) = &mut self.shared {
            shared.settle(actual.clone());
        }
        self.here.settle(actual);
    }

    /// As [`Lease::refund`].
    pub fn refund(self) {
        self.here.refund();
        if let Some(shared) = self.shared {
            shared.refund();
        }
    }

    /// As [`Lease::cost`].
    #[must_use]
    pub fn cost(&self) -> &Cost {
        self.here.cost()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("here", &self.here).field("shared", &self.shared.is_some()).finish()
    }
}
