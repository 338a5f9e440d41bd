//! Where a command's result goes.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Standard output.
    Terminal,
    File(PathBuf),
}

impl Output {
    /// `-` is standard output, as is nothing.
    pub(crate) fn of(path: Option<PathBuf>) -> Output {
        match path {
            Some(path) if path != Path::new("-") => Output::File(path),
            _ => Output::Terminal,
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Output::Terminal => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to standard output")
            }
            Output::File(path) => fs::write(path, bytes).map_err(|error| {
                let path = path.display();
                anyhow!("cannot write {path}: {error}; choose another --out, or leave it away to print the result")
            }),
        }
    }
}

/// The reader has gone, as in `tidegate … | head`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
