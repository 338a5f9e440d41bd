//! The broker under all contestants.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Found or started with the first question, ended with the run if we started it.
#[derive(Default)]
pub(crate) struct Broker {
    found: OnceCell<Result<Found, String>>,
}

struct Found {
    host: String,
    /// Of the one we started.
    dir: Option<PathBuf>,
}

impl Broker {
    pub(crate) fn host(&self) -> Result<String, String> {
        self.found.get_or_init(find).as_ref().map(|found| found.host.clone()).map_err(Clone::clone)
    }
}

fn find() -> Result<Found, String> {
    if let Ok(host) = std::env::var("TIDEGATE_RABBIT_PLAIN") {
        return Ok(Found { host, dir: None });
    }
    let dir = std::env::temp_dir().join(format!("tidegate-bench-rabbit-{}", std::process::id()));
    eprintln!("      starting a RabbitMQ in {}", dir.display());
    node("make", &dir)?;
    node("start", &dir)?;
    let environment = std::fs::read_to_string(dir.join("env")).map_err(|error| error.to_string())?;
    let host = environment.split_whitespace().find_map(|word| word.strip_prefix("TIDEGATE_RABBIT_PLAIN="));
    let host = host.ok_or("tests/rabbit/node.sh does not say where it listens")?.to_owned();
    Ok(Found { host, dir: Some(dir) })
}

fn node(verb: &str, dir: &Path) -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/rabbit/node.sh");
    let done =
        Command::new(script).arg(verb).arg(dir).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    Err(errors.lines().last().unwrap_or("tests/rabbit/node.sh failed without a word").to_owned())
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(Ok(Found { dir: Some(dir), .. })) = self.found.get() {
            if let Err(error) = node("stop", dir) {
                eprintln!("bench: the RabbitMQ in {} was not stopped: {error}", dir.display());
            } else {
                let _ = std::fs::remove_dir_all(dir);
            }
        }
    }
}
