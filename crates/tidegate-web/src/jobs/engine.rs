//! What the engine does for a job, whatever its items are: pages of documents, or requests of a file. `run.rs` follows it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use tidegate_batch::jsonl::{self, Batch, BatchError, EndedEarly, Paths, ResultView, ResultsError};
use tidegate_batch::{
    Change, Control, Entry, Explain, FailureNote, Input, ItemId, Options, Outputs, Prompt, Status, Store,
};

use super::error::JobError;
use super::model::{FileKind, FileStatus, Job, JobKind};
use super::service::Jobs;
use super::upstream::Upstream;

/// What became of items, from their event on until it is recorded.
pub(super) type Settled = Rc<RefCell<HashMap<ItemId, Entry>>>;

/// A run that has not begun.
pub(super) struct Engine {
    pub(super) control: Control,
    pub(super) settled: Settled,
    /// The number of each input's file in the job.
    pub(super) files: Vec<u32>,
    /// Runs to the end; returns why it stopped before, if it did.
    pub(super) running: Pin<Box<dyn Future<Output = Option<String>>>>,
}

impl Engine {
    /// The engine's id of an item, which the job knows by its file and its number in it.
    pub(super) fn item(files: &[u32], kind: JobKind, file: u32, number: u32) -> Option<ItemId> {
        let index = files.iter().position(|known| *known == file)?;
        Some(match kind {
            JobKind::Batch => ItemId::Request { line: number.into() },
            JobKind::Explain | JobKind::Rebuild => ItemId::Page { file: u32::try_from(index).ok()?, page: number },
        })
    }

    /// The file and the number of an item in the job.
    pub(super) fn place(files: &[u32], item: ItemId) -> Option<(u32, u32)> {
        match item {
            ItemId::Page { file, page } => Some((*files.get(file as usize)?, page)),
            ItemId::Request { line } => Some((*files.first()?, u32::try_from(line).ok()?)),
        }
    }
}

impl Jobs {
    /// The run of a job, which has not begun.
    pub(super) fn engine(&self, job: &Job) -> Result<Engine, JobError> {
        let upstream = self.upstream(&job.upstream).ok_or_else(|| {
            JobError::Invalid(format!("there is no upstream {} any more; start the server with it", job.upstream))
        })?;
        match job.kind {
            JobKind::Batch => self.request_engine(job, &upstream),
            JobKind::Explain | JobKind::Rebuild => self.page_engine(job, &upstream),
        }
    }

    fn page_engine(&self, job: &Job, upstream: &Upstream) -> Result<Engine, JobError> {
        let provider = upstream.connect(&job.model, &job.options).map_err(JobError::Invalid)?;
        let (options, files) = self.page_options(job)?;
        let store =
            Store::open(self.inner.place.results(job.id)).map_err(|error| JobError::Invalid(error.to_string()))?;
        let explain = Explain::new(options, provider, upstream.provider(), upstream.gate(), store)
            .with_reader(self.inner.settings.reader.clone());
        let (control, settled) = (explain.control(), Settled::default());
        // The engine keeps what became of a page until the outputs of its file are written.
        let (results, entries) = (explain.results(), Rc::clone(&settled));
        control.on_event(move |event| {
            if let Change::Item { item: item @ ItemId::Page { file, page }, .. } = event.change
                && let Some(entry) = results.page(file, page)
            {
                entries.borrow_mut().insert(item, entry);
            }
        });
        let running = Box::pin(async move {
            match explain.run().await {
                Ok(report) => report.stopped,
                Err(error) => Some(error.to_string()),
            }
        });
        Ok(Engine { control, settled, files, running })
    }

