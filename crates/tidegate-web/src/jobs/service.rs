//! All jobs of a server: made, changed, started, paused, cancelled, deleted. A change is on the disk before it is seen.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_batch::jsonl::Scan;
use tidegate_loop::sleep;
use tidegate_pdf::Reader;
use tidegate_secret::Secret;
use tidegate_sync::{Event, OwnedPermit, Semaphore};

use super::error::JobError;
use super::model::{Action, Job, JobId, JobKind, JobOptions, JobState, display_name};
use super::place::Place;
use super::read::Pictures;
use super::run::Run;
use super::store::JobStore;
use super::upload::{Space, UploadLimits};
use super::upstream::Upstream;
use crate::site::Site;

/// How often old jobs are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);

/// A draft that is not started is removed after this time.
const DRAFT_AGE: Duration = Duration::from_secs(24 * 3_600);

/// PDFs that are read at once before their jobs start.
const READING_MAX: usize = 2;

/// The most jobs.
const JOBS_MAX: usize = 10_000;

/// How jobs are kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much may be uploaded and stored.
    pub uploads: UploadLimits,
    /// Jobs that ended are deleted after this time.
    pub keep: Duration,
    /// Reads the PDFs.
    pub reader: Reader,
}

impl Default for Settings {
    /// The default limits, 30 days.
    fn default() -> Settings {
        let keep = Duration::from_secs(30 * 24 * 3_600);
        Settings { uploads: UploadLimits::default(), keep, reader: Reader::new() }
    }
}

/// The jobs of a server. Clones are the same. Lives on one loop.
#[derive(Clone)]
pub struct Jobs {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) place: Place,
    pub(super) store: JobStore,
    pub(super) upstreams: Vec<Rc<Upstream>>,
    pub(super) settings: Settings,
    pub(super) jobs: RefCell<BTreeMap<JobId, Live>>,
    pub(super) passwords: RefCell<HashMap<(JobId, u32), Secret>>,
    pub(super) pictures: Pictures,
    /// What was found in the files of requests, of jobs that have not ended when the server began.
    pub(super) scans: RefCell<HashMap<JobId, Rc<Scan>>>,
    /// What uploads have reserved.
    pub(super) space: Rc<Space>,
    /// Held while a job changes: one change at a time.
    turn: Arc<Semaphore>,
    pub(super) reading: Arc<Semaphore>,
    /// Files that are being read, or wait for it.
    pub(super) to_read: RefCell<HashSet<(JobId, u32)>>,
    /// Counts changes of anything that is shown.
    pub(super) revision: Cell<u64>,
    pub(super) changed: Event,
    pub(super) stopping: Cell<bool>,
}

/// A job, and its run if it has one.
pub(super) struct Live {
    pub(super) job: Job,
    pub(super) run: Option<Rc<Run>>,
    /// Counts changes of this job.
    pub(super) revision: u64,
    /// Versions of pages that are being asked for.
    pub(super) asking: Vec<(u32, u32)>,
    /// What is wrong with storing its results, while it is.
    pub(super) notice: Option<String>,
}

impl Jobs {
    /// Opens the jobs in `directory`, or makes it. Jobs that ran when the last server ended go on.
    ///
    /// # Errors
    /// [`JobError`].
    ///
    /// # Panics
    /// Outside of a running loop.
    pub async fn open(directory: &Path, upstreams: Vec<Upstream>, settings: Settings) -> Result<Jobs, JobError> {
        let place = Place::open(directory)?;
        let store = JobStore::open(place.root())?;
        let loaded = store.load().await?;
        place.sweep(&loaded)?;
        let live = |job: Job| (job.id, Live { job, run: None, revision: 0, asking: Vec::new(), notice: None });
        let pictures = Pictures::new(settings.reader.clone());
        let inner = Inner {
            place,
            store,
            upstreams: upstreams.into_iter().map(Rc::new).collect(),
            settings,
            jobs: RefCell::new(loaded.into_iter().map(live).collect()),
            passwords: RefCell::default(),
            pictures,
            scans: RefCell::default(),
            space: Rc::default(),
            turn: Arc::new(Semaphore::new(1)),
            reading: Arc::new(Semaphore::new(READING_MAX)),
            to_read: RefCell::default(),
            revision: Cell::new(1),
            changed: Event::new(),
            stopping: Cell::new(false),
        };
        let jobs = Jobs { inner: Rc::new(inner) };
        for id in jobs.ids() {
            let state = jobs.look(id, |live| live.job.state).unwrap_or(JobState::Done);
            if state == JobState::Running {
                jobs.launch_or_fail(id, &[]).await;
            }
            if !state.has_ended() {
                jobs.read_files(id);
            }
        }
        Ok(jobs)
    }

