//! Files that are there whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tidegate_files::Draft;

/// Writes a file beside its place, syncs it, and moves it there. A reader sees the old one or the new one, after a power
/// cut too.
pub(crate) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut pending = Pending::new(path)?;
    fill(&mut pending.writer)?;
    pending.finish()
}

/// A file in the making.
pub(crate) struct Pending {
    pub(crate) writer: BufWriter<File>,
    draft: Draft,
}

impl Pending {
    pub(crate) fn new(path: &Path) -> io::Result<Pending> {
        let mut draft = Draft::new(path)?;
        let writer = BufWriter::with_capacity(64 * 1024, draft.file().try_clone()?);
        Ok(Pending { writer, draft })
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.draft.commit().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
