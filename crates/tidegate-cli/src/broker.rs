//! `--broker URL`: which queue is meant, and how it is reached.

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum;
use tidegate_secret::masked;
use tidegate_worker::rabbit::{self, QueueKind, RabbitBroker, Uri, UriError};
use tidegate_worker::{BODY_BYTES_MAX, Broker, BrokerError, MemoryBroker, SqliteBroker, sqlite};

/// The options every command about queues has.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BrokerArgs {
    /// The queue: sqlite:PATH, sqlite: for the one in your data directory, or amqp://USER:PASSWORD@HOST/VHOST for RabbitMQ
    #[arg(long, value_name = "URL", default_value = "sqlite:")]
    pub(crate) broker: BrokerUrl,

    /// RabbitMQ: which kind of queues tasks wait in [default: classic, or the one that goes with --codec]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = false)]
    pub(crate) queue_kind: Option<Kind>,

    /// In bytes; set by the commands that publish or run tasks, from [`BodyArgs`].
    #[arg(skip = BODY_BYTES_MAX)]
    body_bytes_max: usize,
}

/// The option of the commands through which bodies pass.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct BodyArgs {
    /// The largest body a task may have, in MiB; producers refuse larger ones, and children are sent none. The same for both
    #[arg(long, value_name = "MIB", default_value_t = (BODY_BYTES_MAX >> 20) as u64,
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    max_body: u64,
}

impl BodyArgs {
    pub(crate) fn bytes(self) -> usize {
        (self.max_body as usize) << 20
    }
}

impl BrokerArgs {
    /// Sets the queue kind to the one that goes with a codec, unless `--queue-kind` was given.
    pub(crate) fn kind_unless_given(mut self, kind: Kind) -> BrokerArgs {
        self.queue_kind.get_or_insert(kind);
        self
    }

    pub(crate) fn is_rabbit(&self) -> bool {
        matches!(self.broker, BrokerUrl::Amqp(_))
    }

    pub(crate) fn with_bodies(mut self, bodies: BodyArgs) -> BrokerArgs {
        self.body_bytes_max = bodies.bytes();
        self
    }

    fn kind(&self) -> Kind {
        self.queue_kind.unwrap_or(Kind::Classic)
    }

    /// For a worker or a producer: the file is made if it is not there.
    pub(crate) async fn open(&self) -> anyhow::Result<Rc<dyn Broker>> {
        self.broker.open(self.kind(), self.body_bytes_max).await
    }

    /// As [`open`](Self::open); also returns the RabbitMQ broker, if it is one.
    pub(crate) async fn open_known(&self) -> anyhow::Result<(Rc<dyn Broker>, Option<Rc<RabbitBroker>>)> {
        match &self.broker {
            BrokerUrl::Amqp(_) => {
                let rabbit = self.broker.open_rabbit(self.kind(), self.body_bytes_max).await?;
                Ok((rabbit.clone(), Some(rabbit)))
            }
            _ => Ok((self.open().await?, None)),
        }
    }

    /// RabbitMQ, for what only it can do.
    pub(crate) async fn open_rabbit(&self) -> anyhow::Result<Rc<RabbitBroker>> {
        self.broker.open_rabbit(self.kind(), self.body_bytes_max).await
    }

    /// For a command that others must see the effect of.
    pub(crate) async fn open_shared(&self) -> anyhow::Result<Rc<dyn Broker>> {
        self.broker.open_shared(self.kind(), self.body_bytes_max).await
    }

    /// For a command that looks at what is there: a file that is not is a slip of the finger, not an empty queue.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Rc<dyn Broker>> {
        match &self.broker {
            BrokerUrl::Sqlite(_) => Ok(self.broker.open_sqlite(false, self.body_bytes_max).await?),
            _ => self.open_shared().await,
        }
    }

    /// The broker in a file, for what only it can do.
    pub(crate) async fn open_file(&self) -> anyhow::Result<Rc<SqliteBroker>> {
        self.broker.open_sqlite(false, self.body_bytes_max).await
    }
}

/// Queues in RabbitMQ, as their arguments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// With priorities and dead letters, on one node
    Classic,
    /// Kept on several nodes, without priorities
    Quorum,
    /// As Celery makes them
    Plain,
    /// As dramatiq makes them
    Dramatiq,
}

impl From<Kind> for QueueKind {
    fn from(kind: Kind) -> QueueKind {
        match kind {
            Kind::Classic => QueueKind::Classic,
            Kind::Quorum => QueueKind::Quorum,
            Kind::Plain => QueueKind::Plain,
            Kind::Dramatiq => QueueKind::Dramatiq,
        }
    }
}

