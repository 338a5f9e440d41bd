//! What the child may use. Set by itself before it looks at the file, and never to be raised again.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

pub(super) fn set(memory_bytes: u64, cpu: Duration) -> io::Result<()> {
    // A parent that was killed cannot end a child that is busy.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::As, memory_bytes)?;
    limit(Resource::Cpu, cpu.as_secs() + 1)?;
    // It has nothing to write, and its end is no news for whoever collects core files.
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)
}

/// The most that was really in memory so far; 0 where the system does not say.
pub(super) fn memory_peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    peak.unwrap_or(0) * 1024
}

/// A lower limit that somebody has set before stays.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let value = Some(value.min(getrlimit(resource).maximum.unwrap_or(u64::MAX)));
    Ok(setrlimit(resource, Rlimit { current: value, maximum: value })?)
}
