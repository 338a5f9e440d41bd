//! An explanation's Markdown as HTML that can do no harm: what a model or a PDF said is shown, never run, and nothing is
//! loaded from anywhere.

use pulldown_cmark::{CowStr, Event, LinkType, Options, Parser, Tag, TagEnd, html};

use super::filter::without_controls;

/// Markdown as HTML. Raw HTML in it is shown as text; links lead to web pages or mail only; images become their text. It has no
/// style attribute and no script, so a strict content security policy shows all of it.
///
/// ```
/// let html = tidegate_batch::markdown_to_html("*Tides* <script>");
/// assert_eq!(html, "<p><em>Tides</em> &lt;script&gt;</p>\n");
/// ```
#[must_use]
pub fn markdown_to_html(markdown: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut dropped: Vec<bool> = Vec::new();
    let shown = without_controls(markdown);
    let events = Parser::new_ext(&shown, options).filter_map(|event| match event {
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => None,
        Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
            // The page's own headings are above; ids could clash with the page's.
            Some(Event::Start(Tag::Heading { level: lower(level), id: None, classes, attrs }))
        }
        Event::End(TagEnd::Heading(level)) => Some(Event::End(TagEnd::Heading(lower(level)))),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let safe = link_type != LinkType::Email && is_safe(&dest_url);
            dropped.push(!safe);
            safe.then_some(Event::Start(Tag::Link { link_type, dest_url, title, id }))
        }
        Event::End(TagEnd::Link) => (!dropped.pop().unwrap_or(false)).then_some(Event::End(TagEnd::Link)),
        Event::Start(Tag::Image { .. }) => Some(Event::Text(CowStr::Borrowed("["))),
        Event::End(TagEnd::Image) => Some(Event::Text(CowStr::Borrowed("]"))),
        other => Some(other),
    });
    let mut out = String::with_capacity(markdown.len() * 3 / 2);
    html::push_html(&mut out, events);
    // A text cannot contain these tags: its `<` is escaped. The page's policy forbids style attributes.
    for side in ["left", "center", "right"] {
        for cell in ["th", "td"] {
            let styled = format!("<{cell} style=\"text-align: {side}\">");
            if out.contains(&styled) {
                out = out.replace(&styled, &format!("<{cell} class=\"{side}\">"));
            }
        }
    }
    out.replace("<a href=", "<a rel=\"noreferrer noopener\" href=")
}

/// Markdown as one line of words, without its signs.
pub(super) fn plain_text(markdown: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let shown = without_controls(markdown);
    let mut out = String::with_capacity(markdown.len());
    for event in Parser::new_ext(&shown, options) {
        match event {
            Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => out.push_str(&text),
            // Emphasis and links may end within a word.
            Event::Start(Tag::Emphasis | Tag::Strong | Tag::Strikethrough | Tag::Link { .. } | Tag::Image { .. })
            | Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link | TagEnd::Image) => {}
            _ => out.push(' '),
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns `true` if a link may lead there: to a web page or to mail.
pub(super) fn is_safe(url: &str) -> bool {
    let lower = url.trim_start().to_ascii_lowercase();
    ["http://", "https://", "mailto:"].iter().any(|scheme| lower.starts_with(scheme))
}

fn lower(level: pulldown_cmark::HeadingLevel) -> pulldown_cmark::HeadingLevel {
    use pulldown_cmark::HeadingLevel::{H1, H2, H3, H4, H5, H6};
    match level {
        H1 => H3,
        H2 => H4,
        H3 => H5,
        H4 | H5 | H6 => H6,
    }
}

/// Text as it stands in HTML, also between quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // What no HTML may contain.
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_an_explanation_runs_or_loads() {
        let html = markdown_to_html(
            "<script>alert(1)</script> a <img src=x onerror=alert(1)>\n\n<div onclick=x>block</div>\n\n\
             [go](javascript:alert(1)) [ok](https://example.com/?a=1&b=\"2\") ![pic](https://tracker/x.png) \
             [data](data:text/html,x) <javascript:alert(2)>",
        );
        assert!(!html.contains("<script") && !html.contains("<img") && !html.contains("<div"), "{html}");
        assert!(!html.contains("href=\"javascript") && !html.contains("href=\"data"), "{html}");
        assert!(html.contains("href=\"https://example.com/?a=1&amp;b=%222%22\""), "{html}");
        assert!(html.contains("[pic]"), "{html}");
        assert!(html.contains("&lt;script&gt;"), "{html}");
    }

    #[test]
    fn control_characters_are_not_passed_on() {
        assert_eq!(markdown_to_html("a\x1b[2J\u{9b}b"), "<p>a\u{fffd}[2J\u{fffd}b</p>\n");
    }

    #[test]
    fn ordinary_markdown_is_shown_as_such() {
        let html = markdown_to_html("# Title\n\n- *one*\n- **two**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n`x < y`");
        assert!(html.contains("<h3>Title</h3>") && html.contains("<em>one</em>") && html.contains("<table>"), "{html}");
        assert!(html.contains("<code>x &lt; y</code>"), "{html}");
    }

    #[test]
    fn no_attribute_has_styles_and_links_tell_nobody_where_they_were_followed() {
        let html = markdown_to_html(
            "| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | `<td style=\"text-align: left\">` |\n\n[x](https://x.org) <https://y.org>",
        );
        assert!(html.contains("<th class=\"left\">a") && html.contains("<td class=\"center\">2"), "{html}");
        assert!(html.contains("<td class=\"right\"><code>&lt;td style="), "text stays as it is: {html}");
        assert_eq!(html.matches("<a rel=\"noreferrer noopener\" href=\"https://").count(), 2, "{html}");
    }

    #[test]
    fn text_is_escaped_also_between_quotes() {
        assert_eq!(escape("a\"<b>'&\u{1}"), "a&quot;&lt;b&gt;&#39;&amp;\u{fffd}");
    }
}
