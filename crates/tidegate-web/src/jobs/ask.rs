//! One page asked again, with another prompt, model or upstream, to compare. The answer is a version of the page; the outputs change
//! only when a person chooses it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use jiff::Timestamp;
use tidegate_batch::jsonl::{RequestAsk, RequestAskError};
use tidegate_batch::{CallError, Entry, FailureNote, ItemScope, PageAsk, PageAskError, Prompt, Status};
use tidegate_loop::{spawn, to_thread};

use super::engine::entry_of_result;
use super::error::JobError;
use super::model::{Job, JobId, JobKind, PROMPT_BYTES_MAX, PageState};
use super::service::Jobs;
use super::store::PageRecord;
use super::upstream::Upstream;

/// Items of one job that are asked again at once.
const ASKING_MAX: usize = 20;

/// What became of an item that was asked again, and its line of results if it is a request that was answered.
type Again = (Entry, Option<Vec<u8>>);

type Asking = Pin<Box<dyn Future<Output = Again>>>;

/// How an item is asked again.
pub(crate) struct How<'a> {
    pub(crate) upstream: &'a str,
    pub(crate) model: &'a str,
    /// Empty: a request is sent as it stands in its file.
    pub(crate) prompt: &'a str,
}

impl Jobs {
    /// Asks about one page, or one request, again. Returns at once; the answer becomes a version of it.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be asked at all.
    pub(crate) async fn ask_again(&self, id: JobId, file: u32, page: u32, how: How<'_>) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let job = self.job(id)?;
        let known = job.file(file).and_then(|file| file.position(page));
        known.ok_or(JobError::NotFound(job.kind.unit()))?;
        if how.prompt.len() > PROMPT_BYTES_MAX {
            return Err(JobError::Invalid(format!("the prompt is longer than {} KiB", PROMPT_BYTES_MAX / 1024)));
        }
        let upstream = self.upstream(how.upstream);
        let upstream = upstream.ok_or_else(|| JobError::Invalid("no upstream has that name".into()))?;
        let model = match (how.model.trim(), job.kind) {
            ("", JobKind::Explain | JobKind::Rebuild) => upstream.default_model(),
            (model, _) => model,
        };
        let model = model.to_owned();
        let (asking, model) = match job.kind {
            JobKind::Batch => self.request_again(&job, page, &upstream, model, how.prompt).await?,
            JobKind::Explain | JobKind::Rebuild => {
                (self.page_again(&job, file, page, &upstream, &model, how.prompt)?, model)
            }
        };
        self.ask(id, (file, page), upstream.name(), model, how.prompt, asking)
    }

    fn page_again(
        &self,
        job: &Job,
        file: u32,
        page: u32,
        upstream: &Rc<Upstream>,
        model: &str,
        prompt: &str,
    ) -> Result<Asking, JobError> {
        Prompt::parse(prompt).map_err(|error| JobError::Invalid(error.to_string()))?;
        let provider = upstream.connect(model, &job.options).map_err(JobError::Invalid)?;
        let (options, files) = self.page_options(job)?;
        let index = files.iter().position(|number| *number == file);
        let index =
            index.ok_or_else(|| JobError::Invalid("the file cannot be read; enter its password first".into()))?;
        let ask = PageAsk::new(&options, index, page).reader(self.reader_of(job.id, file)).prompt(prompt);
        let ask = ask.map_err(|error| JobError::Invalid(error.to_string()))?;
        let (jobs, id, gate) = (self.clone(), job.id, upstream.gate().clone());
        Ok(Box::pin(async move {
            let scope = ItemScope::from(gate.unscoped());
            let mut entry = Entry { page, ..Entry::default() };
            match ask.ask(&*provider, &scope).await {
                Ok(answered) => {
                    entry.seen_as = Some(answered.seen_as);
                    (entry.text_quality, entry.warnings) = (answered.quality, answered.warnings);
                    entry.finish = Some(answered.answer.finish);
                    entry.usage = Some(answered.answer.usage);
                    entry.explanation = Some(answered.answer.text);
                }
                Err(error) => {
                    let (code, reason) = failure(&error);
                    entry.status = Status::Failed;
                    entry.error = Some(FailureNote { code, reason: jobs.without_path(id, file, &reason) });
                }
            }
            (entry, None)
        }))
    }