    fn request_engine(&self, job: &Job, upstream: &Upstream) -> Result<Engine, JobError> {
        let caller = upstream.caller().map_err(JobError::Invalid)?;
        let file = job.files.iter().find(|file| file.kind == FileKind::Jsonl).ok_or(JobError::NotFound("file"))?;
        let input = jsonl::Input::File(self.inner.place.file(job.id, file));
        let output = jsonl::Output::File(self.inner.place.request_results(job.id));
        let settled = Settled::default();
        let (entries, dialect) = (Rc::clone(&settled), caller.dialect());
        let batch = Batch::new(input, output)
            .paths(Paths::Known)
            .model(Some(job.model.clone()).filter(|model| !model.is_empty()))
            .auto_concurrency(upstream.auto().cloned())
            .on_result(move |item, line| {
                if let (Some(view), ItemId::Request { line: number }) = (ResultView::read(line, dialect), item) {
                    entries.borrow_mut().insert(item, entry_of_result(number, view));
                }
            });
        let control = batch.control();
        let running = Box::pin(async move {
            match batch.run(&caller).await {
                Ok(summary) => match summary.ended_early {
                    None => None,
                    Some(EndedEarly::Shut(reason)) => Some(reason),
                    Some(EndedEarly::BadLine(bad)) => Some(bad.to_string()),
                    Some(EndedEarly::Full(full)) => Some(format!("there is no space for more answers: {full}")),
                    Some(_) => Some("it was stopped".into()),
                },
                Err(error) => Some(why(&error)),
            }
        });
        Ok(Engine { control, settled, files: vec![file.number], running })
    }

    /// What the engine is to do about the documents of a job, and the numbers of the files in it.
    pub(super) fn page_options(&self, job: &Job) -> Result<(Options, Vec<u32>), JobError> {
        let (mut inputs, mut numbers) = (Vec::new(), Vec::new());
        for file in &job.files {
            let can_be_read = matches!(file.status, FileStatus::Unread | FileStatus::Readable);
            if file.kind == FileKind::Pdf && can_be_read {
                let input = Input::stored(self.inner.place.file(job.id, file), file.number.to_string(), &file.name);
                let password = self.inner.passwords.borrow().get(&(job.id, file.number)).cloned();
                inputs.push(input.with_password(password));
                numbers.push(file.number);
            }
        }
        if inputs.is_empty() {
            return Err(JobError::Invalid("none of the files can be read".into()));
        }
        let mut options = Options::new(inputs, self.inner.place.out(job.id));
        options.outputs = Outputs::Json;
        options.prompt = Prompt::parse(&job.options.prompt).map_err(|error| JobError::Invalid(error.to_string()))?;
        options.prompt_text = job.options.prompt.clone();
        options.language = job.options.language.clone();
        options.selection = job.options.selection().map_err(JobError::Invalid)?;
        options.context_pages = job.options.context_pages;
        options.page_concurrency = job.options.page_concurrency;
        options.file_concurrency = job.options.file_concurrency;
        options.auto_concurrency = self.upstream(&job.upstream).and_then(|upstream| upstream.auto().cloned());
        Ok((options, numbers))
    }
}

/// A result as it is recorded.
pub(super) fn entry_of_result(line: u64, view: ResultView) -> Entry {
    let mut entry = Entry { page: u32::try_from(line).unwrap_or(u32::MAX), ..Entry::default() };
    match view.outcome {
        Ok(answer) => {
            entry.explanation = Some(answer.text);
            entry.finish = Some(answer.finish);
            entry.usage = answer.usage;
        }
        Err(failure) => {
            entry.status = Status::Failed;
            entry.error = Some(FailureNote { code: failure.code, reason: failure.reason });
        }
    }
    entry
}

/// Why requests could not be sent, without paths and options of a command line.
fn why(error: &BatchError) -> String {
    match error {
        BatchError::Input { error, .. } => format!("the requests cannot be read: {error}"),
        BatchError::BadLines { faults, more, .. } => {
            let first = faults.first().map(ToString::to_string).unwrap_or_default();
            let others = faults.len() as u64 + more - 1;
            if others == 0 { first } else { format!("{first}, and {others} more lines; nothing was sent") }
        }
        BatchError::Output { error: ResultsError::Io(error), .. } => {
            format!("the results cannot be written: {error}; free some space, then resume")
        }
        BatchError::Output { error: ResultsError::Foreign { line, .. }, .. } => {
            format!("line {line} of the stored results is damaged; make the job again")
        }
        BatchError::Output { .. } => "another process writes to the results; end it, then resume".into(),
        BatchError::NoModel => "the requests name no model; choose one in a new job".into(),
        #[allow(unreachable_patterns, reason = "the engine may add kinds")]
        _ => "the requests could not be sent".into(),
    }
}
