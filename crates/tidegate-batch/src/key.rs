//! A provider's key: read once, sent in one header, shown to nobody.

use std::fmt;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use tidegate_secret::Secret;

/// A key, and where it came from. Its text goes into a request's header and nowhere else: neither `Debug` nor an error
/// shows it.
///
/// ```
/// use tidegate_batch::ApiKey;
///
/// let key = ApiKey::new("sk-secret", "a test").unwrap();
/// assert_eq!(format!("{key:?}"), "ApiKey(from a test)");
/// ```
#[derive(Clone)]
pub struct ApiKey {
    /// Visible ASCII without spaces: it can stand in a header.
    text: Secret,
    origin: Box<str>,
}

/// Why there is no key.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// The variable is not set.
    Unset {
        /// Its name.
        variable: String,
    },
    /// The file cannot be read.
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// What is there cannot be a key: it is empty, or has characters that no header can carry.
    Unusable {
        /// Where it came from.
        origin: String,
    },
}

impl ApiKey {
    /// A key that came from `origin`, which is named in messages. Space around it is not part of it.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn new(text: &str, origin: impl Into<String>) -> Result<ApiKey, KeyError> {
        let (text, origin) = (text.trim(), origin.into());
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::Unusable { origin });
        }
        Ok(ApiKey { text: Secret::new(text), origin: origin.into() })
    }

    /// The key in an environment variable.
    ///
    /// # Errors
    /// [`KeyError`], with the way out.
    pub fn from_env(variable: &str) -> Result<ApiKey, KeyError> {
        match std::env::var(variable) {
            Ok(text) if !text.trim().is_empty() => ApiKey::new(&text, variable),
            Err(std::env::VarError::NotUnicode(_)) => Err(KeyError::Unusable { origin: variable.into() }),
            _ => Err(KeyError::Unset { variable: variable.into() }),
        }
    }

    /// The key in a file.
    ///
    /// # Errors
    /// [`KeyError`], with the way out.
    pub fn from_file(path: &Path) -> Result<ApiKey, KeyError> {
        let text = std::fs::read_to_string(path).map_err(|source| KeyError::File { path: path.into(), source })?;
        ApiKey::new(&text, path.display().to_string())
    }

    /// Where it came from: a variable, a file.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// A header's value: `prefix` and the key, marked sensitive.
    pub(crate) fn header(&self, prefix: &str) -> HeaderValue {
        let mut value = HeaderValue::try_from(format!("{prefix}{}", self.text.expose())).expect("visible ASCII");
        value.set_sensitive(true);
        value
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.text
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey(from {})", self.origin)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Unset { variable } => write!(
                f,
                "there is no key: set {variable}, or name another variable (--api-key-env) or a file (--api-key-file)"
            ),
            KeyError::File { path, source } => write!(f, "the key's file {} cannot be read: {source}", path.display()),
            KeyError::Unusable { origin } => {
                write!(f, "what is in {origin} cannot be a key: one word of visible characters is expected")
            }
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeyError::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let key = ApiKey::new(" sk-secret\n", "OPENAI_API_KEY").unwrap();
        assert!(!format!("{key:?}").contains("secret"));
        assert!(!format!("{:?}", key.header("Bearer ")).contains("secret"));
        assert_eq!(key.header("Bearer ").as_bytes(), b"Bearer sk-secret");
    }

    #[test]
    fn what_cannot_be_a_key_is_refused_without_repeating_it() {
        for text in ["", " \n", "two words", "ключ", "a\u{0}b"] {
            let error = ApiKey::new(text, "the file k").unwrap_err();
            assert!(error.to_string().contains("the file k"), "{error}");
        }
        let error = ApiKey::from_file(Path::new("/nowhere/key")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/key"));
    }
}
