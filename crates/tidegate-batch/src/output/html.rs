//! The explanations as one page of HTML that needs nothing else: each page's picture beside what is said about it. Written
//! piece by piece, so that a file of a thousand pages needs no more memory than one page.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tidegate_pdf::Format;

use super::document::{Entry, Explanations, SeenAs, Status};
use super::mark;
use super::markdown::{about, heading, why_not};
use super::render::{escape, markdown_to_html};
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

const STYLE: &str = include_str!("page.css");

/// A picture is seen larger when it is clicked; without scripts it is simply not.
const SCRIPT: &str = "document.addEventListener('click',e=>{const f=e.target.closest('figure');\
    if(f&&e.target.tagName==='IMG')f.classList.toggle('large')});\
    document.addEventListener('keydown',e=>{if(e.key==='Escape')\
    document.querySelectorAll('figure.large').forEach(f=>f.classList.remove('large'))});";

/// What a browser may load and run: the pictures in the page, its one style sheet and its one script. Should anything else
/// ever get into the page, it does nothing.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; img-src data:; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// Everything above the first page.
pub(crate) fn begin(out: &mut dyn Write, explanations: &Explanations) -> io::Result<()> {
    let title = escape(heading(explanations));
    let language = match explanations.language.as_str() {
        code if (2..=8).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') =>
        {
            format!(" lang=\"{code}\"")
        }
        _ => String::new(),
    };
    writeln!(
        out,
        "<!doctype html>\n<html{language}>\n<head>\n<meta charset=\"utf-8\">\n{}\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"about\">{}</p>",
        mark::HTML,
        policy(),
        escape(&about(explanations))
    )?;
    for warning in &explanations.warnings {
        writeln!(out, "<p class=\"note\">{}</p>", escape(warning))?;
    }
    writeln!(out, "</header>")?;
    if explanations.explanations.len() > 1 {
        writeln!(out, "<nav aria-label=\"Pages\"><ol>")?;
        for entry in &explanations.explanations {
            let (page, class) = (entry.page, entry.status);
            writeln!(out, "<li><a class=\"{class}\" href=\"#page-{page}\">{page}</a></li>")?;
        }
        writeln!(out, "</ol></nav>")?;
    }
    writeln!(out, "<main>")
}

/// A page, beside its picture if there is one.
pub(crate) fn page(out: &mut dyn Write, entry: &Entry, picture: Option<&Picture>) -> io::Result<()> {
    let number = entry.page;
    let class = if picture.is_some() { "" } else { " class=\"plain\"" };
    writeln!(out, "<section id=\"page-{number}\"{class}>")?;
    if let Some(picture) = picture {
        let (width, height) = (picture.width, picture.height);
        write!(
            out,
            "<figure><img alt=\"Page {number}\" width=\"{width}\" height=\"{height}\" loading=\"lazy\" src=\"data:{};base64,",
            picture.format.media_type()
        )?;
        out.write_all(STANDARD.encode(&picture.bytes).as_bytes())?;
        writeln!(out, "\"></figure>")?;
    }
    writeln!(out, "<div>\n<p class=\"number\"><a href=\"#page-{number}\">Page {number}</a></p>")?;
    match (&entry.explanation, entry.status) {
        (Some(text), Status::Done) => {
            writeln!(out, "<div class=\"said\" dir=\"auto\">\n{}</div>", markdown_to_html(text))?;
        }
        (_, Status::Skipped) => writeln!(out, "<p class=\"note\">{}</p>", escape(&why_not(entry)))?,
        _ => writeln!(out, "<p class=\"why\">{}</p>", escape(&why_not(entry)))?,
    }
    for note in notes(entry) {
        writeln!(out, "<p class=\"note\">{}</p>", escape(&note))?;
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

/// Everything below the last page.
pub(crate) fn end(out: &mut dyn Write, explanations: &Explanations) -> io::Result<()> {
    let source =
        if explanations.file.is_empty() { String::new() } else { format!("{} · ", escape(&explanations.file)) };
    writeln!(
        out,
        "</main>\n<footer>{source}made with tidegate {}</footer>\n<script>{SCRIPT}</script>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    )
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
        page(&mut out, &explanations.explanations[0], Some(&picture)).unwrap();
        page(&mut out, &explanations.explanations[1], None).unwrap();
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
        page(&mut out, &explanations.explanations[0], Some(&picture)).unwrap();
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
