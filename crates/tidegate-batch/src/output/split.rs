//! A large document as linked files: `NAME.html` with its contents, and in `NAME-pages/1` the parts, a file to search in, and the
//! pictures. `page_set.rs` is the folder on the disk. Pure.

use std::io::{self, Write};

use super::document::{Entry, Explanations, Status};
use super::html::{Frame, Pictures, goto, header, pills, ranges, search};
use super::mark;
use super::markdown::first_heading;
use super::render::{escape, plain_text};

/// A document with more pages is split. A file with 200 pages and their pictures has about 8 MB, which a browser shows within a
/// second; it decodes all of it, so ten times as many pages take ten times as long.
pub(crate) const WHOLE_PAGES_MAX: usize = 200;

/// Pages of a part.
const PART_PAGES: usize = 100;

/// A last part with fewer pages is added to the one before.
const LAST_PART_PAGES_MIN: usize = 25;

/// Pages without an explanation that `NAME.html` links.
const OPEN_PAGES_MAX: usize = 500;

/// The file that has the text of all pages.
pub(crate) const SEARCH: &str = "search.html";

/// Returns `true` if the document is written as linked files.
pub(crate) fn is_split(explanations: &Explanations) -> bool {
    explanations.explanations.len() > WHOLE_PAGES_MAX
}

/// The name of the folder beside `STEM.html`.
pub(crate) fn folder_name(stem: &str) -> String {
    format!("{stem}-pages")
}

/// The name of a picture's file.
pub(crate) fn picture_name(page: u32, format: tidegate_pdf::Format) -> String {
    let ending = match format {
        tidegate_pdf::Format::WebP => "webp",
        _ => "png",
    };
    format!("page-{page}.{ending}")
}

/// Returns `true` for the names of the files that are written for a split document, so that nothing else is ever deleted.
pub(crate) fn is_file_of_a_set(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let part = |name: &str| {
        let (first, last) = name.strip_prefix("pages-")?.strip_suffix(".html")?.split_once('-')?;
        Some(is_number(first) && is_number(last))
    };
    let picture = |name: &str| {
        let (page, ending) = name.strip_prefix("page-")?.split_once('.')?;
        Some(is_number(page) && matches!(ending, "png" | "webp"))
    };
    name == SEARCH || part(name) == Some(true) || picture(name) == Some(true)
}

/// The pages of one file.
pub(crate) struct Part<'a> {
    pub(crate) entries: &'a [Entry],
}

impl Part<'_> {
    fn first(&self) -> u32 {
        self.entries.first().map_or(0, |entry| entry.page)
    }

    fn last(&self) -> u32 {
        self.entries.last().map_or(0, |entry| entry.page)
    }

    pub(crate) fn name(&self) -> String {
        format!("pages-{}-{}.html", self.first(), self.last())
    }

    fn label(&self) -> String {
        format!("{}–{}", self.first(), self.last())
    }
}

/// A split document.
pub(crate) struct Split<'a> {
    explanations: &'a Explanations,
    frame: Frame,
    pub(crate) parts: Vec<Part<'a>>,
    /// What the script needs to know: which pages there are, and in which parts.
    data: String,
    /// `NAME.html` as it stands in a link from a part.
    contents: String,
}

