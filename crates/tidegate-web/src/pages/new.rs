//! A new job: its files, what is asked, and the plan that follows, before anything is sent.

use http::StatusCode;
use maud::{Markup, html};

use super::jobs::choose;
use super::parts::{failure, job_id, number, page_key, sentence, size};
use super::plan::plan;
use crate::answer::{Answer, Failure};
use crate::format::{count, counted};
use crate::jobs::{BadLines, FileKind, FileView, JobId, JobKind, JobOptions, JobView, Jobs, Upstream, has_requests};
use crate::live::{Source, Values};
use crate::page::Page;
use crate::request::{Form, Request};
use crate::site::Site;

pub(super) fn mount(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    site.get("/jobs/new", move |request: Request| {
        let body = first(&here, request.may_act());
        async move { Ok::<Page, Failure>(Page::new("New job", body).script("jobs.js")) }
    });
    let here = jobs.clone();
    site.post("/jobs/new", "upload files", move |request: Request| {
        let jobs = here.clone();
        async move {
            let id = upload_new(&jobs, request).await?;
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/files", "upload files", move |request: Request| {
        let jobs = here.clone();
        async move {
            let id = upload_more(&jobs, request).await?;
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/files/{file}/remove", "remove a file", move |request: Request| {
        let jobs = here.clone();
        async move {
            let (id, file) = (job_id(&request)?, number(&request, "file")?);
            request.audit(format!("job {id}, file {file}"));
            jobs.remove_file(id, file).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/files/{file}/password", "unlock a file", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let (id, file) = (job_id(&request)?, number(&request, "file")?);
            request.audit(format!("job {id}, file {file}"));
            let password = request.form().await?.get("password").unwrap_or_default().to_owned();
            jobs.unlock(id, file, password.into()).await.map_err(failure)?;
            Ok(Answer::see_other(&format!("/jobs/{id}")))
        }
    });
    let here = jobs.clone();
    site.post("/jobs/{id}/start", "start a job", move |mut request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            let form = request.form().await?;
            let wants_plan = form.get("do") == Some("plan");
            request.audit(format!("job {id}{}", if wants_plan { ", plan only" } else { "" }));
            let started = match configure(&jobs, id, &form).await {
                Ok(()) if wants_plan => Ok(()),
                Ok(()) => jobs.start(id).await.map_err(failure),
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => Ok(Answer::see_other(&format!("/jobs/{id}"))),
                // What was typed is not lost: the form comes back with what is wrong.
                Err(error) if error.status() == StatusCode::BAD_REQUEST => {
                    let view = jobs.view(id).map_err(failure)?;
                    Ok(page(&jobs, &view, true, Some(&form), Some(error.message())).await.into())
                }
                Err(error) => Err(error),
            }
        }
    });
    let here = jobs.clone();
    site.get("/jobs/{id}/plan", move |request: Request| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            let form = Form::parse(request.uri().query().unwrap_or_default().as_bytes());
            let markup = plan(&jobs, &jobs.job(id).map_err(failure)?, Some(&form)).await;
            Ok(Answer::bytes("text/html; charset=utf-8", markup.into_string()))
        }
    });
    let here = jobs.clone();
    site.topics("draft", move |id| {
        let (jobs, id) = (here.clone(), id.parse::<JobId>().ok()?);
        jobs.job(id).ok()?;
        let source: Source = std::rc::Rc::new(move || jobs.view(id).map(|job| values(&job)).unwrap_or_default());
        Some(source)
    });
}

/// Receives a form into a new job, which is made when its first file is complete.
pub(super) async fn upload_new(jobs: &Jobs, mut request: Request) -> Result<JobId, Failure> {
    let content_type = content_type(&request);
    let body = std::mem::take(&mut request.body);
    let most = jobs.upload_limits().files_max;
    let received = jobs.receive(&content_type, body, most).await.map_err(failure)?;
    if received.files.is_empty() {
        return Err(Failure::bad_request("Choose at least one file."));
    }
    if received.files.len() > 1 && received.files.iter().any(has_requests) {
        return Err(Failure::bad_request("A job of requests has one file: add each JSONL file by itself."));
    }
    let id = jobs.create(JobKind::Explain, received.field("name").unwrap_or_default()).await.map_err(failure)?;
    request.audit(format!("job {id}: {}", counted(received.files.len() as u64, "file")));
    let added = jobs.add(id, received).await;
    let nothing = match &added {
        Ok(added) if added.files.is_empty() => added.refused.first().map(|(name, why)| format!("{name}: {why}.")),
        _ => None,
    };
    if nothing.is_some() || added.is_err() {
        let _ = jobs.delete(id).await;
    }
    match (added, nothing) {
        (Err(error), _) => Err(failure(error)),
        (Ok(_), Some(reason)) => Err(Failure::bad_request(reason)),
        (Ok(_), None) => Ok(id),
    }
}

