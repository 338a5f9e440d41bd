//! How much memory a child holds.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A process's own account of itself. Kept open, because opening costs more than reading.
#[derive(Debug)]
pub(super) struct Memory {
    status: File,
}

impl Memory {
    /// Of the process with this number; `None` where the system does not tell.
    pub(super) fn of(pid: u32) -> Option<Memory> {
        File::open(format!("/proc/{pid}/status")).ok().map(|status| Memory { status })
    }

    /// Bytes it has in memory now; `None` when it has ended.
    pub(super) fn resident(&self) -> Option<u64> {
        let mut text = [0; 4096];
        let length = self.status.read_at(&mut text, 0).ok()?;
        let text = String::from_utf8_lossy(&text[..length]);
        let kibibytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?;
        Some(kibibytes.parse::<u64>().ok()? << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_is_counted() {
        let memory = Memory::of(std::process::id()).unwrap();
        let before = memory.resident().unwrap();
        let used = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = memory.resident().unwrap();
        assert!(after >= before + (32 << 20), "{before} before, {after} after {} bytes", used.len());
    }
}
