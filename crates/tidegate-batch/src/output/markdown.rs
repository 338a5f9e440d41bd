//! The explanations as Markdown.

use std::fmt::Write as _;

use super::document::{Entry, Explanations, Status};
use super::filter::inert;
use super::mark;
use super::report::grouped;

/// The explanations of a file as one Markdown document. Images and raw HTML are escaped, so that a preview loads and runs
/// nothing; everything else is as the model wrote it.
///
/// ```
/// use tidegate_batch::{Explanations, to_markdown};
///
/// let read = Explanations::read(br#"{"file": "a.pdf", "pages": ["It is about tides."]}"#).unwrap();
/// let text = to_markdown(&read);
/// assert!(text.starts_with("# a.pdf"));
/// assert!(text.contains("## Page 1\n\nIt is about tides."));
/// ```
#[must_use]
pub fn to_markdown(explanations: &Explanations) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# {}\n", heading(explanations));
    let about = about(explanations);
    if !about.is_empty() {
        let _ = writeln!(out, "*{about}*\n");
    }
    for warning in &explanations.warnings {
        let _ = writeln!(out, "> **Note:** {warning}\n");
    }
    for entry in &explanations.explanations {
        let _ = writeln!(out, "## Page {}\n", entry.page);
        match (&entry.explanation, entry.status) {
            (Some(text), Status::Done) => {
                let _ = writeln!(out, "{}\n", lowered(text.trim()));
            }
            _ => {
                let _ = writeln!(out, "> **{}**\n", why_not(entry));
            }
        }
    }
    inert(out) + mark::MARKDOWN + "\n"
}

/// Titles that programs write where none was given.
const NO_TITLES: [&str; 7] =
    ["untitled", "untitled document", "untitled.pdf", "no title", "(anonymous)", "(untitled)", "document"];

/// The document's title, if it says anything.
fn title(explanations: &Explanations) -> Option<&str> {
    let title = explanations.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
    title.filter(|title| !NO_TITLES.contains(&title.to_lowercase().as_str()))
}

/// The title, or else the file's name.
pub(super) fn heading(explanations: &Explanations) -> &str {
    let file = Some(explanations.file.as_str()).filter(|file| !file.is_empty());
    title(explanations).or(file).unwrap_or("Explanations")
}

