//! A loop's side of signals: who listens on it, and what is done when a signal has come.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::Location;
use std::rc::Rc;
use std::task::Waker;

use super::SignalKind;
use super::disposition::{self, Use};
use crate::kernel::{Kernel, RunState};
use crate::mailbox;
use crate::reactor::IoCallback;
use crate::runtime::event_loop::LoopHandle;

/// What a signal is delivered to.
#[derive(Default)]
pub(crate) struct SignalTable {
    entries: Vec<SignalEntry>,
}

struct SignalEntry {
    taken: Use,
    /// How many have been told of.
    seen: Cell<u64>,
    target: Target,
}

enum Target {
    Listener(Rc<Listener>),
    /// Runs once for each signal; one a signal.
    Handler(Rc<IoCallback>),
    /// Runs once for however many have come.
    Watcher(Rc<IoCallback>),
    /// The end of the main task.
    Runner(Rc<dyn Fn()>),
}

/// What a [`Signal`](super::Signal) and the table share.
pub(super) struct Listener {
    pub(super) signal: SignalKind,
    pub(super) seen: Cell<u64>,
    pub(super) waker: RefCell<Option<Waker>>,
}

/// What is to be done; collected first, because it runs foreign code.
enum Due {
    Wake(Waker),
    Call(Rc<IoCallback>),
    Run(Rc<dyn Fn()>),
}

impl Kernel {
    /// A signal has come for a handler or listener of this loop.
    #[cold]
    pub(crate) fn read_signals(&self) {
        let mut due = Vec::new();
        for entry in &self.signals.borrow().entries {
            let total = disposition::total(entry.taken.signal());
            let count = total - entry.seen.replace(total);
            if count == 0 {
                continue;
            }
            match &entry.target {
                Target::Listener(listener) => due.extend(listener.waker.take().map(Due::Wake)),
                Target::Handler(callback) => due.extend((0..count).map(|_| Due::Call(callback.clone()))),
                Target::Watcher(callback) => due.push(Due::Call(callback.clone())),
                Target::Runner(run) if !disposition::has_listeners(entry.taken.signal()) => {
                    due.push(Due::Run(run.clone()));
                }
                Target::Runner(_) => {}
            }
        }
        for due in due {
            match due {
                Due::Wake(waker) => waker.wake(),
                Due::Call(callback) => self.ready.push_io(callback),
                Due::Run(run) => run(),
            }
        }
    }

    fn add_signal(&self, taken: Use, target: Target) {
        let signal = taken.signal();
        let since = taken.since();
        self.signals.borrow_mut().entries.push(SignalEntry { taken, seen: Cell::new(since), target });
        disposition::tell_loop(signal, self.registration.id, true);
        if disposition::total(signal) != since {
            // It came before the handler knew of this loop.
            mailbox::signal_loop(self.registration.id);
        }
    }

    /// Takes an entry out.
    fn remove_signal(&self, is_it: impl Fn(&Target) -> bool, signal: SignalKind) -> bool {
        let removed = {
            let entries = &mut self.signals.borrow_mut().entries;
            let found = entries.iter().position(|entry| entry.taken.signal() == signal && is_it(&entry.target));
            let removed = found.map(|at| entries.remove(at));
            if !entries.iter().any(|entry| entry.taken.signal() == signal) {
                disposition::tell_loop(signal, self.registration.id, false);
            }
            removed
        };
        if let Some(SignalEntry { target: Target::Handler(callback) | Target::Watcher(callback), .. }) = &removed {
            callback.cancel();
        }
        removed.is_some()
    }

    /// The loop closes: whatever was listened for is let go.
    pub(crate) fn clear_signals(&self) {
        let entries = std::mem::take(&mut self.signals.borrow_mut().entries);
        for entry in &entries {
            disposition::tell_loop(entry.taken.signal(), self.registration.id, false);
        }
        drop(entries);
    }

    fn check_signal(&self, signal: SignalKind) -> io::Result<()> {
        signal.check()?;
        if self.state.get() == RunState::Closed {
            return Err(io::Error::other("the loop is closed; make a new one"));
        }
        Ok(())
    }

