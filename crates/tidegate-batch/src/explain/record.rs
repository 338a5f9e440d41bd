//! What became of the pages of a file: recorded as it is known, counted, and written into the file's outputs and the report.

use std::path::PathBuf;
use std::rc::Rc;

use tidegate_pdf::Document;

use super::file::{FileRun, Retry};
use super::job::Notes;
use super::options::Outputs;
use crate::output::report::{FailureGroup, FileReport, WarningGroup};
use crate::output::{BLANK, Entry, Explanations, FailureNote, SCHEMA, SeenAs, Status};
use crate::outputs::{self, Target};
use crate::question::{Answer, Usage};
use crate::run::{Change, FileState, ItemState, Settled};
use crate::store::{Kept, Promise, StoreError};

/// A page's result, on its way to being recorded.
pub(super) struct Outcome {
    pub(super) page: u32,
    pub(super) about: About,
    pub(super) what: What,
    /// It was asked again.
    pub(super) retry: Option<Retry>,
}

/// What is known of a page before it is asked about.
#[derive(Default)]
pub(super) struct About {
    pub(super) seen_as: Option<SeenAs>,
    pub(super) quality: Option<String>,
    pub(super) warnings: Vec<String>,
}

pub(super) enum What {
    /// Answered, and on the disk.
    Answered(Answer),
    /// From an earlier run.
    Kept(Promise<Result<Option<Kept>, StoreError>>),
    Failed {
        code: String,
        reason: String,
    },
    Skipped {
        reason: String,
    },
    /// There is nothing on the page.
    Blank,
    /// The page was not asked about, or its answer could not be kept.
    Missing,
}

impl FileRun {
    pub(super) async fn record(&self, result: Outcome) {
        let Outcome { page, about, what, retry } = result;
        let mut cached = false;
        let mut entry = Entry {
            page,
            seen_as: about.seen_as,
            text_quality: about.quality,
            warnings: about.warnings,
            ..Entry::default()
        };
        match what {
            What::Answered(answer) => fill(&mut entry, answer),
            What::Kept(promise) => {
                cached = true;
                match promise.await {
                    Ok(Some(Kept::Answered(answer))) => fill(&mut entry, answer),
                    Ok(Some(Kept::Failed { code, reason })) => {
                        let reason = format!("{reason} (from an earlier run; --retry-failed asks again)");
                        fail(&mut entry, code, reason);
                    }
                    Ok(None) => entry.status = Status::Missing,
                    Err(error) => {
                        self.job.control.give_up(error.to_string());
                        entry.status = Status::Missing;
                    }
                }
            }
            What::Failed { code, reason } => fail(&mut entry, code, reason),
            What::Skipped { reason } => {
                entry.status = Status::Skipped;
                entry.error = Some(FailureNote { code: "no_text".into(), reason });
            }
            What::Blank => {
                entry.status = Status::Skipped;
                entry.error = Some(FailureNote { code: BLANK.into(), reason: "the page is blank".into() });
            }
            What::Missing => entry.status = Status::Missing,
        }
        let (control, item) = (&self.job.control, self.item(page));
        let note = entry.error.clone().unwrap_or_default();
        if let Some(wish) = retry.and_then(Retry::take) {
            let has_answer = matches!(wish.before, ItemState::Done | ItemState::Cached);
            if entry.status == Status::Missing || (entry.status == Status::Failed && has_answer) {
                if entry.status == Status::Failed {
                    let (name, FailureNote { code, reason }) = (Rc::clone(&self.name), note);
                    control.emit(Change::RetryFailed { item, name, code, reason });
                }
                return control.give_back(item, wish);
            }
        }
        let usage = entry.usage;
        let state = match entry.status {
            Status::Done if cached => ItemState::Cached,
            Status::Done => ItemState::Done,
            Status::Failed => ItemState::Failed { code: note.code, reason: note.reason },
            Status::Skipped => ItemState::Skipped { reason: note.reason },
            Status::Missing => ItemState::Waiting,
        };
        // Before the event: its readers may look the entry up.
        self.entries.borrow_mut().insert(page, entry);
        if state != ItemState::Waiting {
            control.settle(item, &self.name, Settled { state, usage });
        }
    }

