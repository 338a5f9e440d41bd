//! Answers that are JSON but for two faults of the programs that write them: a byte order mark, and halves of surrogate pairs,
//! which a model leaves where its answer ends within a character.

use bytes::Bytes;

/// Stands for a character that is not there.
const REPLACEMENT: &[u8; 6] = b"\\ufffd";

/// Returns `body` without a byte order mark, and with a replacement character for each half of a surrogate pair.
pub(crate) fn json(body: Bytes) -> Bytes {
    let body = if body.starts_with(b"\xef\xbb\xbf") { body.slice(3..) } else { body };
    let halves = lone_surrogates(&body);
    if halves.is_empty() {
        return body;
    }
    let mut mended = body.to_vec();
    for at in halves {
        mended[at..at + REPLACEMENT.len()].copy_from_slice(REPLACEMENT);
    }
    mended.into()
}

/// Where escapes of surrogates stand that are not pairs.
fn lone_surrogates(body: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = body[at..].iter().position(|&byte| byte == b'\\') {
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
    fn halves_of_pairs_are_replaced_and_nothing_else() {
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
        let text = mended(r#"{"a":"\ud83d"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["a"], "\u{fffd}");
    }
}
