//! Space on the disk for what is not written yet.

use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::{Errno, retry_on_intr};

/// How sure the space is that [`reserve`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// It belongs to the file: no other program can use it.
    Reserved,
    /// It was free a moment ago. This file system cannot reserve space.
    Free,
}

/// Reserves space for what is written to `file` between `from` and `until`, also beyond its end. Its length and its content stay as
/// they are. Cutting the file off at its end ([`File::set_len`]) gives back what was not used.
///
/// ```
/// let mut file = tempfile::tempfile()?;
/// tidegate_files::reserve(&file, 0, 100_000)?;
/// assert_eq!(file.metadata()?.len(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`io::ErrorKind::StorageFull`] or [`io::ErrorKind::QuotaExceeded`]: there is not enough space.
pub fn reserve(file: &File, from: u64, until: u64) -> io::Result<Space> {
    let Some(length) = until.checked_sub(from).filter(|length| *length > 0) else { return Ok(Space::Reserved) };
    // Asked first: ext4 takes all there is before it finds that it is not enough.
    has_free(file, length)?;
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, from, length)) {
        Ok(()) => Ok(Space::Reserved),
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
        // The others say that the file system, or the kind of file, has no such operation.
        Err(_) => Ok(Space::Free),
    }
}

/// Returns an error if the file system reports fewer than `bytes` free bytes.
fn has_free(file: &File, bytes: u64) -> io::Result<()> {
    let Ok(about) = fstatvfs(file) else { return Ok(()) };
    // Some file systems in user space do not count their blocks.
    if about.f_blocks > 0 && about.f_bavail.saturating_mul(about.f_frsize) < bytes {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn reserved_space_is_the_files_own_until_it_is_cut_off() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        let used = |file: &File| file.metadata().unwrap().blocks() * 512;
        let before = used(&file);
        match reserve(&file, 4, 1 << 20).unwrap() {
            Space::Reserved => assert!(used(&file) >= 1 << 20),
            // Where the temporary directory is on a file system without it.
            Space::Free => assert_eq!(used(&file), before),
        }
        assert_eq!(file.metadata().unwrap().len(), 4);
        file.set_len(4).unwrap();
        assert!(used(&file) < 1 << 16, "{}", used(&file));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let error = reserve(&file, 0, 1 << 43).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().blocks(), 0, "the rest of the disk is left to others");
    }

    #[test]
    fn nothing_needs_no_space() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(reserve(&full, 7, 7).unwrap(), Space::Reserved);
    }
}
