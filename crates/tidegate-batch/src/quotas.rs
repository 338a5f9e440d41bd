//! The limits of a run as people know them, and the gate made of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limit::store::{Durability, Store as QuotaStore, StoreError as QuotaStoreError};
use tidegate_limit::{ConfigError, Gate, Limit, Window};

/// How many requests are under way at once in all, unless told otherwise.
pub const GLOBAL_CONCURRENCY: u64 = 200;

/// The share of a day's amount that is written to the file ahead, and the most: what a crash may count too much, and what may wait
/// unused for the other processes that share the day.
const DAY_BATCHES: u64 = 64;
const RPD_BATCH_MAX: u64 = 20;

/// The share of a minute's amount that is written to the file ahead: at most this part is counted too high after a crash,
/// and a full minute needs about this many writes.
const MINUTE_BATCHES: u64 = 16;

/// How the server counts a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowKind {
    /// At most this many in any minute. It may send all of them at once, which a server may refuse that counts in shorter windows.
    #[default]
    Strict,
    /// A bucket that is refilled evenly; it starts empty here, so that the first minute is not exceeded either.
    Bucket,
    /// Minutes of the clock, from second 00 to second 59.
    Minute,
}

/// How long the windows of single limits are, where they are not [`Quotas::minute`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowLengths {
    /// Of requests.
    pub rpm: Option<Duration>,
    /// Of tokens.
    pub tpm: Option<Duration>,
    /// Of input tokens.
    pub itpm: Option<Duration>,
    /// Of output tokens.
    pub otpm: Option<Duration>,
    /// Of [`Quotas::rpd`]: requests in any time of this length, instead of a calendar day.
    pub rpd: Option<Duration>,
}

/// The limits of a run. `None` is no limit.
///
/// ```
/// use tidegate_batch::Quotas;
///
/// let quotas = Quotas { rpm: Some(150), tpm: Some(1_000_000), ..Quotas::default() };
/// let gate = quotas.gate().unwrap();
/// assert_eq!(gate.stats().limit("global").unwrap().amount, 200);
/// assert_eq!(gate.stats().limit("rpm").unwrap().amount, 150);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Requests a minute.
    pub rpm: Option<u64>,
    /// Tokens a minute.
    pub tpm: Option<u64>,
    /// Tokens of prompts a minute, where they are limited apart.
    pub itpm: Option<u64>,
    /// Tokens of answers a minute, where they are limited apart: booked as long as an answer may be, settled by how long it
    /// is.
    pub otpm: Option<u64>,
    /// Requests per day of the calendar, or in any [`WindowLengths::rpd`].
    pub rpd: Option<u64>,
    /// How the server counts a minute.
    pub window: WindowKind,
    /// How long that minute is: shorter for rehearsals.
    pub minute: Duration,
    /// How long the windows of single limits are: 10 requests per second are `rpm: Some(10)` with a window of a second.
    pub lengths: WindowLengths,
    /// Where the day begins at midnight.
    pub day_zone: Arc<str>,
    /// Requests under way at once.
    pub global_concurrency: u64,
    /// Where the counts of the minute and of the day are kept across restarts. Without a file they start from zero.
    pub file: Option<PathBuf>,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            rpm: None,
            tpm: None,
            itpm: None,
            otpm: None,
            rpd: None,
            window: WindowKind::Strict,
            minute: Duration::from_secs(60),
            lengths: WindowLengths::default(),
            day_zone: "America/Los_Angeles".into(),
            global_concurrency: GLOBAL_CONCURRENCY,
            file: None,
        }
    }
}

/// Why there is no gate.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuotaError {
    /// A limit that makes no sense.
    Limit(ConfigError),
    /// The counts cannot be kept in their file.
    File(QuotaStoreError),
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaError::Limit(error) => error.fmt(f),
            QuotaError::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for QuotaError {}