    pub(super) fn listen(&self, signal: SignalKind) -> io::Result<Rc<Listener>> {
        self.check_signal(signal)?;
        let taken = Use::listener(signal, true)?;
        let seen = Cell::new(taken.since());
        let listener = Rc::new(Listener { signal, seen, waker: RefCell::default() });
        self.add_signal(taken, Target::Listener(listener.clone()));
        Ok(listener)
    }

    pub(super) fn stop_listening(&self, listener: &Rc<Listener>) {
        self.remove_signal(
            |target| matches!(target, Target::Listener(known) if Rc::ptr_eq(known, listener)),
            listener.signal,
        );
    }

    /// Calls `callback` when the signal has come, for as long as the loop is open. The signal stays harmless afterwards:
    /// it asks for a look, and must not end the process when the loop is gone.
    pub(crate) fn watch_signal(
        &self,
        signal: SignalKind,
        callback: impl FnMut() + 'static,
        location: &'static Location<'static>,
    ) -> io::Result<()> {
        self.check_signal(signal)?;
        let callback = Rc::new(IoCallback::new(Box::new(callback), location));
        self.add_signal(Use::listener(signal, false)?, Target::Watcher(callback));
        Ok(())
    }

    /// Calls `run` on Ctrl-C while no listener has SIGINT. Returns `false` if the program handles SIGINT itself.
    pub(crate) fn take_interrupts(&self, run: Rc<dyn Fn()>) -> bool {
        let Some(taken) = Use::runner() else { return false };
        self.add_signal(taken, Target::Runner(run.clone()));
        if disposition::is_pressed() {
            // Before this one began, while others ran: it was meant for the whole program.
            run();
        }
        true
    }

    pub(crate) fn leave_interrupts(&self) {
        self.remove_signal(|target| matches!(target, Target::Runner(_)), SignalKind::INTERRUPT);
    }
}

impl LoopHandle {
    /// Runs `callback` on this loop every time the process gets the signal, once for each, in the context of now; a
    /// handler of that signal that was there before on this loop is replaced. As in asyncio, but from any thread that has
    /// a loop, and several loops may have one each.
    ///
    /// # Errors
    /// When the signal cannot be handled (SIGKILL, SIGSEGV, …) or is none; when the loop is closed.
    ///
    /// ```
    /// use tidegate_loop::{EventLoop, signal::SignalKind};
    /// let event_loop = EventLoop::new().unwrap();
    /// let handle = event_loop.handle();
    /// event_loop.add_signal_handler(SignalKind::USER2, move || handle.stop()).unwrap();
    /// std::process::Command::new("kill").args(["-USR2", &std::process::id().to_string()]).status().unwrap();
    /// event_loop.run_forever().unwrap();
    /// ```
    #[track_caller]
    pub fn add_signal_handler(&self, signal: SignalKind, callback: impl FnMut() + 'static) -> io::Result<()> {
        self.kernel.check_signal(signal)?;
        let callback = Rc::new(IoCallback::new(Box::new(callback), Location::caller()));
        // Taken before the old one is let go: in between the signal would have its default effect.
        let taken = Use::listener(signal, true)?;
        self.remove_signal_handler(signal);
        self.kernel.add_signal(taken, Target::Handler(callback));
        Ok(())
    }

    /// Removes the handler: the signal has its previous effect again. Returns `false` if there was none.
    ///
    /// ```
    /// use tidegate_loop::{EventLoop, signal::SignalKind};
    /// let event_loop = EventLoop::new().unwrap();
    /// event_loop.add_signal_handler(SignalKind::HANGUP, || ()).unwrap();
    /// assert!(event_loop.remove_signal_handler(SignalKind::HANGUP));
    /// assert!(!event_loop.remove_signal_handler(SignalKind::HANGUP));
    /// ```
    pub fn remove_signal_handler(&self, signal: SignalKind) -> bool {
        self.kernel.remove_signal(|target| matches!(target, Target::Handler(_)), signal)
    }
}
