//! How a worker is to work.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tidegate_pool::Watermarks;

use crate::codec::native;
use crate::cron::Schedule;
use crate::limits::Limits;
use crate::middleware::Middleware;
use crate::pool::Decode;
use crate::retry::Policies;

/// How a worker is to work. Public fields with stated defaults; [`new`](Self::new) fills them.
///
/// ```
/// use std::time::Duration;
/// use tidegate_worker::{Policies, Policy, Settings};
///
/// let mut settings = Settings::new(["mail", "reports"]);
/// settings.policies = Policies::new(Policy { retries_max: 8, ..Policy::default() });
/// settings.warm_timeout = Duration::from_secs(60);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// From which queues.
    pub queues: Vec<String>,
    /// At most this many received and not settled, a subscription. Unless set: a quarter more than there are slots.
    pub prefetch: Option<usize>,
    /// At the high mark nothing further starts until the low one is reached again. Unless set: none; the slots are the limit.
    pub watermarks: Option<Watermarks>,
    /// What becomes of tasks that don't succeed, and for how long they may run.
    pub policies: Policies,
    /// Queues and tasks bound to gates.
    pub limits: Limits,
    /// Hooks, in order.
    pub middleware: Vec<Rc<dyn Middleware>>,
    /// What to publish when.
    pub schedules: Vec<Schedule>,
    /// How bodies are read; unless set: the native form.
    pub decode: Decode,
    /// Who this is, for the broker's own lists.
    pub name: String,
    /// How long each step of the start may take: 30 s.
    pub start_timeout: Duration,
    /// How long running tasks may go on after a warm stop was asked for: 30 s.
    pub warm_timeout: Duration,
    /// How long running tasks may take to end once they are cancelled: 10 s.
    pub cancel_timeout: Duration,
    /// How long the broker may take to confirm the last settlements: 10 s.
    pub settle_timeout: Duration,
    /// How long the broker may take to stop delivering, and to be closed: 5 s each.
    pub close_timeout: Duration,
}

impl Settings {
    /// Unless set otherwise.
    pub const WARM_TIMEOUT: Duration = Duration::from_secs(30);

    /// With the defaults.
    pub fn new<Q: Into<String>>(queues: impl IntoIterator<Item = Q>) -> Settings {
        Settings {
            queues: queues.into_iter().map(Into::into).collect(),
            prefetch: None,
            watermarks: None,
            policies: Policies::default(),
            limits: Limits::default(),
            middleware: Vec::new(),
            schedules: Vec::new(),
            decode: Rc::new(native::decode),
            name: format!("pid-{}", std::process::id()),
            start_timeout: Duration::from_secs(30),
            warm_timeout: Settings::WARM_TIMEOUT,
            cancel_timeout: Duration::from_secs(10),
            settle_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
        }
    }

    /// What a stop may take in all, if the loop goes on.
    pub fn stop_limit(&self) -> Duration {
        let connections = self.queues.len().max(1) as u32;
        self.warm_timeout + 2 * self.cancel_timeout + self.settle_timeout + (connections + 1) * self.close_timeout
    }

    /// The prefetch for a mode with this many slots: enough that a slot does not wait for the broker, not so much that tasks
    /// lie here while another worker is idle.
    pub fn prefetch_for(slots: usize) -> usize {
        slots + slots.div_ceil(4)
    }

    /// The low-water mark that goes with a high one unless set: four fifths of it.
    pub fn low_water_for(high: usize) -> usize {
        high - high.div_ceil(5).min(high)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("queues", &self.queues)
            .field("prefetch", &self.prefetch)
            .field("watermarks", &self.watermarks)
            .field("warm_timeout", &self.warm_timeout)
            .finish_non_exhaustive()
    }
}
