//! A user's data directory for each test: what one test counts or finds must not decide another.

use std::path::PathBuf;

thread_local! {
    /// Gone with the thread of the test.
    static DATA: tempfile::TempDir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
}

pub(crate) fn data_home() -> PathBuf {
    DATA.with(|folder| folder.path().to_owned())
}
