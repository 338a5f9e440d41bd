//! A run: files in, each open when there is a share for it, results kept as they come, outputs and a report behind them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tidegate_limit::Admission;
use tidegate_loop::to_thread;
use tidegate_pdf::{Confinement, Reader};
use tidegate_sync::{Event as Signal, Semaphore};

use super::file::FileRun;
use super::inputs::Input;
use super::lanes::Lanes;
use super::options::{Options, Outputs};
use super::pictures::PictureLimit;
use super::sizes::{SHARES, Size};
use crate::concurrency::{AutoConcurrency, Wanted};
use crate::output::overview::{INDEX, Linked, Overview};
use crate::output::report::{FailureGroup, FileReport, REPORT_SCHEMA, Report, WarningGroup, grouped};
use crate::output::{Entry, atomic, explained_by, mark};
use crate::outputs;
use crate::owned::OwnedTask;
use crate::provider::Provider;
use crate::run::policy::Policy;
use crate::run::{Change, Control, Event, FileState, ItemId, Unit};
use crate::store::Store;

/// Files whose outputs are made at once: drawing pages keeps a processor busy.
const WRITERS: usize = 2;

/// The report's name in the folder of the outputs.
pub(super) const REPORT: &str = "report.json";

/// Why a run could not begin, or its last words could not be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExplainError {
    /// A file that tidegate did not write has the name of an output. Nothing was sent.
    Foreign {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The report, or the page that links the documents, cannot be written; everything before it is.
    Report {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// The report.
        report: Box<Report>,
    },
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExplainError::Foreign { path, source } => write!(f, "{} cannot be written: {source}", path.display()),
            ExplainError::Report { path, source, .. } => {
                write!(f, "{} cannot be written: {source}; every result is kept", path.display())
            }
        }
    }
}

impl std::error::Error for ExplainError {}

/// A run that explains files.
///
/// ```
/// use std::rc::Rc;
/// use tidegate_batch::{Explain, Local, Options, Quotas, Store, find_pdfs};
///
/// fn main() {
///     // PDFs are read in a child, which is this very program started once more.
///     tidegate_pdf::child::main_if_asked();
///
///     let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
///     let out = std::env::temp_dir().join(format!("tidegate-doc-explain-{}", std::process::id()));
///     std::fs::create_dir_all(&out).unwrap();
///     let report = tidegate_loop::run({
///         let out = out.clone();
///         async move {
///             let gate = Quotas::default().gate().unwrap();
///             let store = Store::open(out.join("results.db")).unwrap();
///             let mut options = Options::new(find_pdfs(&[samples.into()]).unwrap(), &out);
///             options.html_px = Some(100); // thumbnails will do
///             let provider = Rc::new(Local::new(&gate));
///             Explain::new(options, provider, "local", &gate, store).run().await.unwrap()
///         }
///     })
///     .unwrap();
///     assert!(report.is_complete());
///     assert!(out.join("tides.html").exists());
///     # std::fs::remove_dir_all(&out).unwrap();
/// }
/// ```
pub struct Explain {
    job: Rc<Job>,
}

/// What everything in a run shares.
pub(super) struct Job {
    pub(super) options: Options,
    pub(super) provider: Rc<dyn Provider>,
    pub(super) provider_name: String,
    pub(super) gate: Admission,
    pub(super) store: Rc<Store>,
    pub(super) reader: Reader,
    pub(super) control: Control,
    pub(super) policy: Policy,
    /// KiB of pictures for the provider.
    pub(super) pictures: Arc<Semaphore>,
    pub(super) writers: Arc<Semaphore>,
    /// Held while an answer is written to the store a second time: one at a time.
    pub(super) rewrites: Arc<Semaphore>,
    /// Answers that could not be kept.
    pub(super) unkept: Cell<u64>,
    /// The files whose pages are asked about.
    pub(super) lanes: Lanes,
    /// Each file that has been opened.
    pub(super) files: RefCell<Vec<Option<Rc<FileRun>>>>,
    /// What is to be reported of each file.
    pub(super) notes: RefCell<Vec<Notes>>,
    /// Pages are asked again now, and what is notified when they are done.
    pub(super) asks_again: Cell<bool>,
    pub(super) asked_again: Signal,
    /// Of the last file that was opened. The kernel is the same for all.
    confinement: RefCell<Option<Confinement>>,
}

