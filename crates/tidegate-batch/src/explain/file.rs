//! The pages of one file: read in order, asked about through a pool and the gate, recorded as their results are on the
//! disk; then the file's outputs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tidegate_limit::Scope;
use tidegate_loop::spawn;
use tidegate_pdf::Document;
use tidegate_sync::{Permit, Queue, Semaphore};

use super::board::FileState;
use super::event::{Event, PageStatus};
use super::job::Job;
use super::page::{Manner, Prepared, Ready, Texts};
use super::pictures::{Order, Pictures, Slots};
use crate::call_error::CallError;
use crate::output::report::{FailureGroup, FileReport, WarningGroup};
use crate::output::{BLANK, Entry, Explanations, FailureNote, SCHEMA, SeenAs, Status};
use crate::outputs;
use crate::parameter;
use crate::provider::Asked;
use crate::question::{Answer, Usage};
use crate::store::{Kept, Promise, Record, StoreError};

/// A page's result, on its way to being recorded.
struct Outcome {
    page: u32,
    about: About,
    what: What,
}

/// What is known of a page before it is asked about.
#[derive(Default)]
struct About {
    seen_as: Option<SeenAs>,
    quality: Option<String>,
    warnings: Vec<String>,
}

enum What {
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

/// One file's run.
struct Run {
    job: Rc<Job>,
    index: usize,
    name: String,
    results: Queue<Outcome>,
    entries: RefCell<BTreeMap<u32, Entry>>,
}

/// Explains the pages of one file and writes its outputs. `share` goes back when the pages are done.
pub(super) async fn explain(
    job: Rc<Job>,
    index: usize,
    document: Document,
    pages: Vec<u32>,
    cap: u32,
    share: Permit<Arc<Semaphore>>,
) -> FileReport {
    let name = job.options.inputs[index].name();
    let results = Queue::unbounded();
    let run = Rc::new(Run { job: Rc::clone(&job), index, name, results, entries: RefCell::default() });
    let recorder = spawn({
        let run = Rc::clone(&run);
        async move {
            while let Ok(result) = run.results.recv().await {
                run.record(result).await;
            }
        }
    });
    run.ask_all(&document, &pages, cap).await;
    run.results.close();
    // It has everything already, and only waits for the disk.
    let _ = recorder.await;
    drop(share);
    run.write(document, &pages).await
}

impl Run {
    /// Submits page after page; returns when the last has its result, or the run is stopped.
    async fn ask_all(self: &Rc<Self>, document: &Document, pages: &[u32], cap: u32) {
        let job = &self.job;
        let scope = job.gate.scope(self.name.as_str(), u64::from(cap));
        let lane = job.lanes.open(&scope, cap, pages.len());
        let manner = Manner {
            prompt: &job.options.prompt,
            language: &job.options.language,
            file: &self.name,
            identity: job.provider.identity(),
            provider: &job.provider_name,
            takes_pictures: job.provider.takes_pictures(),
            picture_px: job.options.picture_px,
        };
        let mut texts = Texts::new(document, job.options.context_pages);
        let mut order = Order::new(pages);
        while let Some((page, no_picture)) = order.next(lane.pictures()) {
            if job.stop.is_asked() {
                break;
            }
            let prepared = texts.prepare(page, &manner, no_picture).await;
            if matches!(prepared, Prepared::Later) {
                order.put_off(page);
                continue;
            }
            lane.prepared();
            let ready = match prepared {
                Prepared::Ask(ready) => ready,
                Prepared::Later => continue,
                Prepared::Skip { reason, quality, warnings } => {
                    let about = About { seen_as: None, quality: Some(quality), warnings };
                    self.deliver(page, about, What::Skipped { reason });
                    continue;
                }
                Prepared::Blank => {
                    self.deliver(page, About::default(), What::Blank);
                    continue;
                }
                Prepared::Unreadable { reason } => {
                    let what = What::Failed { code: "unreadable".into(), reason };
                    self.deliver(page, About::default(), what);
                    continue;
                }
            };
            if self.is_kept(&ready) {
                let about = About { seen_as: Some(ready.seen_as), quality: ready.quality, warnings: ready.warnings };
                self.deliver(page, about, What::Kept(job.store.get(ready.key)));
                continue;
            }
            let room = self.room_for_picture(&ready).await;
            let pictures = lane.pictures().filter(|_| ready.seen_as == SeenAs::Picture);
            let pool = pictures.map_or(lane.pool(), Pictures::pool);
            let asking = Rc::clone(self).ask(scope.clone(), ready, room, pictures.map(Pictures::slots));
            let submitted = race(pool.submit(asking), job.stop.calls_dropped()).await;
            match submitted {
                Some(Ok(task)) => task.detach(),
                _ => break,
            }
        }
        for pool in std::iter::once(lane.pool()).chain(lane.pictures().map(Pictures::pool)) {
            if race(pool.close(), job.stop.calls_dropped()).await.is_none() {
                pool.abort().await;
            }
        }
    }

