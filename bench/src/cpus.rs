//! Two cores: one for the server, one for the load. With one core only, nobody is pinned.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where this thread may run, as it was before; put back when dropped.
pub(crate) struct Cpus {
    all: Option<CpuSet>,
    server: CpuSet,
    load: CpuSet,
}

impl Cpus {
    /// Moves this thread to the load's core.
    pub(crate) fn claim() -> Self {
        let all = sched_getaffinity(None).ok();
        let allowed: Vec<usize> =
            all.map_or(Vec::new(), |all| (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect());
        let one = |cpu: Option<&usize>| {
            let mut set = CpuSet::new();
            cpu.into_iter().for_each(|cpu| set.set(*cpu));
            set
        };
        let cpus =
            Self { server: one(allowed.first()), load: one(allowed.last()), all: all.filter(|_| allowed.len() > 1) };
        cpus.pin(&cpus.load);
        cpus
    }

    /// Runs `start` on the server's core: what it starts inherits the place.
    pub(crate) fn for_server<T>(&self, start: impl FnOnce() -> T) -> T {
        self.pin(&self.server);
        let started = start();
        self.pin(&self.load);
        started
    }

    fn pin(&self, to: &CpuSet) {
        if self.all.is_some() {
            // Refused, it is measured all the same, with more noise.
            let _ = sched_setaffinity(None, to);
        }
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            let _ = sched_setaffinity(None, all);
        }
    }
}
