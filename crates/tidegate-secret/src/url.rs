//! `user:password@` in a URL.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use crate::secret::Secret;

/// The user and the password that stood in a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct UserInfo {
    user: Secret,
    password: Secret,
    /// The two as they stood there, percent-encoded perhaps.
    written: [Secret; 2],
}

impl UserInfo {
    /// Takes the user information out of `url`: returns the URL without it, and it, if there is some.
    ///
    /// ```
    /// use tidegate_secret::UserInfo;
    ///
    /// let (url, user) = UserInfo::split("http://joe:hunter2@host/v1");
    /// assert_eq!(url, "http://host/v1");
    /// assert_eq!(user.unwrap().basic().expose(), "Basic am9lOmh1bnRlcjI=");
    /// ```
    #[must_use]
    pub fn split(url: &str) -> (Cow<'_, str>, Option<UserInfo>) {
        let start = url.find("://").map_or(0, |at| at + 3);
        let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
        // The last one: a password may hold an @ that was not encoded.
        let Some(at) = url[start..end].rfind('@').map(|at| start + at) else { return (Cow::Borrowed(url), None) };
        let (user, password) = url[start..at].split_once(':').unwrap_or((&url[start..at], ""));
        let decode = |text: &str| String::from_utf8_lossy(&percent_decode_str(text).collect::<Vec<u8>>()).into_owned();
        let written = [user, password].map(Secret::new);
        let info = UserInfo { user: decode(user).into(), password: decode(password).into(), written };
        (Cow::Owned(format!("{}{}", &url[..start], &url[at + 1..])), Some(info))
    }

    /// Returns the value of an `Authorization` header that says the same (RFC 7617).
    #[must_use]
    pub fn basic(&self) -> Secret {
        let plain = format!("{}:{}", self.user.expose(), self.password.expose());
        Secret::new(format!("Basic {}", STANDARD.encode(plain)))
    }

    /// What must not be shown: for a [`Redactor`](crate::Redactor).
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        // Without a password, a token stands in place of the user.
        let (decoded, written) = match self.password.is_empty() {
            true => (&self.user, &self.written[0]),
            false => (&self.password, &self.written[1]),
        };
        [decoded, written].into_iter()
    }
}

impl fmt::Debug for UserInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserInfo(…)")
    }
}

/// Returns `text` as it may be shown, whether it is a URL or not: everything between the scheme and the last `@` is left out.
///
/// ```
/// use tidegate_secret::masked;
///
/// assert_eq!(masked("redis://:hunter2@cache:port"), "redis://…@cache:port");
/// assert_eq!(masked("joe:hunter2@host"), "…@host");
/// assert_eq!(masked("jobs.db"), "jobs.db");
/// ```
#[must_use]
pub fn masked(text: &str) -> Cow<'_, str> {
    let Some(at) = text.rfind('@') else { return Cow::Borrowed(text) };
    let start = text[..at].find("://").map_or(0, |at| at + 3);
    Cow::Owned(format!("{}…{}", &text[..start], &text[at..]))
}

/// Returns `true` if `host` is this machine: what is sent there crosses no network. A v6 address may be in brackets.
///
/// ```
/// use tidegate_secret::is_loopback;
///
/// assert!(is_loopback("localhost") && is_loopback("127.0.0.2") && is_loopback("[::1]"));
/// assert!(!is_loopback("127.0.0.1.example.com") && !is_loopback("10.0.0.1"));
/// ```
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    // RFC 6761: names below it are this machine, too.
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redactor;

    #[test]
    fn user_information_is_split_off_and_nothing_else() {
        for (url, rest) in [
            ("http://joe:hunter2@host/v1", "http://host/v1"),
            ("https://joe@host:8080?x@y", "https://host:8080?x@y"),
            ("http://joe:hun@ter2@host", "http://host"),
            ("http://joe:hun%2Fter2@[::1]:80/", "http://[::1]:80/"),
        ] {
            let (split, info) = UserInfo::split(url);
            assert_eq!(split, rest);
            assert_eq!(format!("{:?}", info.unwrap()), "UserInfo(…)");
        }
        for url in ["http://host/a@b", "https://host", "nonsense"] {
            assert_eq!(UserInfo::split(url), (Cow::Borrowed(url), None));
        }
    }

    #[test]
    fn the_header_says_the_same_and_is_removed_from_text_too() {
        let (_, info) = UserInfo::split("http://joe:p%40ss1@host");
        let info = info.unwrap();
        assert_eq!(info.basic().expose(), "Basic am9lOnBAc3Mx");
        let redactor = Redactor::new(info.secrets());
        let text = redactor.redact("p@ss1 p%40ss1 Basic am9lOnBAc3Mx").into_owned();
        assert_eq!(text, "(secret) (secret) Basic (secret)");
        let (_, token) = UserInfo::split("http://ghp_4711@host");
        assert_eq!(Redactor::new(token.unwrap().secrets()).redact("no ghp_4711"), "no (secret)");
    }

    #[test]
    fn a_masked_text_has_no_password_even_if_it_is_no_url() {
        for text in ["http://a:hun/ter2@host", "a:hun@ter2@host:x", "amqp:shop:hunter2@host"] {
            let shown = masked(text);
            assert!(!shown.contains("ter2") && shown.contains("@host"), "{shown}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in
            ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "localhost.example", "0.0.0.0", "128.0.0.1", "::", "127.0.0.1.nip.io", "127.1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