    fn is_kept(&self, ready: &Ready) -> bool {
        let (options, store) = (&self.job.options, &self.job.store);
        !options.fresh && if options.retry_failed { store.has_answer(&ready.key) } else { store.has(&ready.key) }
    }

    /// Pictures wait in memory for their turn: only so many bytes of them at once.
    async fn room_for_picture(&self, ready: &Ready) -> Option<Permit<Arc<Semaphore>>> {
        let picture = ready.question.picture.as_ref()?;
        let room = &self.job.pictures;
        // Base64 and the request's body are made of it.
        let kib = (picture.png.len() * 3).div_ceil(1024).clamp(1, room.capacity());
        room.acquire_many_owned(kib).await.ok()
    }

    async fn ask(
        self: Rc<Self>,
        scope: Scope,
        ready: Box<Ready>,
        room: Option<Permit<Arc<Semaphore>>>,
        pictures: Option<Slots>,
    ) {
        let job = &self.job;
        let page = ready.question.page;
        let _asking = self.count_asking();
        let slot = match &pictures {
            Some(slots) => slots.acquire().await,
            None => None,
        };
        self.tell(page, PageStatus::Asking);
        let asked = job.provider.ask(&scope, &ready.question).await;
        drop((room, slot));
        let Ready { key, seen_as, quality, warnings, .. } = *ready;
        let about = About { seen_as: Some(seen_as), quality, warnings };
        let keep = |kept: Kept, attempts: u32| {
            let record = Record { kept, source: self.name.clone(), number: u64::from(page), attempts };
            job.store.put(key, record)
        };
        let what = match asked {
            Ok(Asked { answer, attempts, .. }) => {
                job.answered();
                match self.keep_answer(|| keep(Kept::Answered(answer.clone()), attempts)).await {
                    true => What::Answered(answer),
                    false => What::Missing,
                }
            }
            Err(CallError::Closed) => What::Missing,
            Err(CallError::Shut { reason }) => {
                job.stop_because(&reason);
                What::Missing
            }
            Err(error @ CallError::Journal { .. }) => {
                job.stop_because(&error.to_string());
                What::Missing
            }
            // The same key, the same model: all pages would fare alike.
            Err(error @ CallError::Refused { status: 403 | 404, .. }) => {
                let advice = "check --model, --base-url and the rights of the key";
                job.stop_because(&format!("{error}; {advice}"));
                What::Missing
            }
            // All pages are sent with the same parameters.
            Err(CallError::Refused { status: 400 | 422, message, body })
                if let Some(name) = parameter::refused(&body) =>
            {
                job.stop_because(&format!("the model does not take the parameter {name}: {message}"));
                What::Missing
            }
            Err(error) => {
                let reason = error.to_string();
                if matches!(error, CallError::Unavailable { .. } | CallError::Garbled { .. }) {
                    job.unanswered(&reason);
                }
                if error.is_lasting() {
                    job.answered();
                    // Should this not be kept, the page is asked about again some day.
                    drop(keep(Kept::Failed { code: error.code().into(), reason: reason.clone() }, 1));
                }
                What::Failed { code: error.code().into(), reason }
            }
        };
        self.deliver(page, about, what);
    }

    /// Writes an answer that was paid for. If that fails, the run stops: nothing more is to be paid for that cannot be kept. The
    /// answer is then written once more in a transaction of its own, because one answer may fit where several did not. Returns
    /// `false` if that fails too: the answer is lost, and the page is asked about again by the next run.
    async fn keep_answer(&self, put: impl Fn() -> Promise<Result<(), StoreError>>) -> bool {
        let job = &self.job;
        let Err(error) = put().await else { return true };
        job.stop_because(&error.to_string());
        let _turn = job.rewrites.acquire_owned().await;
        let kept = put().await.is_ok();
        if !kept {
            job.unkept.set(job.unkept.get() + 1);
        }
        kept
    }

    fn count_asking(self: &Rc<Self>) -> impl Drop + use<> {
        struct Asking(Rc<Run>);
        impl Drop for Asking {
            fn drop(&mut self) {
                self.0.job.board.borrow_mut().asked(self.0.index);
            }
        }
        self.job.board.borrow_mut().asking(self.index);
        Asking(Rc::clone(self))
    }

    fn deliver(&self, page: u32, about: About, what: What) {
        // Closed only when the run is being dropped.
        let _ = self.results.try_push(Outcome { page, about, what });
    }

    fn tell(&self, page: u32, status: PageStatus<'_>) {
        self.job.tell(&Event::Page { file: self.index, name: &self.name, page, status });
    }

