//! How a server is made.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_secret::Secret;

use crate::error::StartError;
use crate::fault::{Counting, Fault, Faults, Refusals};
use crate::latency::Latency;
use crate::server::{self, Handle};
use crate::text::ANSWER_WORDS;
use crate::window::Limit;

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) rpm: Option<Limit>,
    pub(crate) tpm: Option<Limit>,
    pub(crate) itpm: Option<Limit>,
    pub(crate) otpm: Option<Limit>,
    pub(crate) rpd: Option<Limit>,
    pub(crate) concurrency: Option<u64>,
    pub(crate) latency: Latency,
    pub(crate) faults: Faults,
    pub(crate) script: Vec<Option<Fault>>,
    pub(crate) refusals: Refusals,
    pub(crate) refusals_count: bool,
    pub(crate) counting: Counting,
    pub(crate) rate_headers: bool,
    pub(crate) api_key: Option<Secret>,
    /// Empty: any.
    pub(crate) models: Vec<String>,
    pub(crate) answer_words: usize,
    pub(crate) seed: u64,
    pub(crate) awake: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            rpm: None,
            tpm: None,
            itpm: None,
            otpm: None,
            rpd: None,
            concurrency: None,
            latency: Latency::Fixed(Duration::ZERO),
            faults: Faults::none(),
            script: Vec::new(),
            refusals: Refusals::default(),
            refusals_count: false,
            counting: Counting::default(),
            rate_headers: true,
            api_key: None,
            models: Vec::new(),
            answer_words: ANSWER_WORDS,
            seed: 0,
            awake: false,
        }
    }
}

/// Builds a server; see [`Server::builder`](crate::Server::builder).
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    config: Config,
}

impl Builder {
    /// The address to listen on. Default: a free port on the loopback interface.
    pub fn listen(mut self, address: SocketAddr) -> Builder {
        self.config.listen = address;
        self
    }

    /// Requests per minute.
    pub fn rpm(mut self, limit: Limit) -> Builder {
        self.config.rpm = Some(limit);
        self
    }

    /// Tokens per minute.
    pub fn tpm(mut self, limit: Limit) -> Builder {
        self.config.tpm = Some(limit);
        self
    }

    /// Prompt tokens per minute, a limit of their own.
    pub fn itpm(mut self, limit: Limit) -> Builder {
        self.config.itpm = Some(limit);
        self
    }

    /// Output tokens per minute, a limit of their own. A request costs the length of its answer, or its `max_tokens` where
    /// [declared](Counting::Declared) tokens count.
    pub fn otpm(mut self, limit: Limit) -> Builder {
        self.config.otpm = Some(limit);
        self
    }

    /// Requests per day.
    pub fn rpd(mut self, limit: Limit) -> Builder {
        self.config.rpd = Some(limit);
        self
    }

    /// Requests in flight.
    pub fn concurrency(mut self, limit: u64) -> Builder {
        self.config.concurrency = Some(limit);
        self
    }

    /// How long an answer takes. Default: zero.
    pub fn latency(mut self, latency: Latency) -> Builder {
        self.config.latency = latency;
        self
    }

    /// The faults to inject, and how often.
    pub fn faults(mut self, faults: Faults) -> Builder {
        self.config.faults = faults;
        self
    }

    /// The faults of the first requests, one by one. Later requests get the random faults of [`faults`](Self::faults).
    pub fn script(mut self, script: impl IntoIterator<Item = Option<Fault>>) -> Builder {
        self.config.script = script.into_iter().collect();
        self
    }

    /// The form of a 429 answer.
    pub fn refusals(mut self, refusals: Refusals) -> Builder {
        self.config.refusals = refusals;
        self
    }

    /// Whether refused requests count against the requests per minute. Default: `false`.
    pub fn refusals_count(mut self, count: bool) -> Builder {
        self.config.refusals_count = count;
        self
    }

    /// How many tokens a request counts against the tokens per minute.
    pub fn counting(mut self, counting: Counting) -> Builder {
        self.config.counting = counting;
        self
    }

    /// Whether answers have headers with what is left of the limits. Default: `true`.
    pub fn rate_headers(mut self, send: bool) -> Builder {
        self.config.rate_headers = send;
        self
    }

    /// The only key that is accepted. Default: any key, and none.
    pub fn api_key(mut self, key: impl Into<Secret>) -> Builder {
        self.config.api_key = Some(key.into());
        self
    }

    /// The models there are; any is unless set.
    pub fn models<M: Into<String>>(mut self, models: impl IntoIterator<Item = M>) -> Builder {
        self.config.models = models.into_iter().map(Into::into).collect();
        self
    }

    /// How many words of the prompt an answer repeats.
    pub fn answer_words(mut self, words: usize) -> Builder {
        self.config.answer_words = words;
        self
    }

    /// Where latencies and failures are drawn from: the same seed, the same run.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.config.seed = seed;
        self
    }

    /// Never sleeps: it takes a core, and is late neither for a request that comes nor for an answer that is due. For those
    /// who measure a client: what a machine takes to wake a server up (some 75 µs on a virtual
    /// machine of two cores) would be held against it.
    pub fn awake(mut self, awake: bool) -> Builder {
        self.config.awake = awake;
        self
    }

    /// Serves on the running loop. If its time is virtual, limits and latencies count by it.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Cancel safety
    /// Dropped, nothing was started.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub async fn start(self) -> Result<Handle, StartError> {
        server::start(self.config).await
    }

    /// Serves on a loop of its own, in a thread of its own: clients that are measured do not share their time with it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_in_thread(self) -> Result<Handle, StartError> {
        server::start_in_thread(self.config)
    }
}
