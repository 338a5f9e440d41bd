//! Writing JSON. Traces only need numbers and strings, so the loop does without a library for it; a test reads what is
//! written with a real one.

use std::fmt::Write as _;

/// Appends `text` as a JSON string that may also stand inside of an HTML `<script>`.
pub(super) fn string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            // `<` could open a tag; the two separators end a line for older readers of JavaScript.
            '<' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                let _ = write!(out, "\\u{:04x}", character as u32);
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// The same, as a value of its own.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    string(&mut out, text);
    out
}

/// Appends the items with commas between them, in brackets.
pub(super) fn array<I>(out: &mut String, items: impl IntoIterator<Item = I>, mut write: impl FnMut(&mut String, I)) {
    out.push('[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push_str(",\n");
        }
        write(out, item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_survive_whatever_is_in_them() {
        let text = "a \"b\" \\ \n\t\0 </script> \u{2028} µ 😀";
        let back: String = serde_json::from_str(&quoted(text)).unwrap();
        assert_eq!(back, text);
        assert!(!quoted(text).contains('<'));
    }
}
