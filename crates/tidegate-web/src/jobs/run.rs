//! A job on the run engine: started, followed, recorded, ended. Results are written in batches as they come; what is not written
//! when the process is killed is in the engine's own file (`results.db`, `results.jsonl`) and comes again, without being paid for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_batch::jsonl::EARLIER_RUN;
use tidegate_batch::{Change, Control, Entry, FailureNote, ItemId, ItemState, Status, Usage};
use tidegate_loop::{sleep, spawn};
use tidegate_pdf::Reader;
use tidegate_sync::Event;

use super::actions::set_state;
use super::engine::{Engine, Settled};
use super::error::JobError;
use super::model::{FileKind, FileStatus, Job, JobFile, JobId, JobKind, JobState, PageState};
use super::service::Jobs;
use super::store::PageRecord;

/// How long results gather before they are written: each write is a sync.
const GATHER: Duration = Duration::from_millis(50);

/// Between attempts to write results while the disk is full.
const WRITE_AGAIN: Duration = Duration::from_secs(2);

/// Attempts at the end of a run.
const WRITES_AT_END: u32 = 3;

/// A job that runs.
pub(super) struct Run {
    pub(super) control: Control,
    kind: JobKind,
    /// What became of items that are not recorded yet.
    settled: Settled,
    /// Requests whose result an earlier server stored and did not record: it is read from the file of results.
    unread: RefCell<BTreeSet<u32>>,
    /// The number of each input's file in the job.
    files: Vec<u32>,
    /// Paid for by earlier runs of the job.
    tokens_before: Cell<(u64, u64)>,
    /// The next run begins when this one has ended.
    pub(super) again: Cell<bool>,
    ended: Event,
}

impl Run {
    /// Waits until it has ended and everything is recorded.
    pub(super) async fn ended(&self) {
        let _ = self.ended.wait().await;
    }

    /// Asks again about items, by file and number. Those that are busy are left out; returns how many were not.
    pub(super) fn retry(&self, items: &[(u32, u32)]) -> usize {
        let asked = items.iter().filter(|(file, number)| match self.item(*file, *number) {
            Some(item) => {
                self.control.retry(item).inspect_err(|error| log::debug!("{item} is not asked again: {error}")).is_ok()
            }
            None => false,
        });
        asked.count()
    }

    /// The engine's id of an item.
    pub(super) fn item(&self, file: u32, number: u32) -> Option<ItemId> {
        Engine::item(&self.files, self.kind, file, number)
    }

    fn tokens(&self) -> (u64, u64) {
        let Usage { input_tokens, output_tokens } = self.control.progress().tokens;
        let (input, output) = self.tokens_before.get();
        (input + input_tokens, output + output_tokens)
    }

    /// Paid for before the process was killed, and not counted.
    fn count_before(&self, usage: Usage) {
        let (input, output) = self.tokens_before.get();
        self.tokens_before.set((input + usage.input_tokens, output + usage.output_tokens));
    }
}

impl Jobs {
    /// The reader of a file, with its password if it has one.
    pub(super) fn reader_of(&self, id: JobId, file: u32) -> Reader {
        let reader = self.inner.settings.reader.clone();
        match self.inner.passwords.borrow().get(&(id, file)) {
            Some(password) => reader.password(password.clone()),
            None => reader,
        }
    }

    /// Starts the run of a job. `retry`: pages that are asked about again whatever is stored, by file and page.
    pub(super) fn launch(&self, id: JobId, retry: &[(u32, u32)]) -> Result<(), JobError> {
        let job = self.job(id)?;
        let Engine { control, settled, files, running } = self.engine(&job)?;
        let run = Rc::new(Run {
            control,
            kind: job.kind,
            settled,
            unread: RefCell::default(),
            files,
            tokens_before: Cell::new(job.tokens),
            again: Cell::new(false),
            ended: Event::new(),
        });
        run.retry(retry);
        self.touch(id, |live| {
            rest(&mut live.job);
            live.run = Some(Rc::clone(&run));
        })?;
        let jobs = self.clone();
        spawn(async move {
            let following = spawn(jobs.clone().follow(id, Rc::clone(&run)));
            let stopped = running.await;
            if following.await.is_err() {
                log::error!("job {id}: its results could not be followed to the end");
            }
            jobs.end(id, &run, stopped).await;
        });
        Ok(())
    }

