//! What a worker's processes take of the memory, pages that they share counted once.

use std::path::Path;

use crate::harness::Sample;

/// Megabytes of all processes of a group.
pub(super) fn of_group(group: u32) -> Sample {
    let processes = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
    let mut kib = 0.0;
    for process in processes.flatten().filter(|entry| is_of(&entry.path(), group)) {
        // One that has just ended takes nothing.
        kib += std::fs::read_to_string(process.path().join("smaps_rollup")).map_or(0.0, |text| shared_out(&text));
    }
    if kib > 0.0 { Ok(kib / 1024.0) } else { Err("the system does not say what its processes take".to_owned()) }
}

/// Megabytes of one process.
pub(super) fn of_process(id: u32) -> Sample {
    let rollup = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).map_err(|error| error.to_string())?;
    Ok(shared_out(&rollup) / 1024.0)
}

/// The process's group is the third figure behind its name, which may have anything in it.
fn is_of(process: &Path, group: u32) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_whitespace().nth(2).and_then(|word| word.parse().ok()) == Some(group)
}

fn shared_out(rollup: &str) -> f64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}
