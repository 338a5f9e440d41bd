//! A file in the making.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{FILE_MODE, options, parent, sync_parent};

/// How often another name is tried when the first ones are taken.
const TRIES: u32 = 16;

/// What is behind the name of a draft.
const ENDING: &str = ".tmp";

/// A file beside the place it is meant for, under a name that cannot be guessed. [`commit`](Draft::commit) syncs it and moves it
/// there; dropped before, it is deleted. While it is written it is locked, so that drafts of processes that died can be told from
/// others: those are deleted when the next draft for the same place is made.
///
/// ```
/// use std::io::Write as _;
/// use tidegate_files::Draft;
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("a.txt");
/// let mut draft = Draft::new(&path)?;
/// draft.file().write_all(b"whole")?;
/// assert!(!path.exists());
/// draft.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Draft {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    done: bool,
}

impl Draft {
    /// Makes the draft of the file at `path`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(path: &Path) -> io::Result<Draft> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Draft::remove_stale(path);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let mut hidden = prefix(name);
            // Keys of this type come from the system's source of randomness.
            hidden.push(format!("{:016x}{ENDING}", RandomState::new().build_hasher().finish()));
            let temporary = path.with_file_name(hidden);
            let file = match options().create_new(true).open(&temporary) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    last = error;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let draft = Draft { file, temporary, target: path.to_owned(), done: false };
            // Another process may have taken it for stale before it was locked.
            if draft.file.try_lock().is_ok() && draft.file.metadata()?.nlink() > 0 {
                return Ok(draft);
            }
        }
        Err(last)
    }

    /// Deletes drafts that processes which have died left for the file at `path`. That one stays is not worth an error.
    pub fn remove_stale(path: &Path) {
        if let Some(name) = path.file_name() {
            remove_stale(path, name);
        }
    }

    /// The file. A copy of the handle writes to it too.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Where it is until it is moved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Syncs it, moves it to its place, and syncs the directory. A file that was there is replaced and gives its mode. The file
    /// stays locked as long as the handle that is returned is open.
    ///
    /// # Errors
    /// What the system says. Unless it says so of the last step, the old file is still there.
    pub fn commit(mut self) -> io::Result<File> {
        let mode = self.target.metadata().ok().filter(fs::Metadata::is_file).map(|about| about.mode() & 0o777);
        if let Some(mode) = mode.filter(|mode| *mode != FILE_MODE) {
            self.file.set_permissions(Permissions::from_mode(mode))?;
        }
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        self.done = true;
        sync_parent(&self.target)?;
        self.file.try_clone()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn prefix(name: &OsStr) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".");
    hidden
}

fn remove_stale(path: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(parent(path)) else { return };
    let prefix = prefix(name).into_vec();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let middle = name.as_bytes().strip_prefix(&prefix[..]).and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
        // Version 0.1.0 has the number of the process there.
        let is_draft = middle.is_some_and(|middle| !middle.is_empty() && middle.iter().all(u8::is_ascii_hexdigit));
        if is_draft && is_stale(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether no process has the draft open for writing.
fn is_stale(path: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.is_ok_and(|file| file.metadata().is_ok_and(|about| about.is_file()) && file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(path: &Path, text: &str) {
        let mut draft = Draft::new(path).unwrap();
        draft.file().write_all(text.as_bytes()).unwrap();
        draft.commit().unwrap();
    }

    #[test]
    fn a_draft_that_is_dropped_leaves_the_old_file_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        write(&path, "old");
        let mut draft = Draft::new(&path).unwrap();
        draft.file().write_all(b"ne").unwrap();
        drop(draft);
        assert_eq!((fs::read(&path).unwrap(), names(directory.path())), (b"old".to_vec(), vec!["a".to_owned()]));
    }

    #[test]
    fn new_files_are_private_and_a_replaced_one_gives_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        write(&path, "1");
        let mode = || path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write(&path, "2");
        assert_eq!(mode(), 0o644);
    }

    /// The link is replaced, not what it points to.
    #[test]
    fn a_link_in_the_place_of_the_file_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("a"));
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, &path).unwrap();
        write(&path, "new");
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert!(!path.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn drafts_of_the_dead_are_removed_and_those_of_the_living_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let living = Draft::new(&path).unwrap();
        let kept = [".a.json.notes.tmp", ".b.json.12.tmp", "a.json.12.tmp"];
        for name in [".a.json.4711.tmp", ".a.json.00ff00ff00ff00ff.tmp"].iter().chain(&kept) {
            fs::write(directory.path().join(name), "half").unwrap();
        }
        symlink(directory.path().join("victim"), directory.path().join(".a.json.1.tmp")).unwrap();
        drop(Draft::new(&path).unwrap());
        let mut expected: Vec<String> = kept.map(str::to_owned).to_vec();
        expected.extend([".a.json.1.tmp".to_owned(), living.path().file_name().unwrap().to_str().unwrap().to_owned()]);
        expected.sort();
        assert_eq!(names(directory.path()), expected);
    }
}
