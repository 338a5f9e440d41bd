//! CPython, to compare with: an instrumented asyncio loop in virtual time runs the same examples.

use std::path::Path;
use std::process::Command;

pub(crate) struct Python {
    command: String,
    version: String,
}

/// `TIDEGATE_PYTHON`, or the newest that answers. A name in the path may be a shim that has nothing behind it.
pub(crate) fn find() -> Option<Python> {
    let named = std::env::var("TIDEGATE_PYTHON").ok();
    let usual = ["python3.13", "python3.12", "python3.11", "python3"].map(str::to_owned);
    named.into_iter().chain(usual).find_map(|command| {
        let check = "import sys; assert sys.version_info >= (3, 11); print(sys.version.split()[0])";
        let answer = Command::new(&command).args(["-c", check]).output().ok()?;
        let version = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
        answer.status.success().then_some(Python { command, version })
    })
}

impl Python {
    pub(crate) fn name(&self) -> String {
        format!("CPython {}", self.version)
    }

    /// The order of events asyncio shows for that example.
    pub(crate) fn events_of(&self, example: &str) -> Vec<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/order.py");
        let ran = Command::new(&self.command).arg(script).arg(example).output().expect("it answered before");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}
