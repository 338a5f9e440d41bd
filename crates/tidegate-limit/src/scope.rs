//! Scopes: parts of a gate with their own caps.

use std::fmt;
use std::sync::Arc;

use crate::gate::GateShared;
use crate::line::{ScopeId, UNSCOPED};

/// A part of a gate with its own cap, for instance for the pages of a file. Created by
/// [`Gate::scope`](crate::Gate::scope); clones are the same scope.
///
/// ```
/// use tidegate_limit::{Cost, Gate, Limit};
///
/// let gate = Gate::builder().limit(Limit::concurrency("global", 200)).build().unwrap();
/// let file = gate.scope("a.pdf", 50);
/// let lease = gate.try_enter(&file, Cost::request()).unwrap();
/// assert_eq!((file.name().as_ref(), file.current()), ("a.pdf", 1));
/// # drop(lease);
/// ```
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ScopeInner>,
}

struct ScopeInner {
    gate: Arc<GateShared>,
    id: ScopeId,
}

impl Scope {
    pub(crate) fn new(gate: &Arc<GateShared>, id: ScopeId) -> Scope {
        Scope { inner: Arc::new(ScopeInner { gate: Arc::clone(gate), id }) }
    }

    pub(crate) fn unscoped(gate: &Arc<GateShared>) -> Scope {
        Scope::new(gate, UNSCOPED)
    }

    #[inline]
    pub(crate) fn id(&self) -> ScopeId {
        self.inner.id
    }

    #[inline]
    pub(crate) fn is_of(&self, gate: &Arc<GateShared>) -> bool {
        Arc::ptr_eq(&self.inner.gate, gate)
    }

    /// Its name.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
    /// assert_eq!(gate.scope("a.pdf", 50).name().as_ref(), "a.pdf");
    /// ```
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.inner.gate.lock().line.scope(self.inner.id).name)
    }

    /// Number of its leases now.
    ///
    /// ```
    /// # use tidegate_limit::{Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
    /// assert_eq!(gate.scope("a.pdf", 50).current(), 0);
    /// ```
    #[must_use]
    pub fn current(&self) -> u64 {
        self.inner.gate.lock().line.scope(self.inner.id).used
    }

    /// Changes its cap, in effect when this returns. With zero, no entry is admitted until it is raised; leases stay valid.
    ///
    /// ```
    /// # use tidegate_limit::{Cost, Gate, Limit};
    /// # let gate = Gate::builder().limit(Limit::rpm(9)).build().unwrap();
    /// let file = gate.scope("a.pdf", 50);
    /// file.resize(0);
    /// assert!(gate.try_enter(&file, Cost::request()).is_err());
    /// ```
    pub fn resize(&self, cap: u64) {
        self.inner.gate.change(|state, _, _| state.line.resize(self.inner.id, cap));
    }
}

impl Drop for ScopeInner {
    fn drop(&mut self) {
        if self.id != UNSCOPED {
            self.gate.abandon_scope(self.id);
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.inner.id).finish_non_exhaustive()
    }
}
