//! Seeds for randomised tests: fresh in every run, printed when a test fails with one, replayed on request.
//!
//! Called by tests alone. Tests that always begin with the same seed try the same inputs for ever.
//!
//! ```
//! for seed in tidegate_seeds::seeds(100) {
//!     // A failure in here prints the seed that repeats it.
//!     assert_eq!(seed ^ seed, 0);
//! }
//! ```

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher, RandomState};

/// Set to a number, only that seed is run: the way to repeat a failure.
pub const VARIABLE: &str = "TIDEGATE_SEED";

/// Returns `rounds` seeds that no earlier run has had, or the one that [`VARIABLE`] names.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn seeds(rounds: u64) -> Seeds {
    let chosen = std::env::var(VARIABLE).ok();
    let chosen = chosen.map(|seed| seed.parse().unwrap_or_else(|_| panic!("{VARIABLE} is not a number: {seed:?}")));
    let seeds = match chosen {
        Some(seed) => Seeds { next: seed, left: 1, current: None, is_replay: true },
        // Random keys are made for every process, and each state differs from the one before.
        None => {
            Seeds { next: RandomState::new().build_hasher().finish(), left: rounds, current: None, is_replay: false }
        }
    };
    println!("{} rounds from {VARIABLE}={}", seeds.left, seeds.next);
    seeds
}

/// Yields seeds. If it is dropped by a panic, it prints the last of them: keep it in the loop that uses it.
#[derive(Debug)]
pub struct Seeds {
    next: u64,
    left: u64,
    current: Option<u64>,
    is_replay: bool,
}

impl Seeds {
    /// Returns `true` if one seed is run again: what is expected of many runs together does not hold then.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.is_replay
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.current = Some(self.next);
        self.next = self.next.wrapping_add(1);
        self.current
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| std::thread::panicking()) {
            eprintln!("failed with a seed; repeat it with {VARIABLE}={seed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs in a process of its own: fails with the third seed.
    #[test]
    fn failing() {
        if std::env::var_os("TIDEGATE_TEST_FAILS").is_none() {
            return;
        }
        let seeds = seeds(10);
        let third = seeds.next + 2;
        for seed in seeds {
            assert!(seed < third, "this one");
        }
    }

    fn fail(seed: Option<&str>) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::failing", "--nocapture"]).env("TIDEGATE_TEST_FAILS", "1").env_remove(VARIABLE);
        let output = command.envs(seed.map(|seed| (VARIABLE, seed))).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    #[test]
    fn the_seed_that_failed_is_printed_and_every_run_has_others() {
        let last = |text: &str| -> u64 {
            let (_, seed) = text.rsplit_once("repeat it with TIDEGATE_SEED=").unwrap_or_else(|| panic!("{text}"));
            seed.split_whitespace().next().unwrap().parse().unwrap()
        };
        let (first, second) = (fail(None), fail(None));
        assert!(first.contains(&format!("10 rounds from TIDEGATE_SEED={}", last(&first) - 2)), "{first}");
        assert_ne!(last(&first), last(&second));
    }

    #[test]
    fn one_seed_is_run_on_request() {
        let text = fail(Some("12345"));
        assert!(text.contains("1 rounds from TIDEGATE_SEED=12345") && !text.contains("repeat it"), "{text}");
        assert!(fail(Some("x")).contains("TIDEGATE_SEED is not a number: \"x\""));
    }
}
