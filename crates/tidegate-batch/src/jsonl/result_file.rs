//! A result file while a run writes to it: whole lines up to its end, and beyond it reserved space for the answers in flight.
//! They are paid for, so a disk that fills meanwhile must not cost them.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

use tidegate_files::Space;

use crate::answer_sizes::AnswerSizes;

/// Space is reserved in steps of this size, so that not every write reserves some.
const STEP: u64 = 64 << 10;

/// What became of lines that were to be written.
#[derive(Debug)]
pub(super) struct Appended {
    /// Which of them are on the disk.
    pub(super) saved: Vec<bool>,
    /// Why the others are not.
    pub(super) error: Option<io::Error>,
}

impl Appended {
    /// All of them or none.
    pub(super) fn of(lines: usize, written: io::Result<()>) -> Appended {
        Appended { saved: vec![written.is_ok(); lines], error: written.err() }
    }
}

/// A result file, locked as long as this exists.
#[derive(Debug)]
pub(super) struct ResultFile {
    file: File,
    /// Where its last whole line ends.
    end: u64,
    /// Up to here its disk has space for it. Not below `end`, unless the file system reserves nothing.
    reserved: u64,
    sizes: AnswerSizes,
}

impl ResultFile {
    /// `file` stands at its end, behind a whole line.
    pub(super) fn new(mut file: File, sizes: AnswerSizes) -> io::Result<ResultFile> {
        let end = file.stream_position()?;
        Ok(ResultFile { file, end, reserved: end, sizes })
    }

    /// The same file without the reserved space. It stays locked while the handle is open.
    pub(super) fn into_file(self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns how much space `lines` more lines may need.
    pub(super) fn space_for(&self, lines: usize) -> u64 {
        self.sizes.space_for(lines)
    }

    /// Reserves space for `lines` more lines. Where the file system reserves nothing, it is at least free at this moment.
    pub(super) fn reserve(&mut self, lines: usize) -> io::Result<()> {
        let until = self.end + self.space_for(lines);
        if until <= self.reserved {
            return Ok(());
        }
        let (from, until) = (self.reserved.max(self.end), until.next_multiple_of(STEP));
        if tidegate_files::reserve(&self.file, from, until)? == Space::Reserved {
            self.reserved = until;
        }
        Ok(())
    }

    /// Writes whole lines and syncs them. On a disk that is full, those that fit.
    pub(super) fn append(&mut self, lines: &[Vec<u8>]) -> Appended {
        let mut saved = vec![false; lines.len()];
        let written = self.append_each(lines, &mut saved);
        // A line that is not synced is not saved, wherever it is.
        if let Err(error) = self.file.sync_data() {
            return Appended::of(lines.len(), Err(error));
        }
        Appended { saved, error: written.err() }
    }

    fn append_each(&mut self, lines: &[Vec<u8>], saved: &mut [bool]) -> io::Result<()> {
        let Err((written, error)) = write_counting(&mut self.file, &lines.concat()) else {
            lines.iter().for_each(|line| self.note(line));
            saved.fill(true);
            return Ok(());
        };
        let mut whole = 0;
        for (line, saved) in lines.iter().zip(&mut *saved) {
            whole += line.len();
            if whole > written {
                break;
            }
            *saved = true;
            self.note(line);
        }
        self.cut_off()?;
        if !is_full(&error) {
            return Err(error);
        }
        // One line too large must not cost the others.
        for (line, saved) in lines.iter().zip(saved).filter(|(_, saved)| !**saved) {
            match self.file.write_all(line) {
                Ok(()) => {
                    *saved = true;
                    self.note(line);
                }
                Err(error) if is_full(&error) => self.cut_off()?,
                Err(error) => return Err(error),
            }
        }
        Err(error)
    }

    fn note(&mut self, line: &[u8]) {
        self.end += line.len() as u64;
        self.sizes.add(line.len() as u64);
    }

    /// Takes the beginning of a line away that could not be written. What was reserved is used up by then, or lost.
    fn cut_off(&mut self) -> io::Result<()> {
        self.reserved = self.end;
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end)).map(drop)
    }
}

impl Drop for ResultFile {
    /// Gives back what was reserved and not used.
    fn drop(&mut self) {
        if self.reserved > self.end {
            // To the length that it has: what another program may have added stays. If it fails, space is wasted.
            let _ = self.file.metadata().and_then(|about| self.file.set_len(about.len()));
        }
    }
}

/// Writes all of `bytes`, or returns how many of them were written.
fn write_counting(file: &mut File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

/// Whether an error says that a file cannot grow.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_kept_ahead_of_the_end_and_given_back() {
        let file = tempfile::tempfile().unwrap();
        let mut results = ResultFile::new(file.try_clone().unwrap(), AnswerSizes::default()).unwrap();
        let line = vec![b'x'; 30_000];
        for written in 0..20 {
            results.reserve(10).unwrap();
            assert!(results.reserved >= results.end + results.space_for(10), "after {written} lines");
            assert_eq!(results.append(std::slice::from_ref(&line)).saved, [true]);
        }
        drop(results);
        use std::os::unix::fs::MetadataExt as _;
        let about = file.metadata().unwrap();
        assert_eq!(about.len(), 600_000);
        assert!(about.blocks() * 512 < 700_000, "{} blocks", about.blocks());
    }
}
