//! How documents are read: limits, password, and in which program.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_secret::Secret;

use crate::document::Document;
use crate::error::OpenError;

/// What reading a document may cost. A document that needs more fails, or the page that does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Address space of the process that reads a document, in bytes; the file itself is part of it, and may be half.
    pub memory_bytes: u64,
    /// To open a document, or to read a page. Time in which the child is ready to run and other programs have the processors
    /// does not count, here and below, where the kernel counts it (`/proc/PID/task/*/schedstat`).
    pub page_time: Duration,
    /// To read all that is read of a document of up to 500 pages; a larger one has as much again for each further 500. Only the
    /// time in which something is read counts, not that in which the caller is busy elsewhere. A single process uses no more
    /// processor time than this.
    pub document_time: Duration,
}

/// Pages of a document that are read in [`Limits::document_time`].
const PAGES_PER_TIME: u32 = 500;

impl Limits {
    /// Returns the time for all pages of a document with that number of them.
    pub(crate) fn time_for(&self, pages: u32) -> Duration {
        self.document_time.saturating_mul(pages.div_ceil(PAGES_PER_TIME).max(1))
    }
}

impl Default for Limits {
    /// 1 GiB, 20 s, 10 minutes.
    fn default() -> Limits {
        Limits { memory_bytes: 1 << 30, page_time: Duration::from_secs(20), document_time: Duration::from_secs(600) }
    }
}

/// Reads documents, each in a child process of its own.
///
/// ```
/// use tidegate_pdf::{Reader, Want};
///
/// // First in `main`: the child is this very program, started once more.
/// tidegate_pdf::child::main_if_asked();
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/tides.pdf");
/// tidegate_loop::run(async move {
///     let document = Reader::new().open(path).await.unwrap();
///     let page = document.page(1, Want::text()).await.unwrap();
///     assert!(page.text.unwrap().text.contains("tide"));
/// })
/// .unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Reader {
    limits: Limits,
    password: Option<Secret>,
    program: Option<(PathBuf, Vec<OsString>)>,
}

impl Reader {
    /// With [`Limits::default`], without a password, in a child that is the running program started once more: its
    /// `main` must begin with [`child::main_if_asked`](crate::child::main_if_asked).
    #[must_use]
    pub fn new() -> Reader {
        Reader::default()
    }

    /// With other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Reader {
        self.limits = limits;
        self
    }

    /// With a password for those documents that need one.
    #[must_use]
    pub fn password(mut self, password: impl Into<Secret>) -> Reader {
        self.password = Some(password.into());
        self
    }

    /// In another program, one that calls [`child::main_if_asked`](crate::child::main_if_asked) when it is started with
    /// these arguments. A test, whose `main` is not its own, names itself and one of its test functions:
    ///
    /// ```
    /// # use tidegate_pdf::Reader;
    /// // #[test]
    /// // fn pdf_child() {
    /// //     tidegate_pdf::child::main_if_asked();
    /// // }
    /// let reader = Reader::new().program(std::env::current_exe().unwrap(), ["--exact", "pdf_child"]);
    /// ```
    #[must_use]
    pub fn program(
        mut self,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Reader {
        self.program = Some((program.into(), args.into_iter().map(Into::into).collect()));
        self
    }

    /// Opens the document at `path` and finds its pages; they are read when they are asked for.
    ///
    /// # Errors
    /// See [`OpenError`]; each names the file.
    ///
    /// # Cancel safety
    /// Safe: the child ends with the future.
    ///
    /// # Panics
    /// Outside of a running loop. In virtual time the loop does not wait for a child, so every time limit passes at once.
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<Document, OpenError> {
        Document::open(self.clone(), path.as_ref()).await
    }

    pub(crate) fn bounds(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn secret(&self) -> Option<&str> {
        self.password.as_ref().map(Secret::expose)
    }

    /// The child's program and its arguments.
    pub(crate) fn command(&self) -> (&Path, &[OsString]) {
        match &self.program {
            Some((program, args)) => (program, args),
            // What runs now, even if the file has been replaced meanwhile.
            None => (Path::new("/proc/self/exe"), &[]),
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("limits", &self.limits).field("program", &self.command()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_document_may_take_longer() {
        let limits = Limits { document_time: Duration::from_secs(600), ..Limits::default() };
        assert_eq!([1, 500, 501, 10_000].map(|pages| limits.time_for(pages).as_secs()), [600, 600, 1_200, 12_000]);
    }
}
