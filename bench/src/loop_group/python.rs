//! CPython's asyncio and uvloop, each round in a process of its own that times itself.
//!
//! uvloop is installed with pip into a private environment beside the build's output. What is not
//! to be had is reported as unavailable, with the reason.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::Sample;

/// Newest first; the first that runs is taken.
const VERSIONS: [&str; 3] = ["3.13", "3.12", "3.11"];

/// Prints ns a switch: one coroutine that gives control away `argv[2]` times.
const SCRIPT: &str = r#"
import asyncio, sys, time

async def main(count):
    begun = time.perf_counter_ns()
    for _ in range(count):
        await asyncio.sleep(0)
    return (time.perf_counter_ns() - begun) / count

loop = None
if sys.argv[1] == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
print(loop.run_until_complete(main(int(sys.argv[2]))))
loop.close()
"#;

/// One interpreter, found once and used by all lines.
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

    /// A contestant: ns a `sleep(0)` under asyncio's own loop.
    pub(crate) fn asyncio(&self, count: u32) -> impl FnMut() -> Sample + 'static {
        let interpreter = self.interpreter.clone();
        move || switch(interpreter.as_ref()?, "asyncio", count)
    }

    /// The same under uvloop, which the first call installs.
    pub(crate) fn uvloop(&self, count: u32) -> impl FnMut() -> Sample + 'static {
        let interpreter = self.interpreter.clone();
        let version = self.version.clone();
        let mut environment = None;
        move || {
            let environment =
                environment.get_or_insert_with(|| environment_with_uvloop(interpreter.as_ref()?, &version));
            switch(environment.as_ref()?, "uvloop", count)
        }
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

fn switch(python: &Path, kind: &str, count: u32) -> Sample {
    let printed = output(Command::new(python).args(["-c", SCRIPT, kind, &count.to_string()]))?;
    printed.parse().map_err(|_| format!("{kind} printed {printed:?} instead of a figure"))
}

/// What the command printed, or its last words.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let last = errors.trim().lines().last().unwrap_or("no message").to_owned();
    Err(format!("{name}: {last}"))
}
