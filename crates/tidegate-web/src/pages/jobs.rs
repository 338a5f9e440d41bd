//! The list of jobs, and where the section is put together.

use maud::{Markup, html};

use super::parts::{self, bar, cost, failure, finish, job_id, status, why};
use super::{job, jobs_api, new, reader};
use crate::answer::{Answer, Failure};
use crate::format::{count, counted};
use crate::jobs::{JobStatus, JobView, Jobs};
use crate::live::Values;
use crate::page::Page;
use crate::request::Request;
use crate::site::{NavEntry, Site, StripCell};

/// Jobs on one page of the list.
const PAGE_LEN: usize = 100;

/// Adds jobs to a site: the pages, their actions, and the API.
pub(crate) fn mount(site: &mut Site, jobs: &Jobs) {
    site.nav(NavEntry { group: "Documents", title: "Jobs", href: "/jobs", count: Some("nav.jobs") });
    site.nav(NavEntry { group: "Documents", title: "New job", href: "/jobs/new", count: None });
    let counted = jobs.clone();
    site.sys(move |values| values.text("nav.jobs", counted.running().to_string()));
    let strip = jobs.clone();
    site.strip(move || StripCell {
        class: "w-m",
        content: html! { dt { "Jobs running" } dd { span data-v="nav.jobs" { (strip.running()) } " " small { "of " (strip.ids().len()) } } },
    });
    let listed = jobs.clone();
    site.get("/jobs", move |request: Request| {
        let page = list(&listed, &request);
        async move { Ok::<Page, Failure>(page) }
    });
    let live = jobs.clone();
    site.topic("jobs", move || values(&live.views()));
    action(site, jobs, "/jobs/{id}/pause", "pause a job", |jobs, id| async move { jobs.pause(id).await });
    action(site, jobs, "/jobs/{id}/resume", "resume a job", |jobs, id| async move { jobs.resume(id).await });
    new::mount(site, jobs);
    job::mount(site, jobs);
    reader::mount(site, jobs);
    jobs_api::mount(site, jobs);
}

/// Adds an action that takes nothing but its job, and leads back to where its button was.
fn action<F>(
    site: &mut Site,
    jobs: &Jobs,
    path: &str,
    name: &'static str,
    act: impl Fn(Jobs, crate::jobs::JobId) -> F + Clone + 'static,
) where
    F: Future<Output = Result<(), crate::jobs::JobError>> + 'static,
{
    let jobs = jobs.clone();
    site.post(path, name, move |mut request: Request| {
        let (jobs, act) = (jobs.clone(), act.clone());
        async move {
            let id = job_id(&request)?;
            request.audit(format!("job {id}"));
            let form = request.form().await?;
            act(jobs, id).await.map_err(failure)?;
            let back = if form.get("back") == Some("list") { "/jobs".to_owned() } else { format!("/jobs/{id}") };
            Ok(Answer::see_other(&back))
        }
    });
}

/// Which jobs are shown.
fn matches(show: &str, job: &JobView) -> bool {
    match show {
        "active" => matches!(job.state, JobStatus::Running | JobStatus::Blocked | JobStatus::Paused | JobStatus::Draft),
        "done" => matches!(job.state, JobStatus::Done | JobStatus::Cancelled),
        "failed" => job.state == JobStatus::Failed || job.pages.failed > 0,
        _ => true,
    }
}

