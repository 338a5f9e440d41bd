//! What a child is given to read, opened here because the child can open nothing: the document, and a font for characters
//! that documents use without bringing them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use tidegate_loop::{timeout, to_thread};

use crate::error::{Fault, OpenError};
use crate::reader::Limits;

/// Where distributions keep Noto Sans CJK: Debian and Ubuntu, Fedora, Arch, Alpine, a user of their own.
const COLLECTIONS: [&str; 5] = [
    "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/google-noto-sans-cjk-fonts/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/noto-cjk/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/noto/NotoSansCJK-Regular.ttc",
    "/usr/local/share/fonts/NotoSansCJK-Regular.ttc",
];

/// Open files for a child, each at its beginning.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) document: OwnedFd,
    pub(crate) stamp: Stamp,
    /// Chinese, Japanese and Korean, where it is installed.
    pub(crate) font: Option<OwnedFd>,
}

/// Which file it was: one that is opened later must be the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: i128,
}

impl Source {
    /// Opens the files in a thread: a file system that does not answer holds up nothing else.
    pub(crate) async fn open(path: &Path, limits: &Limits, time: Duration) -> Result<Source, OpenError> {
        let owned = path.to_owned();
        let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
        let failed = |fault| OpenError::Failed { path: path.to_owned(), fault };
        let source = match timeout(time, to_thread(move || Source::open_here(&owned))).await {
            Ok(Ok(opened)) => opened.map_err(unreadable)?,
            Ok(Err(error)) => return Err(unreadable(io::Error::other(error.to_string()))),
            Err(_) => return Err(failed(Fault::TimedOut { limit: time })),
        };
        // What is made of it needs room, too.
        if source.stamp.bytes > limits.memory_bytes / 2 {
            return Err(failed(Fault::Memory { limit: limits.memory_bytes }));
        }
        Ok(source)
    }

    fn open_here(path: &PathBuf) -> io::Result<Source> {
        // Without `NONBLOCK` a named pipe would be waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let document = std::fs::File::from(open(path, flags, Mode::empty())?);
        let about = document.metadata()?;
        if about.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        // It may have to be opened again.
        if !about.is_file() {
            return Err(io::Error::other("it is no regular file; save it to one first"));
        }
        let modified_ns = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
        let stamp = Stamp { device: about.dev(), inode: about.ino(), bytes: about.len(), modified_ns };
        let font = COLLECTIONS.iter().find_map(|path| open(*path, flags, Mode::empty()).ok());
        Ok(Source { document: document.into(), stamp, font })
    }
}