impl<'a> Split<'a> {
    /// `stem` is the name of `STEM.html`.
    pub(crate) fn new(explanations: &'a Explanations, stem: &str) -> Split<'a> {
        let parts = parts(&explanations.explanations);
        let names: Vec<String> = parts.iter().map(|part| format!("{}-{}", part.first(), part.last())).collect();
        let data = format!(" data-pages=\"{}\" data-parts=\"{}\"", ranges(&explanations.explanations), names.join(" "));
        let contents = format!("../../{}.html", percent_encoded(stem));
        Split { explanations, frame: Frame::of(explanations), parts, data, contents }
    }

    /// `NAME.html`, which names the set of its parts.
    pub(crate) fn contents(&self, out: &mut dyn Write, stem: &str, set: u32) -> io::Result<()> {
        let base = format!("{}/{set}/", percent_encoded(&folder_name(stem)));
        let data = format!("{} data-base=\"{base}\"", self.data);
        let entries = &self.explanations.explanations;
        self.frame.begin(out, Pictures::Beside, &self.frame.title, &mark::pages(set), &data)?;
        header(out, &self.frame, self.explanations)?;
        writeln!(out, "<nav lang=\"en\" aria-label=\"Pages\"><div>")?;
        goto(out, entries)?;
        search(out)?;
        writeln!(out, "</div></nav>\n<main>\n<h2 lang=\"en\">Pages</h2>\n<ol class=\"parts\">")?;
        for part in &self.parts {
            let (name, label) = (part.name(), part.label());
            writeln!(out, "<li><a href=\"{base}{name}\"><b lang=\"en\">Pages {label}</b>")?;
            if let Some(topic) = part.entries.iter().find_map(topic) {
                writeln!(out, "<span dir=\"auto\">{}</span>", escape(&topic))?;
            }
            let open = part.entries.iter().filter(|entry| is_open(entry)).count();
            if open > 0 {
                writeln!(out, "<span class=\"bad\" lang=\"en\">{open} without an explanation</span>")?;
            }
            writeln!(out, "</a></li>")?;
        }
        writeln!(out, "</ol>")?;
        self.open_pages(out, &base)?;
        writeln!(out, "</main>")?;
        self.frame.end(out)
    }

    /// Links to the pages that failed or were not reached.
    fn open_pages(&self, out: &mut dyn Write, base: &str) -> io::Result<()> {
        let open = |part: &Part<'a>| {
            let name = part.name();
            part.entries
                .iter()
                .filter(|entry| is_open(entry))
                .map(move |entry| (name.clone(), entry))
                .collect::<Vec<_>>()
        };
        let open: Vec<_> = self.parts.iter().flat_map(open).collect();
        if open.is_empty() {
            return Ok(());
        }
        writeln!(out, "<h2 lang=\"en\">Pages without an explanation</h2>\n<ul class=\"pages\">")?;
        for (name, entry) in open.iter().take(OPEN_PAGES_MAX) {
            let (page, class) = (entry.page, entry.status);
            writeln!(out, "<li><a class=\"{class}\" href=\"{base}{name}#page-{page}\">{page}</a></li>")?;
        }
        writeln!(out, "</ul>")?;
        match open.len().checked_sub(OPEN_PAGES_MAX) {
            Some(more) if more > 0 => writeln!(out, "<p lang=\"en\">… and {more} more</p>"),
            _ => Ok(()),
        }
    }

    /// Everything above the first page of a part.
    pub(crate) fn begin_part(&self, out: &mut dyn Write, at: usize) -> io::Result<()> {
        let part = &self.parts[at];
        let title = format!("Pages {} · {}", part.label(), self.frame.title);
        let data = format!("{} data-base=\"\"", self.data);
        self.frame.begin(out, Pictures::Beside, &title, "", &data)?;
        writeln!(out, "<a class=\"skip\" lang=\"en\" href=\"#page-{}\">Skip to the pages</a>", part.first())?;
        writeln!(
            out,
            "<header class=\"part\">\n<h1 dir=\"auto\"><a href=\"{}\">{}</a></h1>\n<p class=\"about\" lang=\"en\">Pages {} of {}</p>\n\
             </header>\n<nav lang=\"en\" aria-label=\"Pages\"><div>",
            self.contents,
            self.frame.title,
            part.label(),
            self.explanations.pages.max(self.parts.last().map_or(0, Part::last))
        )?;
        self.steps(out, at)?;
        pills(out, part.entries)?;
        goto(out, &self.explanations.explanations)?;
        search(out)?;
        writeln!(out, "</div></nav>\n<main>")
    }

