//! The reader: a page's picture beside its explanation, or a request beside its answer; search, the next and the previous page, and one page asked again.

use std::rc::Rc;

use http::{HeaderValue, header};
use maud::{Markup, PreEscaped, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tidegate_batch::markdown_to_html;

use super::job::blocked_sentence;
use super::parts::{failure, job_id, money_text, number, page_key, page_state, sentence, time};
use super::request;
use crate::answer::{Answer, Failure};
use crate::format::{count, counted};
use crate::jobs::{FileKind, How, Job, JobFile, JobId, JobKind, Jobs, PageState, PageView, VersionView, neighbours};
use crate::live::{Source, Values};
use crate::page::Page;
use crate::request::Request;
use crate::site::Site;

/// Pages in the strip on each side of the one that is read.
const STRIP: usize = 12;

/// Pages with hits that are named.
const HITS_MAX: usize = 30;

/// The longest side of a picture beside its explanation.
const PICTURE_PX: u32 = 1_200;

pub(super) fn mount(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    site.get("/jobs/{id}/read/{file}", move |request: Request| {
        let jobs = here.clone();
        async move {
            let (id, number) = (job_id(&request)?, number(&request, "file")?);
            let job = jobs.job(id).map_err(failure)?;
            let file = job.file(number).ok_or_else(|| Failure::not_found("There is no such file in this job."))?;
            // `?page=` is the form of the page number.
            let asked = request.query("page").and_then(|page| page.trim().parse().ok());
            let page =
                asked.filter(|page| file.position(*page).is_some()).or(file.pages().next().map(|(page, _)| page));
            let page = page.ok_or_else(|| Failure::not_found("The pages of this file are not known yet."))?;
            let query = request
                .query("q")
                .filter(|q| !q.is_empty())
                .map(|q| format!("?q={}", utf8_percent_encode(&q, NON_ALPHANUMERIC)));
            Ok(Answer::see_other(&format!("/jobs/{id}/read/{number}/{page}{}", query.unwrap_or_default())))
        }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/read/{file}/{page}", move |request: Request| {
        let jobs = here.clone();
        async move { page(&jobs, &request).await }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/picture/{file}/{page}", move |request: Request| {
        let jobs = here.clone();
        async move { picture(&jobs, &request).await }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/read/{file}/{page}/ask", "ask about a page again", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let (id, file, page) = place(&request)?;
            let form = request.form().await?;
            let text = |name: &str| form.get(name).unwrap_or_default().to_owned();
            request.audit(format!("job {id}, file {file}, page {page}, upstream {}", text("upstream")));
            let prompt = text("prompt").replace("\r\n", "\n");
            let (upstream, model) = (text("upstream"), text("model"));
            let how = How { upstream: &upstream, model: &model, prompt: &prompt };
            jobs.ask_again(id, file, page, how).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}/read/{file}/{page}?compare=1")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/read/{file}/{page}/choose", "choose an explanation", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let ((id, file, page), version) = (place(&request)?, version(&mut request).await?);
            request.audit(format!("job {id}, file {file}, page {page}, version {version}"));
            jobs.choose_version(id, file, page, version).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}/read/{file}/{page}")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/read/{file}/{page}/forget", "delete an explanation", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let ((id, file, page), version) = (place(&request)?, version(&mut request).await?);
            request.audit(format!("job {id}, file {file}, page {page}, version {version}"));
            jobs.delete_version(id, file, page, version).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}/read/{file}/{page}")))
        }
    });
    let here = jobs.clone();
    site.topics("page", move |id| {
        let mut numbers = id.split('.');
        let (job, file, page) =
            (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let jobs = here.clone();
        jobs.page_key(job, file, page)?;
        let source: Source = Rc::new(move || {
            let mut values = Values::new();
            values.text("page.key", jobs.page_key(job, file, page).unwrap_or_default());
            values
        });
        Some(source)
    });
}

fn place(request: &Request) -> Result<(JobId, u32, u32), Failure> {
    Ok((job_id(request)?, number(request, "file")?, number(request, "page")?))
}

