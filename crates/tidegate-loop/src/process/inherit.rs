//! What is done in the child between its birth and its program: descriptors kept open or closed, an end tied to ours.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;

use super::Command;

/// The standard streams have the numbers below.
const FIRST_FREE: RawFd = 3;

impl Command {
    /// Leaves `fd` open in the child, under the number that is returned (pass it to the child, in its environment for example).
    /// Only there: other children that are started meanwhile do not get it. Kept open here until the command is dropped.
    ///
    /// # Errors
    /// When there are no descriptors left and it has to be moved, because its number is that of a standard stream.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let (reader, writer) = std::io::pipe().unwrap();
    ///     std::io::Write::write_all(&mut &writer, b"hello").unwrap();
    ///     drop(writer);
    ///     let mut command = Command::new("sh");
    ///     let number = command.inherit(reader.into()).unwrap();
    ///     let output = command.args(["-c", &format!("cat <&{number}")]).output().await.unwrap();
    ///     assert_eq!(output.stdout, b"hello");
    /// })
    /// .unwrap();
    /// ```
    pub fn inherit(&mut self, fd: OwnedFd) -> io::Result<RawFd> {
        let fd = if fd.as_raw_fd() < FIRST_FREE { rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FREE)? } else { fd };
        let number = fd.as_raw_fd();
        let keep = move || match rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()) {
            Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        };
        // SAFETY: after the fork only one system call is made, and nothing is allocated: an error number becomes an
        // `io::Error` as it is. The descriptor is owned by the closure, so its number is its own.
        unsafe { self.as_std_mut().pre_exec(keep) };
        Ok(number)
    }

    /// Closes in the child what it would inherit by accident: every descriptor but the standard streams and those that are
    /// passed with [`inherit`](Self::inherit) after this call.
    ///
    /// Linux before 5.11 cannot close all at once; there, descriptors up to the soft limit of the process are closed, a
    /// million at most.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let open = std::fs::File::open("/dev/null").unwrap();
    ///     rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "ls /proc/$$/fd"]).close_others();
    ///     assert_eq!(command.output().await.unwrap().stdout, b"0\n1\n2\n");
    /// })
    /// .unwrap();
    /// ```
    pub fn close_others(&mut self) -> &mut Command {
        // Marked, not closed: the standard library has a pipe of its own open until the program starts.
        let mark = || {
            // SAFETY: numbers only, and a flag that takes effect in this child alone.
            let marked = unsafe {
                libc::syscall(libc::SYS_close_range, FIRST_FREE, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
            };
            if marked != 0 {
                mark_one_by_one();
            }
            Ok(())
        };
        // SAFETY: after the fork only system calls are made, and nothing is allocated.
        unsafe { self.as_std_mut().pre_exec(mark) };
        self
    }

    /// Has the kernel kill the child when the thread that started it ends, however that happens: `kill -9`, too. For
    /// children of a loop whose thread lives as long as they shall. Their own children are not reached.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async { assert!(Command::new("true").die_with_parent().status().await.unwrap().success()) }).unwrap();
    /// ```
    pub fn die_with_parent(&mut self) -> &mut Command {
        let parent = rustix::process::getpid();
        let ask = move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // It may have died in between: then the kernel will not send the signal.
            match rustix::process::getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: after the fork two system calls are made, and nothing is allocated: both errors are plain numbers.
        unsafe { self.as_std_mut().pre_exec(ask) };
        self
    }
}

fn mark_one_by_one() {
    const NUMBERS_MAX: u64 = 1 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    for number in FIRST_FREE..limit.map_or(NUMBERS_MAX, |limit| limit.min(NUMBERS_MAX)) as RawFd {
        // SAFETY: numbers only. A number without a descriptor is refused.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
