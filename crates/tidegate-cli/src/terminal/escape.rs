//! From text of any origin to text that is safe to show. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns `true` for characters that control the terminal (C0, DEL, C1), reorder the text (bidirectional formatting), or
/// cannot be seen. The invisible ones are Unicode's default ignorable code points without the variation selectors 1 to 16,
/// which emoji need, plus the line and paragraph separators and the interlinear annotation marks.
fn is_hidden(c: char) -> bool {
    match c {
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// Escapes text of several lines: line breaks and tabs stay.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'), shown)
}

/// Escapes text that must stay one line, such as a name: line breaks and tabs are shown as well.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, shown)
}

/// Escapes JSON without a change of its meaning. Such characters can only be in its strings, except for line breaks and
/// tabs between tokens, which stay, and carriage returns between tokens, which become spaces.
pub(crate) fn json(json: &str) -> Cow<'_, str> {
    replaced(
        json,
        |c| is_hidden(c) && !matches!(c, '\n' | '\t'),
        |c, out| match c {
            '\r' => out.push(' '),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(out, "\\u{unit:04x}");
            }),
        },
    )
}

/// Escapes a log line that has been given colours: `ESC [ … m` stays, and the line break at its end.
pub(crate) fn colored(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = line(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        let rest = match part[end..].strip_prefix('m') {
            Some(rest) => {
                let _ = write!(out, "\x1b[{}m", &part[..end]);
                rest
            }
            None => {
                out.push_str("\\x1b[");
                part
            }
        };
        out.push_str(&line(rest));
    }
    out
}

fn replaced(text: &str, bad: impl Fn(char) -> bool, replace: impl Fn(char, &mut String)) -> Cow<'_, str> {
    let Some(first) = text.find(&bad) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if bad(c) {
            replace(c, &mut out);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// `\n`, `\x1b`, `\u{202e}`.
fn shown(c: char, out: &mut String) {
    let _ = match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32),
        c => write!(out, "\\u{{{:x}}}", c as u32),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_shown() {
        assert_eq!(text("a\x1b]0;x\x07\u{9b}2J\x7f\rb"), "a\\x1b]0;x\\x07\\x9b2J\\x7f\\rb");
        assert_eq!(text("one\n\ttwo"), "one\n\ttwo");
        assert_eq!(line("one\n\ttwo"), "one\\n\\ttwo");
    }

    #[test]
    fn what_reorders_or_hides_is_shown() {
        assert_eq!(text("fdp.\u{202e}exe\u{2069}"), "fdp.\\u{202e}exe\\u{2069}");
        assert_eq!(text("a\u{200b}b\u{feff}\u{e0041}\u{3164}"), "a\\u{200b}b\\u{feff}\\u{e0041}\\u{3164}");
    }

    #[test]
    fn ordinary_text_of_any_script_is_left_alone() {
        for ordinary in ["tides.pdf", "潮汐与闸门", "Gezeiten: Flut; ärger", "مد وجزر", "❤\u{fe0f}", "C:\\x1b"]
        {
            assert!(matches!(text(ordinary), Cow::Borrowed(_)), "{ordinary}");
        }
    }

    #[test]
    fn json_has_the_same_meaning_afterwards() {
        let value = serde_json::json!({"a\u{202e}\x7f": ["\x1b\u{9b}\u{e0041}\r\n", "潮"]});
        let pretty = serde_json::to_string_pretty(&value).unwrap().replace('\n', "\r\n");
        let escaped = json(&pretty);
        assert!(escaped.chars().all(|c| c == '\n' || !is_hidden(c)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn a_coloured_line_keeps_its_colours_and_nothing_else() {
        assert_eq!(colored("\x1b[2mnow\x1b[0m \x1b[1;31mbad\x1b[0m"), "\x1b[2mnow\x1b[0m \x1b[1;31mbad\x1b[0m");
        assert_eq!(colored("\x1b[2Jx\x1b]0;y\u{202e}\x1b["), "\\x1b[2Jx\\x1b]0;y\\u{202e}\\x1b[");
    }
}
