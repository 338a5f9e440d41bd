//! Removing secrets from text that came from elsewhere: a server's message, an answer that repeats the request's headers.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use memchr::{memchr3_iter, memmem};

use crate::secret::Secret;

/// What stands in place of a secret.
pub const REDACTED: &str = "(secret)";

/// Shorter secrets are not looked for: they would be found in every text.
const LEN_MIN: usize = 4;

/// In data that a user wants to keep, shorter secrets are not looked for: `test` and `ollama` are keys of servers that need
/// none, and words. A provider's key is longer.
const DATA_LEN_MIN: usize = 16;

/// Shorter pieces of base64 are not looked for, for the same reason.
const BASE64_LEN_MIN: usize = 6;

/// Removes secrets from text, in the forms in which honest programs repeat them: as they are, percent-encoded, escaped in
/// JSON, and in base64, also as a part of what was encoded (`user:password`).
///
/// Redact before a text is shortened: of a secret that is cut in two, the first half would stay.
///
/// A secret shorter than four bytes is not removed; from data ([`for_data`](Redactor::for_data)) one shorter than sixteen is
/// removed in base64 only.
///
/// ```
/// use tidegate_secret::{Redactor, Secret};
///
/// let redactor = Redactor::new([&Secret::new("s3cret/key")]);
/// assert_eq!(redactor.redact("no such key: s3cret/key"), "no such key: (secret)");
/// assert_eq!(redactor.redact("GET /?key=s3cret%2Fkey HTTP/1.1"), "GET /?key=(secret) HTTP/1.1");
/// assert_eq!(redactor.redact("nothing here"), "nothing here");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    needles: Vec<Needle>,
}

#[derive(Clone)]
enum Needle {
    /// Letters, digits and `-._~`: no encoder changes them.
    Plain(Box<[u8]>),
    /// Other text, of which each byte may be percent-encoded or escaped.
    Escapable(Box<[u8]>),
    /// The part of a base64 text that the secret alone decides.
    Base64(Box<[u8]>),
}

impl Redactor {
    /// Removes these from messages, where a word too many does no harm.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Redactor {
        Redactor::with_len(secrets, LEN_MIN)
    }

    /// Removes these from data: a short secret that is also a word stays.
    ///
    /// ```
    /// use tidegate_secret::{Redactor, Secret};
    ///
    /// let secrets = [Secret::new("ollama"), Secret::new("sk-4711-0815-4711")];
    /// let text = "ollama answers to sk-4711-0815-4711";
    /// assert_eq!(Redactor::for_data(&secrets).redact(text), "ollama answers to (secret)");
    /// assert_eq!(Redactor::new(&secrets).redact(text), "(secret) answers to (secret)");
    /// ```
    #[must_use]
    pub fn for_data<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Redactor {
        Redactor::with_len(secrets, DATA_LEN_MIN)
    }

    fn with_len<'a>(secrets: impl IntoIterator<Item = &'a Secret>, len_min: usize) -> Redactor {
        let mut redactor = Redactor::default();
        secrets.into_iter().for_each(|secret| redactor.add(secret, len_min));
        redactor
    }

    fn add(&mut self, secret: &Secret, len_min: usize) {
        let bytes = secret.expose().as_bytes();
        let unreserved = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
        if bytes.len() >= len_min {
            self.needles.push(match bytes.iter().all(unreserved) {
                true => Needle::Plain(bytes.into()),
                false => Needle::Escapable(bytes.into()),
            });
        }
        for core in base64_cores(bytes) {
            let url_safe: Vec<u8> = core.iter().map(|byte| url_safe(*byte)).collect();
            if url_safe != core {
                self.needles.push(Needle::Base64(url_safe.into()));
            }
            self.needles.push(Needle::Base64(core.into()));
        }
    }

    /// Returns `true` if there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Returns `text` without the secrets.
    #[must_use]
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let found = self.find(text.as_bytes());
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut clean = String::with_capacity(text.len());
        let mut from = 0;
        for range in found {
            // Needles are whole characters, so matches begin and end between two.
            clean.push_str(&text[from..range.start]);
            clean.push_str(REDACTED);
            from = range.end;
        }
        clean.push_str(&text[from..]);
        Cow::Owned(clean)
    }

    /// Returns `bytes` without the secrets, or `None` if they have none.
    #[must_use]
    pub fn redact_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let found = self.find(bytes);
        if found.is_empty() {
            return None;
        }
        let mut clean = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for range in found {
            clean.extend_from_slice(&bytes[from..range.start]);
            clean.extend_from_slice(REDACTED.as_bytes());
            from = range.end;
        }
        clean.extend_from_slice(&bytes[from..]);
        Some(clean)
    }

    /// Where secrets are, in order and without overlaps.
    fn find(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for needle in &self.needles {
            match needle {
                Needle::Plain(secret) => {
                    found.extend(memmem::find_iter(text, secret).map(|at| at..at + secret.len()));
                }
                Needle::Escapable(secret) => {
                    let starts = memchr3_iter(secret[0], b'%', b'\\', text);
                    found.extend(starts.filter_map(|at| escaped_end(&text[at..], secret).map(|len| at..at + len)));
                }
                Needle::Base64(core) => {
                    found.extend(memmem::find_iter(text, core).map(|at| base64_run(text, at, at + core.len())));
                }
            }
        }
        found.sort_unstable_by_key(|range| range.start);
        found.dedup_by(|next, last| {
            let overlaps = next.start < last.end;
            if overlaps {
                last.end = last.end.max(next.end);
            }
            overlaps
        });
        found
    }
}

