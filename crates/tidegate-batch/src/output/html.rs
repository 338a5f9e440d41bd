//! What the HTML files of a document have in common, and the one file of a document that is not split: each page's picture beside
//! its explanation. Written piece by piece, so that a page's picture is in memory alone.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tidegate_pdf::Format;

use super::document::{Entry, Explanations, SeenAs, Status};
use super::markdown::{about, heading, why_not};
use super::render::{escape, markdown_to_html};
use super::{language, mark};
use crate::question::Finish;

/// A page's picture, to be shown.
pub(crate) struct Picture {
    pub(crate) format: Format,
    pub(crate) bytes: Vec<u8>,
    /// In pixels.
    pub(crate) width: u32,
    /// In pixels.
    pub(crate) height: u32,
}

/// Where a page's picture is.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// In the HTML.
    Inside,
    /// In a file of this name beside it.
    File(&'a str),
}

/// Where the pictures of an HTML file may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pictures {
    Inside,
    Beside,
}

const STYLE: &str = include_str!("page.css");

/// Enlarges pictures, goes to a page, searches. Without it the links work; the forms are not shown.
const SCRIPT: &str = include_str!("page.js");

/// What a browser may load and run: the pictures, the one style sheet and the one script, which are in the page, so that nothing
/// else of the disk is run where the page is a `file:`. Should anything else ever get into the page, it does nothing.
fn policy(pictures: Pictures) -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let source = match pictures {
        Pictures::Inside => "data:",
        Pictures::Beside => "'self'",
    };
    format!(
        "default-src 'none'; img-src {source}; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// Texts that every file of a document repeats, escaped.
pub(super) struct Frame {
    pub(super) title: String,
    /// Of the explanations; the controls are in English.
    pub(super) language: String,
    footer: String,
}

impl Frame {
    pub(super) fn of(explanations: &Explanations) -> Frame {
        let texts = explanations.explanations.iter().filter_map(|entry| entry.explanation.as_deref());
        let file = &explanations.file;
        let source = if file.is_empty() { String::new() } else { format!("{} · ", escape(file)) };
        Frame {
            title: escape(heading(explanations)),
            language: language::of(&explanations.language, texts),
            footer: format!("{source}made with tidegate {}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// A frame of a file in English, which is about no document.
    pub(super) fn english(title: &str) -> Frame {
        let footer = format!("made with tidegate {}", env!("CARGO_PKG_VERSION"));
        Frame { title: escape(title), language: "en".into(), footer }
    }

    /// Everything to the beginning of the body. `mark` is what else is in the head, `data` what the script needs to know.
    pub(super) fn begin(
        &self,
        out: &mut dyn Write,
        pictures: Pictures,
        title: &str,
        mark: &str,
        data: &str,
    ) -> io::Result<()> {
        writeln!(
            out,
            "<!doctype html>\n<html lang=\"{}\">\n<head>\n<meta charset=\"utf-8\">\n{}\n{mark}\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
             <body{data}>",
            self.language,
            mark::HTML,
            policy(pictures),
        )
    }

    pub(super) fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "<footer>{}</footer>\n<script>{SCRIPT}</script>\n</body>\n</html>", self.footer)
    }
}

/// Everything above the first page of a document in one file.
pub(crate) fn begin(out: &mut dyn Write, explanations: &Explanations) -> io::Result<()> {
    let (frame, entries) = (Frame::of(explanations), &explanations.explanations);
    let data = format!(" data-pages=\"{}\"", ranges(entries));
    frame.begin(out, Pictures::Inside, &frame.title, "", &data)?;
    if let Some(first) = entries.first().filter(|_| entries.len() > 1) {
        writeln!(out, "<a class=\"skip\" lang=\"en\" href=\"#page-{}\">Skip to the pages</a>", first.page)?;
    }
    header(out, &frame, explanations)?;
    if entries.len() > 1 {
        writeln!(out, "<nav lang=\"en\" aria-label=\"Pages\"><div>")?;
        pills(out, entries)?;
        goto(out, entries)?;
        search(out)?;
        writeln!(out, "</div></nav>")?;
    }
    writeln!(out, "<main>\n<div id=\"found\" lang=\"en\" role=\"status\" hidden></div>")
}

/// Everything below the last page.
pub(crate) fn end(out: &mut dyn Write, explanations: &Explanations) -> io::Result<()> {
    writeln!(out, "</main>")?;
    Frame::of(explanations).end(out)
}

pub(super) fn header(out: &mut dyn Write, frame: &Frame, explanations: &Explanations) -> io::Result<()> {
    let about = escape(&about(explanations));
    writeln!(out, "<header>\n<h1 dir=\"auto\">{}</h1>\n<p class=\"about\" lang=\"en\">{about}</p>", frame.title)?;
    for warning in &explanations.warnings {
        writeln!(out, "<p class=\"note\" lang=\"en\">{}</p>", escape(warning))?;
    }
    writeln!(out, "</header>")
}

/// A link to each of the pages, which are in this file.
pub(super) fn pills(out: &mut dyn Write, entries: &[Entry]) -> io::Result<()> {
    writeln!(out, "<ol>")?;
    for entry in entries {
        let (page, class) = (entry.page, entry.status);
        writeln!(out, "<li><a class=\"{class}\" href=\"#page-{page}\">{page}</a></li>")?;
    }
    writeln!(out, "</ol>")
}

/// A field for a page's number, of all pages of the document.
pub(super) fn goto(out: &mut dyn Write, entries: &[Entry]) -> io::Result<()> {
    let page = |entry: Option<&Entry>| entry.map_or(1, |entry| entry.page);
    writeln!(
        out,
        "<form class=\"goto\" hidden><label>Go to page <input type=\"number\" required min=\"{}\" max=\"{}\"></label>\
         <button>Go</button></form>",
        page(entries.first()),
        page(entries.last())
    )
}

pub(super) fn search(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<form class=\"search\" role=\"search\" hidden><label>Search <input type=\"search\" required></label>\
         <button>Search</button></form>"
    )
}

/// `1-20 25`: the pages that there are.
pub(super) fn ranges(entries: &[Entry]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for entry in entries {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == entry.page => *last = entry.page,
            _ => ranges.push((entry.page, entry.page)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(" ")
}

/// A page, beside its picture if there is one. `file` is the name of the document.
pub(crate) fn page(
    out: &mut dyn Write,
    file: &str,
    entry: &Entry,
    picture: Option<(&Picture, Place<'_>)>,
) -> io::Result<()> {
    let number = entry.page;
    let class = if picture.is_some() { "" } else { " class=\"plain\"" };
    writeln!(out, "<section id=\"page-{number}\"{class}>")?;
    if let Some((picture, place)) = picture {
        let (width, height) = (picture.width, picture.height);
        let of = if file.is_empty() { String::new() } else { format!(" of {}", escape(file)) };
        let image =
            format!("<img alt=\"Page {number}{of}\" width=\"{width}\" height=\"{height}\" loading=\"lazy\" src=\"");
        let title = "title=\"Enlarge; Escape closes\"";
        match place {
            Place::Inside => {
                write!(out, "<figure lang=\"en\"><button type=\"button\" class=\"zoom\" {title}>{image}")?;
                write!(out, "data:{};base64,", picture.format.media_type())?;
                out.write_all(STANDARD.encode(&picture.bytes).as_bytes())?;
                writeln!(out, "\"></button></figure>")?;
            }
            // Without the script the picture alone is opened.
            Place::File(name) => writeln!(
                out,
                "<figure lang=\"en\"><a class=\"zoom\" {title} href=\"{name}\">{image}{name}\"></a></figure>"
            )?,
        }
    }
    writeln!(out, "<div>\n<h2 class=\"number\" lang=\"en\"><a href=\"#page-{number}\">Page {number}</a></h2>")?;
    match (&entry.explanation, entry.status) {
        (Some(text), Status::Done) => {
            writeln!(out, "<div class=\"said\" dir=\"auto\">\n{}</div>", markdown_to_html(text))?;
        }
        (_, Status::Skipped) => writeln!(out, "<p class=\"note\" lang=\"en\">{}</p>", escape(&why_not(entry)))?,
        _ => writeln!(out, "<p class=\"why\" lang=\"en\">{}</p>", escape(&why_not(entry)))?,
    }
    for note in notes(entry) {
        writeln!(out, "<p class=\"note\" lang=\"en\">{}</p>", escape(&note))?;
    }
    writeln!(out, "</div>\n</section>")
}
fn notes(entry: &Entry) -> Vec<String> {
    let mut notes = Vec::new();
    if entry.finish == Some(Finish::Truncated) {
        notes.push("The explanation was cut off at the greatest length allowed.".to_owned());
    }
    if let (Some(quality), Status::Done) = (&entry.text_quality, entry.status) {
        notes.push(match entry.seen_as {
            Some(SeenAs::Picture) => format!("Explained from its picture: the page's text is {quality}."),
            _ => format!("The page's text is {quality}; the explanation may be wrong."),
        });
    }
    notes.extend(entry.warnings.iter().cloned());
    notes
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_nothing_in_it_breaks_out() {
        let mut explanations =
            Explanations::read(br#"{"file": "<b>\"x\"</b>.pdf", "pages": ["</div><script>x</script>", "two"]}"#)
                .unwrap();
        explanations.warnings.push("<i>odd</i>".into());
        explanations.language = "\" onload=\"x".into();
        let mut out = Vec::new();
        begin(&mut out, &explanations).unwrap();
        let picture = Picture { format: Format::Png, bytes: b"\x89PNG".to_vec(), width: 3, height: 4 };
        page(&mut out, &explanations.file, &explanations.explanations[0], Some((&picture, Place::Inside))).unwrap();
        page(&mut out, &explanations.file, &explanations.explanations[1], None).unwrap();
        end(&mut out, &explanations).unwrap();
        let html = String::from_utf8(out).unwrap();
        assert!(html.contains("<title>&lt;b&gt;&quot;x&quot;&lt;/b&gt;.pdf</title>"), "{html}");
        assert!(!html.contains("<script>x") && !html.contains("<i>odd") && !html.contains("onload"), "{html}");
        assert!(html.contains("data:image/png;base64,iVBORw==") && html.ends_with("</html>\n"));
        assert_eq!(html.matches("<section").count(), html.matches("</section>").count());
        assert_eq!(html.matches("<div").count(), html.matches("</div>").count());
        assert_eq!(html.replace("http-equiv", "").matches("http").count(), 0, "nothing is loaded from anywhere");
    }

    /// What stands between two marks, which occur once.
    fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.split_once(from).unwrap().1.split_once(to).unwrap().0
    }

    #[test]
    fn the_policy_allows_the_pages_own_script_and_style_and_nothing_else() {
        let explanations = Explanations::read(
            br#"{"file": "a.pdf", "pages": ["|a|b|\n|:-|-:|\n|1|2|\n\n- [x] [l](https://x.org) <p style=x onclick=y>", "two"]}"#,
        )
        .unwrap();
        let mut out = Vec::new();
        begin(&mut out, &explanations).unwrap();
        let picture = Picture { format: Format::Png, bytes: b"\x89PNG".to_vec(), width: 3, height: 4 };
        page(&mut out, &explanations.file, &explanations.explanations[0], Some((&picture, Place::Inside))).unwrap();
        end(&mut out, &explanations).unwrap();
        let html = String::from_utf8(out).unwrap();

        let policy = between(&html, "<meta http-equiv=\"Content-Security-Policy\" content=\"", "\">");
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
        let (style, script) =
            (hash(between(&html, "<style>", "</style>")), hash(between(&html, "<script>", "</script>")));
        assert_eq!(
            policy,
            format!(
                "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; \
                 form-action 'none'"
            )
        );
        assert!(html.find("Content-Security-Policy") < html.find("<style>"), "it holds for what comes after it");
        // The hashes cover elements, not attributes.
        for tag in html.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag) {
            let attributes = tag.split_once(' ').map_or("", |(_, attributes)| attributes);
            let handler = attributes.split(' ').any(|attribute| attribute.starts_with("on"));
            assert!(!handler && !attributes.contains("style="), "<{tag}>");
        }
    }
}
