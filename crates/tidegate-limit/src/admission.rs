//! The one face of both kinds of gate: that of this process alone, and one in front of limits that machines hold in
//! common.

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

/// Limits that are counted elsewhere, in common with other machines.
pub trait Common {
    /// Waits until all of them let `cost` in, on all machines together.
    fn enter(&self, cost: Cost) -> EnterCommon;

    /// Nobody on any machine passes this limit for as long; a longer pause told before stays. A limit that is not held in
    /// common is left aside, here and below.
    fn pause(&self, limit: &str, duration: Duration);

    /// The pause is over.
    fn resume(&self, limit: &str);

    /// A strict server refused what had been let in here and in common: the way there takes longer than was thought.
    fn refused(&self);

    /// Completes a gate's figures with what is known of all machines.
    fn complete(&self, stats: &mut Snapshot);

    /// Lets nobody of this machine in any more: who waits and who comes is told `why`.
    fn close(&self, why: EnterError);
}

/// The future of [`Common::enter`]. Dropped, it leaves no trace.
pub type EnterCommon = Pin<Box<dyn Future<Output = Result<Box<dyn CommonLease>, EnterError>>>>;

/// What somebody who was let in holds of limits in common; dropped, it is given back as a [`Lease`] is.
pub trait CommonLease {
    /// As [`Lease::sent`].
    fn sent(&mut self);

    /// As [`Lease::settle`].
    fn settle(&mut self, actual: Cost);

    /// As [`Lease::refund`].
    fn refund(self: Box<Self>);
}

/// What callers go through: a [`Gate`] of this process, alone or in front of limits that are held in [`Common`].
///
/// The gate has the scopes, the limits as far as this process can use them up, and everything that servers tell it. Who is
/// let in there asks for the limits in common; meanwhile it holds nothing that anybody else waits for, except its place.
/// Without limits in common nothing is added to what the gate does.
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
    common: Option<Rc<dyn Common>>,
}

impl Admission {
    /// `gate`, and behind it `common`. The gate should have the same limits: under the names they have there it hears of
    /// pauses, and a limit that this machine would exceed alone need not be asked about.
    #[must_use]
    pub fn in_front_of(gate: Gate, common: Rc<dyn Common>) -> Admission {
        Admission { gate, common: Some(common) }
    }

