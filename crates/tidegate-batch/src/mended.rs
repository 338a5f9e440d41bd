//! Answers that are JSON but for faults of the programs that write them: a byte order mark, bytes that are not UTF-8, numbers that
//! no program can read, and halves of surrogate pairs, which a model leaves where its answer ends within a character. Such an
//! answer is paid for; refused, it would be paid for again.

use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr2};

/// Stands for a character that is not there.
const REPLACEMENT: &[u8; 6] = b"\\ufffd";

/// Stands for a number that cannot be read, with spaces behind it.
const NULL: &[u8; 4] = b"null";

/// The digits of the largest number that is read.
const DIGITS_MAX: usize = 308;

/// Returns `body` without a byte order mark, with a replacement character for what is not UTF-8 and for each half of a surrogate
/// pair, and with `null` for each number that is too large.
pub(crate) fn json(body: Bytes) -> Bytes {
    let body = if body.starts_with(b"\xef\xbb\xbf") { body.slice(3..) } else { body };
    let body = match std::str::from_utf8(&body) {
        Ok(_) => body,
        Err(_) => String::from_utf8_lossy(&body).into_owned().into(),
    };
    let (halves, numbers) = (lone_surrogates(&body), endless_numbers(&body));
    if halves.is_empty() && numbers.is_empty() {
        return body;
    }
    let mut mended = body.to_vec();
    for at in halves {
        mended[at..at + REPLACEMENT.len()].copy_from_slice(REPLACEMENT);
    }
    for number in numbers {
        let number = &mut mended[number];
        number.fill(b' ');
        number[..NULL.len()].copy_from_slice(NULL);
    }
    mended.into()
}

/// Where numbers stand that are too large for a float. They have five bytes or more.
fn endless_numbers(body: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < body.len() {
        match body[at] {
            b'"' => at = string_end(body, at + 1),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let end = body[at..].iter().position(|byte| !is_part(byte)).map_or(body.len(), |len| at + len);
                if is_endless(&body[at..end]) {
                    found.push(at..end);
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    found
}

fn is_endless(number: &[u8]) -> bool {
    // An exponent of three digits, or more digits than there can be.
    let may_be = memchr2(b'e', b'E', number).is_some_and(|at| number.len() - at > 3) || number.len() > DIGITS_MAX;
    let value = || std::str::from_utf8(number).ok()?.parse::<f64>().ok();
    may_be && value().is_some_and(f64::is_infinite)
}

/// Returns where the string ends whose text begins at `at`.
fn string_end(body: &[u8], mut at: usize) -> usize {
    while let Some(next) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += next;
        if body[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    body.len()
}

/// Where escapes of surrogates stand that are not pairs.
fn lone_surrogates(body: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = memchr(b'\\', &body[at..]) {
        at += next;
        match surrogate(&body[at..]) {
            Some(Half::High) if matches!(surrogate(&body[at + REPLACEMENT.len()..]), Some(Half::Low)) => {
                at += 2 * REPLACEMENT.len();
            }
            Some(_) => {
                found.push(at);
                at += REPLACEMENT.len();
            }
            // The character behind a backslash belongs to it, also if it is another.
            None => at = (at + 2).min(body.len()),
        }
    }
    found
}

enum Half {
    High,
    Low,
}

/// The half that is written at the beginning of `text`.
fn surrogate(text: &[u8]) -> Option<Half> {
    let digits = text.get(..REPLACEMENT.len())?.strip_prefix(b"\\u")?;
    match u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()? {
        0xd800..=0xdbff => Some(Half::High),
        0xdc00..=0xdfff => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(text: &str) -> String {
        String::from_utf8(json(Bytes::copy_from_slice(text.as_bytes())).to_vec()).unwrap()
    }

    #[test]
    fn what_cannot_be_read_is_replaced_and_nothing_else() {
        for (text, expected) in [
            (r#"{"a":"x\ud83d"}"#, r#"{"a":"x\ufffd"}"#),
            (r#"{"a":"\uDE00\ud83d!"}"#, r#"{"a":"\ufffd\ufffd!"}"#),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, r#"{"a":"\ufffd\ud83d\ude00"}"#),
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (r#"{"a":"\\ud83d \\\ud83d \n\u00e9"}"#, r#"{"a":"\\ud83d \\\ufffd \n\u00e9"}"#),
            (r#"{"a":"\ud8"}"#, r#"{"a":"\ud8"}"#),
            ("\u{feff}{}", "{}"),
            ("\\", "\\"),
            ("", ""),
        ] {
            assert_eq!(mended(text), expected, "{text}");
        }
        for number in ["1e400", "-1.5E+999", &"9".repeat(400), "1e309"] {
            let text = format!(r#"{{"a":{number},"b":["{number}\"1e400",1e-400,{number}]}}"#);
            let null = format!("null{}", " ".repeat(number.len() - 4));
            assert_eq!(mended(&text), format!(r#"{{"a":{null},"b":["{number}\"1e400",1e-400,{null}]}}"#));
        }
        for text in ["{\"a\":[1e308,1.5e-300,-0,12e5,e9999]}", "\"1e999", "\"\\"] {
            assert_eq!(mended(text), text);
        }
        assert_eq!(json(Bytes::from_static(b"{\"a\":\"x\xff\xfey\"}")), "{\"a\":\"x\u{fffd}\u{fffd}y\"}");
        let text = mended(r#"{"a":"\ud83d"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["a"], "\u{fffd}");
    }
}
