//! huey on SQLite, in a CPython process that reports how long it took.
//!
//! Installed with pip into a private environment beside the build's output. What is not to be had is reported as unavailable,
//! with the reason.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::Sample;
use crate::python::{Python, output};

use super::queue::scratch;

const PACKAGE: &str = "huey==3.5.0";

/// Publishes, takes and runs the tasks, as its consumer does; prints microseconds a task.
const SCRIPT: &str = r#"
import sys, time
from huey import SqliteHuey
path, count = sys.argv[1], int(sys.argv[2])
huey = SqliteHuey(filename=path, fsync=True, results=False)

@huey.task()
def nothing(*args, **kwargs):
    pass

began = time.perf_counter()
for n in range(count):
    nothing(1, 2, 3, name="a body of about a hundred bytes")
for n in range(count):
    huey.execute(huey.dequeue())
print((time.perf_counter() - began) * 1e6 / count)
"#;

pub(super) struct Huey {
    python: Python,
}

impl Huey {
    pub(super) fn find() -> Huey {
        Huey { python: Python::find() }
    }

    pub(super) fn through(&self, count: usize) -> Sample {
        let directory = scratch("huey")?;
        let path = directory.join("huey.db");
        let printed = output(Command::new(self.environment()?).args(["-c", SCRIPT]).arg(&path).arg(count.to_string()))?;
        let _ = std::fs::remove_dir_all(&directory);
        printed.lines().last().unwrap_or("").parse().map_err(|_| "huey printed something else than a time".to_owned())
    }

    fn environment(&self) -> Result<PathBuf, String> {
        let interpreter = self.python.interpreter()?;
        let executable = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
        let environment = target.join("bench-python-queues");
        let python = environment.join("bin/python");
        let imports = || output(Command::new(&python).args(["-c", "import huey"]));
        if imports().is_err() {
            eprintln!("installing {PACKAGE} into {}", environment.display());
            output(Command::new(interpreter).args(["-m", "venv"]).arg(&environment))?;
            output(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
            imports()?;
        }
        Ok(python)
    }
}