    /// Everything below the last page of a part.
    pub(crate) fn end_part(&self, out: &mut dyn Write, at: usize) -> io::Result<()> {
        writeln!(out, "</main>\n<nav class=\"below\" lang=\"en\" aria-label=\"Parts\"><div>")?;
        self.steps(out, at)?;
        writeln!(out, "</div></nav>")?;
        self.frame.end(out)
    }

    /// Links to the contents and to the parts before and behind.
    fn steps(&self, out: &mut dyn Write, at: usize) -> io::Result<()> {
        writeln!(out, "<div class=\"steps\"><a href=\"{}\">Contents</a>", self.contents)?;
        if let Some(before) = at.checked_sub(1).map(|before| &self.parts[before]) {
            writeln!(out, "<a rel=\"prev\" href=\"{}\">‹ Pages {}</a>", before.name(), before.label())?;
        }
        if let Some(after) = self.parts.get(at + 1) {
            writeln!(out, "<a rel=\"next\" href=\"{}\">Pages {} ›</a>", after.name(), after.label())?;
        }
        writeln!(out, "</div>")
    }

    /// The file to search in. It has the text of all pages, so that only a browser that searches loads it: scripts of a `file:`
    /// cannot read other files.
    pub(crate) fn search(&self, out: &mut dyn Write) -> io::Result<()> {
        let title = format!("Search · {}", self.frame.title);
        self.frame.begin(out, Pictures::Beside, &title, "", &format!("{} data-base=\"\"", self.data))?;
        writeln!(
            out,
            "<header class=\"part\">\n<h1 dir=\"auto\"><a href=\"{contents}\">{}</a></h1>\n</header>\n\
             <nav lang=\"en\" aria-label=\"Search\"><div>\n<div class=\"steps\"><a href=\"{contents}\">Contents</a></div>",
            self.frame.title,
            contents = self.contents
        )?;
        search(out)?;
        goto(out, &self.explanations.explanations)?;
        writeln!(
            out,
            "</div></nav>\n<main>\n<noscript><p class=\"note\" lang=\"en\">Searching the whole document needs JavaScript. Without it, \
             open a part and search in it with the browser (Ctrl-F).</p></noscript>\n\
             <div id=\"found\" lang=\"en\" role=\"status\" hidden></div>\n</main>\n<script type=\"application/json\" id=\"texts\">["
        )?;
        let explained = self.explanations.explanations.iter().filter(|entry| entry.status == Status::Done);
        let texts = explained.filter_map(|entry| Some((entry.page, plain_text(entry.explanation.as_deref()?))));
        for (at, text) in texts.enumerate() {
            // Not even a tag of HTML that ends the element.
            let json = serde_json::to_string(&text).map_err(io::Error::other)?.replace('<', "\\u003c");
            writeln!(out, "{}{json}", if at > 0 { "," } else { "" })?;
        }
        writeln!(out, "]</script>")?;
        self.frame.end(out)
    }
}

/// A page that another run may explain.
fn is_open(entry: &Entry) -> bool {
    matches!(entry.status, Status::Failed | Status::Missing)
}

/// What a part begins with: the first heading in it.
fn topic(entry: &Entry) -> Option<String> {
    let text = entry.explanation.as_deref().filter(|_| entry.status == Status::Done)?;
    first_heading(text).map(|heading| plain_text(heading).trim().to_owned()).filter(|heading| !heading.is_empty())
}

fn parts(entries: &[Entry]) -> Vec<Part<'_>> {
    let last = entries.len() % PART_PAGES;
    let is_scrap = entries.len() > PART_PAGES && (1..LAST_PART_PAGES_MIN).contains(&last);
    let count = entries.len().div_ceil(PART_PAGES).max(1) - usize::from(is_scrap);
    let part = |at: usize| {
        let end = if at + 1 == count { entries.len() } else { (at + 1) * PART_PAGES };
        Part { entries: &entries[at * PART_PAGES..end] }
    };
    (0..count).map(part).collect()
}

