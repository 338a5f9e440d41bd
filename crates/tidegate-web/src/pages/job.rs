//! One job: a cell per page, the files, what failed and why, and the actions.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tidegate_batch::jsonl::Which;

use super::jobs::first_page;
use super::new;
use super::parts::{
    amounts, at, bar, failure, job_id, money_text, page_key, page_state, sentence, status, time, tokens_short,
};
use crate::answer::{Answer, Failure};
use crate::format::{self, count, counted, duration, instant};
use crate::jobs::{FailureView, Job, JobError, JobId, JobKind, JobStatus, JobView, Jobs, PageState};
use crate::live::{Source, Values};
use crate::page::Page;
use crate::request::Request;
use crate::site::Site;

/// Rows of the table.
const TABLE_LEN: usize = 500;

/// Pages of a failure that are named; the others are in the grid.
const NAMED_MAX: usize = 24;

pub(super) fn mount(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    site.get("/jobs/{id}", move |request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            let view = jobs.view(id).map_err(failure)?;
            if view.state == JobStatus::Draft {
                return Ok(new::page(&jobs, &view, request.may_act(), None, None).await);
            }
            let failures = jobs.failures(id).await.map_err(failure)?;
            let number = |name: &str| request.query(name).and_then(|text| text.parse::<u32>().ok());
            let table = number("file").map(|file| Part { file, from: number("from").unwrap_or(0) as usize });
            let job = jobs.job(id).map_err(failure)?;
            Ok::<Page, Failure>(page(&view, &job, &failures, table, request.may_act()))
        }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/cancel", move |request: Request| {
        let jobs = here.clone();
        async move {
            let view = jobs.view(job_id(&request)?).map_err(failure)?;
            Ok::<Page, Failure>(Page::new("Cancel a job", cancel(&view)))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/cancel", "cancel a job", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            let drop_calls = request.form().await?.get("finish").is_none();
            request.audit(format!("job {id}{}", if drop_calls { ", requests in flight dropped" } else { "" }));
            jobs.cancel(id, drop_calls).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/delete", move |request: Request| {
        let jobs = here.clone();
        async move {
            let view = jobs.view(job_id(&request)?).map_err(failure)?;
            Ok::<Page, Failure>(Page::new("Delete a job", delete(&view)))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/delete", "delete a job", move |request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            request.audit(format!("job {id}"));
            jobs.delete(id).await.map_err(failure)?;
            Ok(Answer::see_other("/jobs"))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/retry", "retry failed pages", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            let form = request.form().await?;
            let retried = jobs.retry(id, form.get("code")).await.map_err(failure)?;
            let unit = jobs.job(id).map_err(failure)?.kind.unit();
            request.audit(format!("job {id}: {}", counted(retried as u64, unit)));
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/download/{name}", move |request: Request| {
        let jobs = here.clone();
        async move { download(&jobs, &request).await.map_err(failure) }
    });
    let here = jobs.clone();
    site.topics("job", move |id| {
        let (jobs, id) = (here.clone(), id.parse::<JobId>().ok()?);
        jobs.view(id).ok()?;
        let source: Source = Rc::new(move || {
            let (Ok(view), Ok(letters)) = (jobs.view(id), jobs.letters(id)) else { return Values::new() };
            values(&view, letters)
        });
        Some(source)
    });
}

/// `3.html`: the file of that number; `all.zip`, `md.zip`: all files; `results.jsonl`, `errors.jsonl`: those of requests.
pub(super) async fn download(jobs: &Jobs, request: &Request) -> Result<Answer, JobError> {
    use crate::jobs::Format;
    let id = job_id(request).map_err(|_| JobError::NotFound("job"))?;
    let name = request.path("name");
    let (stem, ending) = name.rsplit_once('.').ok_or(JobError::NotFound("file"))?;
    let download = match (stem, ending) {
        ("all", "zip") => jobs.download_all(id, None).await?,
        ("results", "jsonl") => jobs.download_results(id, Which::Answered).await?,
        ("errors", "jsonl") => jobs.download_results(id, Which::Failed).await?,
        (format, "zip") => {
            let format = Format::parse(format).ok_or(JobError::NotFound("format"))?;
            jobs.download_all(id, Some(format)).await?
        }
        (file, format) => {
            let format = Format::parse(format).ok_or(JobError::NotFound("format"))?;
            let file = file.parse().map_err(|_| JobError::NotFound("file"))?;
            jobs.download(id, file, format).await?
        }
    };
    Ok(super::jobs_api::send(download))
}

