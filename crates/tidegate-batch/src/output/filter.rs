//! Markdown that loads and runs nothing when it is previewed. What a model wrote stays as it is, byte for byte, but for
//! control characters, images, raw HTML and links that a web page would not be given: `render.rs` leaves out the same from HTML. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::render::is_safe;

/// How often the text is read again, because escaping one part can make another active.
const ROUNDS_MAX: usize = 16;

/// Returns `markdown` with all of these escaped: images become links to them, raw HTML becomes text, links whose scheme is
/// not one of the web or of mail become text.
///
/// It is meant for a whole document: a reference in one part of it can be defined in another.
pub(super) fn inert(markdown: String) -> String {
    let mut text = match without_controls(&markdown) {
        Cow::Borrowed(_) => markdown,
        Cow::Owned(shown) => shown,
    };
    for _ in 0..ROUNDS_MAX {
        let escapes = escapes(&text);
        if escapes.is_empty() {
            return text;
        }
        text = apply(&text, &escapes);
    }
    // Built to need many rounds. Without these two characters there is no HTML, no image and no link.
    text.replace('<', "&lt;").replace('[', "&#91;")
}

/// Programs differ in what they take for Markdown: plain CommonMark, with tables, or as on GitHub with footnotes and
/// formulas. A part is escaped if any of them would act on it.
fn readings() -> [Options; 3] {
    let tables = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let github = tables | Options::ENABLE_FOOTNOTES | Options::ENABLE_MATH | Options::ENABLE_GFM;
    [Options::empty(), tables, github]
}

/// Where an active part begins, and what its first character is replaced by.
fn escapes(text: &str) -> BTreeMap<usize, &'static str> {
    let mut escapes = BTreeMap::new();
    for options in readings() {
        let mut in_code = false;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            let part = &text[range.clone()];
            match event {
                Event::Start(Tag::CodeBlock(_)) => in_code = true,
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Text(_) if !in_code => {
                    let tags = part.match_indices('<').filter(|(at, _)| is_lenient_tag(&text[range.start + at..]));
                    escapes.extend(tags.map(|(at, _)| (range.start + at, "&lt;")));
                }
                // An entity, as a backslash means nothing in HTML and so may stand before any of them.
                Event::Html(_) | Event::InlineHtml(_) => {
                    escapes.extend(part.match_indices('<').map(|(at, _)| (range.start + at, "&lt;")));
                }
                Event::Start(Tag::Image { .. }) => {
                    escapes.extend(part.find('!').map(|at| (range.start + at, "\\!")));
                }
                Event::Start(Tag::Link { dest_url, .. }) if has_scheme(&dest_url) && !is_safe(&dest_url) => {
                    let begin = part.char_indices().find(|&(_, c)| matches!(c, '[' | '<'));
                    escapes.extend(begin.map(|(at, c)| (range.start + at, if c == '<' { "&lt;" } else { "\\[" })));
                }
                _ => {}
            }
        }
    }
    escapes
}

/// Returns `true` if `text` begins like `<svg/onload=…>`: no tag in CommonMark, but one for browsers and for programs that
/// pass on everything that looks like HTML.
fn is_lenient_tag(text: &str) -> bool {
    let name = text[1..].trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
    text[1..].starts_with(|c: char| c.is_ascii_alphabetic()) && name.starts_with('/') && name.contains('>')
}

/// Returns `text` with control characters replaced, but for line breaks and tabs: printed on a terminal, they would move its
/// cursor or worse.
pub(super) fn without_controls(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    match text.chars().all(is_shown) {
        true => Cow::Borrowed(text),
        false => text.chars().map(|c| if is_shown(c) { c } else { char::REPLACEMENT_CHARACTER }).collect(),
    }
}

/// Returns `true` if the address is not relative.
fn has_scheme(url: &str) -> bool {
    url.find([':', '/', '?', '#']).is_some_and(|at| url.as_bytes()[at] == b':')
}

