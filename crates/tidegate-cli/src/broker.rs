//! `--broker URL`: which queue is meant, and how it is reached.

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail};
use tidegate_worker::{Broker, BrokerError, MemoryBroker, SqliteBroker, sqlite};

/// The option every command about queues has.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BrokerArgs {
    /// The queue: sqlite:PATH, or sqlite: for the one in your data directory
    #[arg(long, value_name = "URL", default_value = "sqlite:")]
    pub(crate) broker: BrokerUrl,
}

/// Where the queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BrokerUrl {
    /// Within this process.
    Memory,
    /// A file; `None`: the usual one.
    Sqlite(Option<PathBuf>),
}

impl FromStr for BrokerUrl {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<BrokerUrl> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(BrokerUrl::Memory),
            Some(("memory", _)) => bail!("memory: takes nothing behind the colon"),
            Some(("sqlite", "")) => Ok(BrokerUrl::Sqlite(None)),
            Some(("sqlite", path)) => {
                // As many write it, after the manner of other URLs: sqlite:///home/me/queue.db.
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    bail!("sqlite:// names no file; write sqlite:PATH");
                }
                Ok(BrokerUrl::Sqlite(Some(path.into())))
            }
            Some(("amqp" | "amqps", _)) => bail!("this tidegate has no RabbitMQ broker yet; use sqlite:PATH"),
            Some((scheme, _)) if scheme.len() > 1 => {
                bail!("{scheme}: is no broker of ours; use sqlite:PATH, sqlite: or memory:")
            }
            _ => bail!("{text:?} is no broker; use sqlite:PATH (such as sqlite:{text}), sqlite: or memory:"),
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokerUrl::Memory => f.write_str("memory:"),
            BrokerUrl::Sqlite(None) => f.write_str("sqlite:"),
            BrokerUrl::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

impl BrokerUrl {
    /// For a worker or a producer: the file is made if it is not there.
    pub(crate) async fn open(&self) -> anyhow::Result<Rc<dyn Broker>> {
        match self {
            BrokerUrl::Memory => Ok(Rc::new(MemoryBroker::new())),
            BrokerUrl::Sqlite(_) => Ok(self.open_sqlite(true).await?),
        }
    }

    /// For a command that others must see the effect of.
    pub(crate) async fn open_shared(&self) -> anyhow::Result<Rc<dyn Broker>> {
        if *self == BrokerUrl::Memory {
            bail!("memory: is a queue within one process, which nobody else can reach; use sqlite:PATH");
        }
        self.open().await
    }

    /// For a command that looks at what is there: a file that is not is a slip of the finger, not an empty queue.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Rc<dyn Broker>> {
        Ok(self.open_sqlite(false).await?)
    }

    /// The broker in a file, for what only it can do.
    pub(crate) async fn open_sqlite(&self, make: bool) -> anyhow::Result<Rc<SqliteBroker>> {
        let BrokerUrl::Sqlite(path) = self else {
            bail!("memory: is a queue within one process, which nobody else can reach; use sqlite:PATH");
        };
        let path = match path {
            Some(path) => path.clone(),
            None => usual_path(make)?,
        };
        if !make && !path.exists() {
            bail!(
                "there is no queue at {} yet; the first task or worker makes it, or name another with --broker sqlite:PATH",
                path.display()
            );
        }
        Ok(Rc::new(SqliteBroker::open_with(sqlite::Options::new(path)).await.map_err(failed)?))
    }
}

fn usual_path(make: bool) -> anyhow::Result<PathBuf> {
    let path = SqliteBroker::default_path().context(
        "neither XDG_DATA_HOME nor HOME is set, so there is no usual place; name one with --broker sqlite:PATH",
    )?;
    if make && let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| {
            format!("cannot make {}; name another place with --broker sqlite:PATH", directory.display())
        })?;
    }
    Ok(path)
}

pub(crate) fn failed(error: BrokerError) -> anyhow::Error {
    anyhow!("{error}")
}

/// Runs a command on a loop of its own.
pub(crate) fn on_loop<T: 'static>(command: impl Future<Output = anyhow::Result<T>> + 'static) -> anyhow::Result<T> {
    tidegate_loop::run(command).map_err(|error| anyhow!("{error}"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_which_queue_is_meant() {
        let parse = |text: &str| text.parse::<BrokerUrl>().unwrap();
        assert_eq!(parse("memory:"), BrokerUrl::Memory);
        assert_eq!(parse("sqlite:"), BrokerUrl::Sqlite(None));
        assert_eq!(parse("sqlite:jobs.db"), BrokerUrl::Sqlite(Some("jobs.db".into())));
        assert_eq!(parse("sqlite:///var/lib/jobs.db"), BrokerUrl::Sqlite(Some("/var/lib/jobs.db".into())));
        assert_eq!(parse("sqlite:/a b.db").to_string(), "sqlite:/a b.db");
    }

    #[test]
    fn what_is_no_url_says_what_would_be() {
        let error = |text: &str| text.parse::<BrokerUrl>().unwrap_err().to_string();
        assert!(error("jobs.db").contains("sqlite:jobs.db"));
        assert!(error("amqp://localhost").contains("RabbitMQ"));
        assert!(error("redis://localhost").contains("redis: is no broker"));
        assert!(error("sqlite://").contains("sqlite:PATH"));
        assert!(error("memory:x").contains("nothing behind"));
        assert!(error("").contains("is no broker"));
    }
}
