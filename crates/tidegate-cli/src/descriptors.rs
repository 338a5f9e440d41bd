//! The limit of open files. Each request in flight has a connection; the soft limit of many systems (1,024) is lower than what
//! users may ask for, and the hard limit is theirs to use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything that is not a request: files, databases, the loop, children.
const RESERVED: u64 = 64;

/// Returns the limit of open files that can be reached; `None`: there is none.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the soft limit of open files to the hard limit, and returns the limit then in force; `None`: there is none.
pub(crate) fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// Returns how many requests can be in flight within `limit` descriptors; at least one.
pub(crate) fn requests_within(limit: u64) -> u64 {
    limit.saturating_sub(RESERVED).max(1)
}
