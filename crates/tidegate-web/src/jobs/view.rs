//! Jobs as pages and the API show them: one set of shapes for both.

use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;
use tidegate_batch::plan::Prices;
use tidegate_batch::{ItemState, SeenAs};

use super::error::JobError;
use super::model::{Counts, FileKind, FileStatus, Job, JobFile, JobId, JobKind, JobOptions, JobState, PageState};
use super::requests::{BadLines, RequestText};
use super::service::{Jobs, Live};
use super::store::{Hits, PageRecord};

/// The state of a job, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Not started.
    Draft,
    /// Pages are in flight, or about to be.
    Running,
    /// Nothing moves until a limit has room.
    Blocked,
    /// Paused by a person, or waiting for a password.
    Paused,
    /// Ended.
    Done,
    /// Stopped by an error.
    Failed,
    /// Cancelled by a person.
    Cancelled,
}

impl JobStatus {
    pub(crate) fn word(self) -> &'static str {
        match self {
            JobStatus::Draft => "Draft",
            JobStatus::Running => "Running",
            JobStatus::Blocked => "Blocked",
            JobStatus::Paused => "Paused",
            JobStatus::Done => "Done",
            JobStatus::Failed => "Failed",
            JobStatus::Cancelled => "Cancelled",
        }
    }

    /// The class of its mark.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            JobStatus::Draft => "w",
            JobStatus::Running => "i",
            JobStatus::Blocked => "b",
            JobStatus::Paused => "p",
            JobStatus::Done => "d",
            JobStatus::Failed => "x",
            JobStatus::Cancelled => "s",
        }
    }
}

/// The limit that a job waits for.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct BlockedBy {
    /// The limit: rpm, tpm, rpd, concurrency, or page concurrency of a file.
    pub limit: String,
    /// What is used of it now.
    pub used: Option<u64>,
    /// What it allows.
    pub amount: Option<u64>,
    /// When the next page is admitted, in milliseconds since 1970, if that is known.
    pub until_ms: Option<u64>,
}

/// What was paid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Cost {
    /// Tokens of prompts.
    pub tokens_in: u64,
    /// Tokens of answers.
    pub tokens_out: u64,
    /// At the upstream's prices; absent if they are not known.
    pub money: Option<f64>,
}

impl Cost {
    pub(crate) fn of((tokens_in, tokens_out): (u64, u64), prices: Option<Prices>) -> Cost {
        let money = prices.map(|prices| (prices.input * tokens_in as f64 + prices.output * tokens_out as f64) / 1e6);
        Cost { tokens_in, tokens_out, money }
    }
}

/// A job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct JobView {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: JobKind,
    /// The upstream's name.
    pub upstream: String,
    /// The model.
    pub model: String,
    /// What is asked about each page; requests have their own in their file.
    pub options: JobOptions,
    /// Its state.
    pub state: JobStatus,
    /// Why it failed or waits for a person.
    pub reason: String,
    /// What is wrong with storing its results, while it is.
    pub notice: Option<String>,
    /// When it was made, as RFC 3339.
    pub created: String,
    /// When it was started.
    pub started: Option<String>,
    /// When its state changed last.
    pub changed: String,
    /// Its pages, or its requests, by state.
    pub pages: Counts,
    /// What it waits for, while pages are blocked.
    pub blocked_by: Option<BlockedBy>,
    /// Seconds until it is done, if that can be told.
    pub remaining_s: Option<f64>,
    /// Pages answered in the last minute.
    pub per_minute: f64,
    /// What was paid so far.
    pub cost: Cost,
    /// Its files.
    pub files: Vec<FileView>,
    /// Lines of a draft's requests that its upstream does not take: nothing is sent while there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_lines: Option<BadLines>,
}

/// A file of a job.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FileView {
    /// Its number in the job.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// What is in it.
    pub kind: FileKind,
    /// Its size.
    pub bytes: u64,
    /// `unread`, `readable`, `needs_password`, `wrong_password` or `broken`.
    pub status: &'static str,
    /// Why it cannot be read.
    pub reason: Option<String>,
    /// Its pages by state.
    pub pages: Counts,
    /// Tokens of its pages, as estimated.
    pub tokens: Option<u64>,
}

/// Pages that failed for one reason.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailureView {
    /// The kind of failure, for programs.
    pub code: String,
    /// What happened.
    pub reason: String,
    /// The pages, by file and number.
    pub pages: Vec<(u32, u32)>,
}

/// A page, or a request, with its results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PageView {
    /// The number of its file.
    pub file: u32,
    /// Its number, from 1; of a request its line.
    pub page: u32,
    /// How far it has come.
    pub state: PageState,
    /// It is being asked about again.
    pub asking: bool,
    /// What it waits for, if it is blocked.
    pub blocked_by: Option<BlockedBy>,
    /// Its results; one of them is shown.
    pub versions: Vec<VersionView>,
    /// What is asked, if it is a request of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestText>,
}

