//! The folder of a large document's parts and pictures, `NAME-pages`, beside `NAME.html`. Each time they are written they go to a
//! new folder in it, which has a number. `NAME.html` names the number, so replacing that one file replaces them all: a process
//! that is killed, or a power cut, leaves the old ones or the new ones.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tidegate_files::{create_in, create_new, create_own_directory, open_or_create, sync_directory};

use super::split;

/// The file that makes the folder tidegate's. A process that writes holds a lock on it.
const MARK: &str = ".tidegate-pages";

const FOREIGN: &str =
    "there is a folder of that name which tidegate did not make; move it away, or choose another output folder";

/// A set of parts and pictures in the making. Dropped before [`PageSet::replace_others`], it is deleted.
pub(crate) struct PageSet {
    /// `NAME-pages`.
    folder: PathBuf,
    /// `NAME-pages/2`.
    path: PathBuf,
    number: u32,
    /// Of its files.
    mode: u32,
    /// The folder's lock.
    _lock: File,
    is_done: bool,
}

/// Where the sets of `NAME.html` are.
pub(crate) fn folder(page: &Path) -> PathBuf {
    page.with_file_name(split::folder_name(&page.file_stem().unwrap_or_default().to_string_lossy()))
}

/// Refuses a folder that tidegate did not make. One that is not there, or is empty, may be used.
pub(crate) fn may_use(page: &Path) -> io::Result<()> {
    let folder = folder(page);
    match fs::symlink_metadata(&folder) {
        Ok(about) if about.is_dir() => {
            let is_ours = folder.join(MARK).is_file() || fs::read_dir(&folder)?.next().is_none();
            is_ours.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::AlreadyExists, FOREIGN))
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, FOREIGN)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes the sets of `NAME.html` other than `current`, and the folder if there is no current one. That something stays is not
/// worth an error; nothing is deleted while another process writes.
pub(crate) fn remove_stale(page: &Path, current: Option<u32>) {
    let folder = folder(page);
    let is_folder = fs::symlink_metadata(&folder).is_ok_and(|about| about.is_dir());
    if !is_folder || !folder.join(MARK).is_file() {
        return;
    }
    let Ok(_lock) = lock(&folder) else { return };
    remove_others(&folder, current);
    if current.is_none() && sets(&folder).is_empty() {
        let _ = fs::remove_file(folder.join(MARK));
        let _ = fs::remove_dir(&folder);
    }
}

impl PageSet {
    /// Makes an empty set; those other than `current`, the one that `NAME.html` names, are deleted first.
    pub(crate) fn begin(page: &Path, current: Option<u32>) -> io::Result<PageSet> {
        may_use(page)?;
        let folder = folder(page);
        create_own_directory(&folder)?;
        let lock = lock(&folder)?;
        remove_others(&folder, current);
        let taken = sets(&folder);
        let number = (1..).find(|number| !taken.contains(number)).expect("numbers do not end");
        let path = folder.join(number.to_string());
        create_own_directory(&path)?;
        let mode = page.metadata().ok().filter(fs::Metadata::is_file).map_or(0o600, |about| about.mode() & 0o666);
        share(&folder, mode)?;
        share(&path, mode)?;
        Ok(PageSet { folder, path, number, mode, _lock: lock, is_done: false })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What writes files into it.
    pub(crate) fn files(&self) -> Files {
        Files { folder: self.path.clone(), mode: self.mode }
    }

    /// Makes the files' names last. Their content does already.
    pub(crate) fn sync(&self) -> io::Result<()> {
        sync_directory(&self.path)?;
        sync_directory(&self.folder)
    }

    /// `NAME.html` names this set: the others are deleted.
    pub(crate) fn replace_others(mut self) {
        self.is_done = true;
        remove_others(&self.folder, Some(self.number));
    }
}

impl Drop for PageSet {
    fn drop(&mut self) {
        if !self.is_done {
            remove(&self.path);
        }
    }
}

/// Writes files into a set.
#[derive(Clone)]
pub(crate) struct Files {
    folder: PathBuf,
    mode: u32,
}

impl Files {
    /// Writes a file and syncs its content.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = create_in(&self.folder, name)?;
        io::Write::write_all(&mut file, bytes)?;
        if self.mode != 0o600 {
            file.set_permissions(Permissions::from_mode(self.mode))?;
        }
        file.sync_all()
    }
}

/// Gives a folder the permissions that reading files of `mode` in it needs.
fn share(folder: &Path, mode: u32) -> io::Result<()> {
    let readers = mode & 0o044;
    if readers == 0 {
        return Ok(());
    }
    let now = folder.metadata()?.mode() & 0o777;
    fs::set_permissions(folder, Permissions::from_mode(now | readers | readers >> 2))
}

fn lock(folder: &Path) -> io::Result<File> {
    let path = folder.join(MARK);
    let file = match create_new(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_or_create(&path)?,
        other => other?,
    };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("another tidegate writes to this folder")),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The numbers of the sets.
fn sets(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_folder).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn remove_others(folder: &Path, kept: Option<u32>) {
    for number in sets(folder).into_iter().filter(|number| Some(*number) != kept) {
        remove(&folder.join(number.to_string()));
    }
}

/// Deletes a set. A file that is not of a set stays, and the folder with it.
fn remove(set: &Path) {
    for entry in fs::read_dir(set).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(split::is_file_of_a_set) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(set);
}
