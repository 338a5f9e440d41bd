//! From an address to an open channel.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use futures_rustls::TlsConnector;
use rustls::pki_types::ServerName;
use tidegate_loop::net::TcpStream;
use tidegate_loop::{spawn, timeout};

use super::connection::Connection;
use super::driver::{Driver, Link, drive, now};
use super::error::ConnectError;
use super::shared::Shared;
use super::tls;
use crate::session::{Closed, Session, SessionOptions};
use crate::uri::{Host, Sasl, Uri};

/// What a connection asks for beside its address.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// What the broker's management shows.
    pub name: String,
    /// Longer messages come without their body ([`Incoming::Oversized`](crate::Incoming::Oversized)); 128 MiB unless set.
    pub body_bytes_max: u64,
    /// After a message longer than this nothing more is read until [`resume`](crate::Connection::resume) is called, so that a program has one
    /// such message in memory at a time; never unless set.
    pub pause_above: u64,
    /// Whether the broker confirms what is published; it does unless set.
    pub confirms: bool,
    /// How long a [lazy settlement](crate::Connection::settle_lazily) may wait for others, to be sent in one frame with them;
    /// default: not at all. It never waits while anything else is sent, nor once it is a quarter of
    /// the prefetch.
    pub ack_patience: Duration,
    /// For how long what floods in may gather before it is read, which saves both ends work; not at all unless set. A message
    /// that comes alone is read at once, and nothing gathers that the prefetch would end too soon.
    pub read_patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "tidegate".to_owned(),
            body_bytes_max: 128 << 20,
            pause_above: u64::MAX,
            confirms: true,
            ack_patience: Duration::ZERO,
            read_patience: Duration::ZERO,
        }
    }
}

enum Attempt {
    /// The next host may do better.
    Passing(String),
    Final(ConnectError),
}

/// The hosts in their order, each within its time.
pub(super) async fn connect(uri: &Uri, options: &Options) -> Result<Connection, ConnectError> {
    let tls = if uri.tls { Some(tls::config(uri)?) } else { None };
    let mut tried = Vec::new();
    for host in &uri.hosts {
        let opened = timeout(uri.connection_timeout, open(uri, host, options, tls.clone())).await;
        match opened.unwrap_or_else(|_| Err(Attempt::Passing(late(uri.connection_timeout)))) {
            Ok(connection) => return Ok(connection),
            Err(Attempt::Passing(reason)) => tried.push((host.to_string(), reason)),
            Err(Attempt::Final(error)) => return Err(error),
        }
    }
    Err(ConnectError::Unreachable { tried })
}

fn late(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

async fn open(
    uri: &Uri,
    host: &Host,
    options: &Options,
    tls: Option<std::sync::Arc<rustls::ClientConfig>>,
) -> Result<Connection, Attempt> {
    let passing = |error: std::io::Error| Attempt::Passing(error.to_string());
    let address = (host.name.as_str(), host.port);
    let stream = TcpStream::connector().nodelay(true).connect(address).await.map_err(passing)?;
    let link = match tls {
        None => Link::Plain(stream),
        Some(config) => {
            let distrust = |reason: String| Attempt::Final(ConnectError::Tls { host: host.to_string(), reason });
            let name = ServerName::try_from(host.name.clone()).map_err(|error| distrust(error.to_string()))?;
            let secured = TlsConnector::from(config).connect(name, stream).await;
            Link::Tls(Box::new(secured.map_err(|error| match error.get_ref() {
                // Our doubts about the broker, or its about us; anything else is the network's.
                Some(inner) if inner.is::<rustls::Error>() => distrust(inner.to_string()),
                _ => passing(error),
            })?))
        }
    };
    let session = SessionOptions {
        sasl: uri.sasl.clone(),
        vhost: uri.vhost.clone(),
        heartbeat: uri.heartbeat,
        name: options.name.clone(),
        body_bytes_max: options.body_bytes_max,
        pause_above: options.pause_above,
        confirms: options.confirms,
        ack_patience: options.ack_patience,
    };
    let place = match uri.vhost.as_str() {
        "/" => host.to_string(),
        vhost => format!("{host}/{vhost}"),
    };
    let shared = Rc::new(Shared::new(Session::new(session, now()), place));
    let opened = shared.inner.borrow_mut().wait_open();
    // Runs until the session has ended or the last handle of the connection is dropped.
    drop(spawn(drive(Driver::new(shared.clone(), link, options.read_patience))));
    let connection = Connection::new(shared.clone());
    match poll_fn(|cx| opened.poll(cx)).await {
        Ok(()) => Ok(connection),
        Err(_) => {
            let end = shared.inner.borrow().end.clone().unwrap_or(Closed::Ended { opening: true });
            Err(judge(end, uri, host))
        }
    }
}

/// What an end before the beginning means.
fn judge(end: Closed, uri: &Uri, host: &Host) -> Attempt {
    let user = match &uri.sasl {
        Sasl::Plain { user, .. } => format!("{user:?}"),
        Sasl::External => "the certificate's owner".to_owned(),
    };
    let host = host.to_string();
    match end {
        Closed::ByBroker { refusal, .. } if refusal.text.contains("vhost") => {
            Attempt::Final(ConnectError::Vhost { host, vhost: uri.vhost.clone(), user, reason: refusal.text })
        }
        Closed::ByBroker { refusal, .. } if refusal.code == 403 => {
            Attempt::Final(ConnectError::Login { host, user, reason: refusal.text })
        }
        end @ Closed::NoMechanism { .. } => Attempt::Final(ConnectError::Login { host, user, reason: end.to_string() }),
        end => Attempt::Passing(end.to_string()),
    }
}
