//! A document: its pages on request, in a child that is replaced when it fails.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_sync::Mutex;

use crate::child::Confinement;
use crate::error::{OpenError, PageError};
use crate::page::{Page, PageText, Picture, Want, Warning};
use crate::reader::{Limits, Reader};
use crate::source::{Source, Stamp};
use crate::wire::{Refusal, Reply, Request};
use crate::worker::{Trouble, Worker};

/// An open document. Its pages are read one after the other in the order in which they are asked for, in a child process;
/// any number of tasks may ask. Dropped, the child ends.
///
/// A page that takes too long, too much memory, or crashes the child fails alone: the child is ended, and the next page is
/// read in a new one.
pub struct Document {
    path: PathBuf,
    reader: Reader,
    about: About,
    /// `None` if no child was started since the last one ended. The holder of the lock talks to the child.
    worker: Mutex<Option<Worker>>,
    /// How much of the document's time has been used.
    busy: Cell<Duration>,
    /// The same when the child was started.
    busy_before: Cell<Duration>,
    stats: RefCell<Stats>,
}

/// The file, and what a child found in it.
#[derive(Debug, PartialEq)]
struct About {
    stamp: Stamp,
    confinement: Confinement,
    pages: u32,
    title: Option<String>,
    warnings: Vec<Warning>,
}

/// What has been read of a document so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pages that were read, repetitions included.
    pub read: u64,
    /// Pages that failed.
    pub failed: u64,
    /// Children that were started, the first included.
    pub children: u64,
    /// Requests that wait for the child or are served by it.
    pub asking: u64,
    /// The time in which something was read.
    pub busy: Duration,
    /// The most memory that any of the children has used when it had read a page.
    pub memory_peak_bytes: u64,
}

impl Document {
    pub(crate) async fn open(reader: Reader, path: &Path) -> Result<Document, OpenError> {
        let busy = Cell::new(Duration::ZERO);
        let (worker, about) = start(&reader, path, &busy, reader.bounds().document_time).await?;
        Ok(Document {
            path: path.to_owned(),
            reader,
            about,
            worker: Mutex::new(Some(worker)),
            busy,
            busy_before: Cell::default(),
            stats: RefCell::new(Stats { children: 1, ..Stats::default() }),
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many pages were found; at least one.
    #[must_use]
    pub fn page_count(&self) -> u32 {
        self.about.pages
    }

    /// The title in the document's description, if there is one.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.about.title.as_deref()
    }

    /// What is not as it should be with the document as a whole.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.about.warnings
    }

    /// How the process that reads it is confined. Its limits hold in any case.
    ///
    /// ```
    /// # tidegate_pdf::child::main_if_asked();
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
    /// # tidegate_loop::run(async move {
    /// let document = tidegate_pdf::Reader::new().open(path).await.unwrap();
    /// if !document.confinement().is_complete() {
    ///     eprintln!("{}", document.confinement());
    /// }
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.about.confinement
    }

    /// What has been read so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { busy: self.busy.get(), ..*self.stats.borrow() }
    }

    /// Reads the page with this number, from 1.
    ///
    /// # Errors
    /// See [`PageError`]; each names the file and the page.
    ///
    /// # Cancel safety
    /// Safe: if the future is dropped, the child that was reading the page is ended with it.
    pub async fn page(&self, number: u32, want: Want) -> Result<Page, PageError> {
        if number == 0 || number > self.about.pages {
            let (path, pages) = (self.path.clone(), self.about.pages);
            return Err(PageError::NoSuchPage { path, page: number, pages });
        }
        let _asking = Asking::new(&self.stats);
        let page = self.read(number, want).await;
        let mut stats = self.stats.borrow_mut();
        *if page.is_ok() { &mut stats.read } else { &mut stats.failed } += 1;
        drop(stats);
        page
    }

    async fn read(&self, number: u32, want: Want) -> Result<Page, PageError> {
        let mut worker = self.worker.lock().await;
        let limits = *self.reader.bounds();
        let time = limits.time_for(self.about.pages);
        let left = time.saturating_sub(self.busy.get());
        if left.is_zero() {
            return Err(PageError::DocumentTime { path: self.path.clone(), page: number, limit: time });
        }
        // Taken out while it is busy: if this future is dropped on the way, the child goes too, so that it cannot answer
        // the next request with this page.
        let mut living = match worker.take() {
            Some(living) if !self.is_worn(&limits) => living,
            _ => self.restart(number, left).await?,
        };
        let limit = limits.page_time.min(left);
        let request = Request::Page { number, text: want.text, picture: want.picture };
        let reply = living.ask(&request, limit, &self.busy).await;
        if let Ok((Reply::Page { memory_bytes, .. }, _)) = &reply {
            let mut stats = self.stats.borrow_mut();
            stats.memory_peak_bytes = stats.memory_peak_bytes.max(*memory_bytes);
        }
        match reply.and_then(|(reply, body)| page_of(number, want, reply, body)) {
            Ok(page) => {
                *worker = Some(living);
                Ok(page)
            }
            Err(trouble) => {
                let fault = living.end(trouble, &limits).await;
                Err(PageError::Failed { path: self.path.clone(), page: number, fault })
            }
        }
    }

    /// Returns `true` if the child has used half of its processor time, which ends it, while the document has time left.
    fn is_worn(&self, limits: &Limits) -> bool {
        let used = self.busy.get().saturating_sub(self.busy_before.get());
        used > limits.document_time / 2 && limits.time_for(self.about.pages) > limits.document_time
    }

    async fn restart(&self, page: u32, left: Duration) -> Result<Worker, PageError> {
        self.stats.borrow_mut().children += 1;
        self.busy_before.set(self.busy.get());
        let (worker, about) = start(&self.reader, &self.path, &self.busy, left)
            .await
            .map_err(|source| PageError::Reopen { page, source })?;
        if about != self.about {
            return Err(PageError::Changed { path: self.path.clone() });
        }
        Ok(worker)
    }
}

