//! Queues and tasks bound to gates: a task that waits for a limit holds no slot.

use std::collections::HashMap;

use tidegate_limit::{Admission, Admitted, Cost, EnterError, Scope};

/// Which queues and which tasks go through which gate. A task bound by its own name goes through that gate alone, any other
/// through its queue's.
///
/// A queue that is bound is received through a subscription of its own, so that what waits for its limit does not fill the
/// prefetch of the others. Tasks bound by name wait among those of their queue: at most the prefetch of them.
///
/// ```
/// use tidegate_limit::{Gate, Limit};
/// use tidegate_worker::Limits;
///
/// let gate = Gate::builder().limit(Limit::rpm(150)).limit(Limit::concurrency("llm", 20)).build().unwrap();
/// let limits = Limits::new().queue("llm", gate.clone()).task("mail.send", gate);
/// assert_eq!(limits.describe().len(), 2);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Limits {
    queues: HashMap<Box<str>, Bound>,
    tasks: HashMap<Box<str>, Bound>,
}

#[derive(Debug, Clone)]
pub(crate) struct Bound {
    gate: Admission,
    scope: Scope,
}

impl Limits {
    /// None.
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Every task of this queue goes through `gate`, as one request.
    #[must_use]
    pub fn queue(mut self, queue: &str, gate: impl Into<Admission>) -> Limits {
        self.queues.insert(queue.into(), Bound::of(gate.into()));
        self
    }

    /// Every task of this name goes through `gate`, as one request.
    #[must_use]
    pub fn task(mut self, name: &str, gate: impl Into<Admission>) -> Limits {
        self.tasks.insert(name.into(), Bound::of(gate.into()));
        self
    }

    /// One line for each binding.
    pub fn describe(&self) -> Vec<String> {
        let line = |kind: &str, name: &str, bound: &Bound| {
            let limits: Vec<String> = bound.gate.stats().limits.iter().map(|limit| limit.name.to_string()).collect();
            format!("{kind} {name}: {}", limits.join(", "))
        };
        let queues = self.queues.iter().map(|(name, bound)| line("queue", name, bound));
        let mut lines: Vec<String> =
            queues.chain(self.tasks.iter().map(|(name, bound)| line("task", name, bound))).collect();
        lines.sort();
        lines
    }

    pub(crate) fn binds_queue(&self, queue: &str) -> bool {
        self.queues.contains_key(queue)
    }

    pub(crate) fn of(&self, queue: &str, task: &str) -> Option<&Bound> {
        if self.queues.is_empty() && self.tasks.is_empty() {
            return None;
        }
        self.tasks.get(task).or_else(|| self.queues.get(queue))
    }
}

impl Bound {
    fn of(gate: Admission) -> Bound {
        let scope = gate.unscoped().clone();
        Bound { gate, scope }
    }

    pub(crate) async fn enter(&self) -> Result<Admitted, EnterError> {
        self.gate.enter(&self.scope, Cost::request()).await
    }
}
