//! A run: files in, each under way when there is a share for it, results kept as they come, outputs and a report behind
//! them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tidegate_limit::Admission;
use tidegate_loop::{spawn, to_thread};
use tidegate_pdf::{Confinement, Reader};
use tidegate_sync::Semaphore;

use super::board::{Board, FileState, Watch};
use super::event::Event;
use super::file;
use super::inputs::Input;
use super::lanes::Lanes;
use super::pictures::PictureLimit;
use super::prompt::{DEFAULT_PROMPT, Prompt};
use super::selection::Selection;
use super::sizes::{SHARES, Size};
use super::stop::Stop;
use crate::concurrency::{Attending, AutoConcurrency, Wanted};
use crate::output::report::{FailureGroup, FileReport, REPORT_SCHEMA, Report, WarningGroup};
use crate::output::{atomic, mark};
use crate::outputs;
use crate::provider::Provider;
use crate::store::Store;

/// Files whose outputs are made at once: drawing pages keeps a processor busy.
const WRITERS: usize = 2;

/// Pages in a row that nobody answered, until it is taken that nobody will.
const UNANSWERED_MAX: u32 = 8;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files.
    pub inputs: Vec<Input>,
    /// Where outputs go; it has to be there.
    pub out: PathBuf,
    /// What is asked about each page.
    pub prompt: Prompt,
    /// The same as it was written, for the outputs.
    pub prompt_text: String,
    /// The language of the answer; that of the page if it is empty.
    pub language: String,
    /// Which pages.
    pub selection: Selection,
    /// How many neighbours on each side a page is sent with.
    pub context_pages: u32,
    /// How many pages of a file are under way at once; by its [`Size`] if there is none.
    pub page_concurrency: Option<u32>,
    /// How many pages of a file are in flight at once that are sent as pictures; if there is none, as many as of all pages.
    pub picture_concurrency: Option<u32>,
    /// How many files are under way at once; by their [`Size`] if there is none.
    pub file_concurrency: Option<u32>,
    /// Raises both, and the gate's limit `global`, as far as the stated limits and the answer times need it; what was stated
    /// above stays.
    pub auto_concurrency: Option<AutoConcurrency>,
    /// Pages that the provider would not explain are asked about again.
    pub retry_failed: bool,
    /// What was kept is not looked at; new results take its place.
    pub fresh: bool,
    /// The longest side of pictures for the provider, in pixels.
    pub picture_px: u32,
    /// The longest side of pictures in the HTML page; none if there is none.
    pub html_px: Option<u32>,
    /// How many bytes of pictures for the provider are in memory at once, about.
    pub picture_bytes_max: u64,
}

impl Options {
    /// The usual way for these files and that folder.
    #[must_use]
    pub fn new(inputs: Vec<Input>, out: impl Into<PathBuf>) -> Options {
        Options {
            inputs,
            out: out.into(),
            prompt: Prompt::default(),
            prompt_text: DEFAULT_PROMPT.into(),
            language: String::new(),
            selection: Selection::all(),
            context_pages: 1,
            page_concurrency: None,
            picture_concurrency: None,
            file_concurrency: None,
            auto_concurrency: None,
            retry_failed: false,
            fresh: false,
            picture_px: 1_400,
            html_px: Some(1_000),
            picture_bytes_max: 256 << 20,
        }
    }
}

impl Options {
    /// Refuses outputs that would replace a file which tidegate did not write.
    fn check_outputs(&self) -> Result<(), ExplainError> {
        let outputs = self.inputs.iter().flat_map(|input| outputs::paths(&self.out, &input.stem));
        for path in outputs.chain([self.out.join(REPORT)]) {
            mark::may_replace(&path).map_err(|source| ExplainError::Foreign { path, source })?;
        }
        Ok(())
    }
}

/// The report's name in the folder of the outputs.
const REPORT: &str = "report.json";

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
    /// The report cannot be written; everything before it is.
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
                write!(f, "the report {} cannot be written: {source}; every result is kept", path.display())
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
    pub(super) job: Rc<Job>,
}