fn page(view: &JobView, job: &Job, failures: &[FailureView], table: Option<Part>, may_act: bool) -> Page {
    let base = format!("/jobs/{}", view.id);
    let (explain, batch) = (view.kind == JobKind::Explain, view.kind == JobKind::Batch);
    let unit = view.kind.unit();
    let body = html! {
        (page_key(&key(view)))
        div.job-head {
            div.head {
                div {
                    p.crumb { a href="/jobs" { "Jobs" } " / " }
                    h1 { @if view.name.is_empty() { "Job " (view.id) } @else { (view.name) } }
                    p.sub {
                        span data-h="job.state" { (status(view.state)) } " since " (time(&view.changed)) " · "
                        (counted(view.files.len() as u64, "file"))
                        @if !view.model.is_empty() { " · " (view.model) } @else if explain || batch { " · " (view.upstream) }
                        @if explain || batch { " · " a href="#options" { "options" } }
                    }
                }
                div.btns {
                    @if may_act { (actions(view, &base)) }
                    @if let Some(page) = first_page(view) { a.btn href=(page) { "Read" } }
                    @if view.pages.pages > 0 { (downloads(&base, view.kind)) }
                    @if may_act {
                        @match view.state {
                            JobStatus::Running | JobStatus::Blocked | JobStatus::Paused => { a.btn.danger href={ (base) "/cancel" } { "Cancel…" } }
                            _ => { a.btn.quiet href={ (base) "/delete" } { "Delete…" } }
                        }
                    }
                }
            }
            span data-h="job.bar" { (bar(&view.pages, true)) }
            dl.figs.big data-h="job.figs" { (figures(view)) }
            div data-h="job.note" role="status" { (note(view)) }
            @for file in view.files.iter().filter(|file| matches!(file.status, "needs_password" | "wrong_password")) {
                div.note.block {
                    i.c.b aria-hidden="true" {}
                    div { p { b { (file.name) @if file.status == "wrong_password" { ": that password is wrong." } @else { " needs its password again." } } }
                        p { "Passwords are kept in memory alone. Enter it, then resume the job." } }
                    @if may_act {
                        form.btns method="post" action={ (base) "/files/" (file.number) "/password" } {
                            label.vh for={ "pw-" (file.number) } { "Password of " (file.name) }
                            input #{ "pw-" (file.number) } type="password" name="password" autocomplete="off" required;
                            button.btn { "Unlock" }
                        }
                    }
                }
            }
        }
        section.sec aria-labelledby="h-pages" {
            div.sec-head {
                h2 #h-pages { @if batch { "Requests" } @else { "Pages" } }
                span.dim.small { @if batch { "one cell per request, in the order of their lines" } @else { "one cell per page, in file order; a dark edge starts a file" } }
            }
            div.panel.gridbox {
                ul.legend {
                    @for state in PageState::ALL {
                        li { i.c.(state.letter()) aria-hidden="true" {} (state.word()) " " b data-v={ "job.n." (state.letter()) } { (count(view.pages.get(state))) } }
                    }
                }
                (grid(view, job))
                p.readout #readout { span data-readout aria-live="polite" { (counted(view.pages.pages, unit)) " in " (counted(view.files.len() as u64, "file")) }
                    span.end.dim data-keys hidden { kbd { "←" } " " kbd { "→" } " " (unit) " " kbd { "↑" } " " kbd { "↓" } " row " kbd { "F" } " next failed " kbd { "Enter" } " read" } }
                (page_table(view, job, table))
            }
        }
        div.side.sec {
            section aria-labelledby="h-files" {
                div.sec-head { h2 #h-files { "Files" } }
                div.boxed {
                    table.t.files.cards {
                        caption.vh { "Files of this job" }
                        thead { tr { th scope="col" { "State" } th scope="col" { "File" } th.num scope="col" { @if batch { "Requests" } @else { "Pages" } } th.num scope="col" { "In flight" } th.num scope="col" { "Failed" } th scope="col" { span.vh { "Downloads" } } } }
                        tbody {
                            @for file in &view.files {
                                @let key = |part: &str| format!("job.f.{}.{part}", file.number);
                                tr {
                                    td { span data-h=(key("state")) { (file_state(file)) } }
                                    th scope="row" {
                                        @if file.pages.pages > 0 { a.clip href={ (base) "/read/" (file.number) } { (file.name) } }
                                        @else { span.clip { (file.name) } }
                                        @if let Some(reason) = &file.reason { div.small.bad { (sentence(reason)) } }
                                    }
                                    td.num data-l=(if batch { "lines" } else { "pages" }) data-v=(key("pages")) { (file_pages(file)) }
                                    td.num data-l="in flight" data-v=(key("flight")) { (count(file.pages.in_flight)) }
                                    td.num data-l="failed" data-v=(key("failed")) { (count(file.pages.failed)) }
                                    td.small.full { @if file.pages.pages > 0 { div.links {
                                        a href={ (base) "?file=" (file.number) "#page-table" } { "table" }
                                        @if batch {
                                            a href={ (base) "/download/results.jsonl" } { "results" }
                                            a href={ (base) "/download/errors.jsonl" } { "errors" }
                                        } @else {
                                            a href={ (base) "/download/" (file.number) ".html" } { "html" }
                                            a href={ (base) "/download/" (file.number) ".md" } { "md" }
                                            a href={ (base) "/download/" (file.number) ".json" } { "json" }
                                        }
                                    } } }
                                }
                            }
                        }
                    }
                }
            }
            div.stack {
                section aria-labelledby="h-failed" {
                    div.sec-head { h2 #h-failed { "Failed " (unit) "s, by reason" } span.end.dim.small { span data-v="job.n.x" { (count(view.pages.failed)) } " of " (count(view.pages.pages)) } }
                    @if failures.is_empty() { p.sub { "None." } }
                    @else {
                        (reasons(view, failures, &base, may_act))
                        @if is_active(view) { p.cap { "As of " (format::time_now()) "; the grid shows later ones, too." } }
                    }
                }
            }
        }
        @if batch {
            section.sec #options aria-labelledby="h-opt" {
                div.sec-head { h2 #h-opt { "Options" } }
                dl.kv.panel {
                    dt { "Upstream" } dd { (view.upstream) }
                    dt { "Model" } dd { @if view.model.is_empty() { "as each request says" } @else { (view.model) ", whatever the requests say" } }
                }
            }
        }
        @if explain {
            section.sec #options aria-labelledby="h-opt" {
                div.sec-head { h2 #h-opt { "Options" } }
                dl.kv.panel {
                    dt { "Prompt" } dd { (view.options.prompt) }
                    dt { "Upstream" } dd { (view.upstream) @if !view.model.is_empty() { " · " (view.model) } }
                    dt { "Language" } dd { @if view.options.language.is_empty() { "as the page" } @else { (view.options.language) } }
                    dt { "Context" } dd { (counted(view.options.context_pages.into(), "neighbour page")) " on each side" }
                    @if !view.options.pages.is_empty() { dt { "Pages" } dd { (view.options.pages) } }
                    @if let Some(most) = view.options.max_tokens { dt { "Longest answer" } dd { (count(most.into())) " tokens" } }
                }
            }
        }
    };
    let title = if view.name.is_empty() { format!("Job {}", view.id) } else { view.name.clone() };
    Page::new(title, body).live(format!("job/{}", view.id)).script("jobs.js")
}

fn actions(view: &JobView, base: &str) -> Markup {
    let button = |action: &str, word: &str, key: Option<&str>| {
        html! { form.inline method="post" action={ (base) "/" (action) } { button.btn data-key=[key] { (word) @if let Some(key) = key { " " kbd { (key.to_uppercase()) } } } } }
    };
    html! {
        @match view.state {
            JobStatus::Running | JobStatus::Blocked => { (button("pause", "Pause", Some("p"))) }
            JobStatus::Paused | JobStatus::Failed | JobStatus::Cancelled => { (button("resume", "Resume", Some("p"))) }
            _ => {}
        }
        @if view.pages.failed > 0 && view.kind != JobKind::Rebuild {
            form.inline method="post" action={ (base) "/retry" } {
                button.btn { "Retry " span data-v="job.n.x" { (count(view.pages.failed)) } " failed" }
            }
        }
    }
}

fn downloads(base: &str, kind: JobKind) -> Markup {
    html! {
        details.menu {
            summary.btn { "Download" }
            @if kind == JobKind::Batch {
                ul {
                    li { a href={ (base) "/download/results.jsonl" } { "Answers, one per line " small { ".jsonl" } } }
                    li { a href={ (base) "/download/errors.jsonl" } { "Failed requests " small { ".jsonl" } } }
                    li { a href={ (base) "/download/all.zip" } { "Both " small { ".zip" } } }
                }
            } @else { ul {
                li { a href={ (base) "/download/html.zip" } { "Web pages, one per file " small { ".html.zip" } } }
                li { a href={ (base) "/download/md.zip" } { "Markdown " small { ".md.zip" } } }
                li { a href={ (base) "/download/json.zip" } { "JSON " small { ".json.zip" } } }
                li { a href={ (base) "/download/all.zip" } { "Everything " small { ".zip" } } }
            } }
        }
    }
}

fn figures(view: &JobView) -> Markup {
    let now = SystemTime::now();
    let pages = &view.pages;
    let share = if pages.pages == 0 { 0.0 } else { pages.settled() as f64 / pages.pages as f64 * 100.0 };
    html! {
        div { dt { @if view.kind == JobKind::Batch { "Requests" } @else { "Pages" } } dd { (count(pages.settled())) " " span.dim { "/ " (count(pages.pages)) } small { (format!("{share:.1} %")) " · " (count(pages.left())) " left" } } }
        @match (view.state, view.remaining_s) {
            (JobStatus::Running | JobStatus::Blocked, Some(left)) => {
                @let left = Duration::try_from_secs_f64(left).unwrap_or_default();
                div { dt { "Done at" } dd { time { (instant(now + left, now)) } small { "in " (duration(left)) } } }
            }
            (JobStatus::Running | JobStatus::Blocked, None) => { div { dt { "Done at" } dd { "–" small { "not known yet" } } } }
            _ => {}
        }
        div { dt { "Paid" } dd {
            @match view.cost.money {
                Some(money) => { (money_text(money)) small { "at the stated prices" } }
                None => { (tokens_short(view.cost.tokens_in + view.cost.tokens_out)) small { "tokens" } }
            }
        } }
        @if matches!(view.state, JobStatus::Running | JobStatus::Blocked) {
            div { dt { "Rate" } dd { (format!("{:.0}", view.per_minute)) " " span.dim { "/ min" } small { (view.kind.unit()) "s, last minute" } } }
        }
        div { dt { "Tokens" } dd { (tokens_short(view.cost.tokens_in)) small { "in · " (tokens_short(view.cost.tokens_out)) " out" } } }
    }
}

fn note(view: &JobView) -> Markup {
    let now = SystemTime::now();
    html! {
        @if let Some(notice) = &view.notice {
            div.note.fail { i.c.x aria-hidden="true" {} div { p { strong { "Results cannot be written. " } (sentence(notice)) } p { "They are kept and written again every two seconds." } } }
        }
        @match (view.state, &view.blocked_by) {
            (JobStatus::Running | JobStatus::Blocked, Some(blocked)) => {
                div.note.block {
                    i.c.b aria-hidden="true" {}
                    div {
                        p {
                            strong { (counted(view.pages.blocked, view.kind.unit())) " blocked by " (blocked.limit) "." } " "
                            @if let (Some(used), Some(amount)) = (blocked.used, blocked.amount) { (count(used)) " of " (count(amount)) " are used. " }
                            @if let Some(until) = blocked.until_ms {
                                "The next " (view.kind.unit()) " is admitted at " time { strong { (instant(at(until), now)) } } ", in " span.nb data-until=(until) { (duration(at(until).duration_since(now).unwrap_or_default())) } "."
                            }
                        }
                        @if view.state == JobStatus::Blocked { p { "The job goes on by itself. This page may be closed; the server may be restarted." } }
                    }
                }
            }
            (JobStatus::Failed, _) => {
                div.note.fail { i.c.x aria-hidden="true" {} div { p { strong { "The job stopped. " } (sentence(&view.reason)) } p { @if view.pages.left() > 0 { "Answers so far are kept; Resume sends what is missing." } @else { "Every " (view.kind.unit()) " has a result; Retry asks again those that failed." } } } }
            }
            (JobStatus::Paused, _) => {
                div.note { i.c.p aria-hidden="true" {} div { p { @if view.reason.is_empty() { "Paused. Nothing is sent until the job is resumed." } @else { (sentence(&view.reason)) } } } }
            }
            (JobStatus::Cancelled, _) => {
                div.note { i.c.s aria-hidden="true" {} div { p { (counted(view.pages.left(), view.kind.unit())) " not sent. The answers so far are kept; Resume sends what is missing." } } }
            }
            _ => {}
        }
    }
}

/// One cell per page or request; the first of a file, and the first behind a gap, say which file and page they are.
fn grid(view: &JobView, job: &Job) -> Markup {
    let unit = view.kind.unit();
    let called = if view.kind == JobKind::Batch { "line" } else { "page" };
    let label = format!(
        "{} in {}. Arrow keys move from {unit} to {unit}, Enter opens the {unit} in the reader.",
        counted(view.pages.pages, unit),
        counted(view.files.len() as u64, "file")
    );
    html! {
        div.cells data-grid="job.pages" data-called=(called) data-read={ "/jobs/" (view.id) "/read" } tabindex="0" role="group" aria-label=(label) aria-describedby="readout" {
            @for file in &job.files {
                @for (at, (page, state)) in file.pages().enumerate() {
                    @if at == 0 {
                        i.c.(state.letter()).cut data-f=(file.name) data-n=(file.number) data-p=(page) {}
                    } @else if file.numbers[at - 1] + 1 != page {
                        i.c.(state.letter()) data-p=(page) {}
                    } @else { i.c.(state.letter()) {} }
                }
            }
        }
    }
}

/// A part of the table of a file.
#[derive(Clone, Copy)]
struct Part {
    file: u32,
    /// Rows before it.
    from: usize,
}

/// The pages or requests of one file as a table, a part of it at a time: the twin of the grid.
fn page_table(view: &JobView, job: &Job, part: Option<Part>) -> Markup {
    let file = part.and_then(|part| job.file(part.file));
    let file = file.or_else(|| job.files.iter().find(|file| file.pages().next().is_some()));
    let heading = if view.kind == JobKind::Batch { "Requests" } else { "Pages" };
    let column = if view.kind == JobKind::Batch { "Line" } else { "Page" };
    html! {
        @if let Some(file) = file {
            @let all = file.pages().count();
            @let from = part.map_or(0, |part| part.from).min(all.saturating_sub(1) / TABLE_LEN * TABLE_LEN);
            @let link = |from: usize| format!("/jobs/{}?file={}&from={from}#page-table", view.id, file.number);
            details.twin #page-table open[part.is_some()] {
                summary { (heading) " as a table: " (file.name) }
                div.scroll.filelist tabindex="0" role="region" aria-label={ (heading) " of " (file.name) } {
                    table.t {
                        caption.vh { (heading) " of " (file.name) }
                        thead { tr { th scope="col" { (column) } th scope="col" { "State" } } }
                        tbody {
                            @for (page, state) in file.pages().skip(from).take(TABLE_LEN) {
                                tr { th scope="row" { a href={ "/jobs/" (view.id) "/read/" (file.number) "/" (page) } { (page) } } td { (page_state(state)) } }
                            }
                        }
                    }
                }
                @if all > TABLE_LEN {
                    div.pager {
                        span { (count(from as u64 + 1)) "–" (count((from + TABLE_LEN).min(all) as u64)) " of " (count(all as u64)) }
                        span.end {
                            @if from > 0 { a href=(link(from.saturating_sub(TABLE_LEN))) { "Before" } " " }
                            @if from + TABLE_LEN < all { a href=(link(from + TABLE_LEN)) { "After" } }
                        }
                    }
                }
            }
        }
    }
}

