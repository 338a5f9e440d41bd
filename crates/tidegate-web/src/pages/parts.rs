//! Parts that the pages of jobs share: marks, bars, figures, and what an error becomes.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};

use crate::answer::Failure;
use crate::format;
use crate::jobs::{BlockedBy, Cost, Counts, JobError, JobId, JobStatus, JobView, PageState, StoreError, UploadError};
use crate::request::Request;

/// An error of a job as an answer.
pub(super) fn failure(error: JobError) -> Failure {
    let status = match &error {
        JobError::NoJob(_) | JobError::NotFound(_) => StatusCode::NOT_FOUND,
        JobError::Illegal(_) => StatusCode::CONFLICT,
        JobError::Upload(
            UploadError::FileTooLarge { .. } | UploadError::TooManyFiles { .. } | UploadError::FieldTooLarge,
        ) => StatusCode::PAYLOAD_TOO_LARGE,
        JobError::Upload(UploadError::NoSpace { .. } | UploadError::Disk(_))
        | JobError::Store(StoreError::Full { .. }) => StatusCode::INSUFFICIENT_STORAGE,
        JobError::Upload(_) | JobError::Invalid(_) | JobError::Unreadable(_) => StatusCode::BAD_REQUEST,
        JobError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        JobError::Disk(error) if error.kind() == std::io::ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        // Their messages name paths of the server, which are for its log.
        JobError::Store(_) | JobError::Disk(_) => return Failure::internal(&error),
    };
    Failure::new(status, sentence(&error.to_string()))
}

/// Begins with a capital letter and ends with a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", characters.as_str())
}

/// What buttons, forms and lists of a page follow from, as of when it was written. A page whose live `page.key` is another one is
/// loaded again.
pub(super) fn page_key(key: &str) -> Markup {
    html! { span hidden data-v="page.key" { (key) } }
}

/// The job of a request.
pub(super) fn job_id(request: &Request) -> Result<JobId, Failure> {
    request.path("id").parse().map_err(|_| Failure::not_found("There is no such job."))
}

/// A number in a request's path.
pub(super) fn number(request: &Request, name: &str) -> Result<u32, Failure> {
    request.path(name).parse().map_err(|_| Failure::not_found("There is no such thing in this job."))
}

/// A mark and its word.
pub(super) fn status(status: JobStatus) -> Markup {
    html! { span.st { i.c.(status.letter()) aria-hidden="true" {} (status.word()) } }
}

/// A page's mark and its word.
pub(super) fn page_state(state: PageState) -> Markup {
    html! { span.st { i.c.(state.letter()) aria-hidden="true" {} (state.word()) } }
}

/// The class of a bar's part.
fn fill(state: PageState) -> &'static str {
    match state {
        PageState::Waiting => "f-track",
        PageState::Blocked => "f-block",
        PageState::InFlight => "f-flight",
        PageState::Done => "f-done",
        PageState::Cached => "f-cached",
        PageState::Failed => "f-fail",
        PageState::Skipped => "f-skip",
    }
}

/// The states from the left of a bar: what has passed the gate, then what is before it.
const BAR: [PageState; 6] = [
    PageState::Done,
    PageState::Cached,
    PageState::Skipped,
    PageState::Failed,
    PageState::InFlight,
    PageState::Blocked,
];

/// What a bar shows, in words.
fn in_words(counts: &Counts) -> String {
    let parts: Vec<String> = BAR
        .into_iter()
        .chain([PageState::Waiting])
        .filter(|state| counts.get(*state) > 0)
        .map(|state| format!("{} {}", format::count(counts.get(state)), state.word()))
        .collect();
    if parts.is_empty() { "nothing yet".into() } else { parts.join(", ") }
}

/// The progress of a job; the post is where the gate is.
pub(super) fn bar(counts: &Counts, big: bool) -> Markup {
    let total = counts.pages.max(1) as f64;
    let (top, height, post) = if big { ("4", "20", ("3", "28")) } else { ("2", "12", ("2", "16")) };
    let mut svg = format!(
        "<svg class=\"tidebar{}\" role=\"img\" aria-label=\"{}\"><rect class=\"f-track\" y=\"{top}\" width=\"100%\" height=\"{height}\"/>",
        if big { " big" } else { "" },
        in_words(counts)
    );
    let (mut x, mut gate) = (0.0, 0.0);
    for state in BAR {
        let width = counts.get(state) as f64 / total * 100.0;
        if width > 0.0 {
            svg += &format!(
                "<rect class=\"{}\" x=\"{x:.2}%\" y=\"{top}\" width=\"{width:.2}%\" height=\"{height}\"/>",
                fill(state)
            );
        }
        x += width;
        if state == PageState::InFlight {
            gate = x;
        }
    }
    if counts.left() > 0 && counts.pages > 0 {
        svg += &format!("<rect class=\"f-ink\" x=\"{gate:.2}%\" width=\"{}\" height=\"{}\"/>", post.0, post.1);
    }
    PreEscaped(svg + "</svg>")
}