    /// Records what happens, until the run has ended.
    async fn follow(self, id: JobId, run: Rc<Run>) {
        let (mut seen, mut unsaved, mut attempts) = (0, Vec::new(), 0);
        loop {
            if unsaved.is_empty() && !run.control.is_ended() {
                run.control.changed(seen).await;
            }
            match run.control.events_after(seen) {
                Some(events) => {
                    for event in events {
                        seen = event.seq;
                        self.apply(id, &run, &event.change, &mut unsaved);
                    }
                }
                None => {
                    seen = run.control.seq();
                    for item in run.control.items() {
                        self.item_changed(id, &run, item.item, &item.state, &mut unsaved);
                    }
                }
            }
            let tokens = run.tokens();
            let _ = self.touch(id, |live| live.job.tokens = tokens);
            self.read_back(id, &run, &mut unsaved).await;
            if !unsaved.is_empty() {
                let saved = self.inner.store.put_pages(id, unsaved.clone(), tokens).await;
                let notice = saved.as_ref().err().map(ToString::to_string);
                if saved.is_ok() {
                    unsaved.clear();
                }
                let _ = self.touch(id, |live| live.notice = notice);
            }
            if run.control.is_ended() && run.control.seq() == seen {
                attempts += 1;
                if unsaved.is_empty() || attempts >= WRITES_AT_END {
                    return;
                }
            }
            sleep(if unsaved.is_empty() { GATHER } else { WRITE_AGAIN }).await;
        }
    }

    fn apply(&self, id: JobId, run: &Run, change: &Change, unsaved: &mut Vec<PageRecord>) {
        match change {
            Change::Item { item, state, .. } => self.item_changed(id, run, *item, state, unsaved),
            Change::Counted { file, pages } => {
                let Some(&number) = run.files.get(*file as usize) else { return };
                let _ = self.touch(id, |live| {
                    let all = live.job.options.pages.trim().is_empty();
                    if let Some(file) = live.job.file_mut(number).filter(|file| all && file.numbers.is_empty()) {
                        file.choose((1..=u32::try_from(*pages).unwrap_or(u32::MAX)).collect());
                    }
                });
            }
            Change::FileFailed { file, reason, .. } => {
                let Some(&number) = run.files.get(*file as usize) else { return };
                let reason = self.without_path(id, number, reason);
                let changed = self.touch(id, |live| {
                    let file = live.job.file_mut(number)?;
                    file.status = FileStatus::Broken(reason);
                    Some(file.clone())
                });
                if let Ok(Some(file)) = changed {
                    let store = self.inner.store.clone();
                    spawn(async move {
                        if let Err(error) = store.put_file(id, file).await {
                            log::warn!("job {id}: {error}");
                        }
                    });
                }
            }
            _ => {}
        }
    }

    fn item_changed(&self, id: JobId, run: &Run, item: ItemId, state: &ItemState, unsaved: &mut Vec<PageRecord>) {
        let Some((number, page)) = Engine::place(&run.files, item) else { return };
        let shown = match state {
            ItemState::Blocked { .. } => PageState::Blocked,
            ItemState::InFlight => PageState::InFlight,
            ItemState::Done => PageState::Done,
            ItemState::Cached => PageState::Cached,
            ItemState::Failed { .. } => PageState::Failed,
            ItemState::Skipped { .. } => PageState::Skipped,
            _ => PageState::Waiting,
        };
        let known = self.touch(id, |live| {
            let (upstream, model) = (live.job.upstream.clone(), live.job.model.clone());
            let file = live.job.file_mut(number)?;
            if file.position(page).is_none() {
                let at = file.numbers.partition_point(|other| *other < page);
                file.numbers.insert(at, page);
                file.states.insert(at, PageState::Waiting);
            }
            let at = file.position(page)?;
            let before = file.states[at];
            // The store is the job's own: it was this job that paid.
            let shown = if shown == PageState::Cached { PageState::Done } else { shown };
            file.states[at] = shown;
            Some((shown, before, upstream, model))
        });
        let Ok(Some((shown, before, upstream, model))) = known else { return };
        // From an earlier run: it may be recorded already.
        let is_old = match state {
            ItemState::Failed { code, .. } => code == EARLIER_RUN,
            state => *state == ItemState::Cached,
        };
        if !shown.is_settled() || (is_old && shown == before) {
            return;
        }
        let entry = run.settled.borrow_mut().remove(&item);
        if is_old && entry.is_none() && run.kind == JobKind::Batch {
            run.unread.borrow_mut().insert(page);
        }
        let mut entry = entry.unwrap_or_else(|| entry_of(page, state));
        if let Some(note) = &mut entry.error {
            note.reason = self.without_path(id, number, &note.reason);
        }
        for warning in &mut entry.warnings {
            *warning = self.without_path(id, number, warning);
        }
        if let (true, Some(usage)) = (is_old, entry.usage) {
            run.count_before(usage);
        }
        unsaved.push(PageRecord {
            file: number,
            version: 0,
            shown: true,
            state: shown,
            upstream,
            model,
            prompt: None,
            at: Timestamp::now(),
            entry,
            line: None,
        });
    }

