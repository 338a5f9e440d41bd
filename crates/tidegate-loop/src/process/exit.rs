//! How the end of a child is noticed: through a pidfd and the loop's selector, or, where the system has none, by a thread
//! that waits without reaping. No child is reaped by a number that might be another process's by now.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as PollContext, Poll, Waker};
use std::thread;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use crate::reactor::{Direction, Source};

/// `TIDEGATE_PIDFD=0` does without, as old systems must.
fn is_wanted() -> bool {
    std::env::var_os("TIDEGATE_PIDFD").is_none_or(|value| value != "0")
}

/// A descriptor that becomes readable when the child ends; `None` where there is no such thing.
pub(super) fn pidfd(child: &std::process::Child) -> Option<OwnedFd> {
    if is_wanted() { pidfd_open(Pid::from_child(child), PidfdFlags::NONBLOCK).ok() } else { None }
}

/// A child that has not been reaped, and how its end is noticed.
pub(super) struct Living {
    pub(super) child: std::process::Child,
    watch: Watch,
    /// It leads a group, and what it leaves of that is killed.
    sweep: bool,
}

enum Watch {
    Pidfd(Source),
    Thread(Option<Arc<Mutex<Waited>>>),
}

#[derive(Default)]
struct Waited {
    ended: bool,
    waker: Option<Waker>,
}

impl Living {
    pub(super) fn new(child: std::process::Child, sweep: bool) -> Living {
        let watch = match pidfd(&child) {
            Some(pidfd) => Watch::Pidfd(Source::new(pidfd)),
            None => Watch::Thread(None),
        };
        Living { child, watch, sweep }
    }

    pub(super) fn poll(&mut self, cx: &mut PollContext<'_>) -> Poll<io::Result<ExitStatus>> {
        match &mut self.watch {
            Watch::Pidfd(source) => {
                let (child, sweep) = (&mut self.child, self.sweep);
                // The system's own words, because the source wants an error number.
                let mut failed = None;
                let polled = source.poll_io(cx, Direction::Read, |_| match reap(child, sweep) {
                    Ok(Some(status)) => Ok(status),
                    Ok(None) => Err(Errno::AGAIN),
                    Err(error) => {
                        failed = Some(error);
                        Err(Errno::CHILD)
                    }
                });
                match failed {
                    Some(error) => Poll::Ready(Err(error)),
                    None => polled,
                }
            }
            Watch::Thread(waited) => {
                if waited.is_none() {
                    *waited = Some(wait_in_thread(&self.child)?);
                }
                let waited = waited.as_ref().expect("just made");
                let waker = cx.waker().clone();
                let mut state = waited.lock().unwrap_or_else(PoisonError::into_inner);
                if !state.ended {
                    let before = state.waker.replace(waker);
                    drop(state);
                    drop(before);
                    return Poll::Pending;
                }
                drop(state);
                match reap(&mut self.child, self.sweep) {
                    Ok(Some(status)) => Poll::Ready(Ok(status)),
                    Ok(None) => unreachable!("it was seen to have ended"),
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
        }
    }

    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        reap(&mut self.child, self.sweep)
    }
}

/// How the child ended, if it has; then it is reaped.
fn reap(child: &mut std::process::Child, sweep: bool) -> io::Result<Option<ExitStatus>> {
    if sweep {
        let pid = Pid::from_child(child);
        let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(_)) = waitid(WaitId::Pid(pid), looks) {
            // Until it is reaped no other group can have its number. None left is fine.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
    child.try_wait()
}

/// Notices the end in a thread and leaves the reaping to the loop, so that until then the number is the child's.
fn wait_in_thread(child: &std::process::Child) -> io::Result<Arc<Mutex<Waited>>> {
    let pid = Pid::from_child(child);
    let waited = Arc::new(Mutex::new(Waited::default()));
    let shared = waited.clone();
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
        // An error means that other code has reaped it: the loop finds out when it looks.
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    thread::Builder::new().name("tidegate-child".into()).stack_size(64 * 1024).spawn(wait)?;
    Ok(waited)
}

/// Whether the error says that other code has reaped the child: its number may be another process's by now.
pub(super) fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECHILD)
}

pub(super) fn lost() -> io::Error {
    io::Error::other("its status is gone: this program ignores SIGCHLD, or waits for children it has not started")
}
