//! Children whose handle was dropped while they ran: they are reaped when they end, so that no zombie is left. On a loop
//! that is open its selector tells; otherwise, and when the loop closes first, one thread for the whole process waits
//! for all of them, and leaves when there are none.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, thread};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::exit;
use crate::kernel::RunState;
use crate::runtime::event_loop::LoopHandle;

/// Reaps the child when it ends.
pub(super) fn adopt(mut child: Child) {
    // An error means that it is gone.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let Some(pidfd) = exit::pidfd(&child) else { return wait_alone(child) };
    let orphan = Orphan { child: Some(child), pidfd };
    match LoopHandle::try_current().filter(|handle| handle.kernel.state.get() != RunState::Closed) {
        Some(handle) => watch_on(&handle, orphan),
        None => drop(orphan),
    }
}

/// A child that no task waits for. Dropped before its end, it goes to the reaper.
struct Orphan {
    /// `None`: reaped.
    child: Option<Child>,
    pidfd: OwnedFd,
}

impl Orphan {
    /// Whether it has ended; then it is reaped.
    fn reap(&mut self) -> bool {
        let lives = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !lives {
            self.child = None;
        }
        !lives
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // The number is still the child's, so this descriptor can be opened anew.
            match exit::pidfd(&child) {
                Some(pidfd) => hand_to_reaper(child, pidfd),
                None => wait_alone(child),
            }
        }
    }
}

fn watch_on(handle: &LoopHandle, orphan: Orphan) {
    let orphan = Rc::new(RefCell::new(orphan));
    let (watched, kernel) = (orphan.clone(), handle.kernel.weak());
    let reap = move || {
        if watched.borrow_mut().reap()
            && let Some(kernel) = kernel.upgrade()
        {
            LoopHandle { kernel }.remove_reader(&watched.borrow().pidfd);
        }
    };
    // Refused (the selector takes no more descriptors): dropped here, it goes to the reaper.
    let _ = handle.add_reader(&orphan.borrow().pidfd, reap);
}

/// For systems without pidfds.
fn wait_alone(mut child: Child) {
    let name = thread::Builder::new().name("tidegate-reaper".into()).stack_size(64 * 1024);
    if let Err(error) = name.spawn(move || drop(child.wait())) {
        log::warn!("a child process stays a zombie, because no thread could be started to wait for it: {error}");
    }
}

/// What the reaper's thread and those who bring it children share.
struct Reaper {
    state: Mutex<Children>,
    /// Written when there is a new one.
    bell: OwnedFd,
}

#[derive(Default)]
struct Children {
    new: Vec<(Child, OwnedFd)>,
    /// There is a thread, and it will look at `new` before it leaves.
    runs: bool,
}

fn reaper() -> io::Result<&'static Reaper> {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    if let Some(reaper) = REAPER.get() {
        return Ok(reaper);
    }
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    Ok(REAPER.get_or_init(|| Reaper { state: Mutex::default(), bell }))
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, Children> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's life.
    fn run(&self) {
        let mut children: Vec<(Child, OwnedFd)> = Vec::new();
        loop {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            {
                let mut state = self.lock();
                children.append(&mut state.new);
                if children.is_empty() {
                    state.runs = false;
                    return;
                }
            }
            let mut fds: Vec<PollFd<'_>> = children.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
            fds.push(PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN));
            // An interrupted wait is as good as any.
            let _ = poll(&mut fds, None);
            drop(fds);
            children.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        }
    }
}

fn hand_to_reaper(child: Child, pidfd: OwnedFd) {
    let Ok(reaper) = reaper() else { return wait_alone(child) };
    let starts = {
        let mut state = reaper.lock();
        state.new.push((child, pidfd));
        !std::mem::replace(&mut state.runs, true)
    };
    let _ = rustix::io::write(&reaper.bell, &1_u64.to_ne_bytes());
    if starts && let Err(error) = thread::Builder::new().name("tidegate-reaper".into()).spawn(|| reaper.run()) {
        reaper.lock().runs = false;
        log::warn!("child processes may stay zombies, because no thread could be started to wait for them: {error}");
    }
}
