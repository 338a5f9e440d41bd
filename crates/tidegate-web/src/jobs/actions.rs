//! What a person, or the end of the server, does to jobs that are there: start, pause, resume, cancel, retry, delete, unlock, stop.

use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_loop::{JoinHandle, sleep, spawn, to_thread};
use tidegate_secret::Secret;

use super::error::JobError;
use super::model::{Action, FileKind, FileStatus, Job, JobId, JobKind, JobState, PageState};
use super::run::Run;
use super::service::{Jobs, Live};

/// How the jobs were stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Jobs that go on when the server is started again.
    pub running: usize,
}

impl Jobs {
    /// Starts a draft.
    ///
    /// # Errors
    /// [`JobError`]; the draft stays as it is.
    pub async fn start(&self, id: JobId) -> Result<(), JobError> {
        // Whether a file needs a password is known once it has been opened.
        loop {
            let revision = self.revision();
            let is_unread = |live: &Live| {
                live.job.files.iter().any(|file| match file.status {
                    FileStatus::Unread => true,
                    // After a restart its file is being read again.
                    FileStatus::Readable => file.kind == FileKind::Jsonl && self.scanned(id).is_none(),
                    FileStatus::NeedsPassword { .. } | FileStatus::Broken(_) => false,
                })
            };
            if self.is_stopping() || !self.look(id, is_unread)? {
                break;
            }
            self.changed(revision).await;
        }
        let turn = self.turn().await?;
        let job = self.job(id)?;
        let state = job.state.after(Action::Start)?;
        if job.files.is_empty() {
            return Err(JobError::Invalid("add at least one file first".into()));
        }
        if job.kind == JobKind::Rebuild {
            drop(turn);
            return self.rebuild(id).await;
        }
        let upstream = self.upstream(&job.upstream);
        let upstream =
            upstream.ok_or_else(|| JobError::Invalid(format!("there is no upstream {} any more", job.upstream)))?;
        if job.kind == JobKind::Batch {
            self.check_requests(&job, &upstream)?;
        } else {
            if upstream.needs_model() && job.model.is_empty() {
                return Err(JobError::Invalid("choose a model".into()));
            }
            // What it would be asked with is tried before it counts as started.
            drop(upstream.connect(&job.model, &job.options).map_err(JobError::Invalid)?);
        }
        if let Some(file) = job.files.iter().find(|file| matches!(file.status, FileStatus::NeedsPassword { .. })) {
            return Err(JobError::Invalid(format!("{} needs its password; enter it, or remove the file", file.name)));
        }
        self.write(id, |job| set_state(job, state, "")).await?;
        self.launch_or_fail(id, &[]).await;
        Ok(())
    }

