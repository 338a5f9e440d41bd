//! Removing secrets from text that came from elsewhere: a server's message, an answer that repeats the request's headers.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use memchr::{memchr, memchr_iter, memchr3, memchr3_iter, memmem};

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

/// The longest run of backslashes that is looked at before an escaped character: each level of JSON within JSON doubles it.
const BACKSLASHES_MAX: usize = 16;

/// Removes secrets from text, in the forms in which programs repeat them: as they are, percent-encoded, escaped in JSON (also in
/// a text of JSON that is a text of JSON), in Markdown or as HTML entities, and in base64, also as a part of what was encoded
/// (`user:password`). JSON stays JSON.
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
    /// The secret itself.
    Text(Box<str>),
    /// The part of a base64 text that the secret alone decides.
    Base64(Box<str>),
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
        let text = secret.expose();
        if text.len() >= len_min {
            self.needles.push(Needle::Text(text.into()));
        }
        for core in base64_cores(text.as_bytes()) {
            let url_safe: String = core.chars().map(url_safe).collect();
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

    /// Removes secrets from texts that are read one after the other, also those that are divided among them. Returns `true` if
    /// there were any.
    ///
    /// ```
    /// use tidegate_secret::{Redactor, Secret};
    ///
    /// let mut parts = ["the key is hun".to_owned(), "ter2, and more".to_owned()];
    /// assert!(Redactor::new([&Secret::new("hunter2")]).redact_joined(parts.iter_mut()));
    /// assert_eq!(parts, ["the key is (secret)", ", and more"]);
    /// ```
    pub fn redact_joined<'a>(&self, parts: impl IntoIterator<Item = &'a mut String>) -> bool {
        let parts: Vec<&mut String> = parts.into_iter().collect();
        let joined: String = parts.iter().map(|part| part.as_str()).collect();
        let found = self.find(joined.as_bytes());
        if found.is_empty() {
            return false;
        }
        let mut start = 0;
        for part in parts {
            let end = start + part.len();
            part.clear();
            let mut from = start;
            for range in found.iter().filter(|range| range.start < end && range.end > start) {
                part.push_str(&joined[from..range.start.max(from)]);
                if range.start >= start {
                    part.push_str(REDACTED);
                }
                from = range.end.min(end);
            }
            part.push_str(&joined[from..end]);
            start = end;
        }
        true
    }

    /// Where secrets are, in order and without overlaps.
    fn find(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let may_have_escapes = memchr3(b'%', b'\\', b'+', text).is_some() || memchr(b'&', text).is_some();
        for needle in &self.needles {
            let (secret, is_base64) = match needle {
                Needle::Text(secret) => (secret, false),
                Needle::Base64(core) => (core, true),
            };
            let places: Vec<Range<usize>> = if may_have_escapes {
                let starts = memchr3_iter(secret.as_bytes()[0], b'%', b'\\', text).chain(memchr_iter(b'&', text));
                starts.filter_map(|at| escaped_len(&text[at..], secret).map(|len| at..at + len)).collect()
            } else {
                memmem::find_iter(text, secret.as_bytes()).map(|at| at..at + secret.len()).collect()
            };
            found.extend(places.into_iter().map(|at| {
                let Range { start, end } = if is_base64 { base64_run(text, at.start, at.end) } else { at };
                // Half of an escape must not stay: JSON would be JSON no more.
                start - usize::from(is_escaped(text, start))..end
            }));
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

/// Returns how much of the beginning of `text` is `secret`, if it begins with it. Each character may stand there as it is,
/// percent-encoded, or escaped in JSON.
fn escaped_len(text: &[u8], secret: &str) -> Option<usize> {
    let mut characters = secret.chars();
    let mut ends: Vec<usize> = forms(text, characters.next()?).collect();
    for character in characters {
        // A backslash or a percent sign may be itself or begin an escape: both ways are followed.
        ends = ends.iter().flat_map(|&at| forms(&text[at..], character).map(move |len| at + len)).collect();
        ends.sort_unstable();
        ends.dedup();
    }
    ends.pop()
}

/// Returns how many bytes at the beginning of `text` are `character`, for each form that stands there.
fn forms(text: &[u8], character: char) -> impl Iterator<Item = usize> {
    let mut bytes = [0; 4];
    let bytes = character.encode_utf8(&mut bytes).as_bytes();
    let plain = text.starts_with(bytes).then_some(bytes.len());
    let escaped = match text {
        [b'+', ..] if character == ' ' => Some(1),
        [b'&', ..] => entity_len(text, character),
        [b'%', ..] => text
            .get(..bytes.len() * 3)
            .filter(|escapes| {
                let is_byte =
                    |(escape, byte): (&[u8], &u8)| escape[0] == b'%' && hex(&escape[1..]) == Some((*byte).into());
                escapes.chunks(3).zip(bytes).all(is_byte)
            })
            .map(<[u8]>::len),
        _ => None,
    };
    plain.into_iter().chain(escaped).chain(backslashed(text, character))
}

/// Returns how many bytes at the beginning of `text` are `character` behind backslashes: escaped in JSON or Markdown, with a
/// backslash for each escape or, within a text of JSON, with several.
fn backslashed(text: &[u8], character: char) -> impl Iterator<Item = usize> {
    let run = backslashes(text);
    let escaped = match text.get(run) {
        Some(_) if run == 0 => None,
        Some(b'u') => unicode_len(text, character),
        // JSON escapes three of them so, Markdown any.
        Some(punctuation) => {
            (char::from(*punctuation) == character && character.is_ascii_punctuation()).then_some(run + 1)
        }
        None => None,
    };
    // An even number of them: an escape that follows keeps its own backslash.
    let itself = [2, 4, 8, 16].into_iter().filter(move |len| character == '\\' && *len <= run);
    escaped.into_iter().chain(itself)
}

fn backslashes(text: &[u8]) -> usize {
    text.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count()
}

/// Returns how many bytes at the beginning of `text` are the escapes of JSON for `character`, each `\uXXXX` behind one backslash
/// or more.
fn unicode_len(text: &[u8], character: char) -> Option<usize> {
    let mut len = 0;
    for unit in character.encode_utf16(&mut [0; 2]) {
        let run = backslashes(&text[len..]);
        let escape = text.get(len + run..len + run + 5).filter(|_| run > 0)?;
        if escape[0] != b'u' || hex(&escape[1..]) != Some((*unit).into()) {
            return None;
        }
        len += run + 5;
    }
    Some(len)
}

/// The longest entity that is looked for: `&#x` and `;` around the digits of a character, perhaps with zeros before them.
const ENTITY_BYTES_MAX: usize = 16;

/// Punctuation of keys and URLs that has a name in HTML.
const ENTITIES: [(&str, char); 14] = [
    ("amp", '&'),
    ("ast", '*'),
    ("colon", ':'),
    ("commat", '@'),
    ("equals", '='),
    ("excl", '!'),
    ("gt", '>'),
    ("lowbar", '_'),
    ("UnderBar", '_'),
    ("lt", '<'),
    ("period", '.'),
    ("plus", '+'),
    ("quot", '"'),
    ("sol", '/'),
];

/// Returns the length of the HTML entity for `character` at the beginning of `text`, if that stands there.
fn entity_len(text: &[u8], character: char) -> Option<usize> {
    let end = text.iter().take(ENTITY_BYTES_MAX).position(|&byte| byte == b';')?;
    let name = std::str::from_utf8(&text[1..end]).ok()?;
    let is_it = match name.strip_prefix('#') {
        Some(number) => {
            let (digits, radix) = match number.strip_prefix(['x', 'X']) {
                Some(digits) => (digits, 16),
                None => (number, 10),
            };
            !digits.starts_with('+') && u32::from_str_radix(digits, radix) == Ok(character.into())
        }
        None => ENTITIES.contains(&(name, character)),
    };
    is_it.then_some(end + 1)
}

/// Returns `true` if the byte there is the second of an escape: an odd number of backslashes stands before it.
fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

fn hex(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The characters of base64 that `secret` alone decides, for each of the three places at which it may begin in a group of three
/// bytes.
fn base64_cores(secret: &[u8]) -> impl Iterator<Item = String> {
    (0..3).filter_map(move |before: usize| {
        let encoded = STANDARD_NO_PAD.encode([&[0; 2][..before], secret].concat());
        let first = (before * 8).div_ceil(6);
        let last = (before + secret.len()) * 8 / 6;
        Some(encoded.get(first..last)?.to_owned()).filter(|core| core.len() >= BASE64_LEN_MIN)
    })
}

fn url_safe(character: char) -> char {
    match character {
        '+' => '-',
        '/' => '_',
        other => other,
    }
}

/// The base64 text that `from..to` is part of: what stands beside it has bits of the secret's first and last byte.
fn base64_run(text: &[u8], from: usize, to: usize) -> Range<usize> {
    let other = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+/-_=".contains(byte);
    let start = text[..from].iter().rposition(other).map_or(0, |at| at + 1);
    // The letters of an escape in JSON are no base64.
    let escape = match text.get(start) {
        Some(b'u') => 5,
        _ => 1,
    };
    let start = if is_escaped(text, start) && start + escape <= from { start + escape } else { start };
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
            assert_eq!(redactor.redact(&format!("x={whole}&y")), format!("x={REDACTED}&y"), "{whole}");
        }
    }

    /// A hostile server chooses the form: any character may be escaped, also those that no encoder would.
    #[test]
    fn a_secret_is_removed_in_any_mixture_of_forms() {
        for seed in tidegate_seeds::seeds(200) {
            let mut rng = fastrand::Rng::with_seed(seed);
            for secret in SECRETS.into_iter().chain(["sk-1234567890abcdef", "𝔨𝔢𝔶-with-pairs"]) {
                let redactor = redactor(secret);
                let form: String = secret
                    .chars()
                    .map(|character| match rng.u8(..7) {
                        3 => format!("&#{};", u32::from(character)),
                        4 => format!("&#x{:04X};", u32::from(character)),
                        5 if character.is_ascii_punctuation() => format!("\\{character}"),
                        0 => character.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02x}")).collect(),
                        1 => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
                        2 => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect(),
                        _ => character.to_string(),
                    })
                    .collect();
                let text = format!("{{\"key\": \"{form}\"}}");
                assert_eq!(redactor.redact(&text), "{\"key\": \"(secret)\"}", "{form}");
            }
        }
        let base64 = STANDARD.encode("user:???>>>secret???").replace('/', "\\/");
        let clean = redactor("???>>>secret???").redact(&base64).into_owned();
        assert!(clean.contains(REDACTED), "{base64}: {clean}");
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
    fn json_stays_json_whatever_escape_stands_before_a_secret() {
        let secret = "nvapi-4f9aQz81x4f9aQz81";
        for before in ["\n", "\r", "\t", "\u{8}", "\u{e9}\u{2026}", "\\", "\\\\", "\"", "/", " ", "a"] {
            for repeated in [
                secret.to_owned(),
                secret[1..].to_owned(),
                STANDARD.encode(secret),
                STANDARD.encode(format!("u:{secret}")),
            ] {
                for escape_all in [false, true] {
                    let plain = serde_json::json!({ "text": format!("{before}{repeated}") }).to_string();
                    let text =
                        if escape_all { plain.replace('é', "\\u00e9").replace('…', "\\u2026") } else { plain };
                    let clean = redactor(secret).redact(&text).into_owned();
                    let read: serde_json::Value = serde_json::from_str(&clean).unwrap_or_else(|_| panic!("{clean}"));
                    assert!(!read["text"].as_str().unwrap().contains(secret), "{clean}");
                    if repeated.len() >= secret.len() {
                        assert!(clean.contains(REDACTED), "{text}: {clean}");
                    }
                }
            }
        }
    }

    /// A text of JSON, quoted in a text of JSON, and so on: each level doubles the backslashes.
    #[test]
    fn escapes_within_escapes_are_removed_and_json_stays_json() {
        for secret in SECRETS.into_iter().chain(["sk-Very+Secret/Key=1234", "\u{1d528}\u{1d522}y-with-pairs"]) {
            let redactor = redactor(secret);
            let units: Vec<String> = secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let some = serde_json::json!(secret).to_string().replace('+', "\\u002b").replace('/', "\\/");
            for form in [units.concat(), some.trim_matches('"').to_owned()] {
                let mut text = format!("key {form} end");
                for level in 0..4 {
                    let clean = redactor.redact(&text).into_owned();
                    let (from, to) = (text.find("key ").unwrap() + 4, text.find(" end").unwrap());
                    assert_eq!(clean, format!("{}{REDACTED}{}", &text[..from], &text[to..]), "{level} {text}");
                    text = serde_json::json!(text).to_string();
                }
            }
        }
    }

    #[test]
    fn a_secret_is_removed_wherever_it_is_divided() {
        let secret = "ключ-sk-4711";
        let redactor = redactor(secret);
        let whole = format!("a {secret} b {secret}");
        let places: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
        for &first in &places {
            for &second in places.iter().filter(|second| **second >= first) {
                let mut parts = [&whole[..first], &whole[first..second], &whole[second..]].map(str::to_owned);
                assert!(redactor.redact_joined(parts.iter_mut()));
                assert_eq!(parts.concat(), "a (secret) b (secret)", "{first} {second}");
            }
        }
        let mut clean = ["a".to_owned(), "b".to_owned()];
        assert!(!redactor.redact_joined(clean.iter_mut()));
        assert_eq!(clean, ["a", "b"]);
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