fn list(jobs: &Jobs, request: &Request) -> Page {
    let all = jobs.views();
    if all.is_empty() {
        return Page::new("Jobs", empty(jobs, request.may_act())).script("jobs.js");
    }
    let show = request.query("show").unwrap_or_default();
    let sought = request.query("q").unwrap_or_default();
    let from: usize = request.query("from").and_then(|from| from.parse().ok()).unwrap_or(0);
    let lower = sought.trim().to_lowercase();
    let is_sought = |job: &&JobView| {
        lower.is_empty()
            || job.name.to_lowercase().contains(&lower)
            || job.files.iter().any(|file| file.name.to_lowercase().contains(&lower))
    };
    let found: Vec<&JobView> = all.iter().filter(|job| matches(&show, job)).filter(is_sought).collect();
    let shown = found.iter().skip(from).take(PAGE_LEN);
    let choices = [("", "All"), ("active", "Active"), ("done", "Done"), ("failed", "Failed")];
    let link = |show: &str, from: usize| {
        let query: String =
            percent_encoding::utf8_percent_encode(sought.trim(), percent_encoding::NON_ALPHANUMERIC).collect();
        format!("/jobs?show={show}&q={query}&from={from}")
    };
    let body = html! {
        (parts::page_key(&key(&all)))
        div.stack {
            div.head {
                div { h1 { "Jobs" } }
                div.btns {
                    form.find role="search" action="/jobs" {
                        @if !show.is_empty() { input type="hidden" name="show" value=(show); }
                        label.vh for="jq" { "Find a job or a file" }
                        input #jq type="search" name="q" value=(sought) placeholder="Find a job or a file" data-key="/";
                    }
                    div.seg role="group" aria-label="Which jobs" {
                        @for (value, word) in choices {
                            @let many = all.iter().filter(|job| matches(value, job)).count();
                            a href=(link(value, 0)) aria-current=[(value == show).then_some("true")] { (word) " " (many) }
                        }
                    }
                }
            }
            div.boxed {
                @if found.is_empty() {
                    p.sub.empty { "No job matches. " a href="/jobs" { "Show all" } }
                } @else {
                    table.t.jobs.cards {
                        caption.vh { "Jobs, the newest first" }
                        thead { tr {
                            th.c-state scope="col" { "State" } th scope="col" { "Job" } th.c-prog scope="col" { "Progress" }
                            th.c-why scope="col" { "What it waits for" } th.c-when scope="col" { "Finish" }
                            th.num.c-cost scope="col" { "Paid" } th.c-acts scope="col" { span.vh { "Actions" } }
                        } }
                        tbody { @for job in shown { (row(job, request.may_act())) } }
                    }
                }
                div.pager {
                    span { (count(found.len() as u64)) " of " (counted(all.len() as u64, "job")) " · kept for "
                        (jobs.keep().as_secs() / 86_400) " days after their end" }
                    span.end {
                        @if from > 0 { a href=(link(&show, from.saturating_sub(PAGE_LEN))) { "Newer" } " " }
                        @if found.len() > from + PAGE_LEN { a href=(link(&show, from + PAGE_LEN)) { "Older" } }
                    }
                }
            }
            @if request.may_act() { (drop_row()) }
        }
    };
    Page::new("Jobs", body).live("jobs").script("jobs.js")
}

/// A form that makes a job of the files that are chosen or dropped.
fn drop_row() -> Markup {
    html! {
        form.drop.row method="post" action="/jobs/new" enctype="multipart/form-data" data-upload="/api/v1/jobs" {
            span.big { "Drop PDFs or a JSONL file here" }
            span data-upload-status role="status" { "the next step shows time and cost before anything is sent" }
            span.btns { (choose("files", "Choose files")) }
        }
    }
}

/// A file input and its button.
pub(super) fn choose(id: &str, label: &str) -> Markup {
    html! {
        label.vh for=(id) { (label) }
        input #(id) type="file" name="files" multiple accept="application/pdf,.pdf,application/json,.json,.jsonl,.ndjson" required;
        button.btn.primary { "Upload" }
    }
}

fn empty(jobs: &Jobs, may_act: bool) -> Markup {
    let limits = jobs.upload_limits();
    html! {
        div.hello {
            h1.vh { "Jobs" }
            @if may_act {
                form.drop method="post" action="/jobs/new" enctype="multipart/form-data" data-upload="/api/v1/jobs" {
                    svg.gatepic viewBox="0 0 176 64" aria-hidden="true" focusable="false" {
                        path.f-accent d="M0 20c7-6 14-6 21 0s14 6 21 0 14-6 21 0 14 6 21 0V64H0z" {}
                        path.f-soft d="M92 43c7-4 14-4 21 0s14 4 21 0 14-4 21 0 14 4 21 0V64H92z" {}
                        path.f-ink d="M84 2h8v62h-8z" {}
                    }
                    span.big { "Drop PDFs or a JSONL file here" }
                    span data-upload-status role="status" {
                        "up to " (limits.files_max) " files of " (parts::size(limits.file_bytes_max)) " each"
                    }
                    span.btns { (choose("files", "Choose files")) }
                }
            } @else { p.lede { "There are no jobs, and this server is read-only." } }
            p.lede {
                "tidegate explains PDFs page by page through an LLM API, within its limits. Before anything is sent, it shows how \
                 long the job takes; a page that was answered is not paid for twice."
            }
            ol.steps {
                li { b { "Drop" } "Pages are counted and read on this machine." }
                li { b { "Plan" } "Choose a model and limits, and see the time that follows." }
                li { b { "Run" } "Watch every page, and read each beside its picture. Pause and resume at any time." }
            }
            p.small.dim.lede { "A JSONL file has requests as for a provider’s batches, one per line; they are answered now, within the limits. \
                PDFs together with JSON files of an earlier run are shown again without sending anything." }
        }
    }
}

