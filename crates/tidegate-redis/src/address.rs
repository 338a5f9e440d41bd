//! The address and the user of a Redis: `redis://user:password@host:6379/0`, `rediss://…`, `unix:///path?db=0`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tidegate_secret::Secret;

/// The transport, with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

/// A Redis' address. `Display` and `Debug` leave the password out.
///
/// Options behind `?`: `db` (a number; also the path of `redis://host/3`), `cacertfile` (trusted instead of the machine's
/// authorities). Name and password are percent-decoded; a password alone is `redis://:password@host`.
///
/// ```
/// use tidegate_redis::Address;
/// let address: Address = "rediss://limits:s%40fe@cache.example/2".parse().unwrap();
/// assert_eq!(address.to_string(), "rediss://limits@cache.example:6379/2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) place: Place,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) database: u32,
    pub(crate) ca_file: Option<PathBuf>,
}

/// An address that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    message: String,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for AddressError {}

fn refuse<T>(message: impl Into<String>) -> Result<T, AddressError> {
    Err(AddressError { message: message.into() })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        match &self.place {
            Place::Tcp { host, port, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "{scheme}://{user}{host}:{port}")?;
                if self.database == 0 { Ok(()) } else { write!(f, "/{}", self.database) }
            }
            Place::Unix(path) => {
                write!(f, "unix://{user}{}", path.display())?;
                if self.database == 0 { Ok(()) } else { write!(f, "?db={}", self.database) }
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ ("redis" | "rediss" | "unix"), rest)) => (scheme, rest),
            Some((scheme, _)) => {
                return refuse(format!("a Redis' address starts with redis://, rediss:// or unix://, not {scheme}://"));
            }
            // Not repeated in the message, because it may hold a password.
            None => return refuse("a Redis' address looks like redis://user:password@host:6379/0"),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A path may hold an @, a host may not.
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(before, path)| (before, Some(path)));
        let (who, host) = authority.rsplit_once('@').map_or((None, authority), |(who, host)| (Some(who), host));
        let (user, password) = read_who(who)?;
        let mut address = Address { place: Place::Unix(PathBuf::new()), user, password, database: 0, ca_file: None };
        if scheme == "unix" {
            let Some(path) = path.filter(|path| !path.is_empty() && host.is_empty()) else {
                return refuse("a socket's address looks like unix:///run/redis/redis.sock?db=0");
            };
            address.place = Place::Unix(PathBuf::from(format!("/{}", decode(path, "path")?)));
        } else {
            let (host, port) = read_host(host)?;
            address.place = Place::Tcp { host, port, tls: scheme == "rediss" };
            if let Some(path) = path.filter(|path| !path.is_empty()) {
                address.database = read_database(path)?;
            }
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "db" => address.database = read_database(value)?,
                "cacertfile" if scheme == "rediss" => address.ca_file = Some(decode(value, name)?.into()),
                "cacertfile" => return refuse("cacertfile needs TLS: write rediss://"),
                _ => return refuse(format!("unknown option {name:?}; there are db and cacertfile")),
            }
        }
        Ok(address)
    }
}

fn read_who(who: Option<&str>) -> Result<(Option<String>, Option<Secret>), AddressError> {
    let Some(who) = who else { return Ok((None, None)) };
    let (user, password) = who.split_once(':').map_or((who, None), |(user, password)| (user, Some(password)));
    let user = if user.is_empty() { None } else { Some(decode(user, "user name")?) };
    match password.filter(|password| !password.is_empty()) {
        Some(password) => Ok((user, Some(decode(password, "password")?.into()))),
        None if user.is_some() => refuse("the address names a user but no password; write redis://user:password@host"),
        None => Ok((None, None)),
    }
}

fn read_host(text: &str) -> Result<(String, u16), AddressError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return refuse("the address names no host; it looks like redis://user:password@host:6379/0");
    }
    match port.map(str::parse::<u16>) {
        None => Ok((decode(host, "host")?, 6379)),
        Some(Ok(port)) if port > 0 => Ok((decode(host, "host")?, port)),
        Some(_) => refuse(format!("the port of {host} is a number from 1 to 65535")),
    }
}

fn read_database(text: &str) -> Result<u32, AddressError> {
    let unreadable = |_| AddressError { message: format!("a database is a number such as 0, not {text:?}") };
    text.parse().map_err(unreadable)
}

fn decode(text: &str, what: &str) -> Result<String, AddressError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => refuse(format!("the {what} is not UTF-8 once percent-decoded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Address>().unwrap_err().to_string()
    }

    #[test]
    fn hosts_ports_databases_and_sockets_are_read() {
        let tcp = |host: &str, port, tls| Place::Tcp { host: host.to_owned(), port, tls };
        assert_eq!(parse("redis://localhost").place, tcp("localhost", 6379, false));
        assert_eq!(parse("rediss://h:7/").place, tcp("h", 7, true));
        assert_eq!(parse("redis://[::1]:8/3").place, tcp("::1", 8, false));
        assert_eq!(parse("redis://[::1]/3").database, 3);
        assert_eq!(parse("unix:///run/r%20s.sock?db=4").place, Place::Unix("/run/r s.sock".into()));
        assert_eq!(parse("unix:///run/r.sock?db=4").database, 4);
    }

    #[test]
    fn names_and_passwords_are_percent_decoded_and_never_shown() {
        let address = parse("redis://us%40er:p%3Aa%2Fs@h");
        assert_eq!(
            (address.user.as_deref(), address.password.as_ref().map(Secret::expose)),
            (Some("us@er"), Some("p:a/s"))
        );
        let address = parse("redis://:secret@h");
        assert_eq!((address.user.as_deref(), address.password.as_ref().map(Secret::expose)), (None, Some("secret")));
        assert!(!format!("{address} {address:?}").contains("secret"));
        assert!(!refusal("me:secret@h").contains("secret"));
    }

    #[test]
    fn refusals_say_the_way_out() {
        assert!(refusal("amqp://h").contains("redis://, rediss:// or unix://, not amqp"));
        assert!(refusal("redis://h:70000").contains("1 to 65535"));
        assert!(refusal("redis://h/x").contains("a database is a number"));
        assert!(refusal("redis://user@h").contains("no password"));
        assert!(refusal("redis://h?cacertfile=x").contains("rediss://"));
        assert!(refusal("unix://host/path").contains("unix:///run"));
        assert!(refusal("redis://").contains("no host"));
    }
}
