//! What the child may use. Set by itself before it looks at the file, and never to be raised again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

pub(super) fn set(memory_bytes: u64, cpu: Duration) -> io::Result<()> {
    // A parent that was killed cannot end a child that is busy.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::As, memory_bytes)?;
    limit(Resource::Cpu, cpu.as_secs() + 1)?;
    // It has all the descriptors that it needs, and starts nothing. The latter does not bind root.
    limit(Resource::Nofile, 0)?;
    limit(Resource::Nproc, 0)?;
    // It writes no files and no core dumps.
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)
}

/// What the system knows about this process, opened while files can be.
pub(super) struct MemoryPeak {
    status: Option<File>,
}

impl MemoryPeak {
    pub(super) fn open() -> MemoryPeak {
        MemoryPeak { status: File::open("/proc/self/status").ok() }
    }

    /// The most that was really in memory so far; 0 where the system does not say.
    pub(super) fn bytes(&self) -> u64 {
        let mut text = [0; 4096];
        let read = self.status.as_ref().and_then(|status| status.read_at(&mut text, 0).ok()).unwrap_or(0);
        let status = String::from_utf8_lossy(&text[..read]);
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak.unwrap_or(0) * 1024
    }
}

/// Sets a limit; a lower one that is set already stays.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let value = Some(value.min(getrlimit(resource).maximum.unwrap_or(u64::MAX)));
    Ok(setrlimit(resource, Rlimit { current: value, maximum: value })?)
}
