//! apalis on SQLite: a program of its own, because its SQLite and ours cannot be linked into one. Built when it is first asked
//! for.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::Sample;
use crate::python::output;

use super::queue::scratch;

#[derive(Default)]
pub(super) struct Apalis {
    program: OnceCell<Result<PathBuf, String>>,
}

impl Apalis {
    /// Microseconds a task, from the first push until the last is recorded as done.
    pub(super) fn flow(&self, count: usize, pause: Duration) -> Sample {
        let program = self.program.get_or_init(build).clone()?;
        let directory = scratch("apalis")?;
        let printed = output(
            Command::new(program)
                .arg(directory.join("queue.db"))
                .args([count.to_string(), pause.as_millis().to_string()]),
        )?;
        let _ = std::fs::remove_dir_all(&directory);
        printed.parse().map_err(|_| format!("it printed {printed:?} and no figure"))
    }
}

fn build() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/apalis/Cargo.toml");
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?.join("bench-apalis");
    eprintln!("      building apalis in {}; the first time this takes a few minutes", target.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output(
        Command::new(cargo)
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(&target),
    )
    .map_err(|error| format!("it could not be built: {error}"))?;
    Ok(target.join("release/peer-apalis"))
}