/// Opens the file and starts a child that reads it; it may take what is `left` of the document's time.
async fn start(
    reader: &Reader,
    path: &Path,
    busy: &Cell<Duration>,
    left: Duration,
) -> Result<(Worker, About), OpenError> {
    let limits = *reader.bounds();
    let no_child = |source| OpenError::NoChild { path: path.to_owned(), source };
    let source = Source::open(path, &limits, limits.page_time).await?;
    let stamp = source.stamp;
    let mut worker = Worker::start(reader, source).map_err(no_child)?;
    let request = Request::Open {
        password: reader.secret().map(str::to_owned),
        memory_bytes: limits.memory_bytes,
        cpu: limits.document_time,
    };
    let limit = limits.page_time.min(left);
    match worker.ask(&request, limit, busy).await {
        Ok((Reply::Opened { confinement, pages, title, warnings }, _)) => {
            Ok((worker, About { stamp, confinement, pages, title, warnings }))
        }
        Ok((Reply::Refused(refusal), _)) => Err(refused(path, refusal)),
        other => {
            let trouble = other.err().unwrap_or_else(Trouble::out_of_turn);
            let fault = worker.end(trouble, &limits).await;
            Err(OpenError::Failed { path: path.to_owned(), fault })
        }
    }
}

fn refused(path: &Path, refusal: Refusal) -> OpenError {
    let path = path.to_owned();
    match refusal {
        Refusal::Unreadable { errno, message } => {
            let source = errno.map_or_else(|| io::Error::other(message), io::Error::from_raw_os_error);
            OpenError::Unreadable { path, source }
        }
        Refusal::NotPdf => OpenError::NotPdf { path },
        Refusal::Empty => OpenError::Empty { bytes: path.metadata().map_or(1, |about| about.len()), path },
        Refusal::Encrypted { wrong } => OpenError::Encrypted { path, wrong },
        Refusal::Broken { why } => OpenError::Broken { path, why },
    }
}

/// A page from what the child sent, which need not fit together.
fn page_of(number: u32, want: Want, reply: Reply, mut body: Vec<u8>) -> Result<Page, Trouble> {
    let Reply::Page { text, picture, warnings, .. } = reply else { return Err(Trouble::out_of_turn()) };
    let text_bytes = text.as_ref().map_or(0, |text| text.bytes);
    if text.is_some() != want.text || picture.is_some() != want.picture.is_some() || text_bytes > body.len() {
        return Err(Trouble::out_of_turn());
    }
    let bytes = body.split_off(text_bytes);
    let text = match text {
        Some(head) => {
            let text = String::from_utf8(body).map_err(|_| Trouble::out_of_turn())?;
            Some(PageText { text, glyphs: head.glyphs, unknown: head.unknown, images: head.images, paths: head.paths })
        }
        None => None,
    };
    let picture = picture.map(|head| Picture {
        width: head.width,
        height: head.height,
        one_colour: head.one_colour,
        format: head.format,
        bytes,
    });
    Ok(Page { number, text, picture, warnings })
}

/// Counts a request for a page while it lives.
struct Asking<'a>(&'a RefCell<Stats>);

impl<'a> Asking<'a> {
    fn new(stats: &'a RefCell<Stats>) -> Asking<'a> {
        stats.borrow_mut().asking += 1;
        Asking(stats)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().asking -= 1;
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("path", &self.path)
            .field("pages", &self.about.pages)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
