//! Where a command's result goes.

use std::fs;
use std::io::{self, Read as _};
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

/// Writes a file. One with other content is not replaced: `--out` may come from a configuration file in a foreign folder.
fn to_file(path: &Path, text: &str) -> anyhow::Result<()> {
    may_replace(path, text).and_then(|()| fs::write(path, text)).map_err(|error| {
        let path = path.display();
        anyhow!("cannot write {path}: {error}; choose another --out, or leave it away to print the result")
    })
}

/// Refuses to replace a file that does not begin as `text` does. One that is not there, or is empty, may be replaced.
fn may_replace(path: &Path, text: &str) -> io::Result<()> {
    let mut head = Vec::new();
    match fs::File::open(path) {
        Ok(file) if file.metadata()?.is_file() => file.take(HEAD_BYTES).read_to_end(&mut head)?,
        // A pipe or a device has nothing that could be lost.
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let (there, new) = (kind_of(&head), kind_of(text.as_bytes()));
    if head.is_empty() || (there == new && !there.is_empty()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there has something else in it"))
}

/// Bytes at a file's beginning that identify a trace.
const HEAD_BYTES: u64 = 512;

/// Returns what all traces of a format have in common: the first object of JSON, the policy of HTML, the second line of text.
fn kind_of(head: &[u8]) -> &[u8] {
    let line = |number: usize| head.split(|&byte| byte == b'\n').nth(number).unwrap_or_default();
    match head {
        [b'{', ..] => &head[..head.len().min(br#"{"traceEvents":["#.len())],
        [b'<', ..] => line(4),
        _ => line(1),
    }
}

/// The reader has gone, as in `tidegate … | head`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trace_is_replaced_by_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let html =
            |title: &str| format!("<!doctype html>\n<html>\n<head>\n<meta a>\n<meta policy>\n<title>{title}</title>\n");
        let json = |name: &str| format!("{{\"traceEvents\":[{{\"name\":\"{name}\"}}]}}");
        let text = |name: &str| format!("{name}: what it shows\nvirtual time\n\n");
        for (first, second) in [(html("a"), html("b")), (json("a"), json("b")), (text("a"), text("b"))] {
            fs::write(&path, "").unwrap();
            to_file(&path, &first).unwrap();
            to_file(&path, &second).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), second);
            for other in ["# My thesis\n\nIt begins.\n", "<!doctype html>\n<title>Mine</title>\n", "{\"a\": 1}", "x"] {
                fs::write(&path, other).unwrap();
                let error = to_file(&path, &second).unwrap_err().to_string();
                assert!(error.contains("something else in it") && error.contains("--out"), "{error}");
                assert_eq!(fs::read_to_string(&path).unwrap(), other);
            }
        }
        to_file(Path::new("/dev/null"), &text("a")).unwrap();
    }
}