impl Quotas {
    /// The limits, as a gate knows them.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        let window = |length: Option<Duration>| match (self.window, length.unwrap_or(self.minute)) {
            (WindowKind::Strict, length) => Window::strict(length),
            (WindowKind::Bucket, length) => Window::bucket(length),
            (WindowKind::Minute, length) => Window::Aligned(length),
        };
        let WindowLengths { rpm, tpm, itpm, otpm, rpd } = self.lengths;
        let mut limits = vec![Limit::concurrency("global", self.global_concurrency)];
        limits.extend(self.rpm.map(|amount| Limit::rpm(amount).window(window(rpm))));
        limits.extend(self.tpm.map(|amount| Limit::tpm(amount).window(window(tpm))));
        limits.extend(self.itpm.map(|amount| Limit::itpm(amount).window(window(itpm))));
        limits.extend(self.otpm.map(|amount| Limit::otpm(amount).window(window(otpm))));
        limits.extend(self.rpd.map(|amount| {
            let limit = Limit::rpd(amount, Arc::clone(&self.day_zone));
            match rpd {
                Some(length) => limit.window(Window::strict(length)),
                None => limit,
            }
        }));
        limits
    }

    /// A gate with these limits.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn gate(&self) -> Result<Gate, QuotaError> {
        self.open().map(|(gate, _)| gate)
    }

    /// A gate with these limits, and the file with the counts of the minute and the day: closed after the gate, it has the
    /// exact counts.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn open(&self) -> Result<(Gate, Option<QuotaStore>), QuotaError> {
        let limits = self.limits();
        let is_rated = limits.iter().any(|limit| limit.rated().is_some());
        let Some(path) = self.file.as_ref().filter(|_| is_rated) else {
            let gate = Gate::builder().limits(limits).build().map_err(QuotaError::Limit)?;
            return Ok((gate, None));
        };
        // A machine that lost power is back after a minute's window has passed, but not after a day's.
        let durability = if self.rpd.is_some() { Durability::PowerLoss } else { Durability::Crash };
        let store = QuotaStore::open_with(path, durability).map_err(QuotaError::File)?;
        let journaled = limits.into_iter().map(|limit| match limit.rated() {
            None => limit,
            Some(_) if limit.name() == "rpd" => {
                let batch = (limit.amount() / DAY_BATCHES).clamp(1, RPD_BATCH_MAX);
                limit.journaled(batch)
            }
            Some(_) => {
                let batch = (limit.amount() / MINUTE_BATCHES).max(1);
                limit.journaled(batch)
            }
        });
        let builder = Gate::builder().limits(journaled).store(&store).map_err(QuotaError::File)?;
        Ok((builder.build().map_err(QuotaError::Limit)?, Some(store)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limit::Cost;

    #[test]
    fn a_days_count_survives_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let quotas = Quotas { rpd: Some(100), file: Some(directory.path().join("quota.db")), ..Quotas::default() };
        let count = |requests: usize| {
            let quotas = quotas.clone();
            tidegate_loop::run(async move {
                let (gate, store) = quotas.open().unwrap();
                for _ in 0..requests {
                    gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
                }
                let used = gate.stats().limit("rpd").unwrap().used;
                gate.close();
                store.unwrap().close();
                used
            })
            .unwrap()
        };
        assert_eq!(count(7), 7);
        assert_eq!(count(0), 7);
    }

    #[test]
    fn a_crash_costs_a_64th_of_a_small_day() {
        let directory = tempfile::tempdir().unwrap();
        let quotas = Quotas { rpd: Some(30), file: Some(directory.path().join("quota.db")), ..Quotas::default() };
        let used = |requests: usize| {
            let quotas = quotas.clone();
            tidegate_loop::run(async move {
                let (gate, store) = quotas.open().unwrap();
                for _ in 0..requests {
                    gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
                }
                let used = gate.stats().limit("rpd").unwrap().used;
                // The gate is not closed: what it has reserved stays counted, as after a crash.
                store.unwrap().close();
                used
            })
            .unwrap()
        };
        assert_eq!([used(3), used(3), used(0)], [3, 6, 6]);
    }

    #[test]
    fn a_day_is_the_calendars_or_slides() {
        let day = Duration::from_secs(86_400);
        let lengths = WindowLengths { rpd: Some(day), ..WindowLengths::default() };
        let window = |quotas: Quotas| quotas.limits().last().unwrap().rated().unwrap().1.clone();
        let rpd = || Quotas { rpd: Some(10), ..Quotas::default() };
        assert_eq!(window(rpd()), Window::day("America/Los_Angeles"));
        assert_eq!(window(Quotas { lengths, ..rpd() }), Window::strict(day));
    }

    #[test]
    fn each_limit_has_a_window_of_its_own() {
        let lengths = WindowLengths { rpm: Some(Duration::from_secs(1)), ..WindowLengths::default() };
        let limits = Quotas { rpm: Some(10), tpm: Some(90_000), lengths, ..Quotas::default() }.limits();
        let window = |name: &str| limits.iter().find(|limit| limit.name() == name).unwrap().rated().unwrap().1.clone();
        assert_eq!(window("rpm"), Window::strict(Duration::from_secs(1)));
        assert_eq!(window("tpm"), Window::strict(Duration::from_secs(60)));
    }

    /// Sends `requests` of 100 tokens and returns what is counted in the minute. `closed`: ends in order, not by a crash.
    fn count_in_minute(quotas: &Quotas, requests: usize, closed: bool) -> [u64; 2] {
        let quotas = quotas.clone();
        tidegate_loop::run(async move {
            let (gate, store) = quotas.open().unwrap();
            for _ in 0..requests {
                gate.enter(gate.unscoped(), Cost::tokens(100)).await.unwrap().sent();
            }
            let used = ["rpm", "tpm"].map(|limit| gate.stats().limit(limit).unwrap().used);
            if closed {
                gate.close();
            }
            store.unwrap().close();
            used
        })
        .unwrap()
    }

    #[test]
    fn a_minutes_counts_survive_a_restart_and_a_crash() {
        for window in [WindowKind::Strict, WindowKind::Minute] {
            let directory = tempfile::tempdir().unwrap();
            let quotas = Quotas {
                rpm: Some(100),
                tpm: Some(100_000),
                window,
                // Long enough that it does not end while the test runs, however slow the machine is.
                minute: Duration::from_secs(100 * 365 * 86_400),
                file: Some(directory.path().join("quota.db")),
                ..Quotas::default()
            };
            assert_eq!(count_in_minute(&quotas, 7, true), [7, 700]);
            assert_eq!(count_in_minute(&quotas, 5, false), [12, 1_200]);
            let [requests, tokens] = count_in_minute(&quotas, 0, true);
            // At most a reservation too many.
            assert!((12..=12 + 100 / 16).contains(&requests), "{requests}");
            assert!((1_200..=1_200 + 100_000 / 16).contains(&tokens), "{tokens}");
        }
    }

    #[test]
    fn a_limit_of_nothing_is_a_mistake() {
        assert!(matches!(Quotas { rpm: Some(0), ..Quotas::default() }.gate(), Err(QuotaError::Limit(_))));
    }
}
