//! Jobs as a JSON API: the same shapes that the pages show, the same actions.

use std::fs::File;
use std::io::Read as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use http_body::{Frame, SizeHint};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::{failure, job_id, number, sentence};
use super::{job, new};
use crate::answer::{Answer, Failure};
use crate::api::Doc;
use crate::jobs::{Download, FailureView, How, Job, JobId, JobKind, JobOptions, JobPlan, JobView, Jobs, PageView};
use crate::site::Site;

/// What is read of a file at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// The jobs of a server.
#[derive(Debug, Serialize, JsonSchema)]
struct JobList {
    /// The newest first.
    jobs: Vec<JobView>,
}

/// The upstreams of a server.
#[derive(Debug, Serialize, JsonSchema)]
struct UpstreamList {
    /// In the order they were stated.
    upstreams: Vec<UpstreamView>,
}

/// An upstream: its name and what can be chosen of it. Its address and key stay on the server.
#[derive(Debug, Serialize, JsonSchema)]
struct UpstreamView {
    /// Its name.
    name: String,
    /// openai, gemini, anthropic or local.
    provider: String,
    /// The model that is proposed.
    model: String,
    /// Whether a job that explains has to choose a model.
    needs_model: bool,
    /// Whether it takes jobs of requests.
    takes_requests: bool,
}

/// What a draft is to do. What is missing stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Change {
    /// The job's name.
    name: Option<String>,
    /// The upstream's name.
    upstream: Option<String>,
    /// The model.
    model: Option<String>,
    /// The options of a job that explains; requests have their own.
    options: Option<JobOptions>,
}

/// How a job is cancelled.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Cancel {
    /// Requests in flight are dropped instead of finished.
    #[serde(default)]
    drop_calls: bool,
}

/// Which failed pages are asked about again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Retry {
    /// Only failures with this code.
    code: Option<String>,
}

/// How many pages or requests are asked again.
#[derive(Debug, Serialize, JsonSchema)]
struct Retried {
    /// Pages or requests.
    pages: usize,
}

/// Failures of a job.
#[derive(Debug, Serialize, JsonSchema)]
struct Failures {
    /// By reason, the most frequent first.
    failures: Vec<FailureView>,
}

/// One page asked again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// The upstream's name; that of the job if it is missing.
    upstream: Option<String>,
    /// The model; that of the job, or of the request, if it is missing.
    model: Option<String>,
    /// The prompt; that of the job, or of the request, if it is missing.
    prompt: Option<String>,
}

/// A version of a page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Version {
    /// Its number.
    version: u32,
}

/// A password of a PDF; kept in memory alone.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Unlock {
    /// The password.
    password: String,
}

/// Done.
#[derive(Debug, Serialize, JsonSchema)]
struct Done {
    /// Always true; an error has another status.
    done: bool,
}

const DONE: Done = Done { done: true };

pub(super) fn mount(site: &mut Site, jobs: &Jobs) {
    reading(site, jobs);
    drafting(site, jobs);
    steering(site, jobs);
    asking(site, jobs);
}

fn reading(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    site.api_get("/api/v1/jobs", &Doc::new("List the jobs"), move |_| {
        let list = JobList { jobs: here.views() };
        async move { Ok(list) }
    });
    let here = jobs.clone();
    site.api_get("/api/v1/upstreams", &Doc::new("List the upstreams"), move |_| {
        let view = |it: &crate::jobs::Upstream| UpstreamView {
            name: it.name().into(),
            provider: it.provider().into(),
            model: it.default_model().into(),
            needs_model: it.needs_model(),
            takes_requests: it.dialect().is_some(),
        };
        let list = UpstreamList { upstreams: here.upstreams().map(view).collect() };
        async move { Ok(list) }
    });
    let here = jobs.clone();
    site.api_get("/api/v1/jobs/{id}", &of_job("Show a job"), move |request| {
        let view = job_id(&request).and_then(|id| here.view(id).map_err(failure));
        async move { view }
    });
    let here = jobs.clone();
    site.api_get(
        "/api/v1/jobs/{id}/plan",
        &of_job("Plan a job: how long it would take, and which limit binds"),
        move |request| {
            let jobs = here.clone();
            async move {
                let job: Job = jobs.job(job_id(&request)?).map_err(failure)?;
                jobs.plan(&job).await.map_err(|reason| Failure::bad_request(sentence(&reason)))
                    as Result<JobPlan, Failure>
            }
        },
    );
    let here = jobs.clone();
    site.api_get(
        "/api/v1/jobs/{id}/failures",
        &of_job("List the failed pages or requests of a job by reason"),
        move |request| {
            let jobs = here.clone();
            async move { Ok(Failures { failures: jobs.failures(job_id(&request)?).await.map_err(failure)? }) }
        },
    );
    let here = jobs.clone();
    site.api_get(
        "/api/v1/jobs/{id}/files/{file}/pages/{page}",
        &of_page("Show a page with its explanations, or a request with its answers"),
        move |request| {
            let jobs = here.clone();
            async move {
                let (id, file, page) = (job_id(&request)?, number(&request, "file")?, number(&request, "page")?);
                jobs.page(id, file, page).await.map_err(failure) as Result<PageView, Failure>
            }
        },
    );
    let here = jobs.clone();
    let doc = of_job(
        "Download results: all.zip, html.zip, md.zip, json.zip, or NUMBER.html, .md, .json of one file; of requests results.jsonl, \
         errors.jsonl, or both in all.zip",
    )
    .parameter("name", "The name of the download")
    .sends(&[
        "application/zip",
        "text/html; charset=utf-8",
        "text/markdown; charset=utf-8",
        "application/json",
        "application/jsonl",
    ]);
    site.api_raw(Method::GET, "/api/v1/jobs/{id}/download/{name}", None, &doc, move |request| {
        let jobs = here.clone();
        async move { job::download(&jobs, &request).await.map_err(failure) }
    });
}