    /// Deletes old jobs, now and every hour, until the task is cancelled.
    pub async fn attend(&self) {
        loop {
            self.sweep(Timestamp::now()).await;
            sleep(SWEEP_EVERY).await;
        }
    }

    /// Deletes jobs that ended too long ago, and drafts that were not started for a day.
    pub(super) async fn sweep(&self, now: Timestamp) {
        let old: Vec<JobId> = self
            .inner
            .jobs
            .borrow()
            .values()
            .filter(|live| self.is_old(&live.job, now))
            .map(|live| live.job.id)
            .collect();
        for id in old {
            if let Err(error) = self.delete(id).await {
                log::warn!("job {id} is old, but cannot be deleted: {error}");
            }
        }
    }

    fn is_old(&self, job: &Job, now: Timestamp) -> bool {
        let age = match job.state {
            JobState::Draft => DRAFT_AGE,
            state if state.has_ended() => self.inner.settings.keep,
            _ => return false,
        };
        Duration::try_from(now.duration_since(job.changed)).is_ok_and(|since| since >= age)
    }

    /// Adds the pages, actions and routes of the jobs to a site.
    pub fn mount(&self, site: &mut Site) {
        crate::pages::jobs::mount(site, self);
    }

    /// The upstreams, in the order they were stated.
    pub fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.inner.upstreams.iter().map(Rc::as_ref)
    }

    /// The upstream of that name.
    #[must_use]
    pub fn upstream(&self, name: &str) -> Option<Rc<Upstream>> {
        self.inner.upstreams.iter().find(|upstream| upstream.name() == name).cloned()
    }

    /// The limits of uploads.
    #[must_use]
    pub fn upload_limits(&self) -> UploadLimits {
        self.inner.settings.uploads
    }

    /// How long jobs that ended are kept.
    #[must_use]
    pub fn keep(&self) -> Duration {
        self.inner.settings.keep
    }

    /// The numbers of all jobs, the oldest first.
    #[must_use]
    pub fn ids(&self) -> Vec<JobId> {
        self.inner.jobs.borrow().keys().copied().collect()
    }

    /// Counts everything that changes; see [`changed`](Self::changed).
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.revision.get()
    }

    /// Counts the changes of one job.
    #[must_use]
    pub fn job_revision(&self, id: JobId) -> Option<u64> {
        self.inner.jobs.borrow().get(&id).map(|live| live.revision)
    }

    /// Waits until something has changed since `revision`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&self, revision: u64) {
        while self.inner.revision.get() == revision {
            let _ = self.inner.changed.wait().await;
        }
    }

    /// A copy of a job.
    ///
    /// # Errors
    /// [`JobError::NoJob`].
    pub fn job(&self, id: JobId) -> Result<Job, JobError> {
        self.look(id, |live| live.job.clone())
    }

    pub(super) fn look<T>(&self, id: JobId, look: impl FnOnce(&Live) -> T) -> Result<T, JobError> {
        self.inner.jobs.borrow().get(&id).map(look).ok_or(JobError::NoJob(id))
    }

    /// Changes a job in memory and says so.
    pub(super) fn touch<T>(&self, id: JobId, change: impl FnOnce(&mut Live) -> T) -> Result<T, JobError> {
        let mut jobs = self.inner.jobs.borrow_mut();
        let live = jobs.get_mut(&id).ok_or(JobError::NoJob(id))?;
        let value = change(live);
        let revision = self.inner.revision.get() + 1;
        self.inner.revision.set(revision);
        live.revision = revision;
        drop(jobs);
        self.inner.changed.notify_all();
        Ok(value)
    }

    /// Waits for its turn to change jobs.
    pub(super) async fn turn(&self) -> Result<OwnedPermit, JobError> {
        if self.inner.stopping.get() {
            return Err(JobError::Stopping);
        }
        Arc::clone(&self.inner.turn).acquire_owned().await.map_err(|_| JobError::Stopping)
    }

    /// Writes a job as `change` makes it, then shows it.
    pub(super) async fn write(&self, id: JobId, change: impl FnOnce(&mut Job)) -> Result<Job, JobError> {
        let mut job = self.job(id)?;
        change(&mut job);
        self.inner.store.update_job(job.clone()).await?;
        // Pages and tokens may have come meanwhile; what was changed is everything else.
        self.touch(id, |live| {
            let now = &mut live.job;
            (now.name, now.upstream, now.model) = (job.name.clone(), job.upstream.clone(), job.model.clone());
            (now.options, now.state, now.reason) = (job.options.clone(), job.state, job.reason.clone());
            (now.kind, now.started, now.changed) = (job.kind, job.started, job.changed);
        })?;
        self.job(id)
    }

    /// Makes a draft.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn create(&self, kind: JobKind, name: &str) -> Result<JobId, JobError> {
        let _turn = self.turn().await?;
        if self.inner.jobs.borrow().len() >= JOBS_MAX {
            return Err(JobError::Invalid(format!("there are {JOBS_MAX} jobs; delete some")));
        }
        let upstream = self.inner.upstreams.first();
        let now = Timestamp::now();
        let mut job = Job {
            id: JobId(0),
            name: display_name(name, ""),
            kind,
            upstream: upstream.map(|upstream| upstream.name().to_owned()).unwrap_or_default(),
            model: upstream.map(|upstream| upstream.default_model().to_owned()).unwrap_or_default(),
            options: JobOptions::default(),
            state: JobState::Draft,
            reason: String::new(),
            created: now,
            started: None,
            changed: now,
            tokens: (0, 0),
            files: Vec::new(),
        };
        job.id = self.inner.store.add_job(job.clone()).await?;
        let id = job.id;
        if let Err(error) = self.inner.place.make(id) {
            self.inner.store.remove_job(id).await?;
            return Err(error.into());
        }
        let live = Live { job, run: None, revision: 0, asking: Vec::new(), notice: None };
        self.inner.jobs.borrow_mut().insert(id, live);
        self.touch(id, |_| ())?;
        Ok(id)
    }

    /// Changes what a draft is to do.
    ///
    /// # Errors
    /// [`JobError::Invalid`] with what is wrong; [`JobError::Illegal`] if it has been started.
    pub async fn configure(
        &self,
        id: JobId,
        name: &str,
        upstream: &str,
        model: &str,
        options: JobOptions,
    ) -> Result<Job, JobError> {
        let _turn = self.turn().await?;
        let job = self.job(id)?;
        job.state.after(Action::Start)?;
        let Some(upstream) = self.upstream(upstream) else {
            return Err(JobError::Invalid("no upstream has that name; choose one of the list".into()));
        };
        let has_pages = job.kind != JobKind::Batch;
        if has_pages {
            options.check().map_err(JobError::Invalid)?;
        }
        let selection = options.selection().map_err(JobError::Invalid)?;
        let model = model.trim();
        if model.len() > 200 || model.contains(char::is_control) {
            return Err(JobError::Invalid("that is not the name of a model".into()));
        }
        let name = display_name(name, &job.name);
        let job = self
            .write(id, |job| {
                (job.name, job.upstream, job.model) = (name, upstream.name().to_owned(), model.to_owned());
                // Each request has its own.
                if has_pages {
                    job.options = options;
                }
            })
            .await?;
        if !has_pages {
            return Ok(job);
        }
        // Which pages there are follows from the selection.
        self.touch(id, |live| {
            for file in &mut live.job.files {
                file.choose(selection.of(file.page_count));
            }
        })?;
        self.inner.store.update_job(self.job(id)?).await?;
        Ok(job)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.inner.stopping.get()
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("jobs", &self.inner.jobs.borrow().len()).finish_non_exhaustive()
    }
}
