//! Addresses as people write them, and how they become numbers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::resolve;

/// What can be connected or bound to: a [`SocketAddr`], a list of them, `("name", port)`, or `"name:port"`. Numbers are
/// understood at once; names are looked up outside of the loop, see [`lookup_host`](super::lookup_host).
///
/// ```
/// use tidegate_loop::{net::lookup_host, run};
/// run(async {
///     assert_eq!(lookup_host("127.0.0.1:80").await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
///     assert_eq!(lookup_host(("::1", 80)).await.unwrap(), ["[::1]:80".parse().unwrap()]);
/// })
/// .unwrap();
/// ```
pub trait ToAddrs: sealed::Sealed {}

/// What an address says before anything is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Numbers.
    Known(Vec<SocketAddr>),
    /// A name to be looked up.
    Name(String, u16),
    /// Neither; as it was written.
    Malformed(String),
}

pub(crate) mod sealed {
    /// The implementations are here and nowhere else.
    pub trait Sealed {
        /// What the address says.
        fn target(&self) -> super::Target;
    }
}

use sealed::Sealed;

impl Target {
    /// How it was written, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Target::Known(addresses) => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            Target::Name(host, port) => format!("{host}:{port}"),
            Target::Malformed(text) => text.clone(),
        }
    }

    /// The addresses; waits only for names.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Target::Known(addresses) if addresses.is_empty() => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the list of addresses is empty"))
            }
            Target::Known(addresses) => Ok(addresses.clone()),
            Target::Name(host, port) => resolve::by_name(host, *port).await,
            Target::Malformed(text) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{text:?} is no address: write host:port, 127.0.0.1:80 or [::1]:80"),
            )),
        }
    }
}

fn of_host(host: &str, port: u16) -> Target {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match literal.parse::<IpAddr>() {
        Ok(ip) => Target::Known(vec![SocketAddr::new(ip, port)]),
        Err(_) if host.is_empty() => Target::Malformed(format!("{host}:{port}")),
        Err(_) => Target::Name(host.to_owned(), port),
    }
}

fn of_text(text: &str) -> Target {
    if let Ok(address) = text.parse() {
        return Target::Known(vec![address]);
    }
    match text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
        // A name has no colon: more of them are a mistyped IPv6 address.
        Some((host, Ok(port))) if !host.contains(':') => of_host(host, port),
        _ => Target::Malformed(text.to_owned()),
    }
}

macro_rules! known {
    ($($kind:ty: $address:expr;)*) => {$(
        impl ToAddrs for $kind {}

        impl Sealed for $kind {
            fn target(&self) -> Target {
                let address: fn(&$kind) -> SocketAddr = $address;
                Target::Known(vec![address(self)])
            }
        }
    )*};
}

known! {
    SocketAddr: |address| *address;
    SocketAddrV4: |address| SocketAddr::V4(*address);
    SocketAddrV6: |address| SocketAddr::V6(*address);
    (IpAddr, u16): |(ip, port)| SocketAddr::new(*ip, *port);
    (Ipv4Addr, u16): |(ip, port)| SocketAddr::new(IpAddr::V4(*ip), *port);
    (Ipv6Addr, u16): |(ip, port)| SocketAddr::new(IpAddr::V6(*ip), *port);
}

impl ToAddrs for [SocketAddr] {}

impl Sealed for [SocketAddr] {
    fn target(&self) -> Target {
        Target::Known(self.to_vec())
    }
}

impl ToAddrs for Vec<SocketAddr> {}

impl Sealed for Vec<SocketAddr> {
    fn target(&self) -> Target {
        Target::Known(self.clone())
    }
}

impl ToAddrs for str {}

impl Sealed for str {
    fn target(&self) -> Target {
        of_text(self)
    }
}

impl ToAddrs for String {}

impl Sealed for String {
    fn target(&self) -> Target {
        of_text(self)
    }
}

impl ToAddrs for (&str, u16) {}

impl Sealed for (&str, u16) {
    fn target(&self) -> Target {
        of_host(self.0, self.1)
    }
}

impl ToAddrs for (String, u16) {}

impl Sealed for (String, u16) {
    fn target(&self) -> Target {
        of_host(&self.0, self.1)
    }
}

impl<T: ToAddrs + ?Sized> ToAddrs for &T {}

impl<T: ToAddrs + ?Sized> Sealed for &T {
    fn target(&self) -> Target {
        (**self).target()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_looked_up() {
        let known = |text: &str| Target::Known(vec![text.parse().unwrap()]);
        assert_eq!("127.0.0.1:80".target(), known("127.0.0.1:80"));
        assert_eq!("[::1]:80".target(), known("[::1]:80"));
        assert_eq!(("::1", 80).target(), known("[::1]:80"));
        assert_eq!(("[::1]", 80).target(), known("[::1]:80"));
        assert_eq!((Ipv4Addr::LOCALHOST, 80).target(), known("127.0.0.1:80"));
    }

    #[test]
    fn names_are_told_from_mistakes() {
        assert_eq!("localhost:80".target(), Target::Name("localhost".into(), 80));
        for mistake in ["localhost", "localhost:", ":80", "localhost:99999", "::1:80", "a:b:80"] {
            assert!(matches!(mistake.target(), Target::Malformed(_)), "{mistake}: {:?}", mistake.target());
        }
    }
}
