//! The report of a run: how much, how long, what held it up, what failed.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_limit::Snapshot;
use tidegate_pdf::Confinement;

use crate::found::FoundReport;
use crate::question::Usage;

/// The format's name and version.
pub const REPORT_SCHEMA: &str = "tidegate.report/1";

/// What a run has done; written to `report.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: String,
    /// When it began, in UTC.
    pub began: String,
    /// How long it took.
    pub seconds: f64,
    /// Who explained.
    pub provider: String,
    /// Which model.
    pub model: String,
    /// Whether it was stopped before its end, and why.
    pub stopped: Option<String>,
    /// The counts.
    pub totals: Totals,
    /// Each limit.
    pub limits: Vec<LimitReport>,
    /// The limits that were found, beyond those that were stated.
    #[serde(default)]
    pub found: Option<FoundReport>,
    /// The most requests under way at once.
    pub peak_in_flight: u64,
    /// Each file, in the order they were given.
    pub files: Vec<FileReport>,
    /// The failures, those for one reason together.
    pub failures: Vec<FailureGroup>,
    /// What is not as it should be with pages, such as fonts that cannot be used; equal ones of a file together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<WarningGroup>,
    /// The page that links the documents, `index.html` in the output folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// How the processes that read the PDFs were confined; `None` if no PDF was opened.
    pub confinement: Option<Confinement>,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Files that were given.
    pub files: u64,
    /// Of those, could not be read at all.
    pub files_failed: u64,
    /// Files that a stopped run had not counted the pages of; they are in no other count of pages.
    #[serde(default)]
    pub files_uncounted: u64,
    /// Pages that were chosen.
    pub pages: u64,
    /// Pages with an explanation, kept ones included.
    pub done: u64,
    /// Of those, from an earlier run: nothing was paid for them.
    pub kept: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Pages that were not sent: blank, or without a text that could be read.
    pub skipped: u64,
    /// Of those, blank.
    #[serde(default)]
    pub blank: u64,
    /// Pages that were not reached, or whose answer could not be kept.
    pub missing: u64,
    /// Of those, answered and paid for, but the answer could not be written to the disk.
    #[serde(default)]
    pub unkept: u64,
    /// Requests sent, repeated ones included.
    pub requests: u64,
    /// Of those, refused by a limit.
    pub throttled: u64,
    /// What this run paid.
    pub tokens: Usage,
}

/// How far a limit held the run up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LimitReport {
    /// Its name.
    pub name: String,
    /// What it lets through. Of the row for page concurrency: the highest of all files that were opened.
    pub amount: u64,
    /// Requests that had to wait for it; each counts for one limit.
    #[serde(default)]
    pub blocked: u64,
    /// The time during which somebody waited for it first of all.
    pub blocked_seconds: f64,
}

/// What became of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Where it is.
    pub path: String,
    /// Its pages, as far as they were chosen.
    pub pages: u64,
    /// Of those, with an explanation.
    pub done: u64,
    /// Of those, from an earlier run.
    pub kept: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Pages that were not sent: blank, or without a text that could be read.
    pub skipped: u64,
    /// Of those, blank.
    #[serde(default)]
    pub blank: u64,
    /// Pages that were not reached, or whose answer could not be kept.
    pub missing: u64,
    /// What was written.
    pub outputs: Vec<String>,
    /// Why it could not be read, or its outputs not be written.
    pub error: Option<String>,
}

/// Pages that failed for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailureGroup {
    /// The file.
    pub file: String,
    /// The pages; none if it is the file itself.
    pub pages: Vec<u32>,
    /// For programs.
    pub code: String,
    /// For people.
    pub reason: String,
}

/// Pages with the same warning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WarningGroup {
    /// The file.
    pub file: String,
    /// The pages.
    pub pages: Vec<u32>,
    /// What is not as it should be.
    pub warning: String,
}

