//! What the tests share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_pdf::{Limits, Reader};

/// Reads in children of this test binary.
pub(crate) fn reader() -> Reader {
    Reader::new().program(std::env::current_exe().unwrap(), ["--exact", "pdf_child"])
}

/// With less memory, and little time for those who never end. What does end takes milliseconds.
pub(crate) fn strict() -> Reader {
    reader().limits(strict_limits())
}

pub(crate) fn strict_limits() -> Limits {
    Limits { memory_bytes: 256 << 20, page_time: Duration::from_secs(5), document_time: Duration::from_secs(60) }
}

pub(crate) fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// A file that only tests need.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// `bytes` in a file; the directory goes with the first of the two.
pub(crate) fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made.pdf");
    fs::write(&path, bytes).unwrap();
    (directory, path)
}

pub(crate) fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    tidegate_loop::run(future).unwrap()
}