async fn version(request: &mut Request) -> Result<u32, Failure> {
    let form = request.form().await?;
    form.get("version").and_then(|it| it.parse().ok()).ok_or_else(|| Failure::bad_request("Which version?"))
}

async fn picture(jobs: &Jobs, request: &Request) -> Result<Answer, Failure> {
    let (id, file, page) = place(request)?;
    let px = request.query("px").and_then(|px| px.parse().ok()).unwrap_or(PICTURE_PX);
    let picture = jobs.picture(id, file, page, px).await.map_err(failure)?;
    let mut response = http::Response::new(axum::body::Body::from(picture.bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(picture.media_type));
    // A stored file does not change; the browser that may see it keeps it.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=86400"));
    Ok(Answer::response(response))
}

async fn page(jobs: &Jobs, request: &Request) -> Result<Page, Failure> {
    let (id, number, page) = place(request)?;
    let job = jobs.job(id).map_err(failure)?;
    let file = job.file(number).ok_or_else(|| Failure::not_found("There is no such file in this job."))?;
    // Before the page is read: what changes in between is shown at once.
    let key = jobs.page_key(id, number, page).unwrap_or_default();
    let view = jobs.page(id, number, page).await.map_err(failure)?;
    let sought = request.query("q").unwrap_or_default();
    let hits = jobs.search(id, number, &sought).await.map_err(failure)?;
    let query = if sought.is_empty() {
        String::new()
    } else {
        format!("?q={}", utf8_percent_encode(&sought, NON_ALPHANUMERIC))
    };
    let link = |(file, page): (u32, u32)| format!("/jobs/{id}/read/{file}/{page}{query}");
    let (before, after) = neighbours(&job, number, page);
    let compares = request.query("compare").is_some() && (view.versions.len() > 1 || view.asking);
    let base = format!("/jobs/{id}/read/{number}/{page}");
    let may_act = request.may_act();
    let batch = job.kind == JobKind::Batch;
    let (unit, called) = (job.kind.unit(), if batch { "Line" } else { "Page" });
    let search = if batch { "Search requests and answers" } else { "Search in this document" };
    let last = file.numbers.last().copied().unwrap_or(page);
    let body = html! {
        (page_key(&key))
        div.head {
            div {
                p.crumb { a href="/jobs" { "Jobs" } " / " a href={ "/jobs/" (id) } { @if job.name.is_empty() { "Job " (id) } @else { (job.name) } } " / " }
                h1 { (file.name) }
            }
            div.btns { details.menu {
                summary.btn { "Download" }
                @if batch {
                    ul {
                        li { a href={ "/jobs/" (id) "/download/results.jsonl" } { "Answers, one per line " small { ".jsonl" } } }
                        li { a href={ "/jobs/" (id) "/download/errors.jsonl" } { "Failed requests " small { ".jsonl" } } }
                    }
                } @else { ul {
                    li { a href={ "/jobs/" (id) "/download/" (number) ".html" } { "This file as a web page " small { ".html" } } }
                    li { a href={ "/jobs/" (id) "/download/" (number) ".md" } { "This file as Markdown " small { ".md" } } }
                    li { a href={ "/jobs/" (id) "/download/" (number) ".json" } { "This file as JSON " small { ".json" } } }
                    li { a href={ "/jobs/" (id) "/download/all.zip" } { "All files " small { ".zip" } } }
                } }
            } }
        }
        div.toolbar {
            div.btns {
                @match before { Some(to) => { a.btn rel="prev" href=(link(to)) data-key="ArrowLeft" aria-label={ "Previous " (unit) ", key K" } { "←" } } None => { span.btn aria-disabled="true" { "←" } } }
                form.found action={ "/jobs/" (id) "/read/" (number) } {
                    label.vh for="pg" { (called) }
                    input #pg.pageno.num type="text" inputmode="numeric" name="page" value=(page);
                    @if !sought.is_empty() { input type="hidden" name="q" value=(sought); }
                    @if batch { " of " (count(last.into())) " lines" } @else { " of " (count(file.page_count.max(page).into())) }
                }
                @match after { Some(to) => { a.btn rel="next" href=(link(to)) data-key="ArrowRight" aria-label={ "Next " (unit) ", key J" } { "→" } } None => { span.btn aria-disabled="true" { "→" } } }
            }
            form.find role="search" action=(base) {
                label.vh for="rq" { (search) }
                input #rq type="search" name="q" value=(sought) data-key="/" placeholder=(search);
            }
            @if !sought.trim().is_empty() {
                span.found role="status" {
                    b { (hits.count) } @if hits.count == 1 { " hit on " } @else { " hits on " } (counted(hits.pages.len() as u64, unit))
                    @if !hits.pages.is_empty() { ": " }
                    @for (at, hit) in hits.pages.iter().take(HITS_MAX).enumerate() {
                        @if at > 0 { ", " }
                        @if *hit == page { b { (hit) } } @else { a href=(link((number, *hit))) { (hit) } }
                    }
                    @if hits.pages.len() > HITS_MAX { " …" }
                }
            }
            @if view.versions.len() > 1 || view.asking {
                span.seg.end role="group" aria-label="Layout" {
                    a href=(link((number, page))) aria-current=[(!compares).then_some("true")] { @if batch { "Request and answer" } @else { "Page and text" } }
                    a href={ (base) "?compare=1" } aria-current=[compares.then_some("true")] { "Compare " (view.versions.len()) }
                }
            }
        }
        (strip(file, page, &hits.pages, unit, &link))
        div.reader.three[compares].compact-prose[compares] {
            @if file.kind == FileKind::Pdf {
                div.sticky { figure.paper {
                    img src={ "/jobs/" (id) "/picture/" (number) "/" (page) } width="620" height="877" alt={ "Page " (page) " of " (file.name) };
                } }
            }
            @if let Some(asked) = &view.request { (request::pane(asked, &sought)) }
            @if compares {
                @let shown = view.versions.iter().find(|version| version.shown);
                @let other = view.versions.iter().rev().find(|version| !version.shown);
                @if let Some(shown) = shown { (article(&job, shown, page, &sought, "A", &base, may_act)) }
                @match (view.asking, other) {
                    (true, _) => { article aria-labelledby="vb-h" { header.version { h2 #vb-h { "B" } } p.sub role="status" { "Being asked. The answer appears here." } } }
                    (false, Some(other)) => { (article(&job, other, page, &sought, "B", &base, may_act)) }
                    (false, None) => {}
                }
            } @else {
                article aria-labelledby="ex-h" {
                    @match view.versions.iter().find(|version| version.shown) {
                        Some(version) => { (said(&job, version, page, &sought, "ex-h", &heading(job.kind, page))) }
                        None => { (not_yet(&view, job.kind)) }
                    }
                    @if may_act && job.kind != JobKind::Rebuild { (again(jobs, &job, &view, &base)) }
                }
            }
        }
        @if let Some(to) = after.filter(|_| !batch) { span hidden data-prefetch={ "/jobs/" (id) "/picture/" (to.0) "/" (to.1) } {} }
    };
    let title = format!("{called} {page} · {}", file.name);
    Ok(Page::new(title, body).live(format!("page/{id}.{number}.{page}")).script("jobs.js"))
}

fn strip(file: &JobFile, page: u32, hits: &[u32], unit: &str, link: &impl Fn((u32, u32)) -> String) -> Markup {
    let here = file.position(page).unwrap_or(0);
    let from = here.saturating_sub(STRIP);
    let pages = file.pages().skip(from).take(2 * STRIP + 1);
    html! {
        nav aria-label={ @if unit == "page" { "Pages" } @else { "Requests" } " of this file" } {
            ul.strip {
                @for (other, state) in pages {
                    @let is_hit = hits.binary_search(&other).is_ok();
                    li { a href=(link((file.number, other))) .hit[is_hit] aria-current=[(other == page).then_some("page")] {
                        i.c.(state.letter()) aria-hidden="true" {}
                        span.vh { (unit) " " } (other) span.vh { ", " (state.word()) @if is_hit { ", has hits" } }
                    } }
                }
            }
        }
    }
}

/// An explanation with its head.
fn said(job: &Job, version: &VersionView, page: u32, sought: &str, id: &str, heading: &str) -> Markup {
    let neighbours = job.options.context_pages;
    html! {
        header.version {
            h2 #(id) { (heading) }
            p.meta {
                @if !version.model.is_empty() { span { (version.model) } } @else if !version.upstream.is_empty() { span { (version.upstream) } }
                @match version.seen_as {
                    Some("picture") => { span { "read as a picture" } }
                    Some(_) => { span { "read as text" @if neighbours > 0 && version.version == 0 && job.kind == JobKind::Explain { ", with its neighbours" } } }
                    None => {}
                }
                @if version.cost.tokens_in + version.cost.tokens_out > 0 { span { (count(version.cost.tokens_in)) " + " (count(version.cost.tokens_out)) " tokens" } }
                // Nothing counted is not known to be free.
                @if let Some(money) = version.cost.money.filter(|money| *money > 0.0) { span { (money_text(money)) } }
                span { (time(&version.at)) }
            }
        }
        @match (&version.explanation, version.state) {
            (Some(text), state) if state.is_explained() => { div.prose dir="auto" { (marked(&markdown_to_html(text), sought)) } }
            (_, state) => {
                div.note.fail[state == PageState::Failed] {
                    i.c.(state.letter()) aria-hidden="true" {}
                    div { p { b { @if job.kind == JobKind::Batch { "The request in line " } @else { "Page " } (page) @if state == PageState::Failed { " failed. " } @else { " was skipped. " } }
                        (sentence(version.error.as_deref().unwrap_or("there is no answer"))) } }
                }
            }
        }
        @if version.truncated { p.note { "The answer was cut off at the greatest length allowed." } }
        @if let Some(quality) = &version.text_quality { p.cap { "The page’s text is " (quality) "." } }
        @for warning in &version.warnings { p.cap { (sentence(warning)) } }
    }
}

fn article(
    job: &Job,
    version: &VersionView,
    page: u32,
    sought: &str,
    letter: &str,
    base: &str,
    may_act: bool,
) -> Markup {
    let what = match (version.version, job.kind) {
        (0, JobKind::Batch) => "as in the file",
        (0, _) => "prompt of the job",
        _ => "asked again",
    };
    let id = format!("v{}-h", letter.to_lowercase());
    html! {
        article aria-labelledby=(id) {
            (said(job, version, page, sought, &id, &format!("{letter} · {what}")))
            @match (&version.prompt, job.kind) {
                (Some(prompt), _) => { p.quote { (prompt) } }
                (None, JobKind::Batch) => {}
                (None, _) => { p.quote { (job.options.prompt) } }
            }
            @if version.shown { p.sec { span.tag.on { (letter) " is shown in downloads" } } }
            @else if may_act {
                div.sec.btns {
                    @if version.state.is_explained() {
                        form.inline method="post" action={ (base) "/choose" } { input type="hidden" name="version" value=(version.version); button.btn.primary { "Use " (letter) " for this " (job.kind.unit()) } }
                    }
                    @if version.version > 0 {
                        form.inline method="post" action={ (base) "/forget" } { input type="hidden" name="version" value=(version.version); button.btn.quiet { "Delete " (letter) } }
                    }
                }
            }
        }
    }
}

/// The heading of an answer.
fn heading(kind: JobKind, page: u32) -> String {
    match kind {
        JobKind::Batch => "Answer".into(),
        JobKind::Explain | JobKind::Rebuild => format!("Explanation of page {page}"),
    }
}

fn not_yet(view: &PageView, kind: JobKind) -> Markup {
    html! {
        header.version { h2 #ex-h { (heading(kind, view.page)) } }
        div.note role="status" {
            i.c.(view.state.letter()) aria-hidden="true" {}
            div { p { (page_state(view.state)) ". "
                @match (&view.blocked_by, view.state) {
                    (Some(blocked), _) => { (blocked_sentence(blocked)) }
                    (None, PageState::InFlight) => { "The answer appears here." }
                    (None, _) => { "It has not been sent yet." }
                }
            } }
        }
    }
}

fn again(jobs: &Jobs, job: &Job, view: &PageView, base: &str) -> Markup {
    let last = view.versions.last().and_then(|version| version.prompt.clone());
    let batch = job.kind == JobKind::Batch;
    // A request has its own prompt, or none that could be another one.
    let own = match &view.request {
        Some(request) => request.prompt.clone(),
        None => Some(job.options.prompt.clone()),
    };
    let model = match &view.request {
        Some(request) if job.model.is_empty() => request.model.clone().unwrap_or_default(),
        _ => job.model.clone(),
    };
    html! {
        section.sec.panel aria-labelledby="again-h" {
            h2 #again-h { @if own.is_some() { "Ask again with another prompt or model" } @else { "Ask again with another model" } }
            @if view.asking { p.sub role="status" { "This " (job.kind.unit()) " is being asked. " a href={ (base) "?compare=1" } { "Compare" } } }
            @else {
                form.stack method="post" action={ (base) "/ask" } {
                    @match own {
                        Some(own) => {
                            div.field { label for="p2" { @if batch { "Prompt: the last message" } @else { "Prompt" } }
                                textarea #p2 name="prompt" rows="3" { (last.unwrap_or(own)) } }
                        }
                        None => { p.sub { "The prompt of this request cannot be replaced here: it does not end with one text of the user. Change it in the file, as a job of its own." } }
                    }
                    div.btns {
                        label.vh for="u2" { "Upstream" }
                        select #u2.auto name="upstream" {
                            @for it in jobs.upstreams().filter(|it| !batch || it.dialect().is_some()) { option value=(it.name()) selected[it.name() == job.upstream] { (it.name()) } }
                        }
                        label.vh for="m2" { "Model" }
                        input #m2.auto name="model" value=(model) placeholder="Model";
                        button.btn.primary { "Ask" }
                        span.small.dim { "this " (job.kind.unit()) " alone; it is paid for" }
                    }
                }
            }
        }
    }
}

/// HTML with every occurrence of `sought` in its text marked; tags are left alone.
pub(super) fn marked(html_text: &str, sought: &str) -> PreEscaped<String> {
    let sought = sought.trim();
    if sought.is_empty() {
        return PreEscaped(html_text.to_owned());
    }
    // As it is written in HTML.
    let needle: Vec<char> = html! { (sought) }.into_string().to_lowercase().chars().collect();
    let mut out = String::with_capacity(html_text.len() + 64);
    let mut rest = html_text;
    while !rest.is_empty() {
        let text_end = rest.find('<').unwrap_or(rest.len());
        mark_text(&rest[..text_end], &needle, &mut out);
        rest = &rest[text_end..];
        let tag_end = rest.find('>').map_or(rest.len(), |at| at + 1);
        out.push_str(&rest[..tag_end]);
        rest = &rest[tag_end..];
    }
    PreEscaped(out)
}

fn mark_text(text: &str, needle: &[char], out: &mut String) {
    let characters: Vec<char> = text.chars().collect();
    let is_here = |at: usize| {
        characters
            .get(at..at + needle.len())
            .is_some_and(|found| found.iter().zip(needle).all(|(a, b)| a == b || a.to_lowercase().eq([*b])))
    };
    let mut at = 0;
    while at < characters.len() {
        if is_here(at) {
            out.push_str("<mark>");
            out.extend(&characters[at..at + needle.len()]);
            out.push_str("</mark>");
            at += needle.len();
        } else {
            out.push(characters[at]);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_marked_in_text_and_never_in_tags() {
        let shown = |html: &str, sought: &str| marked(html, sought).0;
        assert_eq!(
            shown("<p>Cargo <a href=\"cargo\">cargo</a></p>", "cargo"),
            "<p><mark>Cargo</mark> <a href=\"cargo\"><mark>cargo</mark></a></p>"
        );
        assert_eq!(shown("<p>a &lt;b</p>", "<B"), "<p>a <mark>&lt;b</mark></p>");
        assert_eq!(shown("<p>x</p>", " "), "<p>x</p>");
        assert_eq!(shown("<p>ÄÖ</p>", "ä"), "<p><mark>Ä</mark>Ö</p>");
    }
}
