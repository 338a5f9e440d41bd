//! Chooses the proxy of a request by curl's rules. Decisions only: the environment is an argument.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use percent_encoding::percent_decode_str;
use tidegate_secret::{Redactor, Secret, UserInfo};

use super::target::Target;

/// The proxies of a client. Default: those of the environment.
///
/// | variable | for |
/// |---|---|
/// | `http_proxy`, `HTTP_PROXY` | `http` URLs; the upper-case one is ignored in a CGI program, where a request could set it |
/// | `https_proxy`, `HTTPS_PROXY` | `https` URLs, by CONNECT |
/// | `all_proxy`, `ALL_PROXY` | both, if the others are not set |
/// | `no_proxy`, `NO_PROXY` | exceptions: `*`, `example.com` (and all below it), `.example.com`, addresses, `10.0.0.0/8`; names and addresses optionally with `:port` |
///
/// A proxy is `[http://][user:password@]host[:port]`; with `https://` the connection to the proxy itself uses TLS.
///
/// ```
/// use tidegate_http::Proxies;
///
/// let proxies = Proxies::from_vars(|name| match name {
///     "https_proxy" => Some("http://me:secret@proxy.example:3128".to_owned()),
///     "no_proxy" => Some("localhost,10.0.0.0/8,.internal.example".to_owned()),
///     _ => None,
/// });
/// assert_eq!(format!("{proxies:?}"), r#"Proxies { http: None, https: Some("http://proxy.example:3128"), exceptions: 3 }"#);
/// ```
#[derive(Clone, Default)]
pub struct Proxies {
    http: Option<ProxySetting>,
    https: Option<ProxySetting>,
    exceptions: Vec<ProxyException>,
}

impl Proxies {
    /// Uses no proxy.
    ///
    /// ```
    /// use tidegate_http::{Client, Proxies};
    /// let client = Client::builder().proxies(Proxies::none()).build().unwrap();
    /// ```
    #[must_use]
    pub fn none() -> Proxies {
        Proxies::default()
    }

    /// Reads the proxies from the process's environment.
    ///
    /// ```
    /// let proxies = tidegate_http::Proxies::from_env();
    /// ```
    #[must_use]
    pub fn from_env() -> Proxies {
        Proxies::from_vars(|name| std::env::var(name).ok())
    }

    /// Reads the proxies from variables that `get` returns.
    ///
    /// ```
    /// let none = tidegate_http::Proxies::from_vars(|_| None);
    /// ```
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Proxies {
        let set = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let either = |name: &str| set(name).or_else(|| set(&name.to_ascii_uppercase()));
        let all = either("all_proxy");
        let http = set("http_proxy")
            .or_else(|| set("HTTP_PROXY").filter(|_| get("REQUEST_METHOD").is_none()))
            .or_else(|| all.clone());
        let https = either("https_proxy").or(all);
        let exceptions = either("no_proxy").unwrap_or_default();
        Proxies {
            http: http.map(|text| ProxySetting::parse(&text)),
            https: https.map(|text| ProxySetting::parse(&text)),
            exceptions: exceptions.split([',', ' ']).filter_map(ProxyException::parse).collect(),
        }
    }

    /// Returns the passwords of the proxies, for a [`Redactor`]: a proxy may repeat what it was sent.
    ///
    /// ```
    /// use tidegate_http::Proxies;
    ///
    /// let proxies = Proxies::from_vars(|name| (name == "http_proxy").then(|| "me:hunter2@proxy.example:3128".to_owned()));
    /// assert!(proxies.secrets().any(|secret| secret.expose() == "hunter2"));
    /// ```
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let settings = [&self.http, &self.https].into_iter().flatten();
        settings.filter_map(|setting| setting.user.as_ref()).flat_map(UserInfo::secrets)
    }

    /// Returns the proxy for `target`, or an error if its setting cannot be used.
    pub(crate) fn choose(&self, target: &Target) -> Result<Option<&Proxy>, BadProxy> {
        let setting = if target.tls { &self.https } else { &self.http };
        let Some(setting) = setting else { return Ok(None) };
        if self.exceptions.iter().any(|exception| exception.covers(target)) {
            return Ok(None);
        }
        setting.proxy.as_ref().map(Some).map_err(|reason| BadProxy { proxy: setting.shown.clone(), reason })
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |setting: &Option<ProxySetting>| setting.as_ref().map(|setting| setting.shown.clone());
        f.debug_struct("Proxies")
            .field("http", &shown(&self.http))
            .field("https", &shown(&self.https))
            .field("exceptions", &self.exceptions.len())
            .finish()
    }
}

