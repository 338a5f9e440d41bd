//! Cores that do not halt while something is measured. A virtual core that has halted takes its host 0.1 ms to wake up, which
//! is no program's doing and more than most of what is measured here; those who measure latencies hold the cores awake.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// What the kernel is told how long waking up may take at most, in microseconds; it holds as long as the file is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Holds all cores awake until dropped, where the machine lets it.
pub(crate) struct Wakeful {
    _held: Option<File>,
}

impl Wakeful {
    pub(crate) fn hold() -> Wakeful {
        Wakeful { _held: open().ok() }
    }

    /// Whether the machine lets it, in words for a table.
    pub(crate) fn words() -> &'static str {
        match open() {
            Ok(_) => "no core halts meanwhile",
            Err(_) => "cores halt meanwhile: only root may hold them awake",
        }
    }
}

fn open() -> std::io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(LATENCY)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}
