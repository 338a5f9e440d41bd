//! One page asked again, with another prompt, model or upstream, to compare. The answer is a version of the page; the outputs change
//! only when a person chooses it.

use jiff::Timestamp;
use tidegate_batch::{CallError, Entry, FailureNote, ItemScope, PageAsk, PageAskError, Prompt, Status};
use tidegate_loop::spawn;

use super::error::JobError;
use super::model::{JobId, PROMPT_BYTES_MAX, PageState};
use super::service::Jobs;
use super::store::PageRecord;

/// Pages of one job that are asked again at once.
const ASKING_MAX: usize = 20;

impl Jobs {
    /// Asks about one page again. Returns at once; the answer becomes a version of the page.
    ///
    /// # Errors
    /// [`JobError`] if it cannot be asked at all.
    pub async fn ask_again(
        &self,
        id: JobId,
        file: u32,
        page: u32,
        upstream: &str,
        model: &str,
        prompt: &str,
    ) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let job = self.job(id)?;
        let known = job.file(file).and_then(|file| file.position(page));
        known.ok_or(JobError::NotFound("page"))?;
        if prompt.len() > PROMPT_BYTES_MAX {
            return Err(JobError::Invalid(format!("the prompt is longer than {} KiB", PROMPT_BYTES_MAX / 1024)));
        }
        Prompt::parse(prompt).map_err(|error| JobError::Invalid(error.to_string()))?;
        let upstream = self.upstream(upstream);
        let upstream = upstream.ok_or_else(|| JobError::Invalid("no upstream has that name".into()))?;
        let model = if model.trim().is_empty() { upstream.default_model().to_owned() } else { model.trim().to_owned() };
        let provider = upstream.connect(&model, &job.options).map_err(JobError::Invalid)?;
        let (options, files) = self.engine_options(&job)?;
        let index = files.iter().position(|number| *number == file);
        let index =
            index.ok_or_else(|| JobError::Invalid("the file cannot be read; enter its password first".into()))?;
        let ask = PageAsk::new(&options, index, page).reader(self.reader_of(id, file)).prompt(prompt);
        let ask = ask.map_err(|error| JobError::Invalid(error.to_string()))?;
        let asking = self.touch(id, |live| {
            let is_free = live.asking.len() < ASKING_MAX && !live.asking.contains(&(file, page));
            if is_free {
                live.asking.push((file, page));
            }
            is_free
        })?;
        if !asking {
            return Err(JobError::Invalid(
                "this page is being asked about, or too many are; wait for an answer".into(),
            ));
        }
        let (jobs, prompt) = (self.clone(), prompt.to_owned());
        spawn(async move {
            let scope = ItemScope::from(upstream.gate().unscoped());
            let asked = ask.ask(&*provider, &scope).await;
            let mut entry = Entry { page, ..Entry::default() };
            let mut state = PageState::Done;
            match asked {
                Ok(answered) => {
                    entry.seen_as = Some(answered.seen_as);
                    (entry.text_quality, entry.warnings) = (answered.quality, answered.warnings);
                    entry.finish = Some(answered.answer.finish);
                    entry.usage = Some(answered.answer.usage);
                    entry.explanation = Some(answered.answer.text);
                }
                Err(error) => {
                    let (code, reason) = failure(&error);
                    state = PageState::Failed;
                    entry.status = Status::Failed;
                    entry.error = Some(FailureNote { code, reason: jobs.without_path(id, file, &reason) });
                }
            }
            let usage = entry.usage.unwrap_or_default();
            let record = PageRecord {
                file,
                version: 0,
                shown: false,
                state,
                upstream: upstream.name().to_owned(),
                model,
                prompt: Some(prompt),
                at: Timestamp::now(),
                entry,
            };
            let stored = jobs.inner.store.add_version(id, record).await;
            let changed = jobs.touch(id, |live| {
                live.asking.retain(|busy| *busy != (file, page));
                live.job.tokens.0 += usage.input_tokens;
                live.job.tokens.1 += usage.output_tokens;
            });
            if let (Err(error), Ok(())) = (stored, changed) {
                log::warn!("job {id}: the answer to page {page} cannot be stored: {error}");
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