/// The text of the first heading in an explanation, or of a line in bold that it begins with.
pub(super) fn first_heading(text: &str) -> Option<&str> {
    let bold = text.lines().next().and_then(|line| line.trim().strip_prefix("**")?.strip_suffix("**"));
    let heading = || text.lines().find(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    bold.or_else(heading)
}

/// Who explained what, in a line.
pub(super) fn about(explanations: &Explanations) -> String {
    let mut parts = Vec::new();
    if title(explanations).is_some() && !explanations.file.is_empty() {
        parts.push(explanations.file.clone());
    }
    let (chosen, pages) = (explanations.explanations.len(), explanations.pages as usize);
    parts.push(match (chosen, pages) {
        (chosen, pages) if pages > chosen => format!("{} of {} pages", grouped(chosen as u64), grouped(pages as u64)),
        (1, _) => "1 page".into(),
        (chosen, _) => format!("{} pages", grouped(chosen as u64)),
    });
    parts.extend(explained_by(&explanations.provider, &explanations.model));
    let blank = explanations.explanations.iter().filter(|entry| entry.is_blank()).count();
    for status in [Status::Failed, Status::Skipped, Status::Missing] {
        let count = explanations.count(status) - if status == Status::Skipped { blank } else { 0 };
        if count > 0 {
            parts.push(format!("{} {status}", grouped(count as u64)));
        }
    }
    if blank > 0 {
        parts.push(format!("{} blank", grouped(blank as u64)));
    }
    parts.join(" · ")
}

/// How a document was explained, if it is known.
pub(crate) fn explained_by(provider: &str, model: &str) -> Option<String> {
    match (provider, model) {
        ("", "") => None,
        ("local", _) => Some("key sentences, extracted offline".into()),
        ("", name) | (name, "") => Some(format!("explained by {name}")),
        (provider, model) => Some(format!("explained by {model} ({provider})")),
    }
}

/// Why there is no explanation.
pub(super) fn why_not(entry: &Entry) -> String {
    let reason = entry.error.as_ref().map(|error| error.reason.as_str()).filter(|reason| !reason.is_empty());
    match (entry.status, reason) {
        (Status::Missing, _) => "Not explained yet: the run ended before it was this page's turn.".into(),
        (Status::Skipped, _) if entry.is_blank() => "This page is blank.".into(),
        (Status::Skipped, Some(reason)) => format!("Not explained: {reason}"),
        (_, Some(reason)) => format!("Could not be explained: {reason}"),
        (_, None) => "There is no explanation of this page.".into(),
    }
}

/// An explanation's own headings below the page's.
fn lowered(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().map(|line| {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            fenced = !fenced;
        }
        let hashes = line.bytes().take_while(|&byte| byte == b'#').count();
        let heading = !fenced && (1..=6).contains(&hashes) && line[hashes..].starts_with([' ', '\t']);
        if heading { format!("{}{}", "#".repeat((hashes + 2).min(6)), &line[hashes..]) } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_of_an_explanation_stay_below_the_pages() {
        assert_eq!(lowered("# A\n#B\n```\n# no\n```\n##### C"), "### A\n#B\n```\n# no\n```\n###### C");
    }

    #[test]
    fn a_title_that_says_nothing_gives_way_to_the_files_name() {
        let named = |title: &str| {
            let json = serde_json::json!({"file": "a.pdf", "title": title, "pages": ["x"]});
            let read = Explanations::read(json.to_string().as_bytes()).unwrap();
            (heading(&read).to_owned(), about(&read))
        };
        for title in ["untitled", "Untitled Document", " ", "(anonymous)"] {
            assert_eq!(named(title), ("a.pdf".to_owned(), "1 page".to_owned()), "{title}");
        }
        assert_eq!(named("Tides"), ("Tides".to_owned(), "a.pdf · 1 page".to_owned()));
    }

    #[test]
    fn the_line_below_the_title_says_how_the_pages_were_explained() {
        let line = |provider: &str, model: &str| {
            let read = Explanations { provider: provider.into(), model: model.into(), ..Explanations::default() };
            about(&read)
        };
        assert!(line("openai", "gpt-4o").ends_with("explained by gpt-4o (openai)"));
        assert!(line("local", "extractive").ends_with("key sentences, extracted offline"));
    }

    #[test]
    fn nothing_in_the_document_loads_or_runs() {
        // The reference of one page is defined in another, and an open fence of one is closed in the next.
        let read = Explanations::read(
            br#"{"file": "<b>.pdf", "pages": ["![x][r] <script>x</script>", "[r]: https://evil/?q=1\n\n```\n<i>", "```\n<img src=x>"]}"#,
        );
        let text = to_markdown(&read.unwrap());
        assert!(text.starts_with("# &lt;b>.pdf\n"), "{text}");
        assert!(text.contains("\\![x][r] &lt;script>x&lt;/script>") && text.contains("&lt;img src=x>"), "{text}");
        assert!(text.contains("```\n<i>"), "code stays as it is: {text}");
    }

    #[test]
    fn a_page_without_an_explanation_says_why() {
        let read = Explanations::read(br#"{"schema":"tidegate.explanations/1","file":"a.pdf","pages":3,"explanations":[
            {"page":1,"status":"failed","error":{"code":"declined","reason":"a filter"}},{"page":2,"status":"missing"}]}"#);
        let text = to_markdown(&read.unwrap());
        assert!(text.contains("Could not be explained: a filter"), "{text}");
        assert!(text.contains("2 of 3 pages · 1 failed · 1 missing"), "{text}");
    }
}