impl Report {
    /// Whether everything that was asked for is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let totals = &self.totals;
        let failed = totals.failed + totals.missing + totals.files_failed;
        failed == 0 && self.stopped.is_none() && self.files.iter().all(|file| file.error.is_none())
    }

    /// Sets what the limits let through and held back; `page_concurrency` is the highest of all files, `pictures` the row of
    /// those that have a limit of their own.
    pub(crate) fn set_limits(&mut self, stats: &Snapshot, page_concurrency: u32, pictures: Option<LimitReport>) {
        self.peak_in_flight = stats.peak;
        self.found = stats.found.map(FoundReport::from);
        self.limits = stats
            .limits
            .iter()
            .map(|limit| LimitReport {
                name: limit.name.clone(),
                amount: limit.amount,
                blocked: limit.blocked,
                blocked_seconds: limit.blocked_for.as_secs_f64(),
            })
            .collect();
        self.limits.push(LimitReport {
            name: "pages of a file".into(),
            amount: page_concurrency.into(),
            blocked: stats.blocked_by_scopes,
            blocked_seconds: stats.blocked_by_scopes_for.as_secs_f64(),
        });
        self.limits.extend(pictures);
    }

    /// For people, a handful of lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let totals = &self.totals;
        let took = brief(Duration::from_secs_f64(self.seconds.max(0.0)));
        let _ = write!(out, "{} of {} pages explained", totals.done, totals.pages);
        if totals.kept > 0 {
            let _ = write!(out, " ({} from earlier runs)", totals.kept);
        }
        let _ = write!(out, ", {} {}, {took}", totals.files, if totals.files == 1 { "file" } else { "files" });
        if totals.files_uncounted > 0 {
            let _ = write!(out, " ({} of them not counted)", totals.files_uncounted);
        }
        if totals.tokens.total() > 0 {
            let (input, output) = (totals.tokens.input_tokens, totals.tokens.output_tokens);
            let _ =
                write!(out, ", {} tokens ({} in, {} out)", grouped(input + output), grouped(input), grouped(output));
        }
        if totals.requests > 0 {
            let _ = write!(out, ", {} requests", grouped(totals.requests));
        }
        if totals.throttled > 0 {
            let _ = write!(out, " ({} refused by a limit)", totals.throttled);
        }
        let _ = writeln!(out);
        let mut held: Vec<&LimitReport> = self.limits.iter().filter(|limit| limit.blocked_seconds >= 0.05).collect();
        held.sort_by(|a, b| b.blocked_seconds.total_cmp(&a.blocked_seconds));
        if !held.is_empty() {
            let each = held.iter().map(|limit| {
                if limit.name == "found" {
                    return format!("the server for {}", brief(Duration::from_secs_f64(limit.blocked_seconds)));
                }
                let amount = if limit.amount > 0 { format!(" {}", grouped(limit.amount)) } else { String::new() };
                format!("{}{amount} for {}", limit.name, brief(Duration::from_secs_f64(limit.blocked_seconds)))
            });
            let _ = writeln!(out, "held up by: {}", each.collect::<Vec<_>>().join(", "));
        }
        if let Some(found) = self.found.as_ref().filter(|found| found.in_flight.is_some() || found.per_second.is_some())
        {
            let _ = writeln!(out, "found: {}", found.text);
        }
        if totals.blank > 0 {
            let pages = if totals.blank == 1 { "page is" } else { "pages are" };
            let _ = writeln!(
                out,
                "{} {pages} blank; nothing was sent for {}",
                grouped(totals.blank),
                if totals.blank == 1 { "it" } else { "them" }
            );
        }
        if totals.unkept > 0 {
            let (answers, pages) = if totals.unkept == 1 { ("answer", "its page") } else { ("answers", "their pages") };
            let _ = writeln!(
                out,
                "{} {answers} could not be written to the disk; the next run asks about {pages} again",
                grouped(totals.unkept)
            );
        }
        let unread = totals.skipped.saturating_sub(totals.blank);
        if unread > 0 {
            let (pages, them) = if unread == 1 { ("page has", "it") } else { ("pages have", "them") };
            let advice = format!("a provider that takes pictures could explain {them}");
            let _ = writeln!(out, "{unread} {pages} no text that can be read; {advice}");
        }
        for group in self.warnings.iter().take(WARNINGS_SHOWN) {
            let _ = writeln!(out, "warning: {}, {}: {}", group.file, page_list(&group.pages), group.warning);
        }
        if let Some(more) = self.warnings.len().checked_sub(WARNINGS_SHOWN + 1) {
            let _ = writeln!(out, "… and {} more warnings; all of them are in the report", more + 1);
        }
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            let pages =
                if failure.pages.is_empty() { String::new() } else { format!(", {}", page_list(&failure.pages)) };
            let _ = writeln!(out, "failed: {}{pages}: {}", failure.file, failure.reason);
        }
        if let Some(more) = self.failures.len().checked_sub(FAILURES_SHOWN + 1) {
            let _ = writeln!(out, "… and {} more; all of them are in the report", more + 1);
        }
        if let Some(weak) = self.confinement.as_ref().filter(|confinement| !confinement.is_complete()) {
            let _ = writeln!(out, "the PDF reader was not fully confined: {weak}");
        }
        out
    }
}

