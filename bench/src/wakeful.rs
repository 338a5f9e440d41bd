//! Cores that do not halt while something is measured. A virtual core that has halted takes its host 0.1 ms to wake up, which
//! is no program's doing and more than most of what is measured here.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// Tells the kernel how long waking up may take at most, in microseconds; that holds as long as the file is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Holds all cores awake until dropped.
pub(crate) struct Wakeful {
    _held: File,
}

impl Wakeful {
    pub(crate) fn hold() -> Result<Wakeful, String> {
        let open = || {
            let mut file = OpenOptions::new().write(true).open(LATENCY)?;
            file.write_all(&0_i32.to_ne_bytes())?;
            Ok(Wakeful { _held: file })
        };
        open().map_err(|error: std::io::Error| {
            format!("the cores cannot be held awake: {LATENCY}: {error}; run it as root")
        })
    }
}
