//! The doorbell: a file beside the database. A process that has committed something that others may wait for writes one byte
//! to it; waiting processes watch it with inotify. It is never opened through a symbolic link, because the byte would go to
//! another file. Watching the write-ahead log itself would wake them before the commit is visible.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};

#[derive(Debug)]
pub(super) struct Bell {
    path: PathBuf,
    file: File,
    inotify: OwnedFd,
    watching: bool,
}

impl Bell {
    /// Of the database at `path`.
    pub(super) fn open(database: &Path) -> io::Result<Bell> {
        let path = beside(database, "-bell");
        let file = tidegate_files::open_or_create(&path)?;
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Bell { path, file, inotify, watching: false })
    }

    /// Says that there is something to see. A bell that cannot be rung costs others up to a second, not a task, so it is no
    /// error.
    pub(super) fn ring(&self) {
        let _ = self.file.write_at(b"!", 0);
    }

    /// Deletes the file.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Begins to watch; from now on `fd` is readable when the bell is rung.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if !self.watching {
            add_watch(&self.inotify, &self.path, WatchFlags::MODIFY)?;
            self.watching = true;
        }
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Forgets what has rung. Look at the database after this, never before.
    pub(super) fn drain(&self) {
        let mut buffer = [0_u8; 4096];
        while matches!(rustix::io::read(&self.inotify, &mut buffer[..]), Ok(count) if count > 0) {}
    }

    /// Replaces the watch if the file was deleted: a watch of the old file would miss the rings of a new one.
    pub(super) fn mend(&mut self) {
        let same = |ours: std::fs::Metadata| {
            std::fs::metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        };
        if self.file.metadata().is_ok_and(same) {
            return;
        }
        if let (Ok(file), Ok(inotify)) =
            (tidegate_files::open_or_create(&self.path), init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))
        {
            self.file = file;
            self.inotify = inotify;
            if std::mem::take(&mut self.watching) {
                // What cannot be watched is still looked at once a second.
                let _ = self.watch();
            }
        }
    }

    /// Runs `act` with this lock; returns `None` if another process has it.
    pub(super) fn try_locked<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let done = act();
        let _ = flock(&self.file, FlockOperation::Unlock);
        Some(done)
    }

    /// The same, after waiting for it.
    pub(super) fn locked<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let done = act();
        let _ = flock(&self.file, FlockOperation::Unlock);
        Ok(done)
    }
}

/// The path with something behind its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(bell: &Bell, seconds: i64) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn a_ring_is_heard_and_drained() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("queue.db");
        let (mut listener, ringer) = (Bell::open(&path).unwrap(), Bell::open(&path).unwrap());
        listener.watch().unwrap();
        assert!(!rings(&listener, 0));
        ringer.ring();
        assert!(rings(&listener, 10));
        listener.drain();
        assert!(!rings(&listener, 0));
    }

    #[test]
    fn a_bell_is_private_and_never_behind_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("queue.db"), directory.path().join("victim"));
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, beside(&path, "-bell")).unwrap();
        let error = Bell::open(&path).unwrap_err().to_string();
        assert!(error.contains("queue.db-bell is a symbolic link"), "{error}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        std::fs::remove_file(beside(&path, "-bell")).unwrap();
        let mut bell = Bell::open(&path).unwrap();
        assert_eq!(bell.file.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(beside(&path, "-bell")).unwrap();
        std::os::unix::fs::symlink(&victim, beside(&path, "-bell")).unwrap();
        bell.mend();
        bell.ring();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine", "nor when it is made again");
    }

    #[test]
    fn a_bell_that_was_deleted_is_heard_again_once_mended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("queue.db");
        let mut listener = Bell::open(&path).unwrap();
        listener.watch().unwrap();
        std::fs::remove_file(beside(&path, "-bell")).unwrap();
        let ringer = Bell::open(&path).unwrap();
        listener.drain();
        ringer.ring();
        assert!(!rings(&listener, 0), "another file");
        listener.mend();
        ringer.ring();
        assert!(rings(&listener, 10));
    }
}