    /// The file's outputs, whatever became of its pages.
    pub(super) async fn write(&self, document: &Document, pages: &[u32]) {
        let job = &self.job;
        let Ok(_writing) = self.writing.acquire().await else { return };
        job.control.file_state(self.index, FileState::Writing);
        let entries = {
            let entries = self.entries.borrow();
            let missing = |page: u32| Entry { page, status: Status::Missing, ..Entry::default() };
            pages.iter().map(|page| entries.get(page).cloned().unwrap_or_else(|| missing(*page))).collect()
        };
        let input = &job.options.inputs[self.index];
        let explanations = Explanations {
            schema: SCHEMA.into(),
            file: self.name.to_string(),
            source: outputs::relative(&job.options.out, &input.path),
            title: document.title().map(Into::into),
            pages: document.page_count(),
            provider: job.provider_name.clone(),
            model: job.provider.model().into(),
            language: job.options.language.clone(),
            prompt: job.options.prompt_text.clone(),
            warnings: document.warnings().iter().map(ToString::to_string).collect(),
            explanations: entries,
        };
        let mut notes =
            Notes { report: None, failures: self.failures(&explanations), warnings: self.warnings(&explanations) };
        let writing = job.writers.acquire_owned().await;
        // Who stops a run does not want to wait for pictures of a file that is not done.
        let html_px = job.options.html_px.filter(|_| explanations.count(Status::Missing) == 0);
        let (folder, stem) = (&job.options.out, &input.stem);
        let on_page = || job.control.page_written(self.index);
        let target = Target { folder, stem, document: Some(document), picture_px: html_px, on_page: &on_page };
        let written = match job.options.outputs {
            Outputs::All => outputs::write(&explanations, &target).await,
            Outputs::Json => outputs::write_json(&explanations, folder, stem).await,
        };
        drop(writing);
        let counts = job.control.file(self.index);
        let mut report = FileReport {
            pages: pages.len() as u64,
            done: counts.done,
            kept: counts.cached,
            failed: counts.failed,
            skipped: counts.skipped,
            blank: explanations.explanations.iter().filter(|entry| entry.is_blank()).count() as u64,
            missing: explanations.count(Status::Missing) as u64,
            ..FileReport::default()
        };
        let (file, name) = (self.index as u32, Rc::clone(&self.name));
        match written {
            Ok(paths) => {
                job.control.file_state(self.index, FileState::Done);
                // From here on the outputs have them, but for those that came while they were written.
                self.is_written.set(true);
                let written = |page: &u32, entry: &mut Entry| {
                    let written = &explanations.explanations;
                    let at = written.binary_search_by_key(page, |entry| entry.page);
                    at.is_ok_and(|at| written[at] == *entry)
                };
                self.entries.borrow_mut().retain(|page, entry| !written(page, entry));
                report.outputs = paths.iter().map(|path: &PathBuf| path.display().to_string()).collect();
                let (pages, done) = (report.pages, report.done);
                job.control.emit(Change::FileDone { file, name, pages, done, outputs: paths.into() });
            }
            Err(error) => {
                job.control.file_state(self.index, FileState::Failed);
                let reason = format!("{error}; its results are kept: run the same command again");
                job.control.emit(Change::FileFailed { file, name, reason: reason.as_str().into() });
                let (file, code) = (self.name.to_string(), "unwritable".to_owned());
                notes.failures.push(FailureGroup { file, pages: Vec::new(), code, reason: reason.clone() });
                report.error = Some(reason);
            }
        }
        notes.report = Some(report);
        job.notes.borrow_mut()[self.index] = notes;
    }

    /// Each warning once, with all of its pages.
    fn warnings(&self, explanations: &Explanations) -> Vec<WarningGroup> {
        let mut groups: Vec<WarningGroup> = Vec::new();
        for entry in &explanations.explanations {
            for warning in &entry.warnings {
                match groups.iter_mut().find(|group| group.warning == *warning) {
                    Some(group) => group.pages.push(entry.page),
                    None => groups.push(WarningGroup {
                        file: self.name.to_string(),
                        pages: vec![entry.page],
                        warning: warning.clone(),
                    }),
                }
            }
        }
        groups
    }

    /// Each reason of a failure once, with all of its pages.
    fn failures(&self, explanations: &Explanations) -> Vec<FailureGroup> {
        let mut groups: Vec<FailureGroup> = Vec::new();
        for entry in explanations.explanations.iter().filter(|entry| entry.status == Status::Failed) {
            let note = entry.error.clone().unwrap_or_default();
            match groups.iter_mut().find(|group| group.reason == note.reason) {
                Some(group) => group.pages.push(entry.page),
                None => groups.push(FailureGroup {
                    file: self.name.to_string(),
                    pages: vec![entry.page],
                    code: note.code,
                    reason: note.reason,
                }),
            }
        }
        groups
    }
}

fn fill(entry: &mut Entry, answer: Answer) {
    entry.status = Status::Done;
    entry.explanation = Some(answer.text);
    entry.finish = Some(answer.finish);
    entry.usage = Some(answer.usage).filter(|usage| *usage != Usage::default());
}

fn fail(entry: &mut Entry, code: String, reason: String) {
    entry.status = Status::Failed;
    entry.error = Some(FailureNote { code, reason });
}