    async fn record(&self, result: Outcome) {
        let Outcome { page, about, what } = result;
        let mut kept = false;
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
                kept = true;
                match promise.await {
                    Ok(Some(Kept::Answered(answer))) => fill(&mut entry, answer),
                    Ok(Some(Kept::Failed { code, reason })) => {
                        let reason = format!("{reason} (from an earlier run; --retry-failed asks again)");
                        fail(&mut entry, code, reason);
                    }
                    Ok(None) => entry.status = Status::Missing,
                    Err(error) => {
                        self.job.stop_because(&error.to_string());
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
        let usage = entry.usage.unwrap_or_default();
        self.job.board.borrow_mut().page(self.index, entry.status, kept, usage, Instant::now());
        let note = entry.error.clone().unwrap_or_default();
        match entry.status {
            Status::Done => self.tell(page, PageStatus::Done { kept, usage }),
            Status::Failed => self.tell(page, PageStatus::Failed { code: &note.code, reason: &note.reason }),
            Status::Skipped => self.tell(page, PageStatus::Skipped { reason: &note.reason }),
            Status::Missing => {}
        }
        self.entries.borrow_mut().insert(page, entry);
    }

    /// The file's outputs, whatever became of its pages.
    async fn write(&self, document: Document, pages: &[u32]) -> FileReport {
        let job = &self.job;
        job.board.borrow_mut().state(self.index, FileState::Writing);
        let mut entries = self.entries.take();
        let missing = |page: u32| Entry { page, status: Status::Missing, ..Entry::default() };
        let entries = pages.iter().map(|&page| entries.remove(&page).unwrap_or_else(|| missing(page))).collect();
        let input = &job.options.inputs[self.index];
        let explanations = Explanations {
            schema: SCHEMA.into(),
            file: self.name.clone(),
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
        self.group_failures(&explanations);
        self.group_warnings(&explanations);
        let writing = job.writers.acquire_owned().await;
        // Who stops a run does not want to wait for pictures of a file that is not done.
        let html_px = job.options.html_px.filter(|_| explanations.count(Status::Missing) == 0);
        let written = outputs::write(&explanations, &job.options.out, &input.stem, Some(&document), html_px).await;
        drop(writing);
        let counts = job.board.borrow().file(self.index).clone();
        let mut report = FileReport {
            pages: pages.len() as u64,
            done: counts.done,
            kept: counts.kept,
            failed: counts.failed,
            skipped: counts.skipped,
            blank: explanations.explanations.iter().filter(|entry| entry.is_blank()).count() as u64,
            missing: explanations.count(Status::Missing) as u64,
            ..FileReport::default()
        };
        let mut board = job.board.borrow_mut();
        match written {
            Ok(paths) => {
                board.state(self.index, FileState::Done);
                drop(board);
                report.outputs = paths.iter().map(|path: &PathBuf| path.display().to_string()).collect();
                let (pages, done) = (report.pages, report.done);
                self.job.tell(&Event::FileDone { file: self.index, name: &self.name, pages, done, outputs: &paths });
            }
            Err(error) => {
                board.state(self.index, FileState::Failed);
                drop(board);
                let reason = format!("{error}; its results are kept: run the same command again");
                self.job.tell(&Event::FileFailed { file: self.index, name: &self.name, reason: &reason });
                let (file, code) = (self.name.clone(), "unwritable".to_owned());
                job.failures.borrow_mut().push(FailureGroup { file, pages: Vec::new(), code, reason: reason.clone() });
                report.error = Some(reason);
            }
        }
        report
    }

    /// Reports a warning once per file, with all of its pages.
    fn group_warnings(&self, explanations: &Explanations) {
        let mut groups: Vec<WarningGroup> = Vec::new();
        for entry in &explanations.explanations {
            for warning in &entry.warnings {
                match groups.iter_mut().find(|group| group.warning == *warning) {
                    Some(group) => group.pages.push(entry.page),
                    None => groups.push(WarningGroup {
                        file: self.name.clone(),
                        pages: vec![entry.page],
                        warning: warning.clone(),
                    }),
                }
            }
        }
        self.job.warnings.borrow_mut().extend(groups);
    }

    /// Failures for one reason are told once.
    fn group_failures(&self, explanations: &Explanations) {
        let mut groups: Vec<FailureGroup> = Vec::new();
        for entry in explanations.explanations.iter().filter(|entry| entry.status == Status::Failed) {
            let note = entry.error.clone().unwrap_or_default();
            match groups.iter_mut().find(|group| group.reason == note.reason) {
                Some(group) => group.pages.push(entry.page),
                None => groups.push(FailureGroup {
                    file: self.name.clone(),
                    pages: vec![entry.page],
                    code: note.code,
                    reason: note.reason,
                }),
            }
        }
        self.job.failures.borrow_mut().extend(groups);
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

/// The future's output, or nothing if `end` is first.
async fn race<T>(future: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}
