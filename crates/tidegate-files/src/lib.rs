//! Files that are there whole or not at all after a power cut, and private to their user.
//!
//! Called by the crates that keep something on the disk: outputs, result files, databases. What is in the files is their
//! business. `draft.rs` is a file in the making, `space.rs` reserves what a file will need; the functions here make files and
//! directories:
//!
//! - A new name in a directory lasts only once the directory is synced, so everything that is made here is.
//! - New files are readable by their user alone (0600; directories 0700). A file that is there keeps its mode.
//! - A file that is made is never one that was there, and never behind a symbolic link.

#![forbid(unsafe_code)]

mod draft;
mod space;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

pub use draft::Draft;
pub use space::{Space, reserve};

/// Permissions of a new file.
const FILE_MODE: u32 = 0o600;
/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o700;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Makes a file that was not there, for its user alone. Its name lasts: the directory is synced.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if there is anything of that name, a symbolic link included.
pub fn create_new(path: &Path) -> io::Result<File> {
    let file = options().create_new(true).open(path)?;
    sync_parent(path)?;
    Ok(file)
}

/// Makes a file as [`create_new`] does, but leaves the directory as it is on the disk: for many files in one directory, which the
/// caller syncs once with [`sync_directory`].
///
/// # Errors
/// As [`create_new`].
pub fn create_in(directory: &Path, name: &str) -> io::Result<File> {
    options().create_new(true).open(directory.join(name))
}

/// Opens a file for reading and writing, or makes it as [`create_new`] does. Nothing is truncated.
///
/// # Errors
/// Also if the path is a symbolic link.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match options().open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Says what is wrong, where the system says "too many levels of symbolic links".
        Err(_) if is_link(path) => return Err(link_error(path)),
        other => return other,
    }
    match create_new(path) {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_link(path) => options().open(path),
        Err(_) if is_link(path) => Err(link_error(path)),
        other => other,
    }
}

/// Makes an empty file for a database that is about to be opened, unless there is one: SQLite would make one that other users can
/// read. Its own files beside it get the same mode.
///
/// # Errors
/// Also if the path is a symbolic link to nothing.
pub fn prepare_database(path: &Path) -> io::Result<()> {
    match create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.exists() => Ok(()),
        Err(_) if is_link(path) => Err(link_error(path)),
        other => other.map(drop),
    }
}

/// Makes a directory and those above it that are missing, for their user alone; their names last.
///
/// # Errors
/// What the system says.
pub fn create_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    if !above.is_dir() {
        create_directories(above)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_parent(path),
    }
}

/// Makes a directory for a program's own files, as [`create_directories`] does. Its last part is not a symbolic link: the files
/// would be made elsewhere.
///
/// # Errors
/// Also if it is a symbolic link.
pub fn create_own_directory(path: &Path) -> io::Result<()> {
    if is_link(path) {
        return Err(link_error(path));
    }
    create_directories(path)
}

/// Makes the names in a file's directory last: of files that were made, renamed or deleted there.
///
/// # Errors
/// What the system says.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    sync_directory(parent(path))
}

/// Makes the names in a directory last.
///
/// # Errors
/// What the system says.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // Some file systems cannot sync a directory.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

/// The directory that a path is in; a bare name is in the current one.
#[must_use]
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_symlink())
}

fn link_error(path: &Path) -> io::Error {
    io::Error::other(format!("{} is a symbolic link: remove it", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a/b");
        create_directories(&below).unwrap();
        create_directories(&below).unwrap();
        assert_eq!((mode(&below), mode(below.parent().unwrap())), (0o700, 0o700));
        create_new(&below.join("new")).unwrap();
        create_in(&below, "in").unwrap();
        open_or_create(&below.join("opened")).unwrap();
        prepare_database(&below.join("database")).unwrap();
        for name in ["new", "in", "opened", "database"] {
            assert_eq!(mode(&below.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn what_is_there_keeps_its_mode_and_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shared");
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        open_or_create(&path).unwrap();
        prepare_database(&path).unwrap();
        assert_eq!(create_new(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o640, "text"));
    }

    #[test]
    fn nothing_is_made_or_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, link) = (directory.path().join("victim"), directory.path().join("link"));
        symlink(&victim, &link).unwrap();
        for made in [
            create_new(&link).map(drop),
            create_in(directory.path(), "link").map(drop),
            open_or_create(&link).map(drop),
            prepare_database(&link),
        ] {
            made.unwrap_err();
        }
        assert!(!victim.exists());
        fs::write(&victim, "text").unwrap();
        let error = open_or_create(&link).unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        let (elsewhere, to_elsewhere) = (directory.path().join("elsewhere"), directory.path().join("folder"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &to_elsewhere).unwrap();
        assert!(create_own_directory(&to_elsewhere).unwrap_err().to_string().contains("is a symbolic link"));
        create_own_directory(&to_elsewhere.join("below")).expect("what is above is its user's own choice");
        prepare_database(&link).expect("a link to a database that is there is its user's own choice");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "text");
    }
}
