//! PDFs in the bounded child: counted and estimated before a job starts, and drawn for the reader.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_batch::tokens_of_text;
use tidegate_loop::{sleep, spawn};
use tidegate_pdf::{Document, Format, OpenError, Reader, Want};

use super::error::JobError;
use super::model::{FileKind, FileStatus, JobFile, JobId};
use super::plan::PICTURE_TOKENS;
use super::service::Jobs;

/// Documents that stay open for the reader.
const OPEN_MAX: usize = 4;

/// An unused document is closed after this time.
const OPEN_FOR: Duration = Duration::from_secs(60);

/// The longest side of a picture in the reader.
pub(crate) const PICTURE_PX_MAX: u32 = 2_000;

/// Documents that are open for pictures, the last used at the end.
pub(super) struct Pictures {
    reader: Reader,
    open: RefCell<Vec<Open>>,
}

#[derive(Clone)]
struct Open {
    job: JobId,
    file: u32,
    document: Rc<Document>,
    /// Counts uses, so that the task that closes it knows whether it was used since.
    uses: u64,
}

/// A picture of a page.
#[derive(Clone, Debug)]
pub(crate) struct PagePicture {
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Pictures {
    pub(super) fn new(reader: Reader) -> Pictures {
        Pictures { reader, open: RefCell::default() }
    }

    /// Closes the documents of a job.
    pub(super) fn forget(&self, job: JobId) {
        self.open.borrow_mut().retain(|open| open.job != job);
    }

    fn take(&self, job: JobId, file: u32) -> Option<Rc<Document>> {
        let mut open = self.open.borrow_mut();
        let at = open.iter().position(|it| (it.job, it.file) == (job, file))?;
        let mut found = open.remove(at);
        found.uses += 1;
        let document = Rc::clone(&found.document);
        open.push(found);
        Some(document)
    }

    fn put(&self, job: JobId, file: u32, document: Rc<Document>) {
        let mut open = self.open.borrow_mut();
        open.push(Open { job, file, document, uses: 0 });
        if open.len() > OPEN_MAX {
            open.remove(0);
        }
    }

    /// Returns `true` if a document is still open; closes it if it was not used since.
    fn close_unused(&self, job: JobId, file: u32, uses: &mut u64) -> bool {
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|it| (it.job, it.file) == (job, file)) else { return false };
        if open[at].uses == *uses {
            open.remove(at);
            return false;
        }
        *uses = open[at].uses;
        true
    }
}

impl Jobs {
    /// Reads all files of a job that were not read yet, in the background.
    pub(super) fn read_files(&self, id: JobId) {
        let unread = |file: &&JobFile| {
            let is_new = file.status == FileStatus::Unread;
            match file.kind {
                FileKind::Pdf => is_new || (file.status == FileStatus::Readable && file.page_tokens.is_empty()),
                FileKind::Jsonl => self.scanned(id).is_none(),
                FileKind::Json => false,
            }
        };
        let numbers: Vec<u32> = self
            .look(id, |live| live.job.files.iter().filter(unread).map(|file| file.number).collect())
            .unwrap_or_default();
        for number in numbers {
            if self.inner.to_read.borrow_mut().insert((id, number)) {
                let jobs = self.clone();
                spawn(async move {
                    jobs.read_file(id, number).await;
                    jobs.inner.to_read.borrow_mut().remove(&(id, number));
                });
            }
        }
    }