    /// The gate of this process.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether there are limits in common.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.common.is_some()
    }

    /// As [`Gate::scope`]: a scope is of this machine.
    #[must_use]
    pub fn scope(&self, name: impl Into<Arc<str>>, cap: u64) -> Scope {
        self.gate.scope(name, cap)
    }

    /// As [`Gate::unscoped`].
    #[must_use]
    pub fn unscoped(&self) -> &Scope {
        self.gate.unscoped()
    }

    /// Waits until `cost` fits under every limit, here and in common, and books it.
    ///
    /// # Errors
    /// [`EnterError`] if it can never succeed as things are, as soon as that is known.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves no trace.
    pub async fn enter(&self, scope: &Scope, cost: Cost) -> Result<Admitted, EnterError> {
        self.enter_noting(scope, cost, |_| ()).await
    }

    /// The same, calling `blocked` when the entry has to wait: with its place in line, or without one if it waits for limits
    /// that are shared with other machines.
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
        let Some(common) = &self.common else { return Ok(Admitted { here, common: None }) };
        let mut entering = common.enter(cost);
        let there = match poll_once(&mut entering).await {
            Poll::Ready(entered) => entered?,
            Poll::Pending => {
                blocked(None);
                entering.await?
            }
        };
        Ok(Admitted { here, common: Some(there) })
    }

    /// As [`Gate::set`], where the limits are this machine's alone.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn set(&self, limit: &str, amount: u64) -> Result<(), SetError> {
        if self.is_shared() {
            return Err(SetError::Shared);
        }
        self.gate.set(limit, amount).map_err(SetError::Unknown)
    }

    /// As [`Gate::line`]; entries that wait for limits shared with other machines are not in it.
    #[must_use]
    pub fn line(&self) -> Vec<(Place, Blocked)> {
        self.gate.line()
    }

    /// As [`Gate::outlook_if`].
    #[must_use]
    pub fn outlook_if(&self, amounts: &[(&str, u64)], count: u64, cost: &Cost) -> Option<Duration> {
        self.gate.outlook_if(amounts, count, cost)
    }

    /// Reads an answer for `listener`, which listens for this gate, as [`Listener::on_answer`] does. Where limits are in
    /// common, what it says of waiting is told to all machines, and what it says is left is passed over: it was left for all
    /// of them, and nobody can tell what they have used since.
    pub fn on_answer(
        &self,
        listener: &Listener,
        sent: Instant,
        status: u16,
        headers: &impl Headers,
        body: &[u8],
    ) -> Feedback {
        let Some(common) = &self.common else { return listener.on_answer(sent, status, headers, body) };
        let (feedback, actions) = listener.hear_for_all(sent, status, headers, body);
        // The limits in common are strict, and let the request in: it came too close to the one before.
        if matches!(feedback.verdict, Verdict::Wait { .. } | Verdict::BackOff { .. }) {
            common.refused();
        }
        actions.iter().for_each(|action| tell(&**common, action));
        feedback
    }

    /// As [`Gate::shut`], for this machine: what is wrong with its key is not wrong with another's.
    ///
    /// # Errors
    /// [`UnknownLimit`].
    pub fn shut(&self, limit: &str, reason: impl Into<Arc<str>>) -> Result<(), UnknownLimit> {
        let reason = reason.into();
        self.gate.shut(limit, Arc::clone(&reason))?;
        if let Some(common) = &self.common {
            common.close(EnterError::Shut { limit: limit.into(), reason });
        }
        Ok(())
    }

    /// As [`Gate::outlook`]; what other machines will use of limits in common nobody knows here.
    #[must_use]
    pub fn outlook(&self, count: u64, cost: &Cost) -> Option<Duration> {
        self.gate.outlook(count, cost)
    }

    /// The gate's figures, with what is known of all machines where limits are in common.
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        let mut stats = self.gate.stats();
        if let Some(common) = &self.common {
            common.complete(&mut stats);
        }
        stats
    }

    /// As [`Gate::close`].
    pub fn close(&self) {
        self.gate.close();
        if let Some(common) = &self.common {
            common.close(EnterError::Closed);
        }
    }
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

fn tell(common: &dyn Common, action: &Action) {
    match action {
        Action::Pause { limit, delay } => common.pause(limit, *delay),
        Action::Park { limit, until, probe_every } => {
            // Here one may try now and then; the others may, too.
            let whole = SystemTime::from(*until).duration_since(SystemTime::now()).unwrap_or_default();
            common.pause(limit, whole.min(*probe_every));
        }
        Action::Resume { limit } => common.resume(limit),
        Action::Shut { limit, reason } => {
            common.close(EnterError::Shut { limit: Arc::clone(limit), reason: Arc::clone(reason) });
        }
        // Nobody here can tell what others have used of it since.
        Action::Tighten { .. } => {}
    }
}

impl From<Gate> for Admission {
    fn from(gate: Gate) -> Admission {
        Admission { gate, common: None }
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

/// An entry that was granted, here and in common; otherwise a [`Lease`].
#[must_use = "a lease that is dropped before `sent` is taken back"]
pub struct Admitted {
    here: Lease,
    common: Option<Box<dyn CommonLease>>,
}

impl Admitted {
    /// As [`Lease::sent`].
    pub fn sent(&mut self) {
        self.here.sent();
        if let Some(common) = &mut self.common {
            common.sent();
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
        if let Some(common) = &mut self.common {
            common.settle(actual.clone());
        }
        self.here.settle(actual);
    }

    /// As [`Lease::refund`].
    pub fn refund(self) {
        self.here.refund();
        if let Some(common) = self.common {
            common.refund();
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
        f.debug_struct("Admitted").field("here", &self.here).field("shared", &self.common.is_some()).finish()
    }
}