/// What is to be reported of a file.
#[derive(Default)]
pub(super) struct Notes {
    /// `None`: its turn has not come.
    pub(super) report: Option<FileReport>,
    pub(super) failures: Vec<FailureGroup>,
    pub(super) warnings: Vec<WarningGroup>,
}

impl Explain {
    /// A run of `provider`, called `name`, within `gate`, that keeps its answers in `store`. Other runs may use the same gate:
    /// the program that made it closes it when all of them have ended.
    pub fn new(
        options: Options,
        provider: Rc<dyn Provider>,
        name: &str,
        gate: impl Into<Admission>,
        store: impl Into<Rc<Store>>,
    ) -> Explain {
        let gate = gate.into();
        let control = Control::new(Unit::Pages, options.inputs.iter().map(Input::name));
        let costing = Rc::clone(&provider);
        control.connect(&gate, move || costing.typical_cost());
        let pictures_kib = usize::try_from(options.picture_bytes_max / 1024).unwrap_or(usize::MAX >> 4).max(1);
        let pictures_in_flight = PictureLimit::new(options.picture_concurrency, &gate);
        let files = options.inputs.len();
        let job = Job {
            provider,
            provider_name: name.into(),
            store: store.into(),
            reader: Reader::new(),
            control,
            policy: Policy::new(Unit::Pages),
            gate,
            pictures: Arc::new(Semaphore::new(pictures_kib)),
            writers: Arc::new(Semaphore::new(WRITERS)),
            rewrites: Arc::new(Semaphore::new(1)),
            unkept: Cell::new(0),
            lanes: Lanes::new(pictures_in_flight),
            files: RefCell::new(vec![None; files]),
            notes: RefCell::new((0..files).map(|_| Notes::default()).collect()),
            asks_again: Cell::new(false),
            asked_again: Signal::new(),
            confinement: RefCell::default(),
            options,
        };
        Explain { job: Rc::new(job) }
    }

    /// The same with another reader: other limits, a password.
    ///
    /// # Panics
    /// If it has been shared already.
    #[must_use]
    pub fn with_reader(mut self, reader: Reader) -> Explain {
        Rc::get_mut(&mut self.job).expect("set up before it is shared").reader = reader;
        self
    }

    /// The same, calling `on_event` at everything that happens, as it happens, on the loop's thread.
    #[must_use]
    pub fn on_event(self, on_event: impl Fn(&Event) + 'static) -> Explain {
        self.job.control.on_event(on_event);
        self
    }

    /// The handle to steer the run and to read how far it is.
    #[must_use]
    pub fn control(&self) -> Control {
        self.job.control.clone()
    }

    /// The answers so far, of files whose outputs are not written yet.
    #[must_use]
    pub fn results(&self) -> Results {
        Results { job: Rc::downgrade(&self.job) }
    }

    /// Runs to the end, or to where it is [stopped](Control::finish). One bad file, or page, fails alone.
    ///
    /// # Errors
    /// [`ExplainError`].
    ///
    /// # Cancel safety
    /// Dropped, calls in flight are lost and outputs are not written; what was kept is kept, and nothing of the run goes on. To end
    /// it in order, use [`control`](Self::control).
    pub async fn run(self) -> Result<Report, ExplainError> {
        let job = self.job;
        let _end = job.control.end_when_dropped();
        job.run().await
    }
}

/// The answers of a run that goes on. Clones are the same.
#[derive(Clone)]
pub struct Results {
    job: Weak<Job>,
}

impl Results {
    /// Returns what became of a page. `None` if it is not settled yet, or the outputs of its file are written: they have it.
    #[must_use]
    pub fn page(&self, file: u32, page: u32) -> Option<Entry> {
        let run = self.job.upgrade()?.files.borrow().get(file as usize)?.clone()?;
        run.entry(page)
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").finish_non_exhaustive()
    }
}

/// Lets go of the files at the end of a run, however it ends: they refer to the run and it to them, so that its store would stay
/// open.
struct Files<'a>(&'a Job);

impl Drop for Files<'_> {
    fn drop(&mut self) {
        self.0.files.borrow_mut().clear();
    }
}

