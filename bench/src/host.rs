//! What the host of a virtual machine does with the cores meanwhile. It may give them to somebody else, and a clock that goes
//! on counts that as well; the kernel is told how long they were away.

use std::fs;
use std::time::Duration;

/// In `/proc/stat`, behind the word for all cores together.
const STOLEN_COLUMN: usize = 7;

/// Who knows how long the cores were away.
pub(crate) trait Host {
    /// So far, all of them together.
    fn stolen(&self) -> Duration;

    /// What it counts in.
    fn unit(&self) -> Duration;
}

/// This machine's host, as the kernel tells. On a machine of its own nothing is ever stolen.
pub(crate) struct Kernel;

impl Host for Kernel {
    fn stolen(&self) -> Duration {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        self.unit() * ticks(&stat).unwrap_or(0)
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(u32::MAX)
    }
}

fn ticks(stat: &str) -> Option<u32> {
    let mut words = stat.lines().next()?.split_whitespace();
    (words.next()? == "cpu").then(|| words.nth(STOLEN_COLUMN)?.parse().ok())?
}

/// Steals nothing.
#[cfg(test)]
pub(crate) struct Honest;

#[cfg(test)]
impl Host for Honest {
    fn stolen(&self) -> Duration {
        Duration::ZERO
    }

    fn unit(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_from_all_cores_is_read() {
        let stat = "cpu  86512 0 6163 58299 291 0 350 2741 5 6\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(ticks(stat), Some(2741));
        assert_eq!(ticks("cpu  1 2 3 4\n"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn this_machine_counts_in_some_unit() {
        assert!(Kernel.unit() > Duration::ZERO);
        assert!(Kernel.stolen() <= Kernel.stolen());
    }
}