/// A setting that cannot be used. Only requests that need it fail.
#[derive(Debug)]
pub(crate) struct BadProxy {
    pub(crate) proxy: String,
    pub(crate) reason: &'static str,
}

#[derive(Clone)]
struct ProxySetting {
    /// Without user name and password.
    shown: String,
    user: Option<UserInfo>,
    proxy: Result<Proxy, &'static str>,
}

/// One proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `Proxy-Authorization`, marked sensitive.
    pub(crate) authorization: Option<HeaderValue>,
    /// For what the proxy says.
    pub(crate) redactor: Redactor,
}

impl Proxy {
    pub(crate) fn shown(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

impl ProxySetting {
    fn parse(text: &str) -> ProxySetting {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // Splits at the last @, because a password may contain one that is not escaped.
        let (user, address) = match rest.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, rest),
        };
        let shown = format!("{scheme}://{address}");
        let (_, info) = UserInfo::split(text);
        let redactor = Redactor::new(info.iter().flat_map(UserInfo::secrets));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => {
                return ProxySetting {
                    shown,
                    user: info,
                    proxy: Err("only http:// and https:// proxies are supported"),
                };
            }
        };
        let proxy = split_port(address, if tls { 443 } else { 80 })
            .filter(|(host, _)| !host.is_empty())
            .ok_or("it is not host:port")
            .and_then(|(host, port)| {
                let authorization = user.map(basic).transpose()?;
                Ok(Proxy { tls, host, port, authorization, redactor })
            });
        ProxySetting { shown, user: info, proxy }
    }
}

