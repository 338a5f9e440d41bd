//! JSON text with integers of any size, as Python's producers and handlers have them.
//!
//! A [`Value`] holds integers of 64 bits and makes a float of a longer one. serde_json's feature `arbitrary_precision` would keep
//! them, but it is global: it changes how every crate of a program reads numbers into untagged and flattened types, and allocates
//! for each number. Here a longer integer is an object with one secret key inside of the program (see [`integer`]) and a plain
//! number in every text: arguments and results pass through untouched. Text enters through [`from_slice`] and leaves through
//! [`to_vec`]; until the first long integer comes both are serde_json's own, after one look at every 19th byte.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Error, Map, Value};

use crate::task::TaskId;

/// The fewest digits of an integer that needs more than 64 bits: -9223372036854775809.
const DIGITS_MIN: usize = 19;

/// Python reads and writes integers up to this length by default. Longer ones are left to serde_json, which refuses them.
const DIGITS_MAX: usize = 4_300;

/// How a long integer begins in the text of a [`Value`]. Made when the first one comes; random, so no text from outside has it.
static OPENING: OnceLock<String> = OnceLock::new();
const CLOSING: &str = "\"}";

fn opening() -> &'static str {
    OPENING.get_or_init(|| format!("{{\"tidegate integer {}\":\"", TaskId::new()))
}

/// The key within [`OPENING`].
fn key() -> Option<&'static str> {
    OPENING.get()?.strip_prefix("{\"")?.strip_suffix("\":\"")
}

/// Reads a value of this type from JSON.
///
/// ```
/// use serde_json::Value;
/// use tidegate_worker::json;
///
/// let text = b"[1,1000000000000000000000000000001]";
/// let value: Value = json::from_slice(text).unwrap();
/// assert_eq!(json::integer(&value[1]), Some("1000000000000000000000000000001"));
/// assert_eq!(json::to_vec(&value).unwrap(), text);
/// ```
///
/// # Errors
/// As serde_json's: the text is not JSON, or not this type.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(&hidden(text))
}

/// Writes a value as JSON.
///
/// # Errors
/// As serde_json's: a map with keys that are not strings, or a type that refuses.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_string(value)?;
    Ok(shown(text).into_bytes())
}

/// Writes a value as JSON behind what is there.
pub(crate) fn append<T: Serialize + ?Sized>(output: &mut Vec<u8>, value: &T) -> Result<(), Error> {
    match OPENING.get() {
        None => serde_json::to_writer(output, value),
        Some(_) => to_vec(value).map(|text| output.extend_from_slice(&text)),
    }
}

/// Writes a value as JSON text; as its `to_string`, but long integers are numbers.
pub fn to_string(value: &Value) -> String {
    shown(value.to_string())
}

/// The digits of an integer that needs more than 64 bits, as a [`Value`] from [`from_slice`] holds it.
pub fn integer(value: &Value) -> Option<&str> {
    value.as_object()?.get(key()?)?.as_str()
}

/// Whether an object is an integer that needs more than 64 bits, and so not an object at all.
pub(crate) fn is_integer(object: &Map<String, Value>) -> bool {
    key().is_some_and(|key| object.contains_key(key))
}

/// Turns a value into a type. Long integers fit every type that can be read from their digits, such as `i128`; in a [`Value`] they
/// stay what they are.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    let long = OPENING.get().map(|opening| (value.to_string(), opening));
    let text = long.and_then(|(text, opening)| text.contains(opening).then(|| shown(text)));
    match text {
        None => serde_json::from_value(value),
        Some(text) => serde_json::from_value(value).or_else(|_| serde_json::from_str(&text)),
    }
}

/// Turns a type into a value, its long integers too.
pub(crate) fn to_value<T: Serialize>(value: &T) -> Result<Value, Error> {
    // An `i128` beyond 64 bits has no `Value`, but it has a text.
    serde_json::to_value(value).or_else(|error| from_slice(&serde_json::to_vec(value).map_err(|_| error)?))
}

