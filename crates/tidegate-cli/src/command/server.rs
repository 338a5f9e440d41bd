//! The options of the server that is asked, the same for every command that asks one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use tidegate_batch::{ApiKey, Caller, Dialect, KeyError, Retries};
use tidegate_limit::{Admission, Backoff};

use super::limits::duration;

/// Who is asked
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

    /// The server's address, up to what all its paths have in common; the provider's own unless given
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,

    /// The environment variable that the key is in; the provider's usual one unless given
    #[arg(long, value_name = "VAR", conflicts_with = "api_key_file")]
    pub(crate) api_key_env: Option<String>,

    /// A file that the key is in
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// How long one request may take, from the connection to the end of the answer
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderArg {
    /// Nobody: the page's own most telling sentences, offline
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
    /// What its server speaks; nothing if there is none.
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
    /// Whoever sends the requests, within `gate`.
    pub(crate) fn caller(&self, gate: impl Into<Admission>) -> anyhow::Result<Caller> {
        self.address.caller(gate, self.retries)
    }
}

impl AddressArgs {
    /// The key, before anything happens. A server of one's own may need none; the provider's own always does.
    pub(crate) fn key(&self, dialect: Dialect) -> anyhow::Result<Option<ApiKey>> {
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

    /// Whoever sends the requests, within `gate`; each is tried again so often when the server fails.
    pub(crate) fn caller(&self, gate: impl Into<Admission>, retries: u32) -> anyhow::Result<Caller> {
        let key = self.key(self.dialect()?)?;
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).with_retries(retries);
        let retries = Retries { backoff, ..Retries::default() };
        Ok(self.caller_without_key(gate)?.with_key(key).with_retries(retries).with_timeout(self.timeout))
    }

    /// One that knows where the server is, for who does not send anything himself.
    pub(crate) fn caller_without_key(&self, gate: impl Into<Admission>) -> anyhow::Result<Caller> {
        let dialect = self.dialect()?;
        Ok(Caller::new(gate, dialect, self.base_url.as_deref().unwrap_or(dialect.default_base_url()))?)
    }

    fn dialect(&self) -> anyhow::Result<Dialect> {
        self.provider.dialect().context("provider local has no server; choose another --provider")
    }
}