/// Receives a form into a draft.
pub(super) async fn upload_more(jobs: &Jobs, mut request: Request) -> Result<JobId, Failure> {
    let id = job_id(&request)?;
    let left = jobs.files_left(id).map_err(failure)?;
    let content_type = content_type(&request);
    let body = std::mem::take(&mut request.body);
    let received = jobs.receive(&content_type, body, left).await.map_err(failure)?;
    request.audit(format!("job {id}: {}", counted(received.files.len() as u64, "file")));
    let added = jobs.add(id, received).await.map_err(failure)?;
    match added.refused.first() {
        Some((name, why)) => Err(Failure::bad_request(format!("{name}: {why}. The other files were added."))),
        None => Ok(id),
    }
}

fn content_type(request: &Request) -> String {
    let value = request.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// Reads the form into the draft.
async fn configure(jobs: &Jobs, id: JobId, form: &Form) -> Result<(), Failure> {
    let job = jobs.job(id).map_err(failure)?;
    if job.kind == JobKind::Rebuild {
        return Ok(());
    }
    let options = match job.kind {
        JobKind::Batch => job.options,
        _ => options(form).map_err(|error| Failure::bad_request(sentence(&error)))?,
    };
    let (name, upstream) = (form.get("name").unwrap_or(&job.name), form.get("upstream").unwrap_or(&job.upstream));
    let model = form.get("model").unwrap_or(&job.model);
    jobs.configure(id, name, upstream, model, options).await.map_err(failure)?;
    Ok(())
}

/// Reads the options of a form. A field that is missing or empty has its default.
pub(super) fn options(form: &Form) -> Result<JobOptions, String> {
    let defaults = JobOptions::default();
    let text = |name: &str| form.get(name).map(str::trim).filter(|text| !text.is_empty());
    let whole = |name: &str, label: &str| {
        let parse = |text: &str| {
            text.replace(',', "").parse::<u32>().map_err(|_| format!("{label}: a whole number, or nothing"))
        };
        text(name).map(parse).transpose()
    };
    Ok(JobOptions {
        prompt: text("prompt").map_or(defaults.prompt, |prompt| prompt.replace("\r\n", "\n")),
        language: text("language").unwrap_or_default().to_owned(),
        pages: text("pages").unwrap_or_default().to_owned(),
        context_pages: whole("context_pages", "Neighbour pages")?.unwrap_or(defaults.context_pages),
        page_concurrency: whole("page_concurrency", "Pages at once")?,
        file_concurrency: whole("file_concurrency", "Files at once")?,
        max_tokens: whole("max_tokens", "Longest answer")?,
        temperature: text("temperature")
            .map(|text| text.parse::<f32>().map_err(|_| "Temperature: a number, or nothing".to_owned()))
            .transpose()?,
        text_only: form.get("text_only").is_some(),
    })
}

fn first(jobs: &Jobs, may_act: bool) -> Markup {
    let limits = jobs.upload_limits();
    html! {
        div.head { div { h1 { "New job" } } }
        @if may_act {
            form.drop method="post" action="/jobs/new" enctype="multipart/form-data" data-upload="/api/v1/jobs" {
                span.big { "Drop PDFs or a JSONL file here" }
                span data-upload-status role="status" {
                    "up to " (limits.files_max) " files of " (size(limits.file_bytes_max)) " each"
                }
                span.btns { (choose("files", "Choose files")) }
            }
            p.sub.sec { "The next step shows the pages, and how long the job takes with the limits of the upstream. Nothing is sent before \
                     you start it." }
        } @else { p.sub { "This server is read-only." } }
    }
}

/// The page of a draft.
pub(super) async fn page(jobs: &Jobs, view: &JobView, may_act: bool, form: Option<&Form>, wrong: Option<&str>) -> Page {
    let planned = match jobs.job(view.id) {
        Ok(job) => plan(jobs, &job, form).await,
        Err(_) => html! {},
    };
    let (rebuild, batch) = (view.kind == JobKind::Rebuild, view.kind == JobKind::Batch);
    let typed = |name: &str, otherwise: String| form.and_then(|form| form.get(name)).map_or(otherwise, str::to_owned);
    let text = |number: Option<u32>| number.map(|it| it.to_string()).unwrap_or_default();
    let o = &view.options;
    let upstream = typed("upstream", view.upstream.clone());
    let base = format!("/jobs/{}", view.id);
    let body = html! {
        (page_key(&key(view)))
        div.side {
            div {
                div.head {
                    div { p.crumb { a href="/jobs" { "Jobs" } " / " } h1 { "New job" } }
                    @if may_act { div.btns { a.btn.quiet href={ (base) "/delete" } { "Delete…" } } }
                }
                @if let Some(wrong) = wrong {
                    div.note.fail role="alert" { i.c.x aria-hidden="true" {} div { p { (wrong) } } }
                }
                section.form-sec aria-labelledby="f-files" {
                    h2 #f-files { "Files" }
                    div.stack {
                        @if may_act && (!batch || view.files.is_empty()) {
                            form.drop.row method="post" action={ (base) "/files" } enctype="multipart/form-data"
                                data-upload={ "/api/v1/jobs/" (view.id) "/files" } {
                                span.big { "Drop more files" }
                                span data-upload-status role="status" data-v="draft.files" { (files_line(view)) }
                                span.btns { (choose("files", "Choose files")) }
                            }
                        }
                        div.boxed.filelist tabindex="0" role="region" aria-label="Files of this job" {
                            table.t {
                                caption.vh { "Files with their " (view.kind.unit()) "s and estimated tokens" }
                                thead { tr {
                                    th scope="col" { "File" } th.num scope="col" { @if batch { "Requests" } @else { "Pages" } } th.num scope="col" { "Tokens" }
                                    th scope="col" { "Note" } th scope="col" { span.vh { "Remove" } }
                                } }
                                tbody { @for file in &view.files { (file_row(&base, file, may_act)) } }
                            }
                        }
                        @if let Some(bad) = &view.bad_lines { (bad_lines(bad)) }
                    }
                }
                @if batch {
                    section.form-sec aria-labelledby="f-model" {
                        h2 #f-model { "Upstream and model" }
                        @if !jobs.takes_requests() {
                            div.note.fail { i.c.x aria-hidden="true" {} div { p { "No upstream of this server takes requests. Start the server with one, such as " code { "--provider openai" } "." } } }
                        }
                        div.fields {
                            div.field {
                                label for="upstream" { "Upstream" }
                                select #upstream name="upstream" form="job" {
                                    @for it in jobs.upstreams().filter(|it| it.dialect().is_some() || it.name() == upstream) {
                                        option value=(it.name()) selected[it.name() == upstream] { (it.name()) (label(it)) }
                                    }
                                }
                            }
                            div.field.two {
                                label for="model" { "Model" }
                                input #model name="model" form="job" value=(typed("model", view.model.clone())) placeholder="as each request says" autocomplete="off" spellcheck="false" aria-describedby="model-h";
                                span.hint #model-h { "A model here is used for all requests, whatever they say. Requests in Gemini’s form need one."
                                    @if let Some(it) = jobs.upstream(&upstream).filter(|it| !it.key_origin().is_empty()) { " Key: " (it.key_origin()) ", on the server." }
                                }
                            }
                        }
                        p.cap { "Prompts and options are those of the requests. Limits belong to the upstream; all of its jobs share them." }
                    }
                } @else if rebuild {
                    section.form-sec aria-labelledby="f-what" {
                        h2 #f-what { "What happens" }
                        p.sub { "The explanations in the JSON files are shown beside the pages of the PDF with the same name. Nothing is \
                                 sent, and nothing is paid for. A path in a JSON file is not looked at." }
                    }
                } @else {
                    section.form-sec aria-labelledby="f-model" {
                        h2 #f-model { "Model and prompt" }
                        div.fields {
                            div.field {
                                label for="upstream" { "Upstream" }
                                select #upstream name="upstream" form="job" {
                                    @for it in jobs.upstreams() {
                                        option value=(it.name()) selected[it.name() == upstream] { (it.name()) (label(it)) }
                                    }
                                }
                            }
                            div.field {
                                label for="model" { "Model" }
                                input #model name="model" form="job" value=(typed("model", view.model.clone())) autocomplete="off" spellcheck="false";
                            }
                            div.field {
                                label for="language" { "Language" }
                                input #language name="language" form="job" value=(typed("language", o.language.clone())) placeholder="as the page";
                            }
                            div.field {
                                label for="context_pages" { "Neighbour pages" }
                                input #context_pages.num name="context_pages" form="job" inputmode="numeric" value=(typed("context_pages", o.context_pages.to_string()));
                            }
                            div.field.wide {
                                label for="prompt" { "Prompt" }
                                textarea #prompt name="prompt" form="job" rows="4" aria-describedby="prompt-h" { (typed("prompt", o.prompt.clone())) }
                                span.hint #prompt-h {
                                    "Variables: {file} {title} {page} {pages} {language}."
                                    @if let Some(it) = jobs.upstream(&upstream).filter(|it| !it.key_origin().is_empty()) {
                                        " Key: " (it.key_origin()) ", on the server."
                                    }
                                }
                            }
                        }
                    }
                    section.form-sec aria-labelledby="f-limits" {
                        h2 #f-limits { "Limits of this job" }
                        div.fields {
                            (small_field("pages", "Pages", typed("pages", o.pages.clone()), "all, such as 3-10,15"))
                            (small_field("page_concurrency", "Pages of a file at once", typed("page_concurrency", text(o.page_concurrency)), "by its size"))
                            (small_field("file_concurrency", "Files at once", typed("file_concurrency", text(o.file_concurrency)), "by their size"))
                            (small_field("max_tokens", "Longest answer, tokens", typed("max_tokens", text(o.max_tokens)), "server’s limit"))
                            (small_field("temperature", "Temperature", typed("temperature", o.temperature.map(|it| it.to_string()).unwrap_or_default()), "server’s default"))
                            div.field.two {
                                span.label { "Pages without readable text" }
                                label.check { input type="checkbox" name="text_only" form="job" value="1" checked[form.map_or(o.text_only, |form| form.get("text_only").is_some())]; " skip them instead of sending a picture" }
                            }
                        }
                        p.cap { "Requests and tokens per minute belong to the upstream; all of its jobs share them." }
                    }
                }
            }
            @if !rebuild { p.planbar { span data-plan-short {} a.btn href="#plan-h" { "Plan and start" } } }
            aside aria-labelledby="plan-h" {
                form #job.panel.plan method="post" action={ (base) "/start" } data-plan={ (base) "/plan" } {
                    @if !rebuild {
                        div data-plan-out { (planned) }
                    }
                    div.stack {
                        @if rebuild { h2 #plan-h.small.dim { "Rebuild" } }
                        div.field {
                            label for="name" { "Job name" }
                            input #name name="name" value=(typed("name", view.name.clone())) maxlength="120";
                        }
                        @if may_act && view.bad_lines.is_none() {
                            div.btns {
                                button.btn.primary name="do" value="start" { @if rebuild { "Show the results" } @else { "Start job" } }
                                @if !rebuild { button.btn name="do" value="plan" data-without-script { "Plan" } }
                            }
                        }
                    }
                }
            }
        }
    };
    Page::new("New job", body).live(format!("draft/{}", view.id)).script("jobs.js")
}

