//! Jobs of requests: their file is checked and counted before the start; its requests, and their results, are read back for the
//! reader and the downloads.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::rc::Rc;

use schemars::JsonSchema;
use serde::Serialize;
use tidegate_batch::jsonl::{
    BadLine, Faults, RequestFile, RequestView, ResultFile, ResultView, Scan, ScanLimits, Which,
};
use tidegate_batch::{Dialect, Entry};
use tidegate_loop::to_thread;

use super::downloads::{Download, archive};
use super::engine::entry_of_result;
use super::error::JobError;
use super::files::stem;
use super::model::{FileKind, FileStatus, Job, JobFile, JobId, JobKind, JobState};
use super::service::Jobs;
use super::store::Hits;
use super::upload::random_name;
use super::upstream::Upstream;
use super::zip::entry_name;

/// How large a file of requests may be: a line with a picture of a page has a few megabytes, and providers take 50,000 requests.
const LIMITS: ScanLimits = ScanLimits { line_bytes_max: 8 << 20, requests_max: 50_000 };

/// Bytes of a text of a request that are shown.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// A line that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BadLineView {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// Lines that cannot be sent: nothing is, as long as there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BadLines {
    /// The first of them.
    pub listed: Vec<BadLineView>,
    /// How many there are in all.
    pub count: u64,
}

/// A request, as its line has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RequestText {
    /// Its id.
    pub custom_id: String,
    /// Its path; empty in Gemini's form.
    pub url: String,
    /// The model that it names.
    pub model: Option<String>,
    /// What is said in it.
    pub messages: Vec<MessageText>,
    /// The text that another prompt would replace; absent if it does not end with exactly one.
    pub prompt: Option<String>,
    /// Its body; the beginning of a long one.
    pub body: String,
}

/// A message of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MessageText {
    /// `system`, `user`, `assistant`, …
    pub role: String,
    /// Its text; the beginning of a long one.
    pub text: String,
}

impl From<&Faults> for BadLines {
    fn from(faults: &Faults) -> BadLines {
        let view = |bad: &BadLine| BadLineView { line: bad.line, reason: bad.reason.clone() };
        BadLines { listed: faults.listed().iter().map(view).collect(), count: faults.count() }
    }
}

impl BadLines {
    /// In one sentence, with the first of them.
    fn in_words(&self) -> String {
        let first = self.listed.first().map(|bad| format!("line {}: {}", bad.line, bad.reason)).unwrap_or_default();
        match self.count {
            0 | 1 => first,
            count => format!("{count} lines cannot be sent; {first}"),
        }
    }
}

