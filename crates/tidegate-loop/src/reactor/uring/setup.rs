//! How a ring is opened, and why it cannot be.

use std::fmt;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

/// Submissions that fit before the kernel must be called; a tick with more calls it in between.
pub(super) const SUBMISSIONS: u32 = 1024;
/// Completions that fit. More are kept by the kernel and handed over in the next call.
pub(super) const COMPLETIONS: u32 = 4096;

/// Why there is no ring: the next best selector is used, and this is what the log says.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The kernel refuses the call: not built in, switched off (`kernel.io_uring_disabled`), or filtered (seccomp).
    Forbidden(Errno),
    /// It is there, but older than what the loop needs.
    TooOld(&'static str),
    /// It is there, but this process has no descriptors or memory left for it.
    Exhausted(io::Error),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Forbidden(Errno::NOSYS) => f.write_str("the kernel has no io_uring"),
            Unavailable::Forbidden(errno) => {
                write!(f, "io_uring is forbidden here ({errno}): see kernel.io_uring_disabled and seccomp filters")
            }
            Unavailable::TooOld(what) => {
                write!(f, "the kernel's io_uring is too old: it lacks {what} (Linux 6.0 has it)")
            }
            Unavailable::Exhausted(error) => write!(f, "no room for an io_uring: {error}"),
        }
    }
}

impl Unavailable {
    fn from_setup(error: io::Error) -> Unavailable {
        match Errno::from_io_error(&error) {
            Some(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) => Unavailable::Forbidden(errno),
            Some(Errno::INVAL) => Unavailable::TooOld("single-issuer rings"),
            _ => Unavailable::Exhausted(error),
        }
    }
}

/// Opens a ring that defers the kernel's work to the loop's own calls (Linux 6.1), or at least lets it wait for them.
pub(super) fn open() -> Result<IoUring, Unavailable> {
    let ring = match build(true) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => build(false),
        other => other,
    };
    let ring = ring.map_err(Unavailable::from_setup)?;
    let params = ring.params();
    for (has, what) in [
        (params.is_feature_ext_arg(), "waits with a time-out"),
        (params.is_feature_nodrop(), "completions that are never dropped"),
        (params.is_feature_submit_stable(), "submissions that are copied"),
        (params.is_feature_fast_poll(), "sockets that wait without a thread"),
    ] {
        if !has {
            return Err(Unavailable::TooOld(what));
        }
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(Unavailable::from_setup)?;
    for (code, what) in [
        (opcode::PollAdd::CODE, "poll"),
        (opcode::AsyncCancel::CODE, "cancellation"),
        (opcode::AcceptMulti::CODE, "accept"),
        (opcode::RecvMulti::CODE, "recv"),
        (opcode::Send::CODE, "send"),
    ] {
        if !probe.is_supported(code) {
            return Err(Unavailable::TooOld(what));
        }
    }
    Ok(ring)
}

/// A single issuer came with Linux 6.0, as did receiving several times for one request, which no probe shows: a kernel
/// that accepts the one has the other.
fn build(deferred: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_submit_all().setup_taskrun_flag().setup_clamp().setup_cqsize(COMPLETIONS);
    if deferred {
        builder.setup_defer_taskrun();
    } else {
        builder.setup_coop_taskrun();
    }
    builder.build(SUBMISSIONS)
}