    /// Counts a file's pages, or its requests, and estimates their tokens.
    pub(super) async fn read_file(&self, id: JobId, number: u32) {
        let Ok(_turn) = std::sync::Arc::clone(&self.inner.reading).acquire_owned().await else { return };
        let Ok(Some(file)) = self.look(id, |live| live.job.file(number).cloned()) else { return };
        if file.kind == FileKind::Jsonl {
            return self.scan(id, &file).await;
        }
        let path = self.inner.place.file(id, &file);
        let had_password = self.inner.passwords.borrow().contains_key(&(id, number));
        let opened = self.reader_of(id, number).open(&path).await;
        let document = match opened {
            Ok(document) => document,
            Err(error) => {
                let status = match &error {
                    OpenError::Encrypted { wrong, .. } => FileStatus::NeedsPassword { wrong: *wrong },
                    _ => FileStatus::Broken(self.without_path(id, number, &error.to_string())),
                };
                let encrypted = matches!(status, FileStatus::NeedsPassword { .. });
                self.file_read(id, number, |file| (file.status, file.encrypted) = (status, encrypted)).await;
                return;
            }
        };
        let selection = self.look(id, |live| live.job.options.selection()).ok().and_then(Result::ok);
        let count = document.page_count();
        let _ = self.touch(id, |live| {
            if let Some(file) = live.job.file_mut(number) {
                (file.status, file.page_count) = (FileStatus::Readable, count);
                file.encrypted |= had_password;
                file.title = document.title().map(str::to_owned);
                file.choose(selection.map_or_else(|| (1..=count).collect(), |selection| selection.of(count)));
            }
        });
        let mut tokens = Vec::with_capacity(count as usize);
        for page in 1..=count {
            if self.is_stopping() || self.look(id, |_| ()).is_err() {
                return;
            }
            let page = document.page(page, Want::text()).await;
            let text = page.ok().and_then(|page| page.text).filter(|text| text.quality().is_good());
            tokens.push(
                text.map_or(PICTURE_TOKENS, |text| u32::try_from(tokens_of_text(&text.text)).unwrap_or(u32::MAX)),
            );
        }
        self.file_read(id, number, |file| {
            file.page_tokens = tokens;
        })
        .await;
    }

    pub(super) async fn file_read(&self, id: JobId, number: u32, change: impl FnOnce(&mut JobFile)) {
        let changed = self.touch(id, |live| {
            let file = live.job.file_mut(number)?;
            change(file);
            Some(file.clone())
        });
        if let Ok(Some(file)) = changed
            && let Err(error) = self.inner.store.put_file(id, file).await
        {
            log::warn!("job {id}, file {number}: {error}");
        }
    }

    /// A document of a job, opened for pictures.
    pub(super) async fn document(&self, id: JobId, number: u32) -> Result<Rc<Document>, JobError> {
        if let Some(document) = self.inner.pictures.take(id, number) {
            return Ok(document);
        }
        let file = self.look(id, |live| live.job.file(number).cloned())?.ok_or(JobError::NotFound("file"))?;
        if file.kind != FileKind::Pdf {
            return Err(JobError::NotFound("PDF"));
        }
        let reader = match self.inner.passwords.borrow().get(&(id, number)) {
            Some(password) => self.inner.pictures.reader.clone().password(password.clone()),
            None => self.inner.pictures.reader.clone(),
        };
        let opened = reader.open(self.inner.place.file(id, &file)).await;
        let document =
            Rc::new(opened.map_err(|error| JobError::Unreadable(self.without_path(id, number, &error.to_string())))?);
        self.inner.pictures.put(id, number, Rc::clone(&document));
        let jobs = self.clone();
        spawn(async move {
            let mut uses = 0;
            loop {
                sleep(OPEN_FOR).await;
                if jobs.is_stopping() || !jobs.inner.pictures.close_unused(id, number, &mut uses) {
                    return;
                }
            }
        });
        Ok(document)
    }

    /// Draws a page, `px` pixels on its longest side.
    pub(crate) async fn picture(&self, id: JobId, file: u32, page: u32, px: u32) -> Result<PagePicture, JobError> {
        let document = self.document(id, file).await?;
        let drawn = document.page(page, Want::small_picture(px.clamp(64, PICTURE_PX_MAX))).await;
        let page = drawn.map_err(|error| JobError::Unreadable(self.without_path(id, file, &error.to_string())))?;
        let picture = page.picture.ok_or(JobError::NotFound("picture"))?;
        let format: Format = picture.format;
        Ok(PagePicture { media_type: format.media_type(), bytes: picture.bytes })
    }
}