fn reasons(view: &JobView, failures: &[FailureView], base: &str, may_act: bool) -> Markup {
    let unit = view.kind.unit();
    let name = |number: u32| view.files.iter().find(|file| file.number == number).map_or("", |file| file.name.as_str());
    html! {
        ul.boxed.reasons {
            @for group in failures {
                li {
                    h3 { span.st { i.c.x aria-hidden="true" {} (counted(group.pages.len() as u64, unit)) } " " code.dim { (group.code) } }
                    p { (sentence(&group.reason)) }
                    p.small.sub {
                        @for (at, (file, page)) in group.pages.iter().take(NAMED_MAX).enumerate() {
                            @let is_first = at == 0 || group.pages[at - 1].0 != *file;
                            @if at > 0 { ", " }
                            a href={ (base) "/read/" (file) "/" (page) } { @if is_first { (name(*file)) @if view.kind == JobKind::Batch { " line" } " " } (page) }
                        }
                        @if group.pages.len() > NAMED_MAX { " and " (count((group.pages.len() - NAMED_MAX) as u64)) " more" }
                    }
                    @if may_act && view.kind != JobKind::Rebuild {
                        form.btns method="post" action={ (base) "/retry" } {
                            input type="hidden" name="code" value=(group.code);
                            @let same: usize = failures.iter().filter(|other| other.code == group.code).map(|other| other.pages.len()).sum();
                            button.btn { "Retry " (counted(same as u64, unit)) @if same > group.pages.len() { " (" (group.code) ")" } }
                        }
                    }
                }
            }
        }
    }
}

