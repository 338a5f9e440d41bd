//! A server's address, without the secrets that may stand in it.

use std::fmt;

use http::{HeaderValue, Uri};
use tidegate_secret::{Secret, UserInfo, is_loopback, masked};

/// A server's address, up to what all its paths have in common. User and password are taken out of it and sent as a header, so
/// what is shown, stored or sent on has none.
///
/// ```
/// use tidegate_batch::BaseUrl;
///
/// let base = BaseUrl::parse("http://joe:hunter2@gpu.example/v1/").unwrap();
/// assert_eq!(base.to_string(), "http://gpu.example/v1");
/// assert!(!base.is_private());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// Without user information and without a slash at the end.
    text: String,
    user: Option<UserInfo>,
    private: bool,
}

impl BaseUrl {
    /// Reads an address that begins with `http://` or `https://`.
    ///
    /// # Errors
    /// [`BadBaseUrl`], which shows the address without user and password.
    pub fn parse(text: &str) -> Result<BaseUrl, BadBaseUrl> {
        let bad = |reason: &str| BadBaseUrl { url: masked(text).into_owned(), reason: reason.into() };
        let (bare, user) = UserInfo::split(text);
        let bare = bare.trim_end_matches('/');
        let uri: Uri = bare.parse().map_err(|_| bad("it is not a URL"))?;
        let private = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => uri.host().is_some_and(is_loopback),
            _ => return Err(bad("it must begin with http:// or https://")),
        };
        if uri.host().is_none_or(str::is_empty) {
            return Err(bad("it names no host"));
        }
        // `http://joe:pass/word@host` is read as host joe and port pass: a slash in a password has to be encoded.
        if uri.authority().is_some_and(|authority| authority.as_str() != authority.host()) && uri.port_u16().is_none() {
            return Err(bad("its port is not a number"));
        }
        Ok(BaseUrl { text: bare.to_owned(), user, private })
    }

    /// The address, without user information and without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns `true` if what is sent cannot be read on the way: it is encrypted, or does not leave the machine.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Returns `true` if the address had a user or a password.
    #[must_use]
    pub fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// The `Authorization` header that its user and password become, marked sensitive.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(self.user.as_ref()?.basic().expose()).expect("base64 is visible ASCII");
        value.set_sensitive(true);
        Some(value)
    }

    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.user.iter().flat_map(UserInfo::secrets)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BaseUrl({})", self.text)
    }
}

/// An address that cannot be a server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBaseUrl {
    /// Without user and password.
    url: String,
    reason: String,
}

impl fmt::Display for BadBaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cannot be a server's address: {}; one looks like https://api.openai.com/v1",
            self.url, self.reason
        )
    }
}

impl std::error::Error for BadBaseUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_the_address_is_shown_nowhere() {
        let base = BaseUrl::parse("https://joe:hunter2@host/v1").unwrap();
        assert_eq!((base.as_str(), base.has_user()), ("https://host/v1", true));
        assert!(!format!("{base} {base:?} {:?}", base.authorization()).contains("hunter2"));
        for bad in ["ftp://joe:hunter2@host", "joe:hunter2@host", "http://joe:hun/ter2@host:x", "http://joe:hunter2@"] {
            let error = BaseUrl::parse(bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("ter2"), "{error}");
        }
    }

    #[test]
    fn plain_http_is_private_on_this_machine_alone() {
        let private = |text: &str| BaseUrl::parse(text).unwrap().is_private();
        assert!(private("https://api.example") && private("http://localhost:8080/v1") && private("http://[::1]/v1"));
        assert!(
            !private("http://api.example") && !private("http://10.0.0.7:8080") && !private("http://localhost@evil")
        );
    }
}