/// Where the queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BrokerUrl {
    /// Within this process.
    Memory,
    /// A file; `None`: the usual one.
    Sqlite(Option<PathBuf>),
    /// RabbitMQ. An error in its address is kept and reported later, because clap would show the address with its password.
    Amqp(Result<Box<Uri>, UriError>),
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
            Some(("amqp" | "amqps", _)) => Ok(BrokerUrl::Amqp(text.parse().map(Box::new))),
            Some((scheme, _)) if scheme.len() > 1 => {
                bail!("unknown broker {scheme}:; use sqlite:PATH, sqlite:, amqp://HOST or memory:")
            }
            _ => {
                let text = masked(text);
                bail!(
                    "{text:?} is not the address of a broker; use sqlite:PATH (such as sqlite:{text}), sqlite:, amqp://HOST or memory:"
                )
            }
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokerUrl::Memory => f.write_str("memory:"),
            BrokerUrl::Sqlite(None) => f.write_str("sqlite:"),
            BrokerUrl::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
            BrokerUrl::Amqp(Ok(uri)) => uri.fmt(f),
            BrokerUrl::Amqp(Err(_)) => f.write_str("amqp://"),
        }
    }
}

impl BrokerUrl {
    /// Any broker, for a worker or a producer: a file is made if it is not there. The kind is of queues in RabbitMQ.
    async fn open(&self, kind: Kind, body_bytes_max: usize) -> anyhow::Result<Rc<dyn Broker>> {
        match self {
            BrokerUrl::Memory => Ok(Rc::new(MemoryBroker::new())),
            BrokerUrl::Sqlite(_) => Ok(self.open_sqlite(true, body_bytes_max).await?),
            BrokerUrl::Amqp(_) => Ok(self.open_rabbit(kind, body_bytes_max).await?),
        }
    }

    /// Any that others can reach too.
    pub(crate) async fn open_shared(&self, kind: Kind, body_bytes_max: usize) -> anyhow::Result<Rc<dyn Broker>> {
        if *self == BrokerUrl::Memory {
            bail!("{NOT_SHARED}");
        }
        self.open(kind, body_bytes_max).await
    }

    async fn open_rabbit(&self, kind: Kind, body_bytes_max: usize) -> anyhow::Result<Rc<RabbitBroker>> {
        let uri = match self {
            BrokerUrl::Amqp(Ok(uri)) => uri,
            BrokerUrl::Amqp(Err(error)) => bail!("--broker: {error}"),
            _ => bail!("{self} is no RabbitMQ; use amqp://HOST"),
        };
        let mut options = rabbit::Options::default();
        options.kind = kind.into();
        options.body_bytes_max = body_bytes_max;
        Ok(Rc::new(RabbitBroker::open_at((**uri).clone(), options).await.map_err(failed)?))
    }

    async fn open_sqlite(&self, make: bool, body_bytes_max: usize) -> anyhow::Result<Rc<SqliteBroker>> {
        let path = match self {
            BrokerUrl::Sqlite(Some(path)) => path.clone(),
            BrokerUrl::Sqlite(None) => usual_path(make)?,
            BrokerUrl::Memory => bail!("{NOT_SHARED}"),
            BrokerUrl::Amqp(_) => bail!("{self} is no file; RabbitMQ looks after its queues itself"),
        };
        if !make && !path.exists() {
            bail!(
                "there is no queue at {} yet; the first task or worker makes it, or name another with --broker sqlite:PATH",
                path.display()
            );
        }
        let mut options = sqlite::Options::new(path);
        options.body_bytes_max = body_bytes_max;
        Ok(Rc::new(SqliteBroker::open_with(options).await.map_err(failed)?))
    }
}

const NOT_SHARED: &str =
    "memory: is a queue within one process, which other processes cannot reach; use sqlite:PATH or amqp://HOST";

fn usual_path(make: bool) -> anyhow::Result<PathBuf> {
    let path = SqliteBroker::default_path().context(
        "neither XDG_DATA_HOME nor HOME is set, so there is no usual place; name one with --broker sqlite:PATH",
    )?;
    if make && let Some(directory) = path.parent() {
        tidegate_files::create_directories(directory).with_context(|| {
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
    crate::command::run_on_loop(command)?
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
        assert_eq!(parse("amqps://shop:secret@one,two/orders").to_string(), "amqps://shop@one:5671,two:5671/orders");
    }

    #[test]
    fn a_password_is_never_shown_not_even_in_an_address_that_is_wrong() {
        for text in ["amqp://shop:secret@host", "amqp://shop:secret@host:port/x?nonsense=1", "amqp:shop:secret@host"] {
            let url = text.parse::<BrokerUrl>().unwrap();
            let mut told = format!("{url} {url:?}");
            if let BrokerUrl::Amqp(Err(error)) = &url {
                told += &error.to_string();
            }
            assert!(!told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn what_is_no_url_says_what_would_be() {
        let error = |text: &str| text.parse::<BrokerUrl>().unwrap_err().to_string();
        assert!(error("jobs.db").contains("sqlite:jobs.db"));
        assert!(error("redis://localhost").contains("unknown broker redis:"));
        assert!(error("sqlite://").contains("sqlite:PATH"));
        assert!(error("memory:x").contains("nothing behind"));
        assert!(error("").contains("is not the address of a broker"));
    }
}
