//! The address of a broker and the user: `amqp://user:password@host:port,another:port/vhost?option=value`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tidegate_secret::Secret;

/// How we say who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sasl {
    /// By name and password.
    Plain {
        /// The name.
        user: String,
        /// The password.
        password: Secret,
    },
    /// By the certificate of the TLS connection.
    External,
}

/// One of the places a broker may be reached at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// 5672, or 5671 with TLS, unless it says otherwise.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            return write!(f, "[{}]:{}", self.name, self.port);
        }
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// A broker's address. `Display` and `Debug` leave the password out.
///
/// Several hosts, separated by commas, are tried in their order. No path, or an empty one, means the vhost `/`; any other
/// is percent-decoded: `/%2F` is `/` too, `/shop` is `shop`. Options: `heartbeat` (seconds; 0 turns it off),
/// `connection_timeout` (milliseconds), `auth_mechanism` (`plain` or `external`), `cacertfile`, `certfile`, `keyfile`.
///
/// ```
/// use tidegate_amqp::Uri;
///
/// let uri: Uri = "amqps://shop:s%40fe@one,two:5000/orders?heartbeat=10".parse().unwrap();
/// assert_eq!(uri.to_string(), "amqps://shop@one:5671,two:5000/orders");
/// assert_eq!(uri.heartbeat.as_secs(), 10);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uri {
    /// `amqps`.
    pub tls: bool,
    /// At least one.
    pub hosts: Vec<Host>,
    /// The user and password, or another way to log in.
    pub sasl: Sasl,
    /// The virtual host.
    pub vhost: String,
    /// What we ask for; the broker may want less. Zero: none.
    pub heartbeat: Duration,
    /// For one host: from the look-up of its name to an open channel.
    pub connection_timeout: Duration,
    /// Trusted in addition to the machine's authorities.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Less than RabbitMQ's 60 s, so that a silent death is noticed within a minute.
const HEARTBEAT: Duration = Duration::from_secs(30);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// An address that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriError {
    message: String,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UriError {}

fn refuse<T>(message: impl Into<String>) -> Result<T, UriError> {
    Err(UriError { message: message.into() })
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "amqps://" } else { "amqp://" })?;
        if let Sasl::Plain { user, .. } = &self.sasl {
            write!(f, "{user}@")?;
        }
        for (at, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if at == 0 { "" } else { "," })?;
        }
        match self.vhost.as_str() {
            "/" => Ok(()),
            vhost => write!(f, "/{vhost}"),
        }
    }
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let (tls, rest) = match text.split_once("://") {
            Some(("amqp", rest)) => (false, rest),
            Some(("amqps", rest)) => (true, rest),
            Some((scheme, _)) => {
                return refuse(format!("a broker's address starts with amqp:// or amqps://, not {scheme}://"));
            }
            // Whatever it is, it may hold a password.
            None => return refuse("a broker's address looks like amqp://user:password@host:5672/vhost"),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, hosts) = authority.rsplit_once('@').map_or((None, authority), |(who, hosts)| (Some(who), hosts));
        let (user, password) = match who {
            None => ("guest".to_owned(), "guest".to_owned()),
            Some(who) => {
                let (user, password) = who.split_once(':').unwrap_or((who, ""));
                (decode(user, "user name")?, decode(password, "password")?)
            }
        };
        let vhost = match path {
            "" => "/".to_owned(),
            path => decode(path, "vhost")?,
        };
        if vhost.len() > 255 {
            return refuse("a vhost's name has at most 255 bytes");
        }
        let mut uri = Uri {
            tls,
            hosts: hosts.split(',').map(|host| parse_host(host, tls)).collect::<Result<_, _>>()?,
            sasl: Sasl::Plain { user, password: password.into() },
            vhost,
            heartbeat: HEARTBEAT,
            connection_timeout: CONNECTION_TIMEOUT,
            ca_file: None,
            identity: None,
        };
        uri.read_options(query)?;
        Ok(uri)
    }
}