/// A result of a page.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VersionView {
    /// 0: the job's own; above: asked again.
    pub version: u32,
    /// Whether it is in the outputs.
    pub shown: bool,
    /// Whether it was answered.
    pub state: PageState,
    /// The upstream that answered.
    pub upstream: String,
    /// The model.
    pub model: String,
    /// What was asked, if it is not the job's prompt.
    pub prompt: Option<String>,
    /// When, as RFC 3339.
    pub at: String,
    /// The explanation, in Markdown.
    pub explanation: Option<String>,
    /// Why there is none: the kind, for programs.
    pub error_code: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// `text` or `picture`.
    pub seen_as: Option<&'static str>,
    /// What is wrong with the page's text, if anything.
    pub text_quality: Option<String>,
    /// What is not as it should be with the page.
    pub warnings: Vec<String>,
    /// The answer was cut at its greatest length.
    pub truncated: bool,
    /// What it cost.
    pub cost: Cost,
}

impl Jobs {
    /// A job as it is now.
    ///
    /// # Errors
    /// [`JobError::NoJob`].
    pub fn view(&self, id: JobId) -> Result<JobView, JobError> {
        self.look(id, |live| self.view_of(live))
    }

    /// All jobs, the newest first.
    #[must_use]
    pub fn views(&self) -> Vec<JobView> {
        self.inner.jobs.borrow().values().rev().map(|live| self.view_of(live)).collect()
    }

    /// How many jobs run, blocked ones included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.inner.jobs.borrow().values().filter(|live| live.job.state == JobState::Running).count()
    }

    fn view_of(&self, live: &Live) -> JobView {
        let job = &live.job;
        let upstream = self.upstream(&job.upstream);
        let progress = live.run.as_ref().map(|run| run.control.progress());
        let counts = job.counts();
        let blocked_by = (counts.blocked > 0).then(|| blocked_by(live)).flatten();
        let state = match job.state {
            JobState::Draft => JobStatus::Draft,
            JobState::Running if counts.blocked > 0 && counts.in_flight == 0 => JobStatus::Blocked,
            JobState::Running => JobStatus::Running,
            JobState::Paused => JobStatus::Paused,
            JobState::Done => JobStatus::Done,
            JobState::Failed => JobStatus::Failed,
            JobState::Cancelled => JobStatus::Cancelled,
        };
        let remaining = progress.as_ref().filter(|progress| !progress.paused).and_then(|progress| progress.remaining);
        JobView {
            id: job.id,
            name: job.name.clone(),
            kind: job.kind,
            upstream: job.upstream.clone(),
            model: job.model.clone(),
            options: job.options.clone(),
            state,
            reason: job.reason.clone(),
            notice: live.notice.clone(),
            created: job.created.to_string(),
            started: job.started.map(|at| at.to_string()),
            changed: job.changed.to_string(),
            pages: counts,
            blocked_by,
            remaining_s: remaining.as_ref().map(Duration::as_secs_f64),
            per_minute: progress.map_or(0.0, |progress| progress.per_minute),
            cost: Cost::of(job.tokens, upstream.and_then(|upstream| upstream.known_prices())),
            files: job.files.iter().map(file_view).collect(),
            bad_lines: match (job.kind, job.state) {
                (JobKind::Batch, JobState::Draft) => self.bad_lines(job).filter(|bad| bad.count > 0),
                _ => None,
            },
        }
    }

    /// The letters of a job's pages, file after file.
    pub(crate) fn letters(&self, id: JobId) -> Result<Vec<u8>, JobError> {
        self.look(id, |live| {
            let states = live.job.files.iter().flat_map(|file| &file.states);
            states.map(|state| state.letter() as u8).collect()
        })
    }

    /// The pages that failed, by reason; the most frequent first.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn failures(&self, id: JobId) -> Result<Vec<FailureView>, JobError> {
        let job = self.job(id)?;
        let mut groups: Vec<FailureView> = Vec::new();
        for record in self.inner.store.failed(id).await? {
            let page = (record.file, record.entry.page);
            // Asked again meanwhile.
            if job.file(record.file).and_then(|file| file.state(page.1)) != Some(PageState::Failed) {
                continue;
            }
            let note = record.entry.error.unwrap_or_default();
            match groups.iter_mut().find(|group| (&group.code, &group.reason) == (&note.code, &note.reason)) {
                Some(group) => group.pages.push(page),
                None => groups.push(FailureView { code: note.code, reason: note.reason, pages: vec![page] }),
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.pages.len()));
        Ok(groups)
    }

    /// A page with all of its results.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn page(&self, id: JobId, file: u32, page: u32) -> Result<PageView, JobError> {
        let (kind, state, asking, blocked_by) = self.look(id, |live| {
            let found = live.job.file(file).ok_or(JobError::NotFound("file"))?;
            let kind = live.job.kind;
            let state = found.state(page).ok_or(JobError::NotFound(kind.unit()))?;
            let blocked = (state == PageState::Blocked).then(|| blocked_page(live, file, page)).flatten();
            Ok::<_, JobError>((kind, state, live.asking.contains(&(file, page)), blocked))
        })??;
        let versions = self.inner.store.versions(id, file, page).await?;
        let mut versions: Vec<VersionView> = versions.into_iter().map(|record| self.version_view(record)).collect();
        let request = match kind {
            JobKind::Batch => Some(self.request(id, page).await?),
            JobKind::Explain | JobKind::Rebuild => None,
        };
        if let Some(model) = request.as_ref().and_then(|request| request.model.as_ref()) {
            versions.iter_mut().filter(|version| version.model.is_empty()).for_each(|it| it.model.clone_from(model));
        }
        Ok(PageView { file, page, state, asking, blocked_by, versions, request })
    }

    fn version_view(&self, record: PageRecord) -> VersionView {
        let PageRecord { entry, .. } = record;
        let usage = entry.usage.unwrap_or_default();
        let prices = self.upstream(&record.upstream).and_then(|upstream| upstream.known_prices());
        let (error_code, error) = entry.error.map(|note| (note.code, note.reason)).unzip();
        VersionView {
            version: record.version,
            shown: record.shown,
            state: record.state,
            upstream: record.upstream,
            model: record.model,
            prompt: record.prompt,
            at: record.at.to_string(),
            explanation: entry.explanation,
            error_code,
            error,
            seen_as: entry.seen_as.map(|seen| match seen {
                SeenAs::Picture => "picture",
                _ => "text",
            }),
            text_quality: entry.text_quality,
            warnings: entry.warnings,
            truncated: entry.finish == Some(tidegate_batch::Finish::Truncated),
            cost: Cost::of((usage.input_tokens, usage.output_tokens), prices),
        }
    }

    /// The pages or requests of a file in which `text` occurs, and how often it does in all.
    pub(crate) async fn search(&self, id: JobId, file: u32, text: &str) -> Result<Hits, JobError> {
        let kind = self.job(id)?.kind;
        let text = text.trim();
        if text.is_empty() {
            return Ok(Hits::default());
        }
        let hits = self.inner.store.find(id, file, text.to_owned()).await?;
        match kind {
            JobKind::Batch => self.find_requests(id, text, hits).await,
            JobKind::Explain | JobKind::Rebuild => Ok(hits),
        }
    }
}