impl Job {
    async fn run(self: &Rc<Self>) -> Result<Report, ExplainError> {
        let job = self;
        job.options.check_outputs()?;
        let _files = Files(job);
        let (began, began_at) = (crate::run::now(), jiff::Timestamp::now());
        let costing = Rc::clone(&job.provider);
        job.control.begin(&job.gate, move || costing.typical_cost());
        job.all_files().await;
        let mut report = Report {
            schema: REPORT_SCHEMA.into(),
            began: began_at.to_string(),
            provider: job.provider_name.clone(),
            model: job.provider.model().into(),
            stopped: job.control.reason(),
            confinement: job.confinement.take(),
            ..Report::default()
        };
        report.totals.files = job.options.inputs.len() as u64;
        for (index, (notes, input)) in job.notes.take().into_iter().zip(&job.options.inputs).enumerate() {
            let mut file = notes.report.unwrap_or_else(|| {
                let pages = job.control.file(index).pages;
                FileReport { pages, missing: pages, ..FileReport::default() }
            });
            file.path = input.path.display().to_string();
            report.totals.pages += file.pages;
            report.totals.done += file.done;
            report.totals.kept += file.kept;
            report.totals.failed += file.failed;
            report.totals.skipped += file.skipped;
            report.totals.blank += file.blank;
            report.totals.missing += file.missing;
            report.totals.files_failed += u64::from(file.pages == 0 && file.error.is_some());
            report.files.push(file);
            report.failures.extend(notes.failures);
            report.warnings.extend(notes.warnings);
        }
        report.totals.unkept = job.unkept.get();
        report.totals.files_uncounted = job.control.uncounted();
        let traffic = job.provider.traffic();
        report.totals.requests = traffic.sent;
        report.totals.throttled = traffic.throttled;
        // Answers that came to nothing were paid for, too.
        let paid = Some(traffic.usage).filter(|usage| usage.total() > 0);
        report.totals.tokens = paid.unwrap_or_else(|| job.control.tokens());
        report.set_limits(&job.gate.stats(), job.lanes.cap_max(), job.lanes.pictures.report());
        report.seconds = crate::run::now().saturating_duration_since(began).as_secs_f64();
        let index = match job.options.outputs {
            Outputs::All => {
                let overview = overview(&report, &job.options.inputs);
                outputs::write_overview(&job.options.out, overview).await.map(Some)
            }
            Outputs::Json => Ok(None),
        };
        report.index = index.as_ref().ok().and_then(|path| Some(path.as_ref()?.display().to_string()));
        let path = job.options.out.join(REPORT);
        let json = serde_json::to_string_pretty(&report).expect("texts and numbers") + "\n";
        let written = to_thread({
            let path = path.clone();
            move || {
                mark::may_replace(&path)?;
                atomic::write(&path, |out| out.write_all(json.as_bytes()))
            }
        })
        .await;
        let written = written.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
        match (written, index) {
            (Ok(()), Ok(_)) => Ok(report),
            (Err(source), _) => Err(ExplainError::Report { path, source, report: Box::new(report) }),
            (Ok(()), Err(source)) => {
                let path = job.options.out.join(INDEX);
                Err(ExplainError::Report { path, source, report: Box::new(report) })
            }
        }
    }

