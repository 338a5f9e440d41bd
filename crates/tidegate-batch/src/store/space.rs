//! Space on the disk for the answers to come. SQLite writes them to its log first, so it is reserved there: an answer in flight is
//! paid for, and a disk that fills meanwhile must not cost it.

use std::fs::File;
use std::io;
use std::path::Path;

use tidegate_files::Space;

use crate::answer_sizes::AnswerSizes;

/// What an answer takes besides its text: two pages of the database with their headers in the log.
const FRAMES_BYTES: u64 = 2 * (4096 + 24);

/// What a transaction takes besides its answers.
const TRANSACTION_BYTES: u64 = 8 * (4096 + 24);

/// The log of a database, and what is reserved in it.
pub(super) struct LogSpace {
    log: File,
    /// Up to here the disk has space for it.
    reserved: u64,
    sizes: AnswerSizes,
}

impl LogSpace {
    /// The log of the database at `path`, which is open.
    pub(super) fn open(path: &Path) -> io::Result<LogSpace> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        // SQLite locks the database and never its log, so another handle on it takes no lock away.
        let log = File::options().write(true).open(log)?;
        Ok(LogSpace { log, reserved: 0, sizes: AnswerSizes::default() })
    }

    /// An answer of this size came.
    pub(super) fn add(&mut self, bytes: usize) {
        self.sizes.add(bytes as u64);
    }

    /// Reserves space for `answers` more answers.
    pub(super) fn reserve(&mut self, answers: usize) -> io::Result<()> {
        let end = self.log.metadata()?.len();
        let frames = FRAMES_BYTES.saturating_mul(answers as u64).saturating_add(TRANSACTION_BYTES);
        let until = end + frames.saturating_add(self.sizes.space_for(answers));
        if until > self.reserved
            && tidegate_files::reserve(&self.log, self.reserved.max(end), until)? == Space::Reserved
        {
            self.reserved = until;
        }
        Ok(())
    }
}

impl Drop for LogSpace {
    /// Gives back what was reserved and not used, so that SQLite has it when it closes the database.
    fn drop(&mut self) {
        // If it fails, space is wasted until the log is deleted.
        let _ = self.log.metadata().and_then(|about| self.log.set_len(about.len()));
    }
}
