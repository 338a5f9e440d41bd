//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes a file beside its place, syncs it, and moves it there. Whoever reads it sees the old one or the new one.
pub(crate) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut pending = Pending::new(path)?;
    fill(&mut pending.writer)?;
    pending.finish()
}

/// A file in the making.
pub(crate) struct Pending {
    pub(crate) writer: BufWriter<File>,
    temporary: std::path::PathBuf,
    path: std::path::PathBuf,
    done: bool,
}

impl Pending {
    pub(crate) fn new(path: &Path) -> io::Result<Pending> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let writer = BufWriter::with_capacity(64 * 1024, File::create(&temporary)?);
        Ok(Pending { writer, temporary, path: path.to_owned(), done: false })
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_fails_half_way_leaves_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        write(&path, |out| out.write_all(b"old")).unwrap();
        let failed = write(&path, |out| {
            out.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