fn file_state(file: &crate::jobs::FileView) -> Markup {
    let pages = &file.pages;
    let state = match file.status {
        "broken" => return html! { span.st { i.c.x aria-hidden="true" {} "unreadable" } },
        "needs_password" | "wrong_password" => return html! { span.st { i.c.b aria-hidden="true" {} "locked" } },
        _ if pages.pages == 0 => return html! { span.dim { "–" } },
        _ if pages.in_flight > 0 => PageState::InFlight,
        _ if pages.blocked > 0 => PageState::Blocked,
        _ if pages.left() > 0 => PageState::Waiting,
        _ if pages.failed == pages.pages => PageState::Failed,
        _ if pages.cached > 0 && pages.done == 0 => PageState::Cached,
        _ => PageState::Done,
    };
    page_state(state)
}

fn file_pages(file: &crate::jobs::FileView) -> String {
    if file.pages.pages == 0 {
        "–".into()
    } else {
        format!("{} / {}", count(file.pages.settled()), count(file.pages.pages))
    }
}

fn values(view: &JobView, letters: Vec<u8>) -> Values {
    let mut values = Values::new();
    values.html("job.state", status(view.state));
    values.html("job.bar", bar(&view.pages, true));
    values.html("job.figs", figures(view));
    values.html("job.note", note(view));
    for state in PageState::ALL {
        values.text(format!("job.n.{}", state.letter()), count(view.pages.get(state)));
    }
    for file in &view.files {
        let key = |part: &str| format!("job.f.{}.{part}", file.number);
        values.html(key("state"), file_state(file));
        values.text(key("pages"), file_pages(file));
        values.text(key("flight"), count(file.pages.in_flight));
        values.text(key("failed"), count(file.pages.failed));
    }
    values.cells("job.pages", letters);
    values.text("page.key", key(view));
    values
}

