//! aiolimiter and pyrate-limiter, in a CPython process that reports when it admitted what.
//!
//! They are installed with pip into a private environment beside the build's output. What is not to be had is reported as
//! unavailable, with the reason.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Newest first; the first that runs is taken.
const VERSIONS: [&str; 4] = ["3.13", "3.12", "3.11", "3"];

const PACKAGES: [&str; 2] = ["aiolimiter==1.3.0", "pyrate-limiter==4.5.1"];

/// Prints one instant a line, in seconds.
const SCRIPT: &str = r#"
import asyncio, sys, time
kind, amount, window, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
admitted = []

async def with_aiolimiter():
    from aiolimiter import AsyncLimiter
    limiter = AsyncLimiter(amount, window)
    begun = time.perf_counter()
    while len(admitted) < count:
        await limiter.acquire()
        admitted.append(time.perf_counter() - begun)

def with_pyrate():
    from pyrate_limiter import Limiter, Rate
    limiter = Limiter(Rate(amount, int(window * 1000)))
    begun = time.perf_counter()
    while len(admitted) < count:
        limiter.try_acquire("x")
        admitted.append(time.perf_counter() - begun)

if kind == "aiolimiter":
    asyncio.run(with_aiolimiter())
else:
    with_pyrate()
print("\n".join(str(at) for at in admitted))
"#;

#[derive(Clone, Copy)]
pub(crate) enum Limiter {
    Aiolimiter,
    Pyrate,
}

pub(crate) struct Python {
    interpreter: Result<PathBuf, String>,
}

impl Python {
    pub(crate) fn find() -> Python {
        let runs = |name: &String| output(Command::new(name).args(["-c", "import venv"])).is_ok();
        let found = VERSIONS.iter().map(|version| format!("python{version}")).find(runs);
        Python {
            interpreter: found.map(PathBuf::from).ok_or_else(|| "no python3 with venv on this machine".to_owned()),
        }
    }

    pub(crate) fn pace(
        &self,
        limiter: Limiter,
        amount: usize,
        window: Duration,
        count: usize,
    ) -> Result<Vec<f64>, String> {
        let kind = match limiter {
            Limiter::Aiolimiter => "aiolimiter",
            Limiter::Pyrate => "pyrate",
        };
        let window = window.as_secs_f64().to_string();
        let arguments = ["-c", SCRIPT, kind, &amount.to_string(), &window, &count.to_string()];
        let printed = output(Command::new(self.environment()?).args(arguments))?;
        let instants: Result<Vec<f64>, _> = printed.lines().map(str::parse).collect();
        instants.map_err(|_| format!("{kind} printed something else than instants"))
    }

    fn environment(&self) -> Result<PathBuf, String> {
        let interpreter = self.interpreter.as_ref()?;
        let executable = env::current_exe().map_err(|error| error.to_string())?;
        let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
        let environment = target.join("bench-python-limiters");
        let python = environment.join("bin/python");
        let imports = || output(Command::new(&python).args(["-c", "import aiolimiter, pyrate_limiter"]));
        if imports().is_err() {
            eprintln!("installing {} into {}", PACKAGES.join(" and "), environment.display());
            output(Command::new(interpreter).args(["-m", "venv"]).arg(&environment))?;
            output(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
            imports()?;
        }
        Ok(python)
    }
}

/// What the command printed, or its last words.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let words = String::from_utf8_lossy(&done.stderr).trim().lines().last().unwrap_or("it failed").to_owned();
    Err(format!("{name}: {words}"))
}
