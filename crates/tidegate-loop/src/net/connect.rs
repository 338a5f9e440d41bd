//! Connecting to a name that has several addresses: happy eyeballs, as RFC 8305 has it. Families alternate, the next
//! attempt starts when one fails or keeps silent for a while, and the first that is answered wins.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use super::address::ToAddrs;
use super::error::AddressError;
use super::tcp::TcpStream;
use crate::time::sleep::{Sleep, sleep};
use crate::time::timeout::timeout;

/// RFC 8305's recommendation.
const STAGGER: Duration = Duration::from_millis(250);

/// How a [`TcpStream`] is connected.
///
/// ```
/// use tidegate_loop::{net::{TcpListener, TcpStream}, run, Duration};
/// run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let address = listener.local_addr()?;
///     let stream = TcpStream::connector().timeout(Duration::from_secs(5)).nodelay(true).connect(address).await?;
///     assert!(stream.nodelay()?);
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a connector does nothing until connect is called"]
pub struct TcpConnector {
    timeout: Option<Duration>,
    stagger: Duration,
    nodelay: bool,
}

impl TcpConnector {
    pub(super) fn new() -> TcpConnector {
        TcpConnector { timeout: None, stagger: STAGGER, nodelay: false }
    }

    /// For all of it: looking the name up and every attempt. Without this the system decides, and it is patient.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long an attempt may keep silent before the next address is tried as well; 250 ms unless set.
    pub fn stagger(mut self, stagger: Duration) -> Self {
        self.stagger = stagger;
        self
    }

    /// See [`TcpStream::set_nodelay`]; off unless set.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// An [`AddressError`] that names the address, or every address that was tried;
    /// [`TimedOut`](io::ErrorKind::TimedOut) after the time-out.
    ///
    /// # Cancel safety
    /// Safe: dropped, every attempt is abandoned and its socket closed.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub async fn connect(&self, address: impl ToAddrs) -> io::Result<TcpStream> {
        let target = address.target();
        let connect = async {
            let resolved = target.resolve().await;
            let addresses = resolved.map_err(|error| AddressError::wrap("connect to", target.describe(), error))?;
            race(interleave(addresses), self.stagger).await.map_err(|failures| summary(failures, &target.describe()))
        };
        let connected = match self.timeout {
            None => connect.await,
            Some(limit) => timeout(limit, connect).await.unwrap_or_else(|_| {
                let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
                Err(AddressError::wrap("connect to", target.describe(), late))
            }),
        };
        let stream = connected?;
        if self.nodelay {
            stream.set_nodelay(true)?;
        }
        Ok(stream)
    }
}

/// Alternates between the families, each in the order it came in; the first address stays the first.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let count = addresses.len();
    let (mut one, mut other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    one.reverse();
    other.reverse();
    let mut mixed = Vec::with_capacity(count);
    while mixed.len() < count {
        mixed.extend(one.pop());
        mixed.extend(other.pop());
    }
    mixed
}

/// A single failure is returned as it is; several are listed, each with its address.
fn summary(mut failures: Vec<io::Error>, target: &str) -> io::Error {
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let kind = failures.last().expect("there was at least one attempt").kind();
    let each: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let all = format!("none of its {} addresses answered: {}", failures.len(), each.join("; "));
    AddressError::wrap("connect to", target, io::Error::new(kind, all))
}

async fn race(addresses: Vec<SocketAddr>, stagger: Duration) -> Result<TcpStream, Vec<io::Error>> {
    let mut race = Race { waiting: addresses.into_iter(), running: Vec::new(), failures: Vec::new(), next_at: None };
    poll_fn(|cx| race.poll(cx, stagger)).await
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

/// Few take part, so all of them are asked whenever one has something to say.
struct Race {
    waiting: std::vec::IntoIter<SocketAddr>,
    running: Vec<Attempt>,
    failures: Vec<io::Error>,
    /// When the next attempt starts although none has failed; `None` before the first.
    next_at: Option<Pin<Box<Sleep>>>,
}

impl Race {
    fn poll(&mut self, cx: &mut PollContext<'_>, stagger: Duration) -> Poll<Result<TcpStream, Vec<io::Error>>> {
        loop {
            let failed_before = self.failures.len();
            if let Some(stream) = self.poll_attempts(cx) {
                return Poll::Ready(Ok(stream));
            }
            let failed = self.failures.len() > failed_before;
            let silent = self.next_at.as_mut().is_none_or(|at| at.as_mut().poll(cx).is_ready());
            if !failed && !silent {
                return Poll::Pending;
            }
            match self.waiting.next() {
                Some(address) => {
                    self.running.push(Box::pin(TcpStream::connect_one(address)));
                    self.next_at = Some(Box::pin(sleep(stagger)));
                }
                None if self.running.is_empty() => return Poll::Ready(Err(std::mem::take(&mut self.failures))),
                None => return Poll::Pending,
            }
        }
    }

    /// Asks every attempt; those that failed leave.
    fn poll_attempts(&mut self, cx: &mut PollContext<'_>) -> Option<TcpStream> {
        let mut at = 0;
        while let Some(attempt) = self.running.get_mut(at) {
            match attempt.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(stream)) => return Some(stream),
                Poll::Ready(Err(error)) => {
                    self.failures.push(error);
                    drop(self.running.remove(at));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_and_the_first_stays_first() {
        let addresses = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        assert_eq!(
            interleave(addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"])),
            addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"])
        );
        assert_eq!(
            interleave(addresses(&["1.1.1.1:1", "2.2.2.2:1", "[::1]:1"])),
            addresses(&["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"])
        );
    }
}
