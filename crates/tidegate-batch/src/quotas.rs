//! The limits of a run as people know them, and the gate made of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limit::store::{Store as QuotaStore, StoreError as QuotaStoreError};
use tidegate_limit::{ConfigError, Gate, Limit, Window};

/// How many requests are under way at once in all, unless told otherwise.
pub const GLOBAL_CONCURRENCY: u64 = 200;

/// How many requests of a day are written down ahead; after a crash at most so many are counted too many.
const RPD_BATCH: u64 = 20;

/// How the server counts a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowKind {
    /// At most so many in any minute: right for every server, if a little slower with some.
    #[default]
    Strict,
    /// A bucket that is refilled evenly; it starts empty here, so that the first minute is not exceeded either.
    Bucket,
    /// Minutes of the clock, from second 00 to second 59.
    Minute,
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
    /// Requests a day.
    pub rpd: Option<u64>,
    /// How the server counts a minute.
    pub window: WindowKind,
    /// How long that minute is: shorter for rehearsals.
    pub minute: Duration,
    /// Where the day begins at midnight.
    pub day_zone: Arc<str>,
    /// Requests under way at once.
    pub global_concurrency: u64,
    /// Where the day's count is kept, so that it survives a restart; without, it starts from zero.
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
    /// The day's count cannot be kept.
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
        let window = || match self.window {
            WindowKind::Strict => Window::strict(self.minute),
            WindowKind::Bucket => Window::bucket(self.minute),
            WindowKind::Minute => Window::Aligned(self.minute),
        };
        let mut limits = vec![Limit::concurrency("global", self.global_concurrency)];
        limits.extend(self.rpm.map(|amount| Limit::rpm(amount).window(window())));
        limits.extend(self.tpm.map(|amount| Limit::tpm(amount).window(window())));
        limits.extend(self.itpm.map(|amount| Limit::itpm(amount).window(window())));
        limits.extend(self.otpm.map(|amount| Limit::otpm(amount).window(window())));
        limits.extend(self.rpd.map(|amount| Limit::rpd(amount, Arc::clone(&self.day_zone))));
        limits
    }

    /// A gate with these limits.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn gate(&self) -> Result<Gate, QuotaError> {
        self.open().map(|(gate, _)| gate)
    }

    /// A gate with these limits, and the file that the day's count is in: closed after the gate, it has the exact count.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn open(&self) -> Result<(Gate, Option<QuotaStore>), QuotaError> {
        let Some(path) = self.file.as_ref().filter(|_| self.rpd.is_some()) else {
            let gate = Gate::builder().limits(self.limits()).build().map_err(QuotaError::Limit)?;
            return Ok((gate, None));
        };
        let store = QuotaStore::open(path).map_err(QuotaError::File)?;
        let journaled = self
            .limits()
            .into_iter()
            .map(|limit| if limit.name() == "rpd" { limit.journaled(RPD_BATCH) } else { limit });
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
    fn a_limit_of_nothing_is_a_mistake() {
        assert!(matches!(Quotas { rpm: Some(0), ..Quotas::default() }.gate(), Err(QuotaError::Limit(_))));
    }
}
