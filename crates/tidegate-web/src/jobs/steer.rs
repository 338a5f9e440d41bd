//! The limits of an upstream, changed while its jobs run.

use std::rc::Rc;
use std::time::Duration;

use super::service::Jobs;
use super::upstream::Upstream;
use crate::pages::limits::Steer;

impl Jobs {
    /// What changes the limits of an upstream, for the page of the limits.
    #[must_use]
    pub fn steer(&self, upstream: &str) -> Option<Rc<dyn Steer>> {
        let upstream = self.upstream(upstream)?;
        Some(Rc::new(Steering { jobs: self.clone(), upstream }))
    }
}

struct Steering {
    jobs: Jobs,
    upstream: Rc<Upstream>,
}

impl Steer for Steering {
    /// The longest of its jobs: they share the limits, so none of them is done earlier than it would be alone.
    fn time_left(&self, amounts: &[(&str, u64)]) -> Option<Duration> {
        let jobs = self.jobs.inner.jobs.borrow();
        let running = jobs.values().filter(|live| live.job.upstream == self.upstream.name());
        running.filter_map(|live| live.run.as_ref()?.control.what_if(amounts)).max()
    }

    fn set(&self, limit: &str, amount: u64) -> Result<(), String> {
        self.upstream.gate().set(limit, amount).map_err(|error| error.to_string())
    }
}