fn row(job: &JobView, may_act: bool) -> Markup {
    let key = |part: &str| format!("jobs.{}.{part}", job.id);
    html! {
        tr {
            td.c-state { span data-h=(key("state")) { (state_cell(job)) } }
            th scope="row" {
                a.name href={ "/jobs/" (job.id) } { @if job.name.is_empty() { "Job " (job.id) } @else { (job.name) } }
                div.small.sub data-v=(key("about")) { (about(job)) }
            }
            td.full.c-prog { span data-h=(key("bar")) { (progress_cell(job)) } }
            td.c-why.full { span data-h=(key("why")) { (why(job)) } }
            td.c-when data-l="" { span data-h=(key("finish")) { (finish(job)) } }
            td.num.c-cost data-l="paid" { span data-h=(key("cost")) { (cost(&job.cost)) } }
            td.acts.full {
                @match job.state {
                    JobStatus::Draft => { a.btn href={ "/jobs/" (job.id) } { "Plan and start" } }
                    JobStatus::Done | JobStatus::Cancelled => {
                        @if let Some(page) = first_page(job) { a.btn href=(page) { "Read" } }
                    }
                    _ if !may_act => {}
                    JobStatus::Running | JobStatus::Blocked => { (button(job, "pause", "Pause")) }
                    JobStatus::Paused | JobStatus::Failed => { (button(job, "resume", "Resume")) }
                }
                @if may_act {
                    @match job.state {
                        JobStatus::Running | JobStatus::Blocked | JobStatus::Paused => {
                            " " a.btn.danger href={ "/jobs/" (job.id) "/cancel" } { "Cancel…" }
                        }
                        _ => { " " a.btn.quiet href={ "/jobs/" (job.id) "/delete" } { "Delete…" } }
                    }
                }
            }
        }
    }
}

fn button(job: &JobView, action: &str, word: &str) -> Markup {
    html! {
        form.inline method="post" action={ "/jobs/" (job.id) "/" (action) } {
            input type="hidden" name="back" value="list";
            button.btn aria-label={ (word) " " (job.name) } { (word) }
        }
    }
}

/// The reader at the first page of a job.
pub(super) fn first_page(job: &JobView) -> Option<String> {
    let file = job.files.iter().find(|file| file.pages.pages > 0)?;
    Some(format!("/jobs/{}/read/{}", job.id, file.number))
}

fn about(job: &JobView) -> String {
    let mut parts = vec![counted(job.files.len() as u64, "file"), counted(job.pages.pages, job.kind.unit())];
    parts.extend([&job.model, &job.upstream].into_iter().find(|it| !it.is_empty()).cloned());
    parts.join(" · ")
}

fn state_cell(job: &JobView) -> Markup {
    let since = match job.state {
        JobStatus::Running | JobStatus::Blocked => "since ",
        _ => "",
    };
    html! { (status(job.state)) span.small.dim { (since) (parts::time(&job.changed)) } }
}

fn progress_cell(job: &JobView) -> Markup {
    let pages = &job.pages;
    html! {
        (bar(pages, false))
        div.small.sub {
            b { (count(pages.settled())) } " of " (count(pages.pages))
            @if pages.in_flight > 0 { " · " (count(pages.in_flight)) " in flight" }
            @if pages.failed > 0 { " · " span.bad { (count(pages.failed)) " failed" } }
            @if pages.skipped > 0 { " · " (count(pages.skipped)) " skipped" }
        }
    }
}

fn values(jobs: &[JobView]) -> Values {
    let mut values = Values::new();
    for job in jobs.iter().take(PAGE_LEN) {
        let key = |part: &str| format!("jobs.{}.{part}", job.id);
        values.text(key("about"), about(job));
        values.html(key("state"), state_cell(job));
        values.html(key("bar"), progress_cell(job));
        values.html(key("why"), why(job));
        values.html(key("finish"), finish(job));
        values.html(key("cost"), cost(&job.cost));
    }
    values.text("page.key", key(jobs));
    values
}

/// Buttons follow from the states.
fn key(jobs: &[JobView]) -> String {
    let states: Vec<String> = jobs.iter().take(PAGE_LEN).map(|job| format!("{}{}", job.id, job.state.word())).collect();
    states.join(" ")
}
