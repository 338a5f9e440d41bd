//! What the child may do: compute, read what it was given, answer, end. It has no new privileges and no capabilities,
//! Landlock takes the file system and the network from it, seccomp every system call that this needs none of.
//!
//! Each of the two holds without the other, and a kernel without either is reported. Two steps, because Landlock holds the
//! calling thread and those that it starts, and after the filter no thread can be started.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetStatus, Scope};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use serde::{Deserialize, Serialize};

/// How the process that reads a document is confined, beside its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Confinement {
    /// Landlock: no file can be opened, no connection made.
    pub landlock: Guard,
    /// seccomp: a system call that is not on a short list ends the process.
    pub seccomp: Guard,
}

/// Whether a means of confinement is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Guard {
    /// All of it.
    Full,
    /// As much as this kernel has.
    Partial,
    /// Nothing of it.
    #[non_exhaustive]
    Missing {
        /// Why.
        why: String,
    },
}

impl Confinement {
    /// Returns `true` if Landlock and seccomp are both in force, Landlock at least as far as the kernel has it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        ![&self.landlock, &self.seccomp].into_iter().any(|guard| matches!(guard, Guard::Missing { .. }))
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landlock {}, seccomp {}", self.landlock, self.seccomp)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guard::Full => f.write_str("full"),
            Guard::Partial => f.write_str("partial"),
            Guard::Missing { why } => write!(f, "missing ({why})"),
        }
    }
}

/// The first step, before any other thread is started: no new privileges, no capabilities, Landlock. Descriptors that are
/// open stay usable.
pub(crate) fn enter() -> io::Result<Guard> {
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    // A process that is not root's has none, and may not be allowed to give them up.
    if !capabilities(None)?.permitted.is_empty() {
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    }
    Ok(landlock())
}

/// Denies all that Landlock knows of; there is no rule that allows anything.
fn landlock() -> Guard {
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V6)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self());
    match restricted {
        Ok(status) => match (status.ruleset, status.landlock) {
            (RulesetStatus::FullyEnforced, _) => Guard::Full,
            (RulesetStatus::PartiallyEnforced, _) => Guard::Partial,
            (_, LandlockStatus::NotEnabled) => missing("this kernel was started without it"),
            (_, _) => missing("this kernel does not have it"),
        },
        Err(error) => missing(error),
    }
}

/// The second step, for all threads: from here on a system call that is not allowed ends the process with SIGSYS.
pub(crate) fn seal() -> Guard {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else {
        return missing("not supported on this architecture");
    };
    let program = rules()
        .and_then(|rules| SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch))
        .and_then(seccompiler::BpfProgram::try_from);
    let sealed =
        program.map_err(seccompiler::Error::from).and_then(|program| seccompiler::apply_filter_all_threads(&program));
    match sealed {
        Ok(()) => Guard::Full,
        Err(error) => missing(error),
    }
}

fn missing(why: impl fmt::Display) -> Guard {
    Guard::Missing { why: why.to_string() }
}

/// What is allowed: by number, for some under a condition on an argument.
fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let always = [
        // What it was given: the document, the font, the socket, the pipe for its last words.
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_recvfrom,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_close,
        // Memory.
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        // Waiting for the other thread, time, chance.
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_restart_syscall,
        // The end, also by the runtime after an overflow of the stack or a lack of memory.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        // Asked by the C library about a thread's stack.
        libc::SYS_sched_getaffinity,
    ];
    let argument = |index, len, operator, value| SeccompCondition::new(index, len, operator, value);
    let executable = libc::PROT_EXEC as u64;
    let own = u64::from(std::process::id());
    let under_conditions = [
        // Memory that cannot be executed.
        (libc::SYS_mmap, argument(2, Len::Dword, Op::MaskedEq(executable), 0)?),
        (libc::SYS_mprotect, argument(2, Len::Dword, Op::MaskedEq(executable), 0)?),
        // To the other end of the socket, and to no address.
        (libc::SYS_sendto, argument(4, Len::Qword, Op::Eq, 0)?),
        // Asked by the standard library, with checks on, before it closes a descriptor.
        (libc::SYS_fcntl, argument(1, Len::Dword, Op::Eq, libc::F_GETFD as u64)?),
        // Its own threads alone.
        (libc::SYS_tgkill, argument(0, Len::Dword, Op::Eq, own)?),
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = always.map(|number| (number, Vec::new())).into();
    for (number, condition) in under_conditions {
        rules.insert(number, vec![SeccompRule::new(vec![condition])?]);
    }
    Ok(rules)
}
