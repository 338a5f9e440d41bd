//! A text that is never shown.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A key, a password, a token, or an address that has one in it. It has no `Display`, its `Debug` shows nothing of it, and it
/// cannot be serialised; the text is available through [`expose`](Secret::expose) only, so a search for that word finds every
/// use.
///
/// ```
/// use tidegate_secret::Secret;
///
/// let password = Secret::new("hunter2");
/// assert_eq!(format!("{password:?}"), "Secret(…)");
/// assert_eq!(password.expose(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Holds `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into().into_boxed_str())
    }

    /// Returns the text, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns `true` if there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret::new(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret::new(text)
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Secret, Infallible> {
        Ok(Secret::new(text))
    }
}
