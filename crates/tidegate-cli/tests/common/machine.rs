//! Judges what depends on how promptly processes get a core: whether a strict server refuses a request that was on its way for
//! too long, how much of a quota is used. The proofs that do not depend on it are in virtual time
//! (`tidegate-batch/tests/proof.rs`) and over recorded instants (`tidegate-redis/tests/redis_peers`).

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a round is tried whose verdict proves nothing.
const ROUNDS: usize = 3;

/// Between two looks at the machine.
const PERIOD: Duration = Duration::from_millis(5);

/// Runs rounds until a verdict stands. A good one does. A bad one does unless processes had to wait for a core for more than
/// `margin`, which is what the gate allows for the way to the server: such a round proves nothing, and the next one is run.
/// What does not depend on time is asserted by the round itself.
pub(crate) fn judge(margin: Duration, mut round: impl FnMut() -> Result<(), String>) {
    for number in 1..=ROUNDS {
        let watch = Watch::start();
        let verdict = round();
        let waited = watch.longest_wait(2 * margin);
        let Err(reason) = verdict else { return };
        assert!(waited > margin, "{reason}; the longest wait for a core was {waited:?}");
        say(&format!(
            "round {number} of {ROUNDS} proves nothing, processes waited for a core for {waited:?}: {reason}"
        ));
    }
    say("not decided on this machine, which is too busy");
}

/// Prints past the harness, which shows nothing of a test that passes.
fn say(what: &str) {
    let thread = thread::current();
    #[allow(clippy::disallowed_methods, reason = "a test, not the program")]
    let _ = writeln!(std::io::stderr(), "{}: {what}", thread.name().unwrap_or("a test"));
}

/// Looks at the machine while a round runs.
struct Watch {
    over: Sender<()>,
    looks: JoinHandle<Vec<Look>>,
}

/// The time, and how long processes have had to wait for a core by then, since the machine started.
pub(crate) type Look = (Instant, Duration);

impl Watch {
    fn start() -> Watch {
        let (over, is_over) = channel();
        let looks = thread::spawn(move || {
            let mut looks = vec![look()];
            // Ends with the round, also if that panics.
            while is_over.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                looks.push(look());
            }
            looks.push(look());
            looks
        });
        Watch { over, looks }
    }

    /// Ends it. Returns the longest time that was waited in any stretch of this length.
    fn longest_wait(self, stretch: Duration) -> Duration {
        drop(self.over);
        longest_wait(&self.looks.join().unwrap(), stretch)
    }
}

fn look() -> Look {
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    (Instant::now(), waited(&pressure))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=40425998`: microseconds in which at least one runnable thread had no core.
pub(crate) fn waited(pressure: &str) -> Duration {
    let total = pressure.lines().next().and_then(|line| line.rsplit_once("total=")?.1.trim().parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

pub(crate) fn longest_wait(looks: &[Look], stretch: Duration) -> Duration {
    let (mut from, mut longest) = (0, Duration::ZERO);
    for (at, (time, waited)) in looks.iter().enumerate().skip(1) {
        while from + 1 < at && *time - looks[from].0 > stretch {
            from += 1;
        }
        // A look that comes late was itself kept waiting, by other processes or by the host of a virtual machine.
        let late = (*time - looks[at - 1].0).saturating_sub(PERIOD);
        longest = longest.max(*waited - looks[from].1).max(late);
    }
    longest
}