    /// Also returns the model that is asked: `model`, or the one that the request names.
    async fn request_again(
        &self,
        job: &Job,
        line: u32,
        upstream: &Rc<Upstream>,
        model: String,
        prompt: &str,
    ) -> Result<(Asking, String), JobError> {
        let request = self.request(job.id, line).await?;
        let file = self.request_file(job.id)?;
        let invalid = |error: RequestAskError| JobError::Invalid(error.to_string());
        let read = to_thread(move || RequestAsk::read(&file, line.into())).await;
        let mut ask = read.map_err(|error| std::io::Error::other(error.to_string()))?.map_err(invalid)?;
        let is_other = !prompt.is_empty() && request.prompt.as_deref() != Some(prompt);
        if is_other {
            ask = ask.prompt(prompt).map_err(invalid)?;
        }
        let caller = upstream.caller().map_err(JobError::Invalid)?;
        let other = Some(model.clone()).filter(|model| !model.is_empty());
        ask.check(&caller, other.as_deref()).map_err(invalid)?;
        let asking = Box::pin(async move {
            let scope = ItemScope::from(caller.gate().unscoped());
            match ask.ask(&caller, &scope, other.as_deref()).await {
                Ok(result) => {
                    let answered = result.view.outcome.is_ok();
                    (entry_of_result(line.into(), result.view), answered.then_some(result.line))
                }
                Err(error) => {
                    let error = Some(FailureNote { code: "unfit".into(), reason: error.to_string() });
                    (Entry { page: line, status: Status::Failed, error, ..Entry::default() }, None)
                }
            }
        });
        let model = if model.is_empty() { request.model.unwrap_or_default() } else { model };
        Ok((asking, model))
    }

    /// Asks, and stores what comes as a version.
    fn ask(
        &self,
        id: JobId,
        (file, page): (u32, u32),
        upstream: &str,
        model: String,
        prompt: &str,
        asking: Asking,
    ) -> Result<(), JobError> {
        let is_free = self.touch(id, |live| {
            let is_free = live.asking.len() < ASKING_MAX && !live.asking.contains(&(file, page));
            if is_free {
                live.asking.push((file, page));
            }
            is_free
        })?;
        if !is_free {
            return Err(JobError::Invalid("this one is being asked, or too many are; wait for an answer".into()));
        }
        let (jobs, upstream) = (self.clone(), upstream.to_owned());
        let prompt = Some(prompt.to_owned()).filter(|prompt| !prompt.is_empty());
        spawn(async move {
            let (entry, line) = asking.await;
            let usage = entry.usage.unwrap_or_default();
            let state = if entry.status == Status::Failed { PageState::Failed } else { PageState::Done };
            let at = Timestamp::now();
            let record = PageRecord { file, version: 0, shown: false, state, upstream, model, prompt, at, entry, line };
            let stored = jobs.inner.store.add_version(id, record).await;
            let changed = jobs.touch(id, |live| {
                live.asking.retain(|busy| *busy != (file, page));
                live.job.tokens.0 += usage.input_tokens;
                live.job.tokens.1 += usage.output_tokens;
            });
            if let (Err(error), Ok(())) = (stored, changed) {
                log::warn!("job {id}: the answer to {page} cannot be stored: {error}");
                let _ = jobs.touch(id, |live| live.notice = Some(error.to_string()));
            }
        });
        Ok(())
    }

    /// Shows another version of a page, in the reader and in the outputs.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn choose_version(&self, id: JobId, file: u32, page: u32, version: u32) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        self.job(id)?;
        let state = self.inner.store.show_version(id, file, page, version).await?;
        let state = state.ok_or(JobError::NotFound("version"))?;
        self.touch(id, |live| {
            if let Some(file) = live.job.file_mut(file)
                && let Some(at) = file.position(page)
            {
                file.states[at] = state;
            }
        })
    }

    /// Deletes a version of a page that is not shown.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn delete_version(&self, id: JobId, file: u32, page: u32, version: u32) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        if !self.inner.store.remove_version(id, file, page, version).await? {
            return Err(JobError::NotFound("version that is not shown"));
        }
        self.touch(id, |_| ())
    }
}

fn failure(error: &PageAskError) -> (String, String) {
    match error {
        PageAskError::Unreadable(reason) => ("unreadable".into(), reason.clone()),
        PageAskError::Skipped(reason) => ("skipped".into(), reason.clone()),
        PageAskError::Call(error) => (CallError::code(error).into(), error.to_string()),
        PageAskError::Store(error) => ("store".into(), error.to_string()),
        #[allow(unreachable_patterns, reason = "the engine may add kinds")]
        _ => ("failed".into(), "the page could not be asked about".into()),
    }
}
