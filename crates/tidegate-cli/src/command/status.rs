//! `--metrics`: the address of the status pages, and the token that protects them.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use tidegate_worker::StatusToken;

/// The status pages
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Serve /metrics (for Prometheus) and /healthz here
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,

    /// File with a token that requests for these pages must bring (Authorization: Bearer TOKEN)
    #[arg(long, value_name = "FILE", requires = "metrics", conflicts_with = "metrics_token_env")]
    metrics_token_file: Option<PathBuf>,

    /// Environment variable with that token
    #[arg(long, value_name = "VAR", requires = "metrics")]
    metrics_token_env: Option<String>,
}

/// What was asked for, checked.
#[derive(Debug)]
pub(crate) struct StatusSpec {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<StatusToken>,
}

impl StatusArgs {
    pub(crate) fn spec(&self) -> anyhow::Result<Option<StatusSpec>> {
        let Some(address) = self.metrics else { return Ok(None) };
        let token = match (&self.metrics_token_file, &self.metrics_token_env) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("--metrics-token-file: cannot read {}", path.display()))?;
                Some((text, path.display().to_string()))
            }
            (None, Some(variable)) => match std::env::var(variable) {
                Ok(text) => Some((text, variable.clone())),
                Err(error) => bail!("--metrics-token-env: {variable}: {error}"),
            },
            (None, None) => None,
        };
        let token = match token {
            Some((text, origin)) => {
                Some(StatusToken::new(&text).map_err(|error| anyhow!("{origin} has no usable token: {error}"))?)
            }
            None => None,
        };
        Ok(Some(StatusSpec { address, token }))
    }
}

/// Returns what to warn of when pages that show `what` are served at `bound`.
pub(crate) fn exposure(bound: SocketAddr, has_token: bool, what: &str) -> Option<String> {
    match (bound.ip().to_canonical().is_loopback(), has_token) {
        (true, _) => None,
        (false, false) => Some(format!(
            "the status pages can be reached from other machines, and anyone who reaches them can read {what}; \
             listen on 127.0.0.1, or ask for a token with --metrics-token-file"
        )),
        (false, true) => {
            let warning =
                "the status pages can be reached from other machines, and the token crosses the network unencrypted";
            Some(warning.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_other_machines_reach_are_warned_of() {
        let warns = |address: &str| exposure(address.parse().unwrap(), false, "names").is_some();
        assert!(warns("0.0.0.0:9") && warns("[::]:9") && warns("192.168.1.7:9") && warns("[::ffff:10.0.0.1]:9"));
        assert!(!warns("127.0.0.1:9") && !warns("127.8.0.1:9") && !warns("[::1]:9") && !warns("[::ffff:127.0.0.1]:9"));
        assert!(exposure("0.0.0.0:9".parse().unwrap(), true, "names").unwrap().contains("unencrypted"));
    }
}
