//! The token that the status pages may ask for.

use std::fmt;
use std::hint::black_box;

use axum::http::{HeaderMap, header};
use tidegate_secret::Secret;

/// A secret that a request for a status page must bring: `Authorization: Bearer TOKEN`.
pub struct StatusToken(Secret);

/// A token that cannot be used: it is empty, or has characters that no header can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadStatusToken;

impl fmt::Display for BadStatusToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token consists of visible ASCII characters, at least one")
    }
}

impl std::error::Error for BadStatusToken {}

impl StatusToken {
    /// A token; white space around it is left out, as files end with a line break.
    ///
    /// # Errors
    /// If it is empty or contains anything but visible ASCII characters.
    ///
    /// ```
    /// use tidegate_worker::StatusToken;
    ///
    /// assert!(StatusToken::new("s3cret\n").is_ok());
    /// assert!(StatusToken::new(" \n").is_err());
    /// ```
    pub fn new(text: &str) -> Result<StatusToken, BadStatusToken> {
        let text = text.trim();
        let visible = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible { Ok(StatusToken(Secret::new(text))) } else { Err(BadStatusToken) }
    }

    /// Returns `true` if the request brings this token. The time it takes depends on lengths alone.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let brought = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let Some((scheme, rest)) = brought.and_then(|value| value.split_at_checked("Bearer ".len())) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && same(self.0.expose().as_bytes(), rest)
    }
}

/// Compares every byte, wherever the first difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |different, (a, b)| black_box(different | (a ^ b)));
    a.len() == b.len() && different == 0
}

impl fmt::Debug for StatusToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        StatusToken::new("s3cret\n").unwrap().admits(&headers)
    }

    #[test]
    fn only_the_whole_token_is_admitted() {
        assert!(admits("Bearer s3cret") && admits("bearer s3cret"));
        for value in
            ["", "s3cret", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cretx", "Bearer S3cret", "Basic s3cret"]
        {
            assert!(!admits(value), "{value}");
        }
        assert!(!StatusToken::new("x").unwrap().admits(&HeaderMap::new()));
    }

    #[test]
    fn a_token_is_not_shown_and_not_empty() {
        assert_eq!(format!("{:?}", StatusToken::new("s3cret")), "Ok(StatusToken(…))");
        for text in ["", " \n", "two words", "tür", "a\x1bb"] {
            assert_eq!(StatusToken::new(text).unwrap_err(), BadStatusToken, "{text:?}");
        }
    }
}