type OnEvent = Box<dyn Fn(&Event<'_>)>;

/// What everything in a run shares.
pub(super) struct Job {
    pub(super) options: Options,
    pub(super) provider: Rc<dyn Provider>,
    pub(super) provider_name: String,
    pub(super) gate: Admission,
    pub(super) store: Store,
    pub(super) reader: Reader,
    pub(super) board: Rc<RefCell<Board>>,
    pub(super) stop: Stop,
    /// KiB of pictures for the provider.
    pub(super) pictures: Arc<Semaphore>,
    pub(super) writers: Arc<Semaphore>,
    /// Held while an answer is written to the store a second time: one at a time.
    pub(super) rewrites: Arc<Semaphore>,
    /// Answers that could not be kept.
    pub(super) unkept: Cell<u64>,
    /// The files whose pages are asked about.
    pub(super) lanes: Lanes,
    on_event: OnEvent,
    /// Pages in a row that nobody answered.
    unanswered: Cell<u32>,
    pub(super) failures: RefCell<Vec<FailureGroup>>,
    pub(super) warnings: RefCell<Vec<WarningGroup>>,
    /// Of the last file that was opened. The kernel is the same for all.
    confinement: RefCell<Option<Confinement>>,
}

impl Explain {
    /// A run of `provider`, called `name`, within `gate`, which is closed when the run is stopped.
    pub fn new(
        options: Options,
        provider: Rc<dyn Provider>,
        name: &str,
        gate: impl Into<Admission>,
        store: Store,
    ) -> Explain {
        let gate = gate.into();
        let board = Board::new(options.inputs.iter().map(Input::name), Instant::now());
        let pictures_kib = usize::try_from(options.picture_bytes_max / 1024).unwrap_or(usize::MAX >> 4).max(1);
        let pictures_in_flight = PictureLimit::new(options.picture_concurrency, &gate);
        let job = Job {
            provider,
            provider_name: name.into(),
            store,
            reader: Reader::new(),
            board: Rc::new(RefCell::new(board)),
            stop: Stop::new(&gate),
            gate,
            pictures: Arc::new(Semaphore::new(pictures_kib)),
            writers: Arc::new(Semaphore::new(WRITERS)),
            rewrites: Arc::new(Semaphore::new(1)),
            unkept: Cell::new(0),
            lanes: Lanes::new(pictures_in_flight),
            on_event: Box::new(|_| ()),
            unanswered: Cell::new(0),
            failures: RefCell::default(),
            warnings: RefCell::default(),
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
    pub fn with_reader(self, reader: Reader) -> Explain {
        self.with(|job| job.reader = reader)
    }

    /// The same, telling `on_event` of everything as it happens, on the loop's thread. It must not call back into the run.
    ///
    /// # Panics
    /// If it has been shared already.
    #[must_use]
    pub fn on_event(self, on_event: impl Fn(&Event<'_>) + 'static) -> Explain {
        self.with(|job| job.on_event = Box::new(on_event))
    }

    fn with(mut self, change: impl FnOnce(&mut Job)) -> Explain {
        change(Rc::get_mut(&mut self.job).expect("set up before it is shared"));
        self
    }

    /// How to end it early.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.job.stop.clone()
    }

    /// How to see how far it has come.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(&self.job.board, &self.job.gate, &self.job.provider, &self.job.stop, &self.job.lanes.pictures)
    }

    /// Runs to the end, or to where it is [stopped](Self::stop). One bad file, or page, fails alone.
    ///
    /// # Errors
    /// [`ExplainError`].
    ///
    /// # Cancel safety
    /// Dropped, calls under way are lost and outputs are not written; what was kept is kept. Use [`stop`](Self::stop).
    pub async fn run(self) -> Result<Report, ExplainError> {
        let job = self.job;
        job.options.check_outputs()?;
        let (began, began_at) = (Instant::now(), jiff::Timestamp::now());
        job.board.borrow_mut().restart(began);
        let mut reports = job.all_files().await;
        let mut report = Report {
            schema: REPORT_SCHEMA.into(),
            began: began_at.to_string(),
            provider: job.provider_name.clone(),
            model: job.provider.model().into(),
            stopped: job.stop.reason(),
            failures: job.failures.take(),
            warnings: job.warnings.take(),
            confinement: job.confinement.take(),
            ..Report::default()
        };
        report.totals.files = job.options.inputs.len() as u64;
        for (file, input) in reports.iter_mut().zip(&job.options.inputs) {
            file.path = input.path.display().to_string();
            report.totals.pages += file.pages;
            report.totals.done += file.done;
            report.totals.kept += file.kept;
            report.totals.failed += file.failed;
            report.totals.skipped += file.skipped;
            report.totals.blank += file.blank;
            report.totals.missing += file.missing;
            report.totals.files_failed += u64::from(file.pages == 0 && file.error.is_some());
        }
        report.totals.unkept = job.unkept.get();
        report.totals.files_uncounted = job.board.borrow().uncounted();
        report.files = reports;
        let traffic = job.provider.traffic();
        report.totals.requests = traffic.sent;
        report.totals.throttled = traffic.throttled;
        // Answers that came to nothing were paid for, too.
        let paid = Some(traffic.usage).filter(|usage| usage.total() > 0);
        report.totals.tokens = paid.unwrap_or_else(|| job.board.borrow().tokens());
        report.set_limits(&job.gate.stats(), job.lanes.cap_max(), job.lanes.pictures.report());
        report.seconds = began.elapsed().as_secs_f64();
        // What the gate counts of a day is written down as it really was.
        job.gate.close();
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
        match written.unwrap_or_else(|error| Err(io::Error::other(error.to_string()))) {
            Ok(()) => Ok(report),
            Err(source) => Err(ExplainError::Report { path, source, report: Box::new(report) }),
        }
    }
}

impl Job {
    /// Opens the files one after the other, so that nobody's share waits for another's; their pages go on meanwhile.
    async fn all_files(self: &Rc<Self>) -> Vec<FileReport> {
        let options = &self.options;
        let total = options.file_concurrency.map_or(SHARES, |files| files.max(1) as usize);
        let shares = Arc::new(Semaphore::new(total));
        let attending = options.auto_concurrency.clone().map(|auto| {
            let (job, shares) = (Rc::clone(self), Arc::clone(&shares));
            let (provider, bounds) = (Rc::clone(&self.provider), auto.clone());
            let apply = move |wanted: Wanted| job.widen(&bounds, wanted, &shares);
            Attending::start(auto.attend(self.gate.clone(), move || provider.typical_cost(), apply))
        });
        let counting = Attending::start(Rc::clone(self).count_pages());
        let mut running = Vec::new();
        for (index, input) in options.inputs.iter().enumerate() {
            if self.stop.is_asked() {
                break;
            }
            let document = match self.reader.open(&input.path).await {
                Ok(document) => document,
                Err(error) => {
                    running.push(Err(self.file_failed(index, error.to_string())));
                    continue;
                }
            };
            self.confinement.replace(Some(document.confinement().clone()));
            let pages = options.selection.of(document.page_count());
            if pages.is_empty() {
                let has = document.page_count();
                let reason = format!("none of the pages asked for is in the file, which has {has}; see --pages");
                running.push(Err(self.file_failed(index, reason)));
                continue;
            }
            let size = Size::of(pages.len() as u32);
            let share = options.file_concurrency.map_or(size.share(), |_| 1);
            let Ok(share) = shares.acquire_many_owned(share).await else { break };
            let cap = options.page_concurrency.unwrap_or_else(|| size.page_concurrency()).max(1);
            self.board.borrow_mut().opened(index, pages.len());
            let (name, count) = (input.name(), pages.len() as u32);
            self.tell(&Event::FileOpened { file: index, name: &name, pages: count, page_concurrency: cap });
            running.push(Ok(spawn(file::explain(Rc::clone(self), index, document, pages, cap, share))));
        }
        let mut reports = Vec::new();
        for file in running {
            reports.push(match file {
                Ok(task) => task.await.unwrap_or_else(|error| {
                    let index = reports.len();
                    self.file_failed(index, format!("something in here went wrong: {error}; please report it"))
                }),
                Err(report) => report,
            });
        }
        drop((attending, counting));
        let board = self.board.borrow();
        for index in reports.len()..options.inputs.len() {
            let pages = board.file(index).pages;
            reports.push(FileReport { pages, missing: pages, ..FileReport::default() });
        }
        reports
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

    fn file_failed(&self, index: usize, reason: String) -> FileReport {
        let name = self.options.inputs[index].name();
        let mut board = self.board.borrow_mut();
        board.state(index, FileState::Failed);
        board.counted(index, 0);
        drop(board);
        self.tell(&Event::FileFailed { file: index, name: &name, reason: &reason });
        let group = FailureGroup { file: name, pages: Vec::new(), code: "unreadable".into(), reason: reason.clone() };
        self.failures.borrow_mut().push(group);
        FileReport { error: Some(reason), ..FileReport::default() }
    }

    pub(super) fn tell(&self, event: &Event<'_>) {
        (self.on_event)(event);
    }

    /// Ends the run: nobody who comes next would fare better.
    pub(super) fn stop_because(&self, reason: &str) {
        if self.stop.finish(reason) {
            self.tell(&Event::Stopping { reason });
        }
    }

    /// Somebody answered.
    pub(super) fn answered(&self) {
        self.unanswered.set(0);
    }

    /// Nobody answered, for so many pages in a row that nobody will.
    pub(super) fn unanswered(&self, reason: &str) {
        self.unanswered.set(self.unanswered.get() + 1);
        if self.unanswered.get() >= UNANSWERED_MAX {
            let count = self.unanswered.get();
            self.stop_because(&format!("{count} pages in a row had no answer; the last time: {reason}"));
        }
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
