//! The CPython beside us: found, started, and asked for transcripts.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::program::Program;

const SCRIPT: &str = include_str!("oracle.py");
/// What the script imports, in the order it must be made.
const MODULES: [(&str, &str); 2] =
    [("virtual_loop", include_str!("virtual_loop.py")), ("world", include_str!("world.py"))];
/// Newest first; the loop's semantics are those of the first.
const MINORS: [u32; 3] = [13, 12, 11];

/// An interpreter that answered to `--version`.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    pub(crate) path: OsString,
    pub(crate) minor: u32,
}

impl Python {
    /// `TIDEGATE_PYTHON`, else the newest of 3.13, 3.12 and 3.11 in `PATH` or among pyenv's versions.
    pub(crate) fn find() -> Option<Python> {
        if let Some(path) = env::var_os("TIDEGATE_PYTHON") {
            return probe(path);
        }
        MINORS.into_iter().find_map(|minor| candidates(minor).into_iter().filter_map(probe).find(|p| p.minor == minor))
    }
}

/// Where that version may be. A pyenv shim may be there and still refuse, so each has to prove itself.
fn candidates(minor: u32) -> Vec<OsString> {
    let name = format!("python3.{minor}");
    let mut found = vec![OsString::from(&name)];
    let root = env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    if let Some(versions) = root.and_then(|root| root.join("versions").read_dir().ok()) {
        let prefix = format!("3.{minor}.");
        let mut paths: Vec<PathBuf> = versions
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path().join("bin").join(&name))
            .collect();
        paths.sort();
        found.extend(paths.into_iter().rev().map(PathBuf::into_os_string));
    }
    found.push("python3".into());
    found
}

fn probe(path: OsString) -> Option<Python> {
    let output = Command::new(&path).arg("--version").stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    let minor = text.strip_prefix("Python 3.")?.split('.').next()?.trim().parse().ok()?;
    Some(Python { path, minor })
}

/// The script with its modules, so that the example needs no files beside it when it runs.
fn whole_script() -> io::Result<String> {
    let mut script = String::from("import sys, types\n");
    for (name, source) in MODULES {
        // A JSON string is a Python string.
        let source = serde_json::to_string(source)?;
        script +=
            &format!("module = sys.modules[{name:?}] = types.ModuleType({name:?})\nexec({source}, vars(module))\n");
    }
    Ok(script + SCRIPT)
}

/// What the oracle says of one program.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) log: Vec<String>,
    pub(crate) refined: std::collections::BTreeMap<String, u64>,
}

/// A running interpreter that acts out one program after the other.
#[derive(Debug)]
pub(crate) struct Oracle {
    child: Child,
    programs: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    pub(crate) fn start(python: &Python) -> io::Result<Oracle> {
        let mut child = Command::new(&python.path)
            .args(["-I", "-W", "ignore", "-c", &whole_script()?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let programs = child.stdin.take();
        let answers =
            child.stdout.take().map(BufReader::new).ok_or_else(|| io::Error::other("no pipe from the oracle"))?;
        Ok(Oracle { child, programs, answers })
    }

    /// The transcript of that program on CPython.
    pub(crate) fn run(&mut self, program: &Program) -> io::Result<Answer> {
        let programs = self.programs.as_mut().ok_or_else(|| io::Error::other("no pipe to the oracle"))?;
        let mut line = serde_json::to_string(program)?;
        line.push('\n');
        programs.write_all(line.as_bytes())?;
        programs.flush()?;
        line.clear();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the oracle died; see what it wrote above"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // The end of its input is the oracle's sign to leave.
        self.programs = None;
        let _ = self.child.wait();
    }
}
