//! Where a command's result goes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::terminal;

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

    /// Writes text, escaped where it goes to the terminal.
    pub(crate) fn write(&self, text: &str) -> anyhow::Result<()> {
        match self {
            Output::Terminal => terminal::print(text),
            Output::File(path) => to_file(path, text),
        }
    }

    /// Writes JSON, which stays JSON.
    pub(crate) fn write_json(&self, json: &str) -> anyhow::Result<()> {
        match self {
            Output::Terminal => terminal::print_json(json),
            Output::File(path) => to_file(path, json),
        }
    }
}

fn to_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).map_err(|error| {
        let path = path.display();
        anyhow!("cannot write {path}: {error}; choose another --out, or leave it away to print the result")
    })
}

/// The reader has gone, as in `tidegate … | head`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
