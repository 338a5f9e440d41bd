//! CPython and uvloop, found or made once and used by all groups.
//!
//! uvloop is installed with pip into a private environment beside the build's output. What is not
//! to be had is reported as unavailable, with the reason.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Newest first; the first that runs is taken.
const VERSIONS: [&str; 3] = ["3.13", "3.12", "3.11"];

/// One interpreter.
#[derive(Clone)]
pub(crate) struct Python {
    version: String,
    interpreter: Result<PathBuf, String>,
}

impl Python {
    pub(crate) fn find() -> Self {
        for version in VERSIONS {
            for candidate in candidates(version) {
                if let Ok(found) =
                    output(Command::new(&candidate).args(["-c", "import platform; print(platform.python_version())"]))
                {
                    return Self { version: found, interpreter: Ok(candidate) };
                }
            }
        }
        let why = format!("no python{} on this machine", VERSIONS.join(", python"));
        Self { version: "absent".to_owned(), interpreter: Err(why) }
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn interpreter(&self) -> Result<PathBuf, String> {
        self.interpreter.clone()
    }

    /// An interpreter that has uvloop; installs it if need be.
    pub(crate) fn with_uvloop(&self) -> Result<PathBuf, String> {
        environment_with_uvloop(self.interpreter.as_ref()?, &self.version)
    }
}

/// By name on the PATH, then pyenv's: its shims exist but fail for versions not switched on.
fn candidates(version: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(format!("python{version}"))];
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let installed = root.and_then(|root| root.join("versions").read_dir().ok());
    for entry in installed.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{version}.")) {
            found.push(entry.path().join("bin/python3"));
        }
    }
    found
}

fn environment_with_uvloop(interpreter: &Path, version: &str) -> Result<PathBuf, String> {
    let executable = env::current_exe().map_err(|e| e.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
    let environment = target.join(format!("bench-python-{version}"));
    let python = environment.join("bin/python");
    let has_uvloop = || output(Command::new(&python).args(["-c", "import uvloop"]));
    if has_uvloop().is_ok() {
        return Ok(python);
    }
    eprintln!("installing uvloop into {}", environment.display());
    output(Command::new(interpreter).args(["-m", "venv"]).arg(&environment))?;
    output(Command::new(&python).args(["-m", "pip", "install", "--quiet", "uvloop"]))?;
    has_uvloop()?;
    Ok(python)
}

/// What the command printed, or its last words.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let last = errors.trim().lines().last().unwrap_or("no message").to_owned();
    Err(format!("{name}: {last}"))
}