    /// Opens the files one after the other, so that a file's share does not wait for another's; their pages go on meanwhile.
    async fn all_files(self: &Rc<Self>) {
        let options = &self.options;
        let total = options.file_concurrency.map_or(SHARES, |files| files.max(1) as usize);
        let shares = Arc::new(Semaphore::new(total));
        let attending = options.auto_concurrency.clone().map(|auto| {
            let (job, shares) = (Rc::clone(self), Arc::clone(&shares));
            let (provider, bounds) = (Rc::clone(&self.provider), auto.clone());
            let apply = move |wanted: Wanted| job.widen(&bounds, wanted, &shares);
            OwnedTask::spawn(auto.attend(self.gate.clone(), move || provider.typical_cost(), apply))
        });
        let counting = OwnedTask::spawn(Rc::clone(self).count_pages());
        let weak = Rc::downgrade(self);
        self.control.set_retryable(move |item| {
            let (job, ItemId::Page { file, .. }) = (weak.upgrade()?, item) else { return None };
            let run = job.files.borrow().get(file as usize)?.clone()?;
            Some(Rc::clone(&run.name))
        });
        let again = OwnedTask::spawn(Rc::clone(self).serve_again());
        let mut running = Vec::new();
        for (index, input) in options.inputs.iter().enumerate() {
            if self.control.is_stopping() {
                break;
            }
            let document = match input.reader(&self.reader).open(&input.path).await {
                Ok(document) => document,
                Err(error) => {
                    self.file_failed(index, error.to_string());
                    continue;
                }
            };
            self.confinement.replace(Some(document.confinement().clone()));
            let pages = options.selection.of(document.page_count());
            if pages.is_empty() {
                let has = document.page_count();
                self.file_failed(
                    index,
                    format!("none of the pages asked for is in the file, which has {has}; see --pages"),
                );
                continue;
            }
            if let Err(error) = outputs::check_folder(&options.out, &input.stem, pages.len()) {
                self.file_failed(index, error.to_string());
                continue;
            }
            let size = Size::of(pages.len() as u32);
            let share = options.file_concurrency.map_or(size.share(), |_| 1);
            let Ok(share) = shares.acquire_many_owned(share).await else { break };
            let cap = options.page_concurrency.unwrap_or_else(|| size.page_concurrency()).max(1);
            self.control.count_pages(index, &pages);
            self.control.file_state(index, FileState::Running);
            let run = FileRun::new(self, index, cap);
            self.files.borrow_mut()[index] = Some(Rc::clone(&run));
            let count = pages.len() as u32;
            self.control.emit(Change::FileOpened {
                file: index as u32,
                name: Rc::clone(&run.name),
                pages: count,
                page_concurrency: cap,
            });
            running.push((index, OwnedTask::spawn(run.explain(document, pages, share))));
        }
        for (index, task) in running {
            if let Err(error) = task.await {
                self.file_failed(index, format!("something in here went wrong: {error}; please report it"));
            }
        }
        self.again_is_done().await;
        again.end().await;
        drop((attending, counting));
    }

    /// Has as many pages in flight, and as many files open, as fill the quota.
    fn widen(&self, auto: &AutoConcurrency, wanted: Wanted, shares: &Semaphore) {
        if self.options.page_concurrency.is_none() {
            self.lanes.widen(wanted.needed);
        }
        let (files, pages) = self.lanes.possible();
        let may_open = self.options.file_concurrency.is_none() && shares.waiters() > 0 && wanted.is_bound;
        if may_open && auto.needs_file(wanted.needed, files, pages) {
            // Enough for one file of any size.
            shares.add_permits(Size::Large.share());
        }
    }

    fn file_failed(&self, index: usize, reason: String) {
        let name = self.options.inputs[index].name();
        self.control.file_state(index, FileState::Failed);
        self.control.count_pages(index, &[]);
        self.control.emit(Change::FileFailed {
            file: index as u32,
            name: name.as_str().into(),
            reason: reason.as_str().into(),
        });
        let group = FailureGroup { file: name, pages: Vec::new(), code: "unreadable".into(), reason: reason.clone() };
        let report = Some(FileReport { error: Some(reason), ..FileReport::default() });
        self.notes.borrow_mut()[index] = Notes { report, failures: vec![group], warnings: Vec::new() };
    }
}

/// The page that links the documents of a run.
fn overview(report: &Report, inputs: &[Input]) -> Overview {
    let document = |(file, input): (&FileReport, &Input)| Linked {
        name: input.name(),
        stem: Some(input.stem.clone()).filter(|_| !file.outputs.is_empty()),
        pages: file.pages,
        done: file.done,
        failed: file.failed,
        skipped: file.skipped,
        missing: file.missing,
        error: file.error.clone(),
    };
    let files = if inputs.len() == 1 { "file" } else { "files" };
    let with = explained_by(&report.provider, &report.model).map(|with| format!(" · {with}")).unwrap_or_default();
    let (done, pages) = (grouped(report.totals.done), grouped(report.totals.pages));
    let day = report.began.split('T').next().unwrap_or_default();
    Overview {
        about: format!("{done} of {pages} pages explained · {} {files}{with} · {day}", inputs.len()),
        stopped: report.stopped.clone(),
        documents: report.files.iter().zip(inputs).map(document).collect(),
        report: Some(REPORT),
        earlier: Vec::new(),
    }
}

impl fmt::Debug for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explain")
            .field("files", &self.job.options.inputs.len())
            .field("provider", &self.job.provider_name)
            .finish_non_exhaustive()
    }
}
