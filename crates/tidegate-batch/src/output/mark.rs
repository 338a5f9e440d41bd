//! Which files are outputs of tidegate's: those may be replaced, others not.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// The last line of every Markdown output. A comment, so that it is not shown.
pub(crate) const MARKDOWN: &str = "<!-- tidegate.explanations/1 -->";

/// In the head of every HTML output.
pub(crate) const HTML: &str = "<meta name=\"generator\" content=\"tidegate\">";

/// In the head of `NAME.html` of a document that is split: which of the sets in `NAME-pages` it links.
const PAGES: &str = "<meta name=\"tidegate-pages\" content=\"";

/// The line that names a set of parts.
pub(crate) fn pages(set: u32) -> String {
    format!("{PAGES}{set}\">\n")
}

/// The set that an HTML output of tidegate's names.
pub(crate) fn set_of(path: &Path) -> Option<u32> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head);
    let (before, after) = head.split_once(PAGES)?;
    // Before anything that comes from a document.
    (before.contains(HTML) && !before.contains("<title>")).then(|| after.split('"').next()?.parse().ok())?
}

/// What the `schema` of every JSON output begins with.
const SCHEMA: &str = "tidegate.";

/// How much of a file's beginning is looked at: its head, with the style sheet.
const HEAD_BYTES: u64 = 32 << 10;

/// How much of its end.
const TAIL_BYTES: u64 = 256;

/// Refuses to replace a file that tidegate has not written. What is not there, or is empty, may be replaced.
pub(crate) fn may_replace(path: &Path) -> io::Result<()> {
    match path.metadata() {
        // Read below only if it is a file: a pipe would be waited for.
        Ok(about) if about.is_file() && (about.len() == 0 || is_ours(path)?) => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file of that name which tidegate did not write; move it away, or choose another folder",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_ours(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    let (head, tail) = (String::from_utf8_lossy(&head), String::from_utf8_lossy(&tail));
    Ok(match path.extension().and_then(|ending| ending.to_str()) {
        Some("json") => is_json(&head),
        Some("md") => tail.trim_end().ends_with(MARKDOWN) || is_unmarked_markdown(&head),
        Some("html") => head.contains(HTML) || is_unmarked_html(&head),
        _ => false,
    })
}

/// Returns `true` for an HTML output.
pub(crate) fn is_document(path: &Path) -> bool {
    is_ours(path).unwrap_or(false)
}

/// The schema is the first thing in it, in version 0.1.0 too.
fn is_json(head: &str) -> bool {
    let after = |text: &'_ str, token: &str| text.trim_start().strip_prefix(token).map(str::to_owned);
    let value = after(head, "{").and_then(|rest| after(&rest, "\"schema\"")).and_then(|rest| after(&rest, ":"));
    value.is_some_and(|value| value.trim_start().strip_prefix('"').is_some_and(|value| value.starts_with(SCHEMA)))
}

/// Version 0.1.0 put no mark into Markdown: a heading, a line in italics with the number of pages, a heading for each page.
fn is_unmarked_markdown(head: &str) -> bool {
    let mut lines = head.lines();
    let begins = lines.next().is_some_and(|line| line.starts_with("# ")) && lines.next() == Some("");
    let about = lines.next().is_some_and(|line| line.starts_with('*') && line.ends_with('*') && line.contains(" page"));
    begins && about && lines.any(|line| line.starts_with("## Page "))
}

/// Nor into HTML: its head is always the same.
fn is_unmarked_html(head: &str) -> bool {
    let scheme = "<meta name=\"color-scheme\" content=\"light dark\">\n<title>";
    head.starts_with("<!doctype html>\n<html") && head.contains(scheme) && head.contains("<p class=\"about\">")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Explanations, html, to_markdown};

    fn refused(name: &str, text: &str) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        may_replace(&path).is_err()
    }

    #[test]
    fn outputs_are_known_and_the_files_of_others_are_not() {
        let explanations = Explanations::read(br#"{"file": "a.pdf", "pages": ["It is about tides."]}"#).unwrap();
        let mut page = Vec::new();
        html::begin(&mut page, &explanations).unwrap();
        html::end(&mut page, &explanations).unwrap();
        assert!(!refused("a.json", &explanations.to_json()));
        assert!(!refused("a.md", &to_markdown(&explanations)));
        assert!(!refused("a.html", &String::from_utf8(page).unwrap()));
        assert!(!refused("a.md", ""), "there is nothing to lose");
        for (name, text) in [
            ("a.json", "{}"),
            ("a.json", "{\"title\": \"thesis\", \"schema\": \"tidegate.explanations/1\"}"),
            ("a.json", "[1]"),
            ("a.md", "# My thesis\n\nIt is about tides.\n"),
            ("a.md", "# My thesis\n\n*a page or two*\n\nIt is about tides.\n"),
            ("a.html", "<!doctype html>\n<html><title>thesis</title></html>\n"),
            ("a.txt", MARKDOWN),
        ] {
            assert!(refused(name, text), "{name}: {text}");
        }
    }

    #[test]
    fn outputs_of_version_0_1_0_are_known() {
        for (name, text) in [
            ("a.json", include_str!("../../../tidegate-cli/tests/files/0.1.0/tides.json")),
            ("a.md", include_str!("../../../tidegate-cli/tests/files/0.1.0/tides.md")),
            ("a.html", include_str!("../../../tidegate-cli/tests/files/0.1.0/tides.html")),
            ("report.json", include_str!("../../../tidegate-cli/tests/files/0.1.0/report.json")),
        ] {
            assert!(!refused(name, text), "{name}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_replaced_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        may_replace(directory.path()).unwrap_err();
        may_replace(&directory.path().join("none.md")).unwrap();
    }
}
