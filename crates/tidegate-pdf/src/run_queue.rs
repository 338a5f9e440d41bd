//! How long the threads of a process have waited for a processor.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The run queue of a process, as the kernel counts it.
pub(crate) struct RunQueue {
    /// `/proc/PID/task`; `None` if the process has no number.
    threads: Option<PathBuf>,
}

impl RunQueue {
    pub(crate) fn of(process: Option<u32>) -> RunQueue {
        RunQueue { threads: process.map(|id| PathBuf::from(format!("/proc/{id}/task"))) }
    }

    /// Returns the time that the threads which live now were ready to run and had no processor. Zero if the kernel does not
    /// count it: then limits are of the time that passes.
    pub(crate) fn time(&self) -> Duration {
        let threads = self.threads.as_ref().and_then(|threads| fs::read_dir(threads).ok());
        let each = threads.into_iter().flatten().flatten().filter_map(|thread| {
            let counts = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            queued(&counts)
        });
        each.sum()
    }
}

/// Reads `schedstat`: nanoseconds on a processor, nanoseconds in a run queue, time slices.
fn queued(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_count_is_the_run_queue() {
        assert_eq!(queued("4711 1500000000 12\n"), Some(Duration::from_millis(1_500)));
        assert_eq!(queued(""), None);
        assert_eq!(queued("1 ?"), None);
        assert_eq!(RunQueue::of(None).time(), Duration::ZERO);
    }
}