/// A file's name as part of a relative address.
pub(super) fn percent_encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(pages: u32) -> Explanations {
        let entry = |page| Entry { page, explanation: Some(format!("### Topic {page}\n\nText.")), ..Entry::default() };
        let explanations = (1..=pages).map(entry).collect();
        Explanations { file: "a b#.pdf".into(), pages, explanations, ..Explanations::default() }
    }

    fn written(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_page_is_in_one_part_and_no_part_is_a_scrap() {
        for (pages, sizes) in [
            (201, vec![100, 101]),
            (224, vec![100, 124]),
            (225, vec![100, 100, 25]),
            (300, vec![100, 100, 100]),
            (2_415, [vec![100; 23], vec![115]].concat()),
        ] {
            let document = document(pages);
            let parts = parts(&document.explanations);
            assert_eq!(parts.iter().map(|part| part.entries.len()).collect::<Vec<_>>(), sizes);
            let all: Vec<u32> = parts.iter().flat_map(|part| part.entries).map(|entry| entry.page).collect();
            assert_eq!(all, (1..=pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn parts_lead_to_each_other_and_to_the_contents() {
        let document = document(250);
        let split = Split::new(&document, "a b#");
        let contents = written(|out| split.contents(out, "a b#", 7));
        for part in &split.parts {
            let link = format!("href=\"a%20b%23-pages/7/{}\"", part.name());
            assert_eq!(contents.matches(&link).count(), 1, "{link}");
        }
        assert!(contents.contains("<span dir=\"auto\">Topic 101</span>") && contents.contains("data-pages=\"1-250\""));
        let part = written(|out| split.begin_part(out, 1));
        assert_eq!(part.matches("href=\"#page-").count(), 101, "its own pages, the first twice");
        assert!(
            part.contains("rel=\"prev\" href=\"pages-1-100.html\"")
                && part.contains("rel=\"next\" href=\"pages-201-250.html\"")
        );
        assert!(part.contains("href=\"../../a%20b%23.html\"") && part.contains("data-parts=\"1-100 101-200 201-250\""));
        let first = written(|out| split.begin_part(out, 0));
        assert!(!first.contains("rel=\"prev\""));
    }

    #[test]
    fn pages_without_an_explanation_are_named_on_the_contents() {
        let mut document = document(230);
        document.explanations[104] = Entry { page: 105, status: Status::Failed, ..Entry::default() };
        let split = Split::new(&document, "a");
        let contents = written(|out| split.contents(out, "a", 1));
        assert!(
            contents.contains("<a class=\"failed\" href=\"a-pages/1/pages-101-200.html#page-105\">105</a>"),
            "{contents}"
        );
        assert!(contents.contains("1 without an explanation"));
    }

    #[test]
    fn what_is_searched_cannot_break_out_of_its_element() {
        let mut document = document(201);
        let text = "**bold** `a</script><script>x` <!-- \n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |";
        document.explanations[0].explanation = Some(text.into());
        let search = written(|out| Split::new(&document, "a").search(out));
        assert_eq!(search.matches("<script").count(), 2, "the texts and the script");
        let json = search.split_once("id=\"texts\">").unwrap().1.split_once("</script>").unwrap().0;
        let texts: Vec<(u32, String)> = serde_json::from_str(json).unwrap();
        assert_eq!(texts.len(), 201);
        assert_eq!(texts[0], (1, "bold a</script><script>x <!-- one two a b 1 2".into()));
    }

    #[test]
    fn only_files_of_a_set_are_known() {
        let picture = |format| picture_name(12, format);
        for name in [
            "search.html",
            "pages-1-100.html",
            &picture(tidegate_pdf::Format::Png),
            &picture(tidegate_pdf::Format::WebP),
        ] {
            assert!(is_file_of_a_set(name), "{name}");
        }
        for name in ["notes.html", "pages-1.html", "pages-a-b.html", "page-.png", "page-1.jpg", "page-1.png.bak", ""] {
            assert!(!is_file_of_a_set(name), "{name}");
        }
    }
}
