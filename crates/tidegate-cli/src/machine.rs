//! What this machine has room for: memory bounds the concurrency that is derived.

use std::fs;

use tidegate_batch::{AUTO_CONCURRENCY_MAX, AUTO_FILES_MAX};

/// Of the memory that is available, the part that a run may use for what it derives.
const SHARE: u64 = 4;

/// A request in flight, with its body, its connection and its answer.
const REQUEST_BYTES: u64 = 256 << 10;

/// An open PDF, with the process that reads it.
const FILE_BYTES: u64 = 64 << 20;

/// Bounds of the memory for pictures of pages.
const PICTURE_BYTES: (u64, u64) = (64 << 20, 1 << 30);

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Requests in flight.
    pub(crate) requests: u64,
    /// Open PDFs.
    #[cfg_attr(not(feature = "pdf"), allow(dead_code, reason = "only explain opens files"))]
    pub(crate) files: usize,
    /// Bytes of pictures of pages.
    #[cfg_attr(not(feature = "pdf"), allow(dead_code, reason = "only explain draws pages"))]
    pub(crate) picture_bytes: u64,
}

impl Room {
    /// The room on this machine now, with `descriptors` for requests.
    pub(crate) fn now(descriptors: Option<u64>) -> Room {
        Room::within(memory_available(), descriptors)
    }

    fn within(memory: Option<u64>, descriptors: Option<u64>) -> Room {
        let part = memory.map_or(u64::MAX, |memory| memory / SHARE);
        let requests = (part / REQUEST_BYTES).min(descriptors.unwrap_or(u64::MAX)).clamp(1, AUTO_CONCURRENCY_MAX);
        let files = usize::try_from(part / FILE_BYTES).unwrap_or(usize::MAX).clamp(1, AUTO_FILES_MAX);
        Room { requests, files, picture_bytes: (part / 2).clamp(PICTURE_BYTES.0, PICTURE_BYTES.1) }
    }
}

/// Returns the memory that can be used without swapping, also where a control group allows less; `None` if it is not known.
fn memory_available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text));
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    machine.into_iter().chain(group).min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        assert_eq!(meminfo_available("MemTotal:  9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo_available("MemTotal:  9 kB\n"), None);
        assert_eq!(meminfo_available("MemAvailable: much\n"), None);
    }

    #[test]
    fn memory_and_descriptors_bound_what_is_derived() {
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(
            Room::within(Some(64 * gib), None),
            Room { requests: AUTO_CONCURRENCY_MAX, files: AUTO_FILES_MAX, picture_bytes: gib }
        );
        assert_eq!(Room::within(Some(gib), None), Room { requests: 1_024, files: 4, picture_bytes: 128 * mib });
        assert_eq!(Room::within(Some(64 * gib), Some(960)).requests, 960);
        assert_eq!(Room::within(Some(0), Some(0)), Room { requests: 1, files: 1, picture_bytes: 64 * mib });
        assert_eq!(Room::within(None, None).requests, AUTO_CONCURRENCY_MAX);
    }
}