/// Money if prices are known, tokens otherwise.
pub(super) fn cost(cost: &Cost) -> Markup {
    // Nothing was asked: a draft, or results of an earlier run.
    if cost.tokens_in + cost.tokens_out == 0 {
        return html! { span.dim { "–" } };
    }
    html! {
        @match cost.money {
            Some(money) => { (money_text(money)) div.small.dim { (tokens_short(cost.tokens_in + cost.tokens_out)) " tokens" } }
            None => { (tokens_short(cost.tokens_in + cost.tokens_out)) div.small.dim { "tokens" } }
        }
    }
}

/// `0.0014`, `2.11`, `< 0.0001`: never nothing for something.
pub(super) fn money_text(money: f64) -> String {
    match money {
        m if m >= 0.095 => format!("{m:.2}"),
        m if m >= 0.000_05 => format!("{m:.4}"),
        m if m > 0.0 => "< 0.0001".into(),
        _ => "0".into(),
    }
}

/// `950`, `12.4k`, `4.29 M`.
pub(super) fn tokens_short(tokens: u64) -> String {
    match tokens as f64 {
        t if t >= 1e6 => format!("{:.2} M", t / 1e6),
        t if t >= 1e4 => format!("{:.1}k", t / 1e3),
        _ => format::count(tokens),
    }
}

/// `4.1 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let (kib, mib, gib) = (1_u64 << 10, 1_u64 << 20, 1_u64 << 30);
    let shown = |unit: u64, name: &str| {
        let amount = format!("{:.1}", bytes as f64 / unit as f64);
        format!("{} {name}", amount.trim_end_matches(".0"))
    };
    match bytes {
        b if b >= gib => shown(gib, "GiB"),
        b if b >= mib => shown(mib, "MiB"),
        b if b >= kib => shown(kib, "KiB"),
        _ => format!("{bytes} bytes"),
    }
}

/// An instant that is stored as RFC 3339.
pub(super) fn time(text: &str) -> String {
    let now = SystemTime::now();
    text.parse::<Timestamp>().map_or_else(|_| "?".into(), |at| format::instant(at.into(), now))
}

/// An instant in milliseconds since 1970.
pub(super) fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// What a job waits for, in one line and its remark.
pub(super) fn why(job: &JobView) -> Markup {
    let now = SystemTime::now();
    html! {
        @match job.state {
            JobStatus::Running | JobStatus::Blocked => {
                @if let Some(blocked) = &job.blocked_by {
                    @if job.state == JobStatus::Blocked { "Blocked by " } @else { "Bound by " }
                    b { (blocked.limit) } (amounts(blocked))
                    @if let Some(until) = blocked.until_ms {
                        div.small.sub { "next " (job.kind.unit()) " admitted " time { (format::instant(at(until), now)) } }
                    }
                } @else { span.sub { "No limit: " (job.kind.unit()) "s are read and sent" } }
            }
            JobStatus::Paused if job.reason.is_empty() => {
                "Paused" div.small.sub { "nothing is sent until it is resumed" }
            }
            JobStatus::Paused => { (sentence(&job.reason)) }
            JobStatus::Failed => { span.bad { (sentence(&job.reason)) } div.small.sub { "Resume sends what is missing." } }
            JobStatus::Done if job.pages.failed > 0 => { span.bad { (format::counted(job.pages.failed, job.kind.unit())) " failed" } }
            JobStatus::Done => { span.sub { (format::counted(job.files.len() as u64, "file")) " ready" } }
            JobStatus::Draft => { span.sub { "Not started" } }
            JobStatus::Cancelled => { span.sub { (format::counted(job.pages.left(), job.kind.unit())) " not sent" } }
        }
    }
}

/// `: 399,241 of 400,000`.
pub(super) fn amounts(blocked: &BlockedBy) -> String {
    match (blocked.used, blocked.amount) {
        (Some(used), Some(amount)) => format!(": {} of {}", format::count(used), format::count(amount)),
        _ => String::new(),
    }
}

/// When a job is done: the instant and the time until then, or what it took.
pub(super) fn finish(job: &JobView) -> Markup {
    let now = SystemTime::now();
    html! {
        @match (job.state, job.remaining_s) {
            (JobStatus::Running | JobStatus::Blocked, Some(left)) => {
                @let left = Duration::try_from_secs_f64(left).unwrap_or_default();
                span.liveval.strong { (format::instant(now + left, now)) }
                div.small.dim { "in " (format::duration(left)) }
            }
            (JobStatus::Running | JobStatus::Blocked, None) => { span.dim { "not known yet" } }
            (JobStatus::Paused, _) => { span.dim { "no finish time" } }
            (JobStatus::Draft, _) => {}
            _ => {
                @if let Some(took) = took(job) { "took " (format::duration(took)) }
            }
        }
    }
}

fn took(job: &JobView) -> Option<Duration> {
    let started: Timestamp = job.started.as_ref()?.parse().ok()?;
    let changed: Timestamp = job.changed.parse().ok()?;
    Duration::try_from(changed.duration_since(started)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_that_was_paid_is_never_shown_as_nothing() {
        let shown = [12.5, 0.1, 0.0014, 0.000_05, 0.000_001, 0.0].map(money_text);
        assert_eq!(shown, ["12.50", "0.10", "0.0014", "0.0001", "< 0.0001", "0"]);
    }
}
