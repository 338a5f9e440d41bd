//! Where requests are sent: one address, one key, one gate. Upstreams are stated at the start of the server; the page and the API
//! choose one by its name, and see neither its address nor its key.

use std::fmt;
use std::rc::Rc;

use tidegate_batch::plan::Prices;
use tidegate_batch::{AutoConcurrency, Caller, Dialect, Provider, Quotas};
use tidegate_limit::{Admission, Limit};

use super::model::JobOptions;

/// Makes the provider of one job: a model and options in, an error for people out.
type Connect = Box<dyn Fn(&str, &JobOptions) -> Result<Rc<dyn Provider>, String>>;

/// Makes what sends requests, without options of a job: each request has its own.
type ConnectRequests = Box<dyn Fn() -> Result<Caller, String>>;

/// An upstream. All of its jobs share its gate.
pub struct Upstream {
    name: String,
    provider: String,
    model: String,
    key: String,
    gate: Admission,
    quotas: Quotas,
    auto: Option<AutoConcurrency>,
    prices: Option<Prices>,
    needs_model: bool,
    connect: Connect,
    /// What its server speaks, and the way to it, if it takes requests.
    requests: Option<(Dialect, ConnectRequests)>,
}

impl Upstream {
    /// An upstream called `name` that speaks as `provider` does, within `gate`, which has the limits of `quotas`. `connect` makes
    /// the provider of a job.
    pub fn new(
        name: impl Into<String>,
        provider: impl Into<String>,
        gate: Admission,
        quotas: Quotas,
        connect: impl Fn(&str, &JobOptions) -> Result<Rc<dyn Provider>, String> + 'static,
    ) -> Upstream {
        Upstream {
            name: name.into(),
            provider: provider.into(),
            model: String::new(),
            key: String::new(),
            gate,
            quotas,
            auto: None,
            prices: None,
            needs_model: false,
            connect: Box::new(connect),
            requests: None,
        }
    }

    /// The same, with the model that is proposed; every job needs one.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Upstream {
        (self.model, self.needs_model) = (model.into(), true);
        self
    }

    /// The same, taking requests as they stand in files, which a server of `dialect` answers. `connect` makes what sends them.
    #[must_use]
    pub fn requests(mut self, dialect: Dialect, connect: impl Fn() -> Result<Caller, String> + 'static) -> Upstream {
        self.requests = Some((dialect, Box::new(connect)));
        self
    }

    /// The same, with the name of the place that its key comes from, for people: a variable or a file, never the key.
    #[must_use]
    pub fn key_from(mut self, origin: impl Into<String>) -> Upstream {
        self.key = origin.into();
        self
    }

    /// The same, with prices per million tokens.
    #[must_use]
    pub fn prices(mut self, prices: Option<Prices>) -> Upstream {
        self.prices = prices;
        self
    }

    /// The same, raising concurrency as far as the limits need it.
    #[must_use]
    pub fn auto_concurrency(mut self, auto: Option<AutoConcurrency>) -> Upstream {
        self.auto = auto;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it speaks: openai, gemini, anthropic or local.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The model that is proposed; empty if there is none to choose.
    #[must_use]
    pub fn default_model(&self) -> &str {
        &self.model
    }

    /// Where its key comes from; empty if it has none.
    #[must_use]
    pub fn key_origin(&self) -> &str {
        &self.key
    }

    /// Returns `true` if a job has to choose a model.
    #[must_use]
    pub fn needs_model(&self) -> bool {
        self.needs_model
    }

    /// Its gate.
    #[must_use]
    pub fn gate(&self) -> &Admission {
        &self.gate
    }

    pub(crate) fn auto(&self) -> Option<&AutoConcurrency> {
        self.auto.as_ref()
    }

    /// What its tokens cost, if that is known.
    #[must_use]
    pub fn known_prices(&self) -> Option<Prices> {
        self.prices
    }

    /// What the server speaks that its requests go to; `None` if it takes none.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.requests.as_ref().map(|(dialect, _)| *dialect)
    }

    /// What sends requests.
    pub(crate) fn caller(&self) -> Result<Caller, String> {
        match &self.requests {
            Some((_, connect)) => connect(),
            None => Err(format!("the upstream {} takes no requests", self.name)),
        }
    }

    /// The provider of a job.
    pub(crate) fn connect(&self, model: &str, options: &JobOptions) -> Result<Rc<dyn Provider>, String> {
        (self.connect)(model, options)
    }

    /// Its limits as they are now, for plans: an amount may have been changed since the start.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let now = self.gate.stats();
        let amount = |name: &str| now.limit(name).map(|limit| limit.amount);
        let quotas = Quotas {
            rpm: amount("rpm").or(self.quotas.rpm),
            tpm: amount("tpm").or(self.quotas.tpm),
            itpm: amount("itpm").or(self.quotas.itpm),
            otpm: amount("otpm").or(self.quotas.otpm),
            rpd: amount("rpd").or(self.quotas.rpd),
            global_concurrency: amount("global").unwrap_or(self.quotas.global_concurrency),
            file: None,
            ..self.quotas.clone()
        };
        quotas.limits()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("provider", &self.provider).finish_non_exhaustive()
    }
}
