//! The options of the server that is asked, the same for every command that asks one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use tidegate_batch::{ApiKey, BaseUrl, Caller, Dialect, KeyError, Retries, account_name};
use tidegate_limit::{Admission, Backoff};
use tidegate_secret::Secret;

use super::limits::duration;
use crate::found_limits::Server;

/// The provider that answers
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Provider")]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) address: AddressArgs,

    /// The model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// How often a request is tried again when the server fails or cannot be reached
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) retries: u32,
}

/// Where it is, and how to get in
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Provider")]
pub(crate) struct AddressArgs {
    /// Who explains
    #[arg(long, value_enum, default_value_t = ProviderArg::Local)]
    pub(crate) provider: ProviderArg,

    /// The server's address, up to what all its paths have in common; user:password@ in it is sent as a header [default: the
    /// provider's own]
    #[arg(long, value_name = "URL", hide_env_values = true)]
    pub(crate) base_url: Option<Secret>,

    /// The environment variable that the key is in; the provider's usual one unless given
    #[arg(long, value_name = "VAR", conflicts_with = "api_key_file")]
    pub(crate) api_key_env: Option<String>,

    /// A file that the key is in
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Send the key over plain http to a server on another machine; anyone on the way can read it
    #[arg(long)]
    pub(crate) insecure_http: bool,

    /// How long one request may take, from the connection to the end of the answer
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Longest outage to wait for: while a server that has answered is away, the run pauses and probes it
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = duration)]
    pub(crate) outage_limit: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderArg {
    /// Offline extractive summary; no network, no key
    Local,
    /// OpenAI, or any server that is compatible (see --base-url)
    #[value(name = "openai")]
    OpenAi,
    /// Google's Gemini
    Gemini,
    /// Anthropic's Claude
    Anthropic,
}

impl ProviderArg {
    /// Returns the API dialect of its server; `None` for the offline provider.
    pub(crate) fn dialect(self) -> Option<Dialect> {
        match self {
            ProviderArg::Local => None,
            ProviderArg::OpenAi => Some(Dialect::OpenAi),
            ProviderArg::Gemini => Some(Dialect::Gemini),
            ProviderArg::Anthropic => Some(Dialect::Anthropic),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.dialect().map_or("local", Dialect::name)
    }
}

impl ServerArgs {
    /// Returns the client that sends the requests through `gate`.
    pub(crate) fn caller(&self, gate: impl Into<Admission>) -> anyhow::Result<Caller> {
        self.address.caller(gate, self.retries)
    }
}

impl ServerArgs {
    /// Whose limits are found by a run through `caller`.
    pub(crate) fn server_of(&self, caller: &Caller) -> Server {
        Server {
            provider: self.address.provider.name().to_owned(),
            base_url: caller.base_url().to_owned(),
            model: self.model.clone().unwrap_or_default(),
        }
    }
}

impl AddressArgs {
    /// The server's address, if one was given; without user and password where it is shown.
    pub(crate) fn base_url(&self) -> anyhow::Result<Option<BaseUrl>> {
        self.base_url.as_ref().map(|url| BaseUrl::parse(url.expose()).context("bad --base-url")).transpose()
    }

    /// The key, before anything happens: it must be there, and not be readable by others on its way.
    pub(crate) fn key(&self, dialect: Dialect) -> anyhow::Result<Option<ApiKey>> {
        let key = self.find_key(dialect)?;
        if let Some(base) = self.base_url()?.filter(|base| !base.is_private() && !self.insecure_http) {
            let secret = match &key {
                Some(key) => format!("the key from {}", key.origin()),
                None if base.has_user() => "the password in --base-url".to_owned(),
                None => return Ok(key),
            };
            bail!(
                "{secret} would be sent to {base} unencrypted; use https://, or --insecure-http if you trust everyone on the \
                 way"
            );
        }
        Ok(key)
    }

    /// A server of one's own may need no key; the provider's own always does.
    fn find_key(&self, dialect: Dialect) -> anyhow::Result<Option<ApiKey>> {
        if let Some(path) = &self.api_key_file {
            return Ok(Some(ApiKey::from_file(path)?));
        }
        let named = self.api_key_env.as_deref();
        match ApiKey::from_env(named.unwrap_or(dialect.default_key_variable())) {
            Ok(key) => Ok(Some(key)),
            Err(KeyError::Unset { .. }) if named.is_none() && self.base_url.is_some() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A name for the account whose limits are used up: the same for the same provider, address and key. `None` without a
    /// server.
    pub(crate) fn account(&self) -> anyhow::Result<Option<String>> {
        let Some(dialect) = self.provider.dialect() else { return Ok(None) };
        let base = match self.base_url()? {
            Some(base) => base,
            None => BaseUrl::parse(dialect.default_base_url())?,
        };
        Ok(Some(account_name(dialect, &base, self.find_key(dialect)?.as_ref())))
    }

    /// Returns the client that sends the requests through `gate`, with `retries` retries per request when the server fails.
    pub(crate) fn caller(&self, gate: impl Into<Admission>, retries: u32) -> anyhow::Result<Caller> {
        let key = self.key(self.dialect()?)?;
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).with_retries(retries);
        let retries = Retries { backoff, outage_max: self.outage_limit, ..Retries::default() };
        let caller = self.caller_without_key(gate)?.with_key(key).with_insecure_http(self.insecure_http);
        Ok(caller.with_retries(retries).with_timeout(self.timeout))
    }

    /// One that knows where the server is, for who does not send anything himself.
    pub(crate) fn caller_without_key(&self, gate: impl Into<Admission>) -> anyhow::Result<Caller> {
        let dialect = self.dialect()?;
        Ok(Caller::new(gate, dialect, self.base_url.as_ref().map_or(dialect.default_base_url(), Secret::expose))?)
    }

    fn dialect(&self) -> anyhow::Result<Dialect> {
        self.provider.dialect().context("provider local has no server; choose another --provider")
    }
}
