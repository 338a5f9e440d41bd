//! Linux lets every wait end 50 µs late, so that several can be woken together: the thread's timer slack. A loop that sleeps
//! to the nanosecond does without it, from its first wait for a deadline until it stops running.

use std::cell::Cell;
use std::num::NonZeroU64;

use rustix::thread::{current_timer_slack, set_current_timer_slack};

#[derive(Debug, Default)]
pub(crate) struct Punctual {
    /// The thread's slack before; zero: it has not been changed.
    before: Cell<u64>,
}

impl Punctual {
    /// About to wait for a deadline.
    #[inline]
    pub(crate) fn enter(&self) {
        if self.before.get() == 0 {
            self.tighten();
        }
    }

    #[cold]
    fn tighten(&self) {
        // Where it is not to be had, timers are as late as in any other process.
        if let Ok(before) = current_timer_slack()
            && set_current_timer_slack(NonZeroU64::new(1)).is_ok()
        {
            self.before.set(before.max(1));
        }
    }

    /// The loop has stopped running: the thread gets back the slack that it had.
    pub(crate) fn leave(&self) {
        if let Some(before) = NonZeroU64::new(self.before.replace(0)) {
            let _ = set_current_timer_slack(Some(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{EventLoop, sleep};

    #[test]
    fn the_thread_gets_its_slack_back() {
        let before = current_timer_slack().unwrap();
        let event_loop = EventLoop::new().unwrap();
        event_loop
            .run_until_complete(async {
                // A deadline that has passed before the loop could wait for it, on a busy machine, is not waited for.
                for _ in 0..1_000 {
                    sleep(Duration::from_millis(1)).await;
                    if current_timer_slack().unwrap() == 1 {
                        return;
                    }
                }
                panic!("slack of {} ns", current_timer_slack().unwrap());
            })
            .unwrap();
        assert_eq!(current_timer_slack().unwrap(), before);
    }
}