fn apply(text: &str, escapes: &BTreeMap<usize, &'static str>) -> String {
    let mut out = String::with_capacity(text.len() + 4 * escapes.len());
    let mut done = 0;
    for (&at, escape) in escapes {
        out.push_str(&text[done..at]);
        out.push_str(escape);
        // Each replaces one ASCII character.
        done = at + 1;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(markdown: &str) -> String {
        inert(markdown.to_owned())
    }

    /// What a reader of Markdown would load, run or follow.
    fn active(markdown: &str) -> Vec<String> {
        let mut found = Vec::new();
        for options in readings() {
            for event in Parser::new_ext(markdown, options) {
                match &event {
                    Event::Html(_) | Event::InlineHtml(_) | Event::Start(Tag::HtmlBlock | Tag::Image { .. }) => {
                        found.push(format!("{event:?}"));
                    }
                    Event::Start(Tag::Link { dest_url, .. }) if dest_url.starts_with("javascript:") => {
                        found.push(format!("{event:?}"));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    #[test]
    fn images_become_links_and_html_becomes_text() {
        let cases = [
            ("![x](https://evil/?q=1)", "\\![x](https://evil/?q=1)"),
            ("![x][r]\n\n[r]: https://evil/", "\\![x][r]\n\n[r]: https://evil/"),
            ("![r]\n\n[r]: https://evil/", "\\![r]\n\n[r]: https://evil/"),
            ("[![x](https://evil/a)](https://evil/b)", "[\\![x](https://evil/a)](https://evil/b)"),
            ("![a ![b](https://evil/b)](https://evil/a)", "\\![a \\![b](https://evil/b)](https://evil/a)"),
            ("\\\\![x](https://evil/)", "\\\\\\![x](https://evil/)"),
            ("a <img src=https://evil/> b", "a &lt;img src=https://evil/> b"),
            ("<script>\nx < y\n\n![i](u)\n</script>", "&lt;script>\nx &lt; y\n\n\\![i](u)\n&lt;/script>"),
            ("> - <div onclick=x>\n>   y", "> - &lt;div onclick=x>\n>   y"),
            ("<!-- hidden --> a", "&lt;!-- hidden --> a"),
            ("a <!-- hidden --> b", "a &lt;!-- hidden --> b"),
            ("<?php x ?>", "&lt;?php x ?>"),
            ("| a |\n|---|\n| <br> ![x](u) |", "| a |\n|---|\n| &lt;br> \\![x](u) |"),
            ("[go](javascript:alert(1))", "\\[go](javascript:alert(1))"),
            ("[go](java&Tab;script:alert(1))", "\\[go](java&Tab;script:alert(1))"),
            ("<javascript:alert(1)>", "&lt;javascript:alert(1)>"),
            // A code span for some, an image behind a formula for others.
            ("$`$ ![x](u) `", "$`$ \\![x](u) `"),
        ];
        for (markdown, expected) in cases {
            assert!(!active(markdown).is_empty() || markdown.contains("java"), "the case tests nothing: {markdown}");
            assert_eq!(filtered(markdown), expected);
            assert_eq!(active(expected), [""; 0], "{expected}");
        }
    }

    #[test]
    fn what_only_lenient_readers_take_for_a_tag_becomes_text() {
        assert_eq!(filtered("a <svg/onload=alert(1)> b"), "a &lt;svg/onload=alert(1)> b");
        assert_eq!(filtered("<img/src=x\nonerror=y>"), "&lt;img/src=x\nonerror=y>");
        for same in ["a </ b", "if a<b/c", "`<svg/onload=x>`", "```\n<svg/onload=x>\n```"] {
            assert_eq!(filtered(same), same);
        }
    }

    #[test]
    fn control_characters_are_replaced() {
        let hostile = "a\x1b[2Jb\x07\0\u{9b}31m\x7f\r\n\tc \u{1f30a}";
        assert_eq!(filtered(hostile), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}31m\u{fffd}\r\n\tc \u{1f30a}");
    }

    #[test]
    fn ordinary_answers_stay_as_they_are() {
        let answers = [
            "# Tides\n\nThe sea *rises* and **falls** twice a day, see [NOAA](https://noaa.gov/ \"tides\") or <https://x.org>.\n",
            "| a | b |\n|:--|--:|\n| 1 < 2 | `<td>` |\n\n- one\n  1. two ~~three~~\n- [ ] four\n- [x] five\n",
            "```html\n<img src=\"https://example.com/\">\n![x](https://example.com/)\n<!-- c -->\n```\n\n~~~\n<script>\n~~~\n",
            "Indented:\n\n    <script>alert(1)</script>\n    ![x](y)\n\nInline `<div>` and ``![`x`](y)``.\n",
            "$a < b$ and $$\\int_0^1 x\\,dx > 0$$, \\[ x_1 < y \\], \\( n! [k] \\), 5! [sic], a<b, x <- y, i << 2, <3.\n",
            "> \"Quoted!\" [1] and [^1] &amp; &lt;b&gt; \\<b> \\![x](y)\n\n[^1]: A note with a [link](#page-2).\n",
            "Mail <a@b.org>; [relative](other.md?x=1:2), [here](#a:b).\r\nWindows line\r\n\r\n***\r\nT\u{e9}l\u{e9} \u{1f30a}  \nbreak\n",
            "1. Unclosed `code and [brackets and *stars\n2. <not a tag, 1 < 2 > 0\n",
            "",
        ];
        for answer in answers {
            assert_eq!(filtered(answer), answer);
        }
    }

    #[test]
    fn random_mixtures_have_nothing_active_left() {
        const PIECES: &[&str] = &[
            "![",
            "!",
            "[",
            "]",
            "](",
            ")",
            "](https://evil/?q=",
            "][r]",
            "[r]: https://evil/",
            "[r]: javascript:x",
            "[r]",
            "[^r]",
            "[^r]: ",
            "<",
            ">",
            "<img src=x>",
            "<img alt=\"",
            "\">",
            "<b>",
            "</b>",
            "<div>",
            "</div>",
            "<script>",
            "</script>",
            "<!--",
            "-->",
            "<?",
            "?>",
            "<![CDATA[",
            "]]>",
            "<!X",
            "<https://x.org>",
            "<javascript:x>",
            "(javascript:x)",
            "`",
            "``",
            "```",
            "```\n",
            "~~~\n",
            "$",
            "$$",
            "\\",
            "\\\\",
            "&lt;",
            "\n",
            "\n\n",
            "\r\n",
            "\n    ",
            "\n\t",
            "\n> ",
            "\n- ",
            "\n1. ",
            "\n# ",
            " ",
            "  \n",
            "| a | b |\n|---|---|\n",
            "|",
            "*",
            "**",
            "_",
            "~~",
            "\u{e9}",
            "\u{1f30a}",
            "x",
            "word ",
            "\0",
            "\n===\n",
            "\n---\n",
            "- [ ] ",
            "\"",
            "'",
        ];
        let chosen = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
        let first = chosen.unwrap_or_else(|| fastrand::u64(..));
        for seed in (0..if chosen.is_some() { 1 } else { 5_000 }).map(|n| first.wrapping_add(n)) {
            let mut random = fastrand::Rng::with_seed(seed);
            let count = random.usize(1..40);
            let markdown: String = (0..count).map(|_| PIECES[random.usize(..PIECES.len())]).collect();
            let text = filtered(&markdown);
            assert_eq!(active(&text), [""; 0], "TIDEGATE_SEED={seed}\n{markdown:?}\n{text:?}");
            assert_eq!(filtered(&text), text, "TIDEGATE_SEED={seed}: a second time changes nothing");
        }
    }

    /// The backtick in an attribute begins a code span as soon as its tag is escaped, and that uncovers the next tag: each
    /// round escapes one.
    #[test]
    fn a_text_that_needs_too_many_rounds_loses_all_its_brackets() {
        let chain = |tags: usize| filtered(&format!("[x]: {}", "<a b=\"`\"> ` ".repeat(tags)));
        let (few, many) = (chain(ROUNDS_MAX / 2), chain(500));
        assert_eq!((active(&few), active(&many)), (vec![], vec![]));
        assert!(few.starts_with("[x]: &lt;") && many.starts_with("&#91;x]: &lt;"), "{few}");
        assert!(!many.contains(['<', '[']));
        // These are all escaped in one round.
        assert!(filtered(&format!("[x] {}", "a <!-- ".repeat(5_000))).starts_with("[x] a"));
    }
}
