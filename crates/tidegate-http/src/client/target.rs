//! The target of a URL: scheme, host and port.

use http::Uri;
use http::uri::Scheme;

use crate::error::Error;

/// Scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    /// Lower case; an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Target {
    pub(crate) fn of(uri: &Uri) -> Result<Target, Error> {
        let refuse = |reason: &str| Error::BadUrl { url: without_user(uri), reason: reason.to_owned() };
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(_) => return Err(refuse("the scheme must be http or https")),
            None => return Err(refuse("it must be absolute, with scheme and host")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| refuse("it names no host"))?;
        let port = match uri.port() {
            None => default_port(tls),
            Some(port) => match port.as_u16() {
                0 => return Err(refuse("port 0 cannot be connected to")),
                port => port,
            },
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        Ok(Target { tls, host, port })
    }

    /// For messages and the `Host` header: without the port if it is the scheme's default.
    pub(crate) fn authority(&self) -> String {
        let host = bracketed(&self.host);
        if self.port == default_port(self.tls) { host } else { format!("{host}:{}", self.port) }
    }

    /// Host and port, including a default port.
    pub(crate) fn address(&self) -> String {
        address(&self.host, self.port)
    }
}

pub(crate) fn address(host: &str, port: u16) -> String {
    format!("{}:{port}", bracketed(host))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// Parses a caller's URL.
pub(crate) fn parse(url: &str) -> Result<Uri, Error> {
    url.parse::<Uri>().map_err(|error| {
        // A URL that does not parse has no known parts, and the text before an @ might contain a password.
        let shown = match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            (None, Some((_, rest))) => rest.to_owned(),
            (_, None) => url.to_owned(),
        };
        Error::BadUrl { url: shown, reason: error.to_string() }
    })
}

/// Returns the URL without user name and password, to be shown.
pub(crate) fn without_user(uri: &Uri) -> String {
    let Some(authority) = uri.authority() else { return uri.to_string() };
    match authority.as_str().rsplit_once('@') {
        Some((user, _)) => uri.to_string().replacen(&format!("{user}@"), "", 1),
        None => uri.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target, Error> {
        Target::of(&parse(url)?)
    }

    #[test]
    fn scheme_host_and_port_come_out_in_one_form() {
        let plain = target("http://Example.COM/path").unwrap();
        assert_eq!((plain.tls, plain.host.as_str(), plain.port), (false, "example.com", 80));
        assert_eq!(plain.authority(), "example.com");
        let v6 = target("https://[::1]:8443/").unwrap();
        assert_eq!((v6.tls, v6.host.as_str(), v6.port), (true, "::1", 8443));
        assert_eq!((v6.authority().as_str(), v6.address().as_str()), ("[::1]:8443", "[::1]:8443"));
        assert_eq!(target("http://a:443/").unwrap().authority(), "a:443");
    }

    #[test]
    fn what_cannot_be_requested_is_refused_without_showing_a_password() {
        for url in ["/relative", "example.com", "ftp://me:secret@h/", "http://me:secret@h:0/", "http://me:sec ret@h/"] {
            let error = target(url).unwrap_err();
            assert!(matches!(error, Error::BadUrl { .. }), "{url}");
            assert!(!error.to_string().contains("sec"), "{error}");
        }
    }
}