const FAILURES_SHOWN: usize = 12;
const WARNINGS_SHOWN: usize = 4;

/// `page 3`, `pages 3-5, 9`.
fn page_list(pages: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &page in pages {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == page => *last = page,
            _ => ranges.push((page, page)),
        }
    }
    let shown = ranges.iter().take(8).map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    let more = if ranges.len() > 8 { ", …" } else { "" };
    let word = if pages.len() == 1 { "page" } else { "pages" };
    format!("{word} {}{more}", shown.collect::<Vec<_>>().join(", "))
}

/// `0.42 s`, `12.3 s`, `3 min 5 s`, `2 h 10 min`.
pub(crate) fn brief(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{:.2} s", time.as_secs_f64()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `12,345`
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_briefly() {
        assert_eq!(page_list(&[4]), "page 4");
        assert_eq!(page_list(&[1, 2, 3, 7, 9, 10]), "pages 1-3, 7, 9-10");
        assert_eq!(page_list(&(0..20).map(|n| n * 2 + 1).collect::<Vec<_>>()), "pages 1, 3, 5, 7, 9, 11, 13, 15, …");
    }

    #[test]
    fn times_and_numbers_are_readable() {
        assert_eq!(
            [0, 59, 60, 7_800].map(|s| brief(Duration::from_secs(s))),
            ["0.00 s", "59.0 s", "1 min 0 s", "2 h 10 min"]
        );
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_reader_that_is_not_confined_is_reported() {
        let confinement =
            r#"{ "landlock": { "missing": { "why": "this kernel does not have it" } }, "seccomp": "full" }"#;
        let report = Report { confinement: Some(serde_json::from_str(confinement).unwrap()), ..Report::default() };
        let line =
            "the PDF reader was not fully confined: Landlock missing (this kernel does not have it), seccomp full";
        assert_eq!(report.to_text().lines().last(), Some(line));
        assert!(report.is_complete());
    }

    #[test]
    fn each_limit_has_the_number_of_requests_that_waited_for_it() {
        use std::pin::pin;
        use std::task::{Context, Waker};
        use tidegate_limit::{Cost, Gate, Limit};

        let gate = Gate::builder().limit(Limit::concurrency("global", 3)).build().unwrap();
        let (small, large) = (gate.scope("small.pdf", 1), gate.scope("large.pdf", 9));
        let mut cx = Context::from_waker(Waker::noop());
        let _in_flight = [&small, &large, &large].map(|file| gate.try_enter(file, Cost::request()).unwrap());
        let mut waiting = [&small, &large, &large, &large].map(|file| Box::pin(gate.enter(file, Cost::request())));
        for entry in &mut waiting {
            assert!(pin!(entry).poll(&mut cx).is_pending());
        }
        let mut report = Report::default();
        report.set_limits(&gate.stats(), 9, None);
        let rows: Vec<_> =
            report.limits.iter().map(|limit| (limit.name.as_str(), limit.amount, limit.blocked)).collect();
        assert_eq!(rows, [("global", 3, 3), ("pages of a file", 9, 1)]);
    }

    #[test]
    fn a_failure_makes_a_run_incomplete() {
        let mut report = Report::default();
        assert!(report.is_complete());
        report.totals.skipped = 1;
        assert!(report.is_complete(), "what cannot be read is marked, and no failure");
        report.totals.failed = 1;
        assert!(!report.is_complete());
        let stopped = Report { stopped: Some("interrupted".into()), ..Report::default() };
        assert!(!stopped.is_complete(), "there may be files that nobody has opened");
    }
}