fn small_field(name: &str, label: &str, value: String, placeholder: &str) -> Markup {
    html! {
        div.field {
            label for=(name) { (label) }
            input #(name) name=(name) form="job" value=(value) placeholder=(placeholder) autocomplete="off";
        }
    }
}

fn label(upstream: &Upstream) -> String {
    match upstream.provider() {
        "local" => " (offline, free)".into(),
        provider if provider == upstream.name() => String::new(),
        provider => format!(" ({provider})"),
    }
}

fn files_line(view: &JobView) -> String {
    let unread = view.files.iter().filter(|file| file.status == "unread").count();
    let broken =
        view.files.iter().filter(|file| matches!(file.status, "broken" | "needs_password" | "wrong_password")).count();
    let unit = view.kind.unit();
    let mut line = format!("{}, {}", counted(view.files.len() as u64, "file"), counted(view.pages.pages, unit));
    if unread > 0 {
        line += &format!(", {unread} being read");
    }
    if broken > 0 {
        line += &format!(", {broken} cannot be used yet");
    }
    line
}

fn file_row(base: &str, file: &FileView, may_act: bool) -> Markup {
    let key = |part: &str| format!("draft.{}.{part}", file.number);
    html! {
        tr {
            th scope="row" { span.clip { (file.name) } }
            td.num data-v=(key("pages")) { (pages_cell(file)) }
            td.num.dim data-v=(key("tokens")) { (tokens_cell(file)) }
            td {
                span data-h=(key("note")) { (note(file)) }
                @if may_act && matches!(file.status, "needs_password" | "wrong_password") {
                    form.inline method="post" action={ (base) "/files/" (file.number) "/password" } {
                        label.vh for={ "pw-" (file.number) } { "Password of " (file.name) }
                        input #{ "pw-" (file.number) } type="password" name="password" autocomplete="off" placeholder="Password" required;
                        " " button.btn { "Unlock" }
                    }
                }
            }
            td.acts {
                @if may_act {
                    form.inline method="post" action={ (base) "/files/" (file.number) "/remove" } {
                        button.btn.quiet aria-label={ "Remove " (file.name) } { "Remove" }
                    }
                }
            }
        }
    }
}