    /// Reads the results of requests that an earlier server stored and did not record.
    async fn read_back(&self, id: JobId, run: &Run, unsaved: &mut [PageRecord]) {
        let lines = run.unread.take();
        if lines.is_empty() {
            return;
        }
        match self.stored_results(id, lines).await {
            Ok(mut found) => {
                for record in unsaved {
                    let Some(entry) = found.remove(&record.entry.page) else { continue };
                    entry.usage.into_iter().for_each(|usage| run.count_before(usage));
                    record.entry = entry;
                }
            }
            Err(error) => log::warn!("job {id}: {error}"),
        }
    }

    /// Replaces the path of a stored file in a message by the file's name.
    pub(super) fn without_path(&self, id: JobId, number: u32, text: &str) -> String {
        let replaced = self.look(id, |live| {
            let file = live.job.file(number)?;
            let path = self.inner.place.file(id, file).display().to_string();
            Some(text.replace(&path, &file.name))
        });
        replaced.ok().flatten().unwrap_or_else(|| text.to_owned())
    }

    /// Decides what a job is after its run.
    async fn end(&self, id: JobId, run: &Rc<Run>, stopped: Option<String>) {
        let stopped = stopped
            .map(|reason| reason.replace(&self.inner.place.root().display().to_string(), "the server's directory"));
        let found = self.touch(id, |live| {
            live.run = None;
            rest(&mut live.job);
            let locked = live.job.files.iter().find(|file| matches!(file.status, FileStatus::NeedsPassword { .. }));
            let is_new = |file: &JobFile| {
                let can_be_read = matches!(file.status, FileStatus::Unread | FileStatus::Readable);
                file.kind == FileKind::Pdf && can_be_read && !run.files.contains(&file.number)
            };
            // Unlocked while the others ran.
            if stopped.is_none() && live.job.files.iter().any(is_new) {
                run.again.set(true);
            }
            (live.job.state, locked.map(|file| file.name.clone()), live.notice.take())
        });
        if let Ok((JobState::Running, locked, notice)) = found
            && !self.is_stopping()
            && !run.again.get()
        {
            let (state, reason) = match (stopped, notice, locked) {
                (Some(reason), ..) | (None, Some(reason), _) => (JobState::Failed, reason),
                (None, None, Some(name)) => (JobState::Paused, format!("{name} needs its password again")),
                (None, None, None) => (JobState::Done, String::new()),
            };
            if let Err(error) = self.write(id, |job| set_state(job, state, &reason)).await {
                log::error!("job {id} ended as {state:?}, which cannot be stored: {error}");
                // The file says that it runs: the next server goes on with it.
                let reason = if reason.is_empty() { error.to_string() } else { reason };
                let _ = self.touch(id, |live| set_state(&mut live.job, JobState::Failed, &reason));
            }
        }
        run.ended.set();
        if run.again.get()
            && !self.is_stopping()
            && self.look(id, |live| live.job.state == JobState::Running).unwrap_or(false)
        {
            self.launch_or_fail(id, &[]).await;
        }
    }

    /// Starts the run of a job that is stored as running; if that fails, the job fails.
    pub(super) async fn launch_or_fail(&self, id: JobId, retry: &[(u32, u32)]) {
        let Err(error) = self.launch(id, retry) else { return };
        let reason = error.to_string();
        log::warn!("job {id} cannot go on: {reason}");
        if let Err(error) = self.write(id, |job| set_state(job, JobState::Failed, &reason)).await {
            log::error!("job {id}: {error}");
            let _ = self.touch(id, |live| set_state(&mut live.job, JobState::Failed, &reason));
        }
    }
}

/// Nothing is in flight any more.
fn rest(job: &mut Job) {
    let states = job.files.iter_mut().flat_map(|file: &mut JobFile| &mut file.states);
    states
        .filter(|state| matches!(state, PageState::Blocked | PageState::InFlight))
        .for_each(|state| *state = PageState::Waiting);
}

/// What is recorded of a page whose file has ended.
fn entry_of(page: u32, state: &ItemState) -> Entry {
    let mut entry = Entry { page, ..Entry::default() };
    match state {
        ItemState::Failed { code, reason } => {
            entry.status = Status::Failed;
            entry.error = Some(FailureNote { code: code.clone(), reason: reason.clone() });
        }
        ItemState::Skipped { reason } => {
            entry.status = Status::Skipped;
            entry.error = Some(FailureNote { code: "skipped".into(), reason: reason.clone() });
        }
        _ => {}
    }
    entry
}