/// The text with its long integers as objects.
fn hidden(text: &[u8]) -> Cow<'_, [u8]> {
    if !has_long_run(text) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at + 1),
            b'-' | b'0'..=b'9' => {
                let length =
                    text[at..].iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
                let number = &text[at..at + length.count()];
                if is_long(number) {
                    out.extend_from_slice(&text[copied..at]);
                    out.extend_from_slice(opening().as_bytes());
                    out.extend_from_slice(number);
                    out.extend_from_slice(CLOSING.as_bytes());
                    copied = at + number.len();
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// The text with its long integers as numbers.
fn shown(text: String) -> String {
    let Some(opening) = OPENING.get() else { return text };
    if !text.contains(opening.as_str()) {
        return text;
    }
    let mut parts = text.split(opening.as_str());
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_once(CLOSING).unwrap_or((part, ""));
        out.push_str(digits);
        out.push_str(rest);
    }
    out
}

/// Whether there are [`DIGITS_MIN`] digits in a row anywhere. Looks at one byte in [`DIGITS_MIN`].
fn has_long_run(text: &[u8]) -> bool {
    let mut at = DIGITS_MIN - 1;
    while at < text.len() {
        if text[at].is_ascii_digit() {
            let before = text[..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            let behind = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if before + behind >= DIGITS_MIN {
                return true;
            }
            at += behind;
        }
        at += DIGITS_MIN;
    }
    false
}

/// The place behind the quote that ends a string.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Whether this is an integer in JSON that 64 bits do not hold.
fn is_long(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let fits = |text: &str| text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    (DIGITS_MIN..=DIGITS_MAX).contains(&digits.len())
        && digits.iter().all(u8::is_ascii_digit)
        && digits[0] != b'0'
        && !std::str::from_utf8(number).is_ok_and(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travelled(text: &str) -> String {
        to_string(&from_slice(text.as_bytes()).unwrap())
    }

    #[test]
    fn integers_of_any_size_stay_what_they_are() {
        let googol = format!("1{}", "0".repeat(100));
        let longest = "9".repeat(DIGITS_MAX);
        for number in [
            "0",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "-9223372036854775809",
            "18446744073709551615",
            "18446744073709551616",
            "1000000000000000000000000000001",
            "-340282366920938463463374607431768211457",
            &googol,
            &longest,
        ] {
            for text in
                [number.to_owned(), format!("[{number},{number}]"), format!("{{\"a\":[null,{{\"b\":{number}}}]}}")]
            {
                assert_eq!(travelled(&text), text);
            }
        }
    }

    #[test]
    fn what_only_looks_like_a_long_integer_is_left_alone() {
        let digits = "12345678901234567890123";
        for text in [format!("\"{digits}\""), format!("{{\"{digits}\":1}}"), format!("[\"\\\"{digits}\",\"\\\\\",1]")] {
            assert_eq!(travelled(&text), text);
        }
        let float: Value =
            from_slice(format!("[{digits}.5,{digits}e3,1e400]").replace(",1e400", "").as_bytes()).unwrap();
        assert!(float[0].is_f64() && float[1].is_f64());
        for wrong in [
            format!("0{digits}"),
            format!("-{digits}-"),
            "9".repeat(DIGITS_MAX + 1),
            format!("[{digits}"),
            format!("\"{digits}"),
        ] {
            assert!(from_slice::<Value>(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// One byte in 19 is looked at, so every place of a run must be tried.
    #[test]
    fn a_long_run_is_found_wherever_it_is() {
        for length in 1..60 {
            for before in 0..60 {
                for behind in [0, 1, 17, 18, 19, 40] {
                    let text = format!("{}{}{}", "x".repeat(before), "7".repeat(length), "x".repeat(behind));
                    assert_eq!(has_long_run(text.as_bytes()), length >= DIGITS_MIN, "{text}");
                    let text = format!("{}x{text}", "8".repeat(18));
                    assert_eq!(has_long_run(text.as_bytes()), length >= DIGITS_MIN, "{text}");
                }
            }
        }
    }

    #[test]
    fn types_of_128_bits_are_read_and_written() {
        let wide = i128::MAX - 1;
        let value = to_value(&vec![wide, 5]).unwrap();
        assert_eq!(integer(&value[0]), Some(wide.to_string().as_str()));
        assert_eq!(from_value::<Vec<i128>>(value.clone()).unwrap(), [wide, 5]);
        assert!(from_value::<Vec<i64>>(value.clone()).is_err());
        assert_eq!(from_value::<Vec<f64>>(value).unwrap()[0], wide as f64);
    }
}