fn pages_cell(file: &FileView) -> String {
    match file.kind {
        FileKind::Json => String::new(),
        FileKind::Jsonl if file.status == "broken" => String::new(),
        FileKind::Pdf | FileKind::Jsonl if file.pages.pages == 0 => "…".into(),
        FileKind::Pdf | FileKind::Jsonl => count(file.pages.pages),
    }
}

fn tokens_cell(file: &FileView) -> String {
    file.tokens.filter(|_| file.status != "broken").map(count).unwrap_or_default()
}

fn note(file: &FileView) -> Markup {
    html! {
        @match file.status {
            "unread" => { span.dim { "being read" } }
            "readable" if file.kind == FileKind::Pdf && file.tokens.is_none() => { span.dim { "being read" } }
            "needs_password" => { span.tag { "needs its password" } }
            "wrong_password" => { span.tag { "wrong password" } }
            "broken" if file.kind == FileKind::Jsonl => { span.bad { "bad lines" } }
            "broken" => { span.bad { (sentence(file.reason.as_deref().unwrap_or("it cannot be read"))) } }
            _ => {
                @match file.kind {
                    FileKind::Json => { span.tag { "explanations" } }
                    FileKind::Jsonl => { span.tag { "requests" } }
                    FileKind::Pdf => {}
                }
            }
        }
    }
}