/// Returns the header value of basic authentication (RFC 7617) for `user:password`, with percent-escapes decoded.
pub(crate) fn basic(user: &str) -> Result<HeaderValue, &'static str> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let mut plain = percent_decode_str(name).collect::<Vec<u8>>();
    plain.push(b':');
    plain.extend(percent_decode_str(password));
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(plain)))
        .map_err(|_| "its user name cannot be sent in a header")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`. The host is returned without brackets.
fn split_port(address: &str, default: u16) -> Option<(String, u16)> {
    if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if rest.is_empty() => default,
            None => return None,
        };
        return Some((host.to_owned(), port));
    }
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => Some((host.to_owned(), port.parse().ok()?)),
        // A bare v6 address.
        _ => Some((address.to_owned(), default)),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum ProxyException {
    All,
    Domain { name: String, port: Option<u16> },
    Network { address: IpAddr, prefix: u8, port: Option<u16> },
}

impl ProxyException {
    fn parse(text: &str) -> Option<ProxyException> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(ProxyException::All);
        }
        if let Some((network, prefix)) = text.split_once('/') {
            let address: IpAddr = network.trim_matches(['[', ']']).parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            return (prefix <= longest).then_some(ProxyException::Network { address, prefix, port: None });
        }
        let (host, port) = match split_port(text, 0)? {
            (host, 0) => (host, None),
            (host, port) => (host, Some(port)),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            return Some(ProxyException::Network { address, prefix, port });
        }
        let name = host.trim_start_matches("*.").trim_start_matches('.').trim_end_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(ProxyException::Domain { name, port })
    }

    fn covers(&self, target: &Target) -> bool {
        let at = |port: &Option<u16>| port.is_none_or(|port| port == target.port);
        match self {
            ProxyException::All => true,
            ProxyException::Domain { name, port } => {
                let host = target.host.trim_end_matches('.');
                let below = host.strip_suffix(name.as_str());
                at(port) && below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            ProxyException::Network { address, prefix, port } => {
                at(port) && target.host.parse().is_ok_and(|host| same_network(host, *address, *prefix))
            }
        }
    }
}

fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let prefix = u32::from(prefix);
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let differ = one.to_bits() ^ other.to_bits();
            differ.checked_shr(32 - prefix).unwrap_or(0) == 0
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let differ = one.to_bits() ^ other.to_bits();
            differ.checked_shr(128 - prefix).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(vars: &[(&str, &str)]) -> Proxies {
        let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Proxies::from_vars(move |name| vars.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
    }

    fn chosen(vars: &[(&str, &str)], url: &str) -> Option<String> {
        let proxies = proxies(vars);
        let target = Target::of(&url.parse().unwrap()).unwrap();
        proxies.choose(&target).unwrap().map(Proxy::shown)
    }

    #[test]
    fn each_scheme_has_its_variable_and_all_proxy_fills_the_gaps() {
        let vars = [("http_proxy", "a:1"), ("ALL_PROXY", "http://b:2")];
        assert_eq!(chosen(&vars, "http://x/").unwrap(), "http://a:1");
        assert_eq!(chosen(&vars, "https://x/").unwrap(), "http://b:2");
        assert_eq!(chosen(&[("HTTPS_PROXY", "https://c")], "https://x/").unwrap(), "https://c:443");
        assert_eq!(chosen(&[("HTTPS_PROXY", "c")], "http://x/"), None);
        assert_eq!(chosen(&[("https_proxy", "low:1"), ("HTTPS_PROXY", "up:1")], "https://x/").unwrap(), "http://low:1");
        assert_eq!(chosen(&[("http_proxy", " ")], "http://x/"), None);
    }

    #[test]
    fn upper_case_http_proxy_is_ignored_in_a_cgi_program() {
        assert_eq!(chosen(&[("HTTP_PROXY", "a:1")], "http://x/").unwrap(), "http://a:1");
        assert_eq!(chosen(&[("HTTP_PROXY", "a:1"), ("REQUEST_METHOD", "GET")], "http://x/"), None);
    }

    #[test]
    fn no_proxy_takes_domains_addresses_networks_and_ports() {
        let through =
            |exceptions: &str, url: &str| chosen(&[("all_proxy", "p:1"), ("no_proxy", exceptions)], url).is_some();
        assert!(!through("*", "http://anything.example/"));
        assert!(!through("example.com", "http://example.com/"));
        assert!(!through("example.com", "http://EXAMPLE.com/"));
        assert!(!through("example.com", "http://api.example.com/"));
        assert!(through("example.com", "http://notexample.com/"));
        assert!(!through(".example.com", "http://api.example.com/"));
        assert!(!through("*.example.com", "http://api.example.com/"));
        assert!(!through("example.com:8080", "http://example.com:8080/"));
        assert!(through("example.com:8080", "http://example.com/"));
        assert!(!through("localhost, 127.0.0.1", "http://127.0.0.1:9/"));
        assert!(!through("10.0.0.0/8", "http://10.1.2.3/"));
        assert!(through("10.0.0.0/8", "http://11.1.2.3/"));
        assert!(!through("0.0.0.0/0", "http://11.1.2.3/"));
        assert!(!through("fd00::/8", "http://[fd12::1]:80/"));
        assert!(through("fd00::/8", "http://[fe80::1]/"));
        assert!(!through("[::1]:80", "http://[::1]/"));
        assert!(!through("::1", "http://[::1]/"));
        assert!(through("10.0.0.0/99,nonsense/x", "http://10.0.0.1/"));
    }

    #[test]
    fn user_and_password_become_a_sensitive_header_and_are_shown_nowhere() {
        let proxies = proxies(&[("all_proxy", "http://me:p%40ss@proxy:3128/")]);
        let target = Target::of(&"http://x/".parse().unwrap()).unwrap();
        let proxy = proxies.choose(&target).unwrap().unwrap();
        let header = proxy.authorization.as_ref().unwrap();
        assert_eq!(header.to_str().unwrap(), format!("Basic {}", BASE64_STANDARD.encode("me:p@ss")));
        assert!(header.is_sensitive());
        assert!(!format!("{proxies:?}").contains("p%40ss") && !proxy.shown().contains("me"));
    }

    #[test]
    fn setting_that_cannot_be_used_is_refused_by_name() {
        let socks = proxies(&[("all_proxy", "socks5://me:secret@s:1080")]);
        let target = Target::of(&"http://x/".parse().unwrap()).unwrap();
        let error = socks.choose(&target).err().unwrap();
        assert_eq!(error.proxy, "socks5://s:1080");
        assert!(proxies(&[("all_proxy", "http://p:notaport")]).choose(&target).is_err());
    }
}