impl Uri {
    fn read_options(&mut self, query: &str) -> Result<(), UriError> {
        let (mut certificate, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value, name)?;
            match name {
                "heartbeat" => self.heartbeat = Duration::from_secs(number(name, &value, "seconds, at most 65535")?),
                "connection_timeout" => {
                    let ms: u16 = number::<u16>(name, &value, "milliseconds, 1 to 65535")?;
                    self.connection_timeout = Duration::from_millis(ms.max(1).into());
                }
                "auth_mechanism" => match value.as_str() {
                    "external" | "EXTERNAL" => self.sasl = Sasl::External,
                    "plain" | "PLAIN" => {}
                    _ => return refuse(format!("auth_mechanism is plain or external, not {value:?}")),
                },
                "cacertfile" => self.ca_file = Some(value.into()),
                "certfile" => certificate = Some(value),
                "keyfile" => key = Some(value),
                _ => {
                    return refuse(format!(
                        "unknown option {name:?}; there are heartbeat, connection_timeout, auth_mechanism, cacertfile, \
                         certfile and keyfile"
                    ));
                }
            }
        }
        self.identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => return refuse("certfile and keyfile belong together: give both"),
        };
        if !self.tls && (self.ca_file.is_some() || self.identity.is_some() || self.sasl == Sasl::External) {
            return refuse("certificates and auth_mechanism=external need TLS: write amqps://");
        }
        Ok(())
    }
}

fn number<T: TryFrom<u16>>(name: &str, value: &str, unit: &str) -> Result<T, UriError> {
    let parsed = value.parse::<u16>().ok().and_then(|number| T::try_from(number).ok());
    parsed.ok_or_else(|| UriError { message: format!("{name}={value}: expected a number of {unit}") })
}

fn decode(text: &str, what: &str) -> Result<String, UriError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => refuse(format!("the {what} is not UTF-8 once percent-decoded")),
    }
}

fn parse_host(text: &str, tls: bool) -> Result<Host, UriError> {
    let default = if tls { 5671 } else { 5672 };
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, "")) => (name, None),
            Some((name, rest)) if rest.starts_with(':') => (name, Some(&rest[1..])),
            _ => return refuse(format!("the host {text:?} has no closing bracket, or something behind it")),
        },
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    if name.is_empty() {
        return refuse("the address names no host; it looks like amqp://user:password@host:5672/vhost");
    }
    let port = match port {
        None => default,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return refuse(format!("the port of {name} is a number from 1 to 65535")),
        },
    };
    Ok(Host { name: decode(name, "host")?, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Uri>().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_rabbitmqs() {
        let uri = parse("amqp://localhost");
        assert_eq!(uri.hosts, [Host { name: "localhost".to_owned(), port: 5672 }]);
        assert_eq!((uri.vhost.as_str(), uri.tls), ("/", false));
        assert_eq!(uri.sasl, Sasl::Plain { user: "guest".to_owned(), password: "guest".into() });
        assert_eq!(parse("amqps://h").hosts[0].port, 5671);
    }

    #[test]
    fn names_passwords_and_vhosts_are_percent_decoded() {
        let uri = parse("amqp://us%40er:p%3Aa%2Fs@h:1/a%2Fb");
        assert_eq!(uri.sasl, Sasl::Plain { user: "us@er".to_owned(), password: "p:a/s".into() });
        assert_eq!(uri.vhost, "a/b");
        for slash in ["amqp://h", "amqp://h/", "amqp://h/%2f", "amqp://h//"] {
            assert_eq!(parse(slash).vhost, "/", "{slash}");
        }
    }

    #[test]
    fn several_hosts_and_brackets() {
        let hosts = parse("amqp://u:p@one:1,[::1],[fe80::1]:7/v").hosts;
        let told: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["one:1", "[::1]:5672", "[fe80::1]:7"]);
    }

    #[test]
    fn options_are_read() {
        let uri = parse("amqps://h/?heartbeat=0&connection_timeout=1500&cacertfile=%2Fca.pem&auth_mechanism=external");
        assert_eq!((uri.heartbeat, uri.connection_timeout), (Duration::ZERO, Duration::from_millis(1500)));
        assert_eq!((uri.sasl, uri.ca_file), (Sasl::External, Some("/ca.pem".into())));
    }

    #[test]
    fn refusals_say_the_way_out_and_never_the_password() {
        assert!(refusal("http://h").contains("amqp:// or amqps://, not http"));
        assert!(refusal("amqp://h:70000").contains("1 to 65535"));
        assert!(refusal("amqp://h?beat=1").contains("heartbeat, connection_timeout"));
        assert!(refusal("amqp://h?heartbeat=x").contains("heartbeat=x: expected a number of seconds"));
        assert!(refusal("amqp://h?auth_mechanism=external").contains("amqps://"));
        assert!(refusal("amqps://h?certfile=a").contains("give both"));
        assert!(refusal("amqp://").contains("no host"));
        let uri = parse("amqp://me:secret@h/v");
        assert!(!format!("{uri} {uri:?}").contains("secret"));
        assert!(!refusal("me:secret@h").contains("secret"));
    }
}