fn is_active(view: &JobView) -> bool {
    matches!(view.state, JobStatus::Running | JobStatus::Blocked)
}

/// Buttons, forms and the list of failures follow from these.
fn key(view: &JobView) -> String {
    let active = is_active(view);
    let locked = view.files.iter().filter(|file| matches!(file.status, "needs_password" | "wrong_password")).count();
    let state = if active { "active" } else { view.state.word() };
    // While pages are sent: once, at the first failure.
    let failed = if active { view.pages.failed.min(1) } else { view.pages.failed };
    format!("{state} {failed} {locked}")
}

fn cancel(view: &JobView) -> Markup {
    html! {
        div.message {
            p.crumb { a href="/jobs" { "Jobs" } " / " a href={ "/jobs/" (view.id) } { (view.name) } " / " }
            h1 { "Cancel " (view.name) "?" }
            p.lede { (counted(view.pages.in_flight, "request")) " in flight; " (counted(view.pages.left() - view.pages.in_flight, view.kind.unit()))
                " are not sent. The " (counted(view.pages.done + view.pages.cached, "answer")) " stay: resuming the job sends only what is missing." }
            form.stack method="post" action={ "/jobs/" (view.id) "/cancel" } {
                p { label.check { input type="checkbox" name="finish" value="1" checked; " Let requests in flight finish; they are paid for" } }
                div.btns { a.btn href={ "/jobs/" (view.id) } autofocus { "Keep running" } button.btn.danger.solid { "Cancel job" } }
            }
        }
    }
}

fn delete(view: &JobView) -> Markup {
    html! {
        div.message {
            p.crumb { a href="/jobs" { "Jobs" } " / " a href={ "/jobs/" (view.id) } { (view.name) } " / " }
            h1 { "Delete " (view.name) "?" }
            p.lede { (counted(view.files.len() as u64, "file")) " and " (counted(view.pages.done + view.pages.cached, "answer"))
                " are deleted from this server. Asking again would be paid for again." }
            form.stack method="post" action={ "/jobs/" (view.id) "/delete" } {
                div.btns { a.btn href={ "/jobs/" (view.id) } autofocus { "Keep" } button.btn.danger.solid { "Delete job" } }
            }
        }
    }
}

/// What a page waits for, in a sentence; also in the reader.
pub(super) fn blocked_sentence(blocked: &crate::jobs::BlockedBy) -> String {
    let now = SystemTime::now();
    let admitted =
        blocked.until_ms.map(|until| format!("; admitted at {}", instant(at(until), now))).unwrap_or_default();
    format!("Blocked by {}{}{admitted}.", blocked.limit, amounts(blocked))
}