    /// Stops sending; requests in flight are finished and their answers kept.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn pause(&self, id: JobId) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let state = self.job(id)?.state.after(Action::Pause)?;
        self.write(id, |job| set_state(job, state, "")).await?;
        if let Some(run) = self.look(id, |live| live.run.clone())? {
            run.control.pause();
        }
        Ok(())
    }

    /// Goes on with a job that was paused, cancelled or has failed.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn resume(&self, id: JobId) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let state = self.job(id)?.state.after(Action::Resume)?;
        self.write(id, |job| set_state(job, state, "")).await?;
        match self.look(id, |live| live.run.clone())? {
            Some(run) if !run.control.is_stopping() && !run.control.is_ended() => {
                run.control.resume();
                Ok(())
            }
            Some(run) => {
                // It ends on its own account; the next one begins behind it.
                run.again.set(true);
                Ok(())
            }
            None => {
                self.launch_or_fail(id, &[]).await;
                Ok(())
            }
        }
    }

    /// Ends a job before its end. Requests in flight are finished, unless `drop_calls`; answers stay.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn cancel(&self, id: JobId, drop_calls: bool) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let state = self.job(id)?.state.after(Action::Cancel)?;
        self.write(id, |job| set_state(job, state, "")).await?;
        if let Some(run) = self.look(id, |live| live.run.clone())? {
            run.again.set(false);
            match drop_calls {
                true => run.control.drop_calls("cancelled"),
                false => drop(run.control.finish("cancelled")),
            }
        }
        Ok(())
    }

    /// Asks again about pages that failed; only about those with this code, if one is named. Returns how many.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn retry(&self, id: JobId, code: Option<&str>) -> Result<usize, JobError> {
        let _turn = self.turn().await?;
        let job = self.job(id)?;
        let state = job.state.after(Action::Retry)?;
        let failed = self.inner.store.failed(id).await?;
        let has_code = |reason: &Option<tidegate_batch::FailureNote>| {
            code.is_none_or(|code| reason.as_ref().is_some_and(|note| note.code == code))
        };
        let mut pages: Vec<(u32, u32)> = failed
            .iter()
            .filter(|record| has_code(&record.entry.error))
            .filter(|record| {
                job.file(record.file).and_then(|file| file.state(record.entry.page)) == Some(PageState::Failed)
            })
            .map(|record| (record.file, record.entry.page))
            .collect();
        if pages.is_empty() {
            return Ok(0);
        }
        match self.look(id, |live| live.run.clone())?.filter(|run| !run.control.is_ended()) {
            Some(run) if !run.control.is_stopping() => {
                pages.truncate(run.retry(&pages));
                if job.state == JobState::Paused {
                    self.write(id, |job| set_state(job, state, "")).await?;
                    run.control.resume();
                }
            }
            Some(_) => return Err(JobError::Invalid("the job is ending; retry in a moment".into())),
            None => {
                self.write(id, |job| set_state(job, state, "")).await?;
                self.launch_or_fail(id, &pages).await;
            }
        }
        Ok(pages.len())
    }

    /// Deletes a job with its files and results.
    ///
    /// # Errors
    /// [`JobError::Invalid`] while it runs.
    pub async fn delete(&self, id: JobId) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let (state, run) = self.look(id, |live| (live.job.state, live.run.clone()))?;
        if state == JobState::Running {
            return Err(JobError::Invalid("the job is running; cancel it first".into()));
        }
        if let Some(run) = run {
            run.control.finish("deleted");
            run.ended().await;
        }
        self.inner.store.remove_job(id).await?;
        self.inner.jobs.borrow_mut().remove(&id);
        self.inner.passwords.borrow_mut().retain(|(job, _), _| *job != id);
        self.inner.pictures.forget(id);
        self.inner.scans.borrow_mut().remove(&id);
        self.inner.revision.set(self.inner.revision.get() + 1);
        self.inner.changed.notify_all();
        let place = self.inner.place.clone();
        to_thread(move || place.remove(id))
            .await
            .map_err(|error| JobError::Disk(std::io::Error::other(error.to_string())))??;
        Ok(())
    }

    /// Gives the password of a PDF. It is kept in memory alone.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn unlock(&self, id: JobId, file: u32, password: Secret) -> Result<bool, JobError> {
        let found = self.job(id)?.file(file).cloned().ok_or(JobError::NotFound("file"))?;
        if password.expose().len() > 1_024 {
            return Err(JobError::Invalid("the password is too long".into()));
        }
        self.inner.passwords.borrow_mut().insert((id, file), password);
        self.read_file(id, found.number).await;
        let opened = self.look(id, |live| live.job.file(file).map(|file| file.status == FileStatus::Readable))?;
        let opened = opened.unwrap_or(false);
        if !opened {
            self.inner.passwords.borrow_mut().remove(&(id, file));
        }
        Ok(opened)
    }

    /// Stops all runs: what is in flight is finished, as far as `grace` allows. Jobs that run go on with the next server.
    pub async fn stop(&self, grace: Duration) -> Stopped {
        self.inner.stopping.set(true);
        let runs: Vec<Rc<Run>> = self.inner.jobs.borrow().values().filter_map(|live| live.run.clone()).collect();
        for run in &runs {
            run.control.finish("the server stops");
        }
        let dropping: JoinHandle<()> = spawn({
            let runs = runs.clone();
            async move {
                sleep(grace).await;
                runs.iter().for_each(|run| run.control.drop_calls("the server stops"));
            }
        });
        for run in &runs {
            run.ended().await;
        }
        dropping.cancel();
        let running = self.inner.jobs.borrow().values().filter(|live| live.job.state == JobState::Running).count();
        Stopped { running }
    }
}

/// Sets a job's state, and the instants that follow from it.
pub(super) fn set_state(job: &mut Job, state: JobState, reason: &str) {
    let now = Timestamp::now();
    (job.state, job.changed) = (state, now);
    job.reason = reason.to_owned();
    if state == JobState::Running {
        job.started = job.started.or(Some(now));
    }
}