fn beginning(mut text: String) -> String {
    if text.len() > SHOWN_BYTES_MAX {
        let end = (0..=SHOWN_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

impl From<RequestView> for RequestText {
    fn from(view: RequestView) -> RequestText {
        let message = |turn: tidegate_batch::jsonl::Turn| MessageText { role: turn.role, text: beginning(turn.text) };
        RequestText {
            custom_id: view.id,
            url: view.url,
            model: view.model,
            messages: view.turns.into_iter().map(message).collect(),
            prompt: view.prompt.filter(|prompt| prompt.len() <= SHOWN_BYTES_MAX),
            body: beginning(view.body),
        }
    }
}

/// The file of a job of requests.
fn file_of(job: &Job) -> Result<&JobFile, JobError> {
    job.files.iter().find(|file| file.kind == FileKind::Jsonl).ok_or(JobError::NotFound("file"))
}

impl Jobs {
    pub(super) fn request_file(&self, id: JobId) -> Result<RequestFile, JobError> {
        self.look(id, |live| Ok(RequestFile::new(self.inner.place.file(id, file_of(&live.job)?))))?
    }

    /// Checks and counts the requests of a file.
    pub(super) async fn scan(&self, id: JobId, file: &JobFile) {
        let path = self.inner.place.file(id, file);
        let scanned = to_thread(move || Scan::read(&path, LIMITS)).await;
        let scan = match scanned.unwrap_or_else(|error| Err(std::io::Error::other(error.to_string()))) {
            Ok(scan) => Rc::new(scan),
            Err(error) => {
                let reason = format!("{} cannot be read: {error}", file.name);
                return self.file_read(id, file.number, |file| file.status = FileStatus::Broken(reason)).await;
            }
        };
        // Deleted meanwhile, it is not kept.
        let Ok(state) = self.look(id, |live| live.job.state) else { return };
        self.inner.scans.borrow_mut().insert(id, Rc::clone(&scan));
        if state == JobState::Draft {
            self.propose(id, &scan).await;
        }
        let (_, faults) = scan.best();
        let status = match faults.is_empty() {
            true => FileStatus::Readable,
            false => FileStatus::Broken(BadLines::from(faults).in_words()),
        };
        self.file_read(id, file.number, |file| {
            file.status = status;
            file.page_tokens = scan.requests.iter().map(|request| request.tokens.input).collect();
            file.page_count = scan.requests.last().map_or(0, |last| last.line);
            file.choose(scan.requests.iter().map(|request| request.line).collect());
        })
        .await;
    }

    /// Chooses the first upstream that takes the requests of a draft, if the one that is chosen does not.
    async fn propose(&self, id: JobId, scan: &Scan) {
        let Ok(job) = self.job(id) else { return };
        let takes = |it: &Upstream| it.dialect().is_some_and(|dialect| scan.faults(dialect).is_empty());
        let chosen = self.upstream(&job.upstream);
        let best = match chosen.filter(|chosen| takes(chosen)) {
            Some(chosen) => Some(chosen),
            None => {
                let all = || self.inner.upstreams.iter();
                all().find(|it| takes(it)).or_else(|| all().find(|it| it.dialect().is_some())).cloned()
            }
        };
        let Some(upstream) = best else { return };
        let model = if scan.needs_model { upstream.default_model().to_owned() } else { String::new() };
        let written = self.write(id, |job| (job.upstream, job.model) = (upstream.name().to_owned(), model)).await;
        if let Err(error) = written {
            log::warn!("job {id}: {error}");
        }
    }

    /// What was found in the file of a job, once it has been read.
    pub(super) fn scanned(&self, id: JobId) -> Option<Rc<Scan>> {
        self.inner.scans.borrow().get(&id).cloned()
    }

    /// The lines that the upstream of a draft does not take; `None` if that is not known yet.
    pub(crate) fn bad_lines(&self, job: &Job) -> Option<BadLines> {
        let scan = self.scanned(job.id)?;
        let dialect = self.upstream(&job.upstream).and_then(|upstream| upstream.dialect());
        Some(dialect.map_or_else(|| scan.best().1, |dialect| scan.faults(dialect)).into())
    }

    /// Returns `true` if requests can be sent through an upstream of this server.
    pub(crate) fn takes_requests(&self) -> bool {
        self.inner.upstreams.iter().any(|upstream| upstream.dialect().is_some())
    }

    /// Checks that a job of requests can be sent.
    pub(super) fn check_requests(&self, job: &Job, upstream: &Upstream) -> Result<(), JobError> {
        let invalid = |reason: String| Err(JobError::Invalid(reason));
        let Some(dialect) = upstream.dialect() else {
            return invalid(format!("the upstream {} explains pages alone; choose one with a server", upstream.name()));
        };
        let Some(scan) = self.scanned(job.id) else { return invalid("the file is still being read".into()) };
        let faults = BadLines::from(scan.faults(dialect));
        if faults.count > 0 {
            return invalid(format!("nothing was sent: {}", faults.in_words()));
        }
        if scan.needs_model && job.model.is_empty() {
            return invalid("these requests name no model; choose one".into());
        }
        if scan.needs_model {
            dialect.path(&job.model).map_err(|_| JobError::Invalid("that is not the name of a model".into()))?;
        }
        // What it would be sent with is tried before it counts as started.
        drop(upstream.caller().map_err(JobError::Invalid)?);
        Ok(())
    }

    /// The request in a line.
    pub(crate) async fn request(&self, id: JobId, line: u32) -> Result<RequestText, JobError> {
        let file = self.request_file(id)?;
        let found = in_thread(move || file.request(line.into())).await?;
        Ok(found.ok_or(JobError::NotFound("request"))?.into())
    }

    /// Adds the requests in which `text` occurs to the hits in the answers.
    pub(super) async fn find_requests(&self, id: JobId, text: &str, mut hits: Hits) -> Result<Hits, JobError> {
        let (file, text) = (self.request_file(id)?, text.to_owned());
        let found = in_thread(move || file.find(&text)).await?;
        hits.count += found.len();
        let lines = found.into_iter().filter_map(|line| u32::try_from(line).ok());
        let all: BTreeSet<u32> = lines.chain(hits.pages).collect();
        hits.pages = all.into_iter().collect();
        Ok(hits)
    }

    /// The results of requests as the engine has stored them, by line.
    pub(super) async fn stored_results(
        &self,
        id: JobId,
        lines: BTreeSet<u32>,
    ) -> Result<HashMap<u32, Entry>, JobError> {
        let file = self.request_file(id)?;
        let results = ResultFile::new(self.inner.place.request_results(id));
        let dialect = self.dialect(&self.job(id)?);
        in_thread(move || {
            let ids = file.ids(&lines.into_iter().map(u64::from).collect())?;
            let wanted: HashSet<String> = ids.values().cloned().collect();
            let mut found = results.results(&wanted, dialect)?;
            let entry = |(line, id): (u64, String)| {
                Some((u32::try_from(line).ok()?, entry_of_result(line, found.remove(&id)?)))
            };
            Ok(ids.into_iter().filter_map(entry).collect())
        })
        .await
    }

    /// What answers of a job look like, also where its upstream is not there any more.
    fn dialect(&self, job: &Job) -> Dialect {
        let dialect = self.upstream(&job.upstream).and_then(|upstream| upstream.dialect());
        dialect.unwrap_or(Dialect::OpenAi)
    }

    /// The results of a job of requests: those that were answered or those that failed, one per line, as its provider's batches
    /// have them. A version that a person chose is there in place of the job's own.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn download_results(&self, id: JobId, which: Which) -> Result<Download, JobError> {
        let job = self.job(id)?;
        let name = result_name(&job, which)?;
        let make = self.result_maker(&job).await?;
        let (file, bytes) = in_thread(move || make(which)).await?;
        Ok(Download { name, media_type: "application/jsonl", bytes, file })
    }

    /// Both of them in one archive.
    pub(super) async fn download_all_results(&self, job: &Job) -> Result<Download, JobError> {
        let names = [Which::Answered, Which::Failed].map(|which| result_name(job, which).map(|name| (which, name)));
        let make = self.result_maker(job).await?;
        let path = self.inner.place.incoming().join(random_name());
        let [answered, failed] = names;
        let names = [answered?, failed?];
        let (file, bytes) = in_thread(move || {
            let mut entries = Vec::new();
            for (which, name) in names {
                entries.push((name, make(which)?.0));
            }
            let made = archive(&path, entries);
            // Open, it lasts as long as it is read.
            let _ = std::fs::remove_file(&path);
            made
        })
        .await?;
        let name = entry_name(&job.name, "zip", &mut HashSet::new());
        Ok(Download { name, media_type: "application/zip", bytes, file })
    }

    /// What writes results into a file that has no name any more. Blocking.
    async fn result_maker(
        &self,
        job: &Job,
    ) -> Result<impl Fn(Which) -> std::io::Result<(File, u64)> + Send + 'static, JobError> {
        if job.kind != JobKind::Batch {
            return Err(JobError::NotFound("result"));
        }
        let dialect = self.dialect(job);
        let chosen = self.inner.store.chosen_lines(job.id).await?;
        let id_and_line = |line: Vec<u8>| Some((ResultView::read(&line, dialect)?.id, line));
        let instead: HashMap<String, Vec<u8>> = chosen.into_iter().filter_map(id_and_line).collect();
        let results = ResultFile::new(self.inner.place.request_results(job.id));
        let folder = self.inner.place.incoming();
        Ok(move |which| {
            let path = folder.join(random_name());
            let mut out = BufWriter::new(tidegate_files::create_new(&path)?);
            let copied = results.copy(which, &instead, &mut out).and_then(|_| out.flush());
            let file = copied.and_then(|()| File::open(&path));
            let _ = std::fs::remove_file(&path);
            let file = file?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        })
    }
}

fn result_name(job: &Job, which: Which) -> Result<String, JobError> {
    let stem = stem(&file_of(job)?.name);
    let what = if which == Which::Answered { "results" } else { "errors" };
    Ok(entry_name(&format!("{stem}-{what}"), "jsonl", &mut HashSet::new()))
}

async fn in_thread<T: Send + 'static>(
    job: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, JobError> {
    let done = to_thread(job).await.map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(done?)
}