/// What the first blocked page of a job waits for.
fn blocked_by(live: &Live) -> Option<BlockedBy> {
    let (file, page) = live.job.files.iter().find_map(|file| {
        let at = file.states.iter().position(|state| *state == PageState::Blocked)?;
        Some((file.number, file.numbers[at]))
    })?;
    blocked_page(live, file, page)
}

fn blocked_page(live: &Live, file: u32, page: u32) -> Option<BlockedBy> {
    let run = live.run.as_ref()?;
    let ItemState::Blocked { limit, until } = run.control.item(run.item(file, page)?)? else { return None };
    let gate = run.control.progress().gate;
    let found = gate.as_ref().and_then(|gate| gate.limit(&limit));
    let millis = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_millis() as u64);
    Some(BlockedBy {
        used: found.map(|found| found.used),
        amount: found.map(|found| found.amount),
        until_ms: until.and_then(millis),
        limit: match limit.as_str() {
            "scopes" => "page concurrency".into(),
            "global" => "concurrency".into(),
            _ => limit,
        },
    })
}

fn file_view(file: &JobFile) -> FileView {
    let (status, reason) = match &file.status {
        FileStatus::Unread => ("unread", None),
        FileStatus::Readable => ("readable", None),
        FileStatus::NeedsPassword { wrong: false } => ("needs_password", None),
        FileStatus::NeedsPassword { wrong: true } => ("wrong_password", None),
        FileStatus::Broken(reason) => ("broken", Some(reason.clone())),
    };
    let tokens = (!file.page_tokens.is_empty()).then(|| file.page_tokens.iter().map(|it| u64::from(*it)).sum());
    FileView {
        number: file.number,
        name: file.name.clone(),
        kind: file.kind,
        bytes: file.bytes,
        status,
        reason,
        pages: Counts::of(&file.states),
        tokens,
    }
}

/// A file's number and a page's.
type PagePlace = (u32, u32);

/// Where the neighbours of a page are, for the reader.
pub(crate) fn neighbours(job: &Job, file: u32, page: u32) -> (Option<PagePlace>, Option<PagePlace>) {
    let all: Vec<PagePlace> =
        job.files.iter().flat_map(|file| file.numbers.iter().map(|page| (file.number, *page))).collect();
    let Some(at) = all.iter().position(|it| *it == (file, page)) else { return (None, None) };
    (at.checked_sub(1).map(|at| all[at]), all.get(at + 1).copied())
}

impl Jobs {
    /// What a page shows changes with this text; `None` if there is no such page. Cheap: nothing is read from the disk.
    pub(crate) fn page_key(&self, id: JobId, file: u32, page: u32) -> Option<String> {
        self.look(id, |live| {
            let state = live.job.file(file)?.state(page)?;
            let is_asked = live.asking.contains(&(file, page));
            // Waiting, blocked and in flight look alike, but for a word.
            let state = if state.is_settled() { state } else { PageState::Waiting };
            Some(format!("{} {is_asked} {}", state.letter(), live.run.is_some()))
        })
        .ok()
        .flatten()
    }
}
