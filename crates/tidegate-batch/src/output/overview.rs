//! `index.html` of an output folder: links the documents of the run and its report. Pure, but for [`earlier`].

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::html::{Frame, Pictures};
use super::mark;
use super::render::escape;
use super::report::grouped;
use super::split::percent_encoded;

/// The name of the page in the output folder.
pub(crate) const INDEX: &str = "index.html";

/// Documents of earlier runs that are linked, at most.
const EARLIER_MAX: usize = 1_000;

/// What the page is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overview {
    /// Below the heading: how much is explained, by what, when.
    pub(crate) about: String,
    /// Why the run ended early.
    pub(crate) stopped: Option<String>,
    pub(crate) documents: Vec<Linked>,
    /// `report.json`, if it is there.
    pub(crate) report: Option<&'static str>,
    /// Stems of documents that this run did not write.
    pub(crate) earlier: Vec<String>,
}

/// A document and its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Linked {
    pub(crate) name: String,
    /// Of its outputs, if they were written.
    pub(crate) stem: Option<String>,
    pub(crate) pages: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Blank pages included.
    pub(crate) skipped: u64,
    pub(crate) missing: u64,
    /// Why there is nothing, or not everything.
    pub(crate) error: Option<String>,
}

impl Overview {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let frame = Frame::english("Explanations");
        frame.begin(out, Pictures::Inside, &frame.title, "", "")?;
        writeln!(out, "<header>\n<h1>{}</h1>\n<p class=\"about\">{}</p>", frame.title, escape(&self.about))?;
        if let Some(reason) = &self.stopped {
            writeln!(out, "<p class=\"note\">The run ended early: {}</p>", escape(reason))?;
        }
        writeln!(out, "</header>\n<main>\n<ul class=\"documents\">")?;
        self.documents.iter().try_for_each(|document| document.write(out))?;
        writeln!(out, "</ul>")?;
        if !self.earlier.is_empty() {
            writeln!(out, "<h2>From earlier runs</h2>\n<ul class=\"documents\">")?;
            for stem in &self.earlier {
                writeln!(out, "<li><a href=\"{}.html\" dir=\"auto\">{}</a></li>", percent_encoded(stem), escape(stem))?;
            }
            writeln!(out, "</ul>")?;
        }
        if let Some(report) = self.report {
            writeln!(out, "<p class=\"about\"><a href=\"{report}\">{report}</a>: tokens, limits, failures</p>")?;
        }
        writeln!(out, "</main>")?;
        frame.end(out)
    }
}

impl Linked {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = escape(&self.name);
        match &self.stem {
            Some(stem) => writeln!(out, "<li><a href=\"{}.html\" dir=\"auto\">{name}</a>", percent_encoded(stem))?,
            None => writeln!(out, "<li><span dir=\"auto\">{name}</span>")?,
        }
        if self.pages > 0 {
            let pages = if self.pages == 1 { "page" } else { "pages" };
            write!(out, "<p>{} of {} {pages} explained", grouped(self.done), grouped(self.pages))?;
            for (count, what, class) in [
                (self.failed, "failed", " class=\"bad\""),
                (self.skipped, "skipped", ""),
                (self.missing, "missing", " class=\"bad\""),
            ] {
                if count > 0 {
                    write!(out, " · <b{class}>{} {what}</b>", grouped(count))?;
                }
            }
            if let Some(stem) = &self.stem {
                let stem = percent_encoded(stem);
                write!(out, " · <a href=\"{stem}.md\">Markdown</a> · <a href=\"{stem}.json\">JSON</a>")?;
            }
            writeln!(out, "</p>")?;
        }
        if let Some(error) = &self.error {
            writeln!(out, "<p class=\"bad\">{}</p>", escape(error))?;
        }
        writeln!(out, "</li>")
    }
}

/// The stems of HTML outputs in `folder` that are none of `stems`: of documents that this run did not have, or that had another
/// name. In the order of their names.
pub(crate) fn earlier(folder: &Path, stems: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(stem) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".html")).map(str::to_owned)
        else {
            continue;
        };
        let is_other = stem != "index" && !stem.starts_with('.') && !stems.contains(&stem);
        if is_other && entry.file_type().is_ok_and(|kind| kind.is_file()) && mark::is_document(&path) {
            found.push(stem);
        }
    }
    found.sort();
    found.truncate(EARLIER_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_linked_with_their_counts_and_reasons() {
        let good = Linked {
            name: "a & b.pdf".into(),
            stem: Some("a & b".into()),
            pages: 1_200,
            done: 1_190,
            failed: 7,
            skipped: 3,
            ..Linked::default()
        };
        let bad = Linked { name: "<x>.pdf".into(), error: Some("broken.pdf is <broken>".into()), ..Linked::default() };
        let overview = Overview {
            about: "7 pages".into(),
            stopped: Some("interrupted".into()),
            documents: vec![good, bad],
            report: Some("report.json"),
            earlier: vec!["old#1".into()],
        };
        let mut out = Vec::new();
        overview.write(&mut out).unwrap();
        let html = String::from_utf8(out).unwrap();
        assert!(html.contains("<a href=\"a%20%26%20b.html\" dir=\"auto\">a &amp; b.pdf</a>"), "{html}");
        assert!(
            html.contains("1,190 of 1,200 pages explained · <b class=\"bad\">7 failed</b> · <b>3 skipped</b>"),
            "{html}"
        );
        assert!(
            html.contains("<span dir=\"auto\">&lt;x&gt;.pdf</span>") && html.contains("is &lt;broken&gt;"),
            "{html}"
        );
        assert!(html.contains("href=\"old%231.html\"") && html.contains("href=\"report.json\""), "{html}");
        assert!(html.contains("The run ended early: interrupted"));
    }

    #[test]
    fn documents_of_earlier_runs_are_those_that_tidegate_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        for name in ["old.html", "new.html", "index.html"] {
            write(name, &format!("<!doctype html>\n<html>\n<head>\n{}\n", mark::HTML));
        }
        write("mine.html", "<!doctype html>\n<html>\n<head>\n<title>mine</title>\n");
        write("old.md", "");
        assert_eq!(earlier(folder.path(), &["new".to_owned()]), ["old"]);
    }
}