fn drafting(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    let doc = Doc::new("Make a draft of uploaded files, PDFs or one JSONL file of requests")
        .takes_files()
        .error(413, "A file is too large.")
        .error(507, "There is no space.");
    site.api_raw(Method::POST, "/api/v1/jobs", Some("upload files"), &doc, move |request| {
        let jobs = here.clone();
        async move {
            let id = new::upload_new(&jobs, request).await?;
            Answer::json(&jobs.view(id).map_err(failure)?)
        }
    });
    let here = jobs.clone();
    let doc = of_job("Add files to a draft")
        .takes_files()
        .error(409, "The job has been started.")
        .error(413, "A file is too large.")
        .error(507, "There is no space.");
    site.api_raw(Method::POST, "/api/v1/jobs/{id}/files", Some("upload files"), &doc, move |request| {
        let jobs = here.clone();
        async move {
            let id = new::upload_more(&jobs, request).await?;
            Answer::json(&jobs.view(id).map_err(failure)?)
        }
    });
    let here = jobs.clone();
    let doc = of_job("Remove a file from a draft")
        .number("file", "The number of the file")
        .error(409, "The job has been started.");
    site.api_action(Method::DELETE, "/api/v1/jobs/{id}/files/{file}", "remove a file", &doc, move |request, (): ()| {
        let jobs = here.clone();
        async move {
            let (id, file) = (job_id(&request)?, number(&request, "file")?);
            request.audit(format!("job {id}, file {file}"));
            jobs.remove_file(id, file).await.map_err(failure)?;
            jobs.view(id).map_err(failure)
        }
    });
    let here = jobs.clone();
    let doc = of_job("Give the password of a PDF").number("file", "The number of the file");
    site.api_action(
        Method::POST,
        "/api/v1/jobs/{id}/files/{file}/password",
        "unlock a file",
        &doc,
        move |request, body: Unlock| {
            let jobs = here.clone();
            async move {
                let (id, file) = (job_id(&request)?, number(&request, "file")?);
                request.audit(format!("job {id}, file {file}"));
                jobs.unlock(id, file, body.password.into()).await.map_err(failure)?;
                jobs.view(id).map_err(failure)
            }
        },
    );
    let here = jobs.clone();
    let doc = of_job("Change a draft").error(409, "The job has been started.");
    site.api_action(Method::PATCH, "/api/v1/jobs/{id}", "change a draft", &doc, move |request, body: Change| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            request.audit(format!("job {id}"));
            let job = jobs.job(id).map_err(failure)?;
            let name = body.name.unwrap_or(job.name);
            let upstream = body.upstream.unwrap_or(job.upstream);
            let (model, options) = (body.model.unwrap_or(job.model), body.options.unwrap_or(job.options));
            jobs.configure(id, &name, &upstream, &model, options).await.map_err(failure)?;
            jobs.view(id).map_err(failure)
        }
    });
}