/// Neither the secrets nor how many bytes they have.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// How much of the beginning of `text` is `secret`, if it begins with it; each byte of it may stand there as it is,
/// percent-encoded, or escaped in JSON.
fn escaped_end(text: &[u8], secret: &[u8]) -> Option<usize> {
    let mut at = 0;
    for &byte in secret {
        let rest = &text[at..];
        at += match rest {
            [b'%', high, low, ..] if hex(&[*high, *low]) == Some(byte.into()) => 3,
            [b'\\', b'u', a, b, c, d, ..] if hex(&[*a, *b, *c, *d]) == Some(byte.into()) && byte.is_ascii() => 6,
            [b'\\', escaped @ (b'"' | b'\\' | b'/'), ..] if *escaped == byte => 2,
            [b'+', ..] if byte == b' ' => 1,
            [first, ..] if *first == byte => 1,
            _ => return None,
        };
    }
    Some(at)
}

fn hex(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The characters of base64 that `secret` alone decides, for each of the three places at which it may begin in a group of three
/// bytes.
fn base64_cores(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..3).filter_map(move |before: usize| {
        let encoded = STANDARD_NO_PAD.encode([&[0; 2][..before], secret].concat());
        let first = (before * 8).div_ceil(6);
        let last = (before + secret.len()) * 8 / 6;
        Some(encoded.as_bytes().get(first..last)?.to_vec()).filter(|core| core.len() >= BASE64_LEN_MIN)
    })
}

fn url_safe(byte: u8) -> u8 {
    match byte {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    }
}

/// The base64 text that `from..to` is part of: what stands beside it has bits of the secret's first and last byte.
fn base64_run(text: &[u8], from: usize, to: usize) -> Range<usize> {
    let other = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+/-_=".contains(byte);
    let start = text[..from].iter().rposition(other).map_or(0, |at| at + 1);
    let end = text[to..].iter().position(other).map_or(text.len(), |len| to + len);
    start..end
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    use super::*;

    fn redactor(secret: &str) -> Redactor {
        Redactor::new([&Secret::new(secret)])
    }

    const SECRETS: [&str; 5] = ["sk-proj-4f9aQz81", "p@ss/w:rd?\"x\\y", "ключ-пароль", "pass word+1", "hunter2"];

    #[test]
    fn a_secret_is_removed_wherever_it_stands() {
        for secret in SECRETS {
            let redactor = redactor(secret);
            for text in [secret.to_owned(), format!("a {secret} b"), format!("{secret}{secret}"), format!("ü{secret}ü")]
            {
                let clean = redactor.redact(&text);
                assert!(!clean.contains(secret) && clean.contains(REDACTED), "{clean}");
                assert_eq!(redactor.redact_bytes(text.as_bytes()).unwrap(), clean.as_bytes());
            }
        }
        assert_eq!(redactor("hunter2").redact("a hunter2 b"), "a (secret) b");
        assert_eq!(redactor("hunter2").redact("hunter"), "hunter");
        assert_eq!(redactor("hunter2").redact_bytes(b"hunter"), None);
    }

    #[test]
    fn percent_encoded_and_escaped_forms_are_removed() {
        for secret in SECRETS {
            let redactor = redactor(secret);
            let whole = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
            let some = secret.replace('/', "%2f").replace('@', "%40").replace(' ', "+");
            let json = secret.replace('\\', "\\\\").replace('"', "\\\"").replace('/', "\\/").replace('+', "\\u002b");
            for form in [some, json] {
                assert_eq!(redactor.redact(&format!("x={form}&y")), format!("x={REDACTED}&y"), "{form}");
            }
            if secret.bytes().any(|byte| !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte)) {
                assert_eq!(redactor.redact(&format!("x={whole}&y")), format!("x={REDACTED}&y"), "{whole}");
            }
        }
    }

    #[test]
    fn base64_is_removed_whatever_was_encoded_before_and_behind() {
        for secret in SECRETS {
            let redactor = redactor(secret);
            for before in ["", "j", "joe", "joe:", "somebody:"] {
                for behind in ["", "!", "??"] {
                    let plain = format!("{before}{secret}{behind}");
                    for form in [STANDARD.encode(&plain), URL_SAFE_NO_PAD.encode(&plain)] {
                        let text = format!("authorization: Basic {form}\r\n");
                        assert_eq!(redactor.redact(&text), "authorization: Basic (secret)\r\n", "{plain}");
                    }
                }
            }
        }
    }

    #[test]
    fn several_secrets_and_overlaps_leave_nothing() {
        let secrets = ["abcdef", "defghi", "cdefgh"].map(Secret::new);
        assert_eq!(Redactor::new(&secrets).redact("xabcdefghix abcdef"), "x(secret)x (secret)");
    }

    #[test]
    fn short_secrets_and_none_change_nothing() {
        assert!(redactor("abc").is_empty());
        assert_eq!(redactor("").redact("abc"), "abc");
        assert!(!format!("{:?}", redactor("hunter2")).contains("hunter2"));
    }
}
