//! How long a job would take, what it would cost, and which limit it would wait for: the job itself, at the same gate, in
//! virtual time. Nothing is asked.
//!
//! Reading order: this file (what goes in and what comes out), `run.rs` (the job on a virtual loop), `timeline.rs` (what is
//! remembered of it).

mod run;
mod timeline;

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tidegate_limit::{ConfigError, Limit};

pub use timeline::{SLICES_MAX, Slice};

/// What one request costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of the prompt.
    pub input: u32,
    /// Of the answer.
    pub output: u32,
}

/// The requests of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requests {
    /// So many, all the same.
    Alike {
        /// How many.
        count: u64,
        /// What each costs.
        tokens: Tokens,
    },
    /// One by one.
    Each(
        /// What each costs.
        Vec<Tokens>,
    ),
}

impl Requests {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Requests::Alike { count, .. } => *count,
            Requests::Each(list) => list.len() as u64,
        }
    }

    fn get(&self, at: u64) -> Option<Tokens> {
        match self {
            Requests::Alike { count, tokens } => (at < *count).then_some(*tokens),
            Requests::Each(list) => list.get(usize::try_from(at).ok()?).copied(),
        }
    }
}

/// A file, or whatever else has a cap of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// What it asks.
    pub requests: Requests,
    /// How many of them at once.
    pub cap: u64,
    /// More requests with a lower cap of their own, such as pages that are sent as pictures. They count towards `cap` as well.
    pub pictures: Option<(Requests, u64)>,
}

/// What tokens cost, by the million.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// Of prompts.
    pub input: f64,
    /// Of answers.
    pub output: f64,
}

/// A job to be planned.
///
/// ```
/// use std::time::Duration;
/// use tidegate_batch::plan::{Job, Requests, Tokens};
/// use tidegate_limit::Limit;
///
/// let tokens = Tokens { input: 900, output: 100 };
/// let plan = Job::new([Limit::concurrency("global", 200), Limit::rpm(100)])
///     .part("report.pdf", Requests::Alike { count: 250, tokens }, 50)
///     .latency(|_| Duration::from_secs(2))
///     .run()
///     .unwrap();
/// // A hundred at once after 0, 1 and 2 minutes, fifty of them at a time.
/// assert_eq!(plan.duration, Duration::from_secs(122));
/// assert_eq!((plan.answered, plan.tokens_in), (250, 225_000));
/// assert_eq!(plan.bound[0].limit, "rpm");
/// ```
#[must_use = "a job is not planned until it is run"]
pub struct Job {
    limits: Vec<Limit>,
    parts: Vec<Part>,
    parts_at_once: usize,
    latency: Box<dyn FnMut(Tokens) -> Duration>,
    starts: SystemTime,
    prices: Option<Prices>,
}

impl Job {
    /// A job under these limits, without anything to do yet.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Job {
        Job {
            limits: limits.into_iter().collect(),
            parts: Vec::new(),
            parts_at_once: usize::MAX,
            latency: Box::new(|_| Duration::from_secs(1)),
            starts: SystemTime::now(),
            prices: None,
        }
    }

    /// Adds a part, of which at most `cap` requests are on their way at once.
    pub fn part(mut self, name: impl Into<String>, requests: Requests, cap: u64) -> Job {
        self.parts.push(Part { name: name.into(), requests, cap, pictures: None });
        self
    }

    /// Adds several.
    pub fn parts(mut self, parts: impl IntoIterator<Item = Part>) -> Job {
        self.parts.extend(parts);
        self
    }

    /// How many parts are worked on at once; all of them unless set.
    pub fn parts_at_once(mut self, parts: usize) -> Job {
        self.parts_at_once = parts.max(1);
        self
    }

    /// How long an answer takes; a second unless set.
    pub fn latency(mut self, latency: impl FnMut(Tokens) -> Duration + 'static) -> Job {
        self.latency = Box::new(latency);
        self
    }

    /// When it would start, which matters to limits of a day; now unless set.
    pub fn starts(mut self, at: SystemTime) -> Job {
        self.starts = at;
        self
    }

    /// What tokens cost.
    pub fn prices(mut self, prices: Prices) -> Job {
        self.prices = Some(prices);
        self
    }

    /// Goes through all of it in virtual time. A million requests take a second or two.
    ///
    /// # Errors
    /// See [`PlanError`]. Within a running loop it cannot be run, as two at once do not fit on a thread.
    pub fn run(self) -> Result<Plan, PlanError> {
        run::run(self)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("limits", &self.limits).field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// What a job would be like.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// From the start to the last answer.
    #[serde(rename = "duration_s", serialize_with = "seconds")]
    pub duration: Duration,
    /// Requests that would be answered.
    pub answered: u64,
    /// Requests that can never pass a limit, and the first limit they do not fit under.
    pub too_large: u64,
    /// That limit, and how much fits under it.
    pub too_large_for: Option<(String, u64)>,
    /// Tokens of all prompts that would be sent.
    pub tokens_in: u64,
    /// Tokens of all their answers.
    pub tokens_out: u64,
    /// At the given prices.
    pub cost: Option<f64>,
    /// The most requests on their way at once.
    pub in_flight_peak: u64,
    /// What it would wait for, longest first.
    pub bound: Vec<Bound>,
    /// The same over time.
    pub timeline: Vec<Slice>,
}

/// A limit, and how long the job would wait for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Bound {
    /// Its name; `per file` for the parts' own caps.
    pub limit: String,
    /// How long.
    #[serde(rename = "waited_s", serialize_with = "seconds")]
    pub waited: Duration,
    /// As a share of the job's duration.
    pub share: f64,
}

/// What the parts' own caps are called in a plan.
pub const PER_FILE: &str = "per file";

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Why there is no plan.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlanError {
    /// A limit is impossible.
    Limits(ConfigError),
    /// A part may do nothing at all: its cap is zero.
    Cap(
        /// Its name.
        String,
    ),
    /// The virtual loop did not come to an end.
    Run(
        /// Why.
        String,
    ),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Limits(error) => error.fmt(f),
            PlanError::Cap(name) => {
                write!(f, "{name} may have 0 requests on their way, so it would never end; allow 1 at least")
            }
            PlanError::Run(why) => write!(f, "the rehearsal in virtual time failed: {why}"),
        }
    }
}

impl std::error::Error for PlanError {}
