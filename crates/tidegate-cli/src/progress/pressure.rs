//! Whether this machine is too busy for the run: how long the run waited for a processor (`/proc/self/schedstat`), and how many
//! others did (`/proc/pressure/cpu`). Either may be missing; then it is not judged by it.

use std::fs;
use std::time::{Duration, Instant};

use super::scene::{Blocker, Scene};

/// Looks that are closer together than this say nothing new.
const EVERY: Duration = Duration::from_secs(2);

/// The share of the time that the run waits for a processor, from which on it is shown.
const WAITED_MIN: f64 = 0.2;

/// The pressure of the last ten seconds from which on it is shown, in percent.
const PRESSURE_MIN: f64 = 20.0;

/// What was seen of the machine's load.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    last: Option<(Instant, Duration)>,
    line: Option<String>,
}

impl Pressure {
    /// Adds a line to `scene` if the machine's load holds the run back.
    pub(crate) fn note(&mut self, scene: &mut Scene) {
        let now = Instant::now();
        if self.last.is_none_or(|(at, _)| now.duration_since(at) >= EVERY) {
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            self.look(now, waited(&read("/proc/self/schedstat")), some_avg10(&read("/proc/pressure/cpu")));
        }
        // While a limit of the provider is waited for, more processor time would not help.
        let waits = match &scene.queue.blocked_by {
            Some(Blocker::Limit(name)) => name != "global",
            Some(Blocker::Found) => true,
            Some(Blocker::Files) | None => false,
        };
        scene.load = self.line.clone().filter(|_| !waits);
    }

    fn look(&mut self, now: Instant, waited: Option<Duration>, pressure: Option<f64>) {
        let Some(waited) = waited else { return };
        let before = self.last.replace((now, waited));
        self.line = before.and_then(|(at, before)| {
            let elapsed = now.duration_since(at).as_secs_f64().max(f64::MIN_POSITIVE);
            let share = (waited.saturating_sub(before).as_secs_f64() / elapsed).min(1.0);
            let is_busy = pressure.is_none_or(|pressure| pressure >= PRESSURE_MIN);
            (share >= WAITED_MIN && is_busy).then(|| line(share, pressure))
        });
    }
}

fn line(share: f64, pressure: Option<f64>) -> String {
    let mut line = format!("this machine is busy: the run waited for a processor {:.0} % of the time", share * 100.0);
    if let Some(pressure) = pressure {
        line += &format!(" (CPU pressure {pressure:.0} %)");
    }
    line
}

/// Returns the time that the main thread waited for a processor since it began.
fn waited(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Returns in how many percent of the last ten seconds some task waited for a processor.
fn some_avg10(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(waited("404437 1500000000 7\n"), Some(Duration::from_millis(1_500)));
        assert_eq!(waited(""), None);
        let text =
            "some avg10=62.25 avg60=7.83 avg300=11.21 total=128\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(some_avg10(text), Some(62.25));
        assert_eq!(some_avg10("full avg10=1.00\n"), None);
    }

    /// A run that waited for `waited` of the last ten seconds.
    fn after(waited: Duration, pressure: Option<f64>) -> Pressure {
        let (mut load, began) = (Pressure::default(), Instant::now());
        load.look(began, Some(Duration::from_secs(5)), pressure);
        assert_eq!(load.line, None, "one look says nothing");
        load.look(began + Duration::from_secs(10), Some(Duration::from_secs(5) + waited), pressure);
        load
    }

    #[test]
    fn a_busy_machine_is_shown_when_it_holds_the_run_back() {
        let busy = after(Duration::from_millis(3_500), Some(62.25)).line.unwrap();
        assert_eq!(busy, "this machine is busy: the run waited for a processor 35 % of the time (CPU pressure 62 %)");
        assert!(after(Duration::from_millis(3_500), None).line.is_some(), "no such file");
        assert_eq!(after(Duration::from_millis(3_500), Some(5.0)).line, None, "others do not wait");
        assert_eq!(after(Duration::from_millis(500), Some(99.0)).line, None, "the run does not wait");
        let mut unknown = Pressure::default();
        unknown.look(Instant::now(), None, Some(99.0));
        assert_eq!(unknown.line, None);
    }

    #[test]
    fn a_run_that_waits_for_a_limit_is_not_held_back_by_the_machine() {
        let shown = |blocked_by: Option<Blocker>| {
            let mut load = after(Duration::from_secs(5), None);
            // Not looked at again.
            load.last = Some((Instant::now() + EVERY, Duration::ZERO));
            let mut scene = Scene::default();
            scene.queue.blocked_by = blocked_by;
            load.note(&mut scene);
            scene.load.is_some()
        };
        assert!(shown(None) && shown(Some(Blocker::Files)) && shown(Some(Blocker::Limit("global".to_owned()))));
        assert!(!shown(Some(Blocker::Limit("rpm".to_owned()))) && !shown(Some(Blocker::Found)));
    }
}