/// Lines that cannot be sent, each with its number.
fn bad_lines(bad: &BadLines) -> Markup {
    let more = bad.count - bad.listed.len() as u64;
    html! {
        div.note.fail role="alert" {
            i.c.x aria-hidden="true" {}
            div {
                p { strong { (counted(bad.count, "line")) " cannot be sent, so nothing is. " } "Correct the file, then add it as a " a href="/jobs/new" { "new job" } "." }
                dl.lines {
                    @for line in &bad.listed { dt { "Line " (count(line.line)) } dd { (sentence(&line.reason)) } }
                }
                @if more > 0 { p.small { "And " (counted(more, "line")) " more." } }
            }
        }
    }
}

fn values(view: &JobView) -> Values {
    let mut values = Values::new();
    values.text("draft.files", files_line(view));
    for file in &view.files {
        let key = |part: &str| format!("draft.{}.{part}", file.number);
        values.text(key("pages"), pages_cell(file));
        values.text(key("tokens"), tokens_cell(file));
        values.html(key("note"), note(file));
    }
    values.text("page.key", key(view));
    values
}

/// The forms for passwords, the list of bad lines and the upstream that is proposed follow from these.
fn key(view: &JobView) -> String {
    let is_locked = |file: &&FileView| matches!(file.status, "needs_password" | "wrong_password");
    let locked: Vec<String> = view.files.iter().filter(is_locked).map(|file| file.number.to_string()).collect();
    let bad = view.bad_lines.as_ref().map_or(0, |bad| bad.count);
    let (files, upstream, model) = (view.files.len(), &view.upstream, &view.model);
    format!("{} {:?} {files} {bad} {upstream} {model}", locked.join(" "), view.state)
}