fn steering(site: &mut Site, jobs: &Jobs) {
    steer(site, jobs, "start", "start a job", "Start a draft", |jobs, id| async move { jobs.start(id).await });
    steer(site, jobs, "pause", "pause a job", "Pause a job", |jobs, id| async move { jobs.pause(id).await });
    steer(site, jobs, "resume", "resume a job", "Go on with a job", |jobs, id| async move { jobs.resume(id).await });
    let here = jobs.clone();
    let doc = of_job("Cancel a job").error(409, "The job has ended.");
    site.api_action(Method::POST, "/api/v1/jobs/{id}/cancel", "cancel a job", &doc, move |request, body: Cancel| {
        let jobs = here.clone();
        async move {
            let id = job_id(&request)?;
            request.audit(format!("job {id}"));
            jobs.cancel(id, body.drop_calls).await.map_err(failure)?;
            jobs.view(id).map_err(failure)
        }
    });
    let here = jobs.clone();
    let doc = of_job("Ask again about failed pages or requests").error(409, "The job has not been started.");
    site.api_action(
        Method::POST,
        "/api/v1/jobs/{id}/retry",
        "retry failed pages",
        &doc,
        move |request, body: Retry| {
            let jobs = here.clone();
            async move {
                let id = job_id(&request)?;
                request.audit(format!("job {id}"));
                Ok(Retried { pages: jobs.retry(id, body.code.as_deref()).await.map_err(failure)? })
            }
        },
    );
    let here = jobs.clone();
    site.api_action(
        Method::DELETE,
        "/api/v1/jobs/{id}",
        "delete a job",
        &of_job("Delete a job with its files and results"),
        move |request, (): ()| {
            let jobs = here.clone();
            async move {
                let id = job_id(&request)?;
                request.audit(format!("job {id}"));
                jobs.delete(id).await.map_err(failure)?;
                Ok(DONE)
            }
        },
    );
}

fn asking(site: &mut Site, jobs: &Jobs) {
    let here = jobs.clone();
    let path = "/api/v1/jobs/{id}/files/{file}/pages/{page}/ask";
    let doc = of_page("Ask about a page, or a request, again; the answer becomes a version of it");
    site.api_action(Method::POST, path, "ask about a page again", &doc, move |request, body: Ask| {
        let jobs = here.clone();
        async move {
            let (id, file, page) = (job_id(&request)?, number(&request, "file")?, number(&request, "page")?);
            request.audit(format!("job {id}, file {file}, page {page}"));
            let job = jobs.job(id).map_err(failure)?;
            let upstream = body.upstream.unwrap_or(job.upstream);
            let own_prompt = if job.kind == JobKind::Batch { String::new() } else { job.options.prompt };
            let (model, prompt) = (body.model.unwrap_or(job.model), body.prompt.unwrap_or(own_prompt));
            let how = How { upstream: &upstream, model: &model, prompt: &prompt };
            jobs.ask_again(id, file, page, how).await.map_err(failure)?;
            jobs.page(id, file, page).await.map_err(failure)
        }
    });
    let here = jobs.clone();
    let path = "/api/v1/jobs/{id}/files/{file}/pages/{page}/choose";
    let doc = of_page("Show another version of a page, also in downloads");
    site.api_action(Method::POST, path, "choose an explanation", &doc, move |request, body: Version| {
        let jobs = here.clone();
        async move {
            let (id, file, page) = (job_id(&request)?, number(&request, "file")?, number(&request, "page")?);
            request.audit(format!("job {id}, file {file}, page {page}, version {}", body.version));
            jobs.choose_version(id, file, page, body.version).await.map_err(failure)?;
            jobs.page(id, file, page).await.map_err(failure)
        }
    });
}

fn steer<F>(
    site: &mut Site,
    jobs: &Jobs,
    verb: &str,
    action: &'static str,
    summary: &'static str,
    act: impl Fn(Jobs, JobId) -> F + Clone + 'static,
) where
    F: Future<Output = Result<(), crate::jobs::JobError>> + 'static,
{
    let jobs = jobs.clone();
    let doc = of_job(summary).error(409, "The job's state does not allow it.");
    site.api_action(Method::POST, &format!("/api/v1/jobs/{{id}}/{verb}"), action, &doc, move |request, (): ()| {
        let (jobs, act) = (jobs.clone(), act.clone());
        async move {
            let id = job_id(&request)?;
            request.audit(format!("job {id}"));
            act(jobs.clone(), id).await.map_err(failure)?;
            jobs.view(id).map_err(failure) as Result<JobView, Failure>
        }
    });
}

fn of_job(summary: &'static str) -> Doc {
    Doc::new(summary).number("id", "The number of the job")
}

fn of_page(summary: &'static str) -> Doc {
    of_job(summary)
        .number("file", "The number of the file")
        .number("page", "The number of the page, from 1; of a request its line")
}

/// Sends a file piece by piece, under its name.
pub(super) fn send(download: Download) -> Answer {
    let Download { name, media_type, bytes, file } = download;
    let body = FileBody { file, left: bytes };
    let mut response = http::Response::new(axum::body::Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    let plain: String =
        name.chars().map(|c| if c.is_ascii_graphic() && !"\"\\%".contains(c) || c == ' ' { c } else { '_' }).collect();
    let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC);
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Answer::response(response)
}

/// A local file as a body. It is read on the loop: pages of the file's cache, a small piece at a time.
struct FileBody {
    file: File,
    left: u64,
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut chunk = vec![0; wanted];
        Poll::Ready(Some(match self.file.read_exact(&mut chunk) {
            Ok(()) => {
                self.left -= wanted as u64;
                Ok(Frame::data(Bytes::from(chunk)))
            }
            Err(error) => {
                self.left = 0;
                Err(error)
            }
        }))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
