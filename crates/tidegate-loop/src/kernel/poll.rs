//! How the loop waits: for descriptors, for the next deadline, for other threads; in virtual time, for nothing at all.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::context::Snapshot;
use crate::kernel::clock::Nanos;
use crate::kernel::{IO_BUDGET, Kernel, Pace};
use crate::mailbox::Message;
use crate::mailbox::inbox::Bed;
use crate::reactor::Due;
use crate::runtime::callback::Callback;
use crate::runtime::error::RunError;

impl Kernel {
    /// Looks at the selector, and waits there if nothing is ready. Returns the time after that.
    #[inline(never)]
    pub(crate) fn poll(&self, ready: bool) -> Result<Nanos, RunError> {
        let deadline = {
            let mut timers = self.timers.borrow_mut();
            timers.tidy();
            timers.next_deadline()
        };
        let hurry = ready || self.stopping.get();
        let now = if hurry { self.tick_time.get() } else { self.now() };
        let timeout = match deadline {
            _ if hurry => Some(Duration::ZERO),
            Some(when) => Some(Duration::from_nanos(when.saturating_sub(now).max(0) as u64)),
            None => None,
        };
        let (events, now) = match self.pace {
            Pace::Real if timeout != Some(Duration::ZERO) => self.sleep(timeout, deadline, now),
            Pace::Real => (self.look(), self.now()),
            Pace::Jumping | Pace::Standing => (self.poll_virtual(timeout, deadline)?, self.now()),
        };
        if self.watch.is_on() {
            self.watch.polled(self, timeout, events);
        }
        if self.registration.mailbox.inbox.is_posted() {
            self.read_inbox();
        }
        Ok(now)
    }

    /// Looks at the selector, if there is anything it could have found.
    fn look(&self) -> usize {
        if !self.strict && !self.io.borrow().has_watchers() {
            return 0;
        }
        self.counters.polled(0);
        self.select(Some(Duration::ZERO))
    }

    /// Waits for the selector, from `now` on. Returns the number of events and the time after the wait.
    fn sleep(&self, mut timeout: Option<Duration>, deadline: Option<Nanos>, mut now: Nanos) -> (usize, Nanos) {
        let inbox = &self.registration.mailbox.inbox;
        if timeout.is_some() {
            self.punctual.enter();
        }
        // Nothing can be added while the loop sleeps: that is its own doing.
        let bed = if self.io.borrow().is_needed() { Bed::Selector } else { Bed::Inbox };
        loop {
            let before = now;
            let sleeps = inbox.before_sleep(bed);
            let events = match bed {
                Bed::Selector => self.select(if sleeps { timeout } else { Some(Duration::ZERO) }),
                Bed::Inbox => {
                    if sleeps {
                        inbox.sleep(timeout);
                    }
                    0
                }
            };
            inbox.after_sleep();
            now = self.now();
            self.counters.polled(now - before);
            // The selector may come back early; a tick with nothing to do would only be noise in a trace.
            match deadline {
                _ if events > 0 || !sleeps || inbox.is_posted() => return (events, now),
                Some(when) if when <= now => return (0, now),
                Some(when) => timeout = Some(Duration::from_nanos((when - now) as u64)),
                None => {}
            }
        }
    }

    /// Asks the selector. Returns the number of events.
    pub(crate) fn select(&self, timeout: Option<Duration>) -> usize {
        let mut due = self.due.take();
        let events = self.io.borrow_mut().poll(timeout, self, &mut due);
        if !due.is_empty() {
            self.act_on(due.drain(..));
        }
        // What was left in its place is empty and has no memory; dropping it would only be checking that.
        std::mem::forget(self.due.replace(due));
        events
    }

    /// Queues what is due. The table of descriptors is not lent meanwhile: a waker may be foreign code.
    pub(crate) fn act_on(&self, due: impl Iterator<Item = Due>) {
        for due in due {
            match due {
                Due::Task(name) => self.wake_any(name),
                Due::Wake(waker) => waker.wake(),
                Due::Call(callback) => self.ready.push_io(callback),
                Due::Gone(socket) => drop(socket),
            }
        }
    }

    /// Counts one more operation on a descriptor. Returns `false` if the step has used up its budget and the task must yield.
    #[inline]
    pub(crate) fn io_allowed(&self) -> bool {
        let step = self.ready.begin();
        let (spent_in, left) = self.io_left.get();
        let left = if spent_in == step { left } else { IO_BUDGET };
        if left > 0 {
            self.io_left.set((step, left - 1));
            return true;
        }
        // The budget is full again for what this step does next, and the next tick looks at the clock and the selector.
        self.io_left.set((step, IO_BUDGET));
        self.polled_at.set(step.wrapping_sub(self.steps_between_polls));
        false
    }

    fn poll_virtual(&self, timeout: Option<Duration>, deadline: Option<Nanos>) -> Result<usize, RunError> {
        self.counters.polled(0);
        let mut events = 0;
        if self.io.borrow().has_watchers() {
            events = self.select(Some(Duration::ZERO));
        }
        // Read here, before the clock moves: a thread that only woke the loop must not change what virtual time does.
        if self.registration.mailbox.inbox.is_posted() {
            self.read_inbox();
        }
        if events > 0 || self.ready.len() > 0 {
            return Ok(events);
        }
        if timeout == Some(Duration::ZERO) {
            if deadline.is_none_or(|when| when > self.clock.now()) {
                self.release_held();
            }
            return Ok(events);
        }
        let events = self.await_held();
        if events > 0 || self.ready.len() > 0 {
            return Ok(events);
        }
        match deadline {
            Some(when) if self.pace == Pace::Jumping => self.clock.jump(when),
            _ => return Err(RunError::Stalled(self.dump())),
        }
        Ok(events)
    }

    #[inline(never)]
    pub(crate) fn expire_timers(&self, now: Nanos) {
        self.tick_time.set(now);
        let mut timers = self.timers.borrow_mut();
        while let Some((key, when)) = timers.pop_due(now) {
            self.counters.late(now.saturating_sub(when));
            self.ready.push_timer(key);
        }
    }

    #[inline(never)]
    pub(crate) fn read_inbox(&self) {
        let mut messages = self.inbound.take();
        self.registration.mailbox.inbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Wake(name) => self.wake(name),
                Message::Call(job, location) => {
                    self.push_call(Rc::new(Callback::new(job, Snapshot::default(), location)));
                }
            }
        }
        self.inbound.set(messages);
        if self.registration.mailbox.signalled.load(Ordering::Relaxed)
            && self.registration.mailbox.signalled.swap(false, Ordering::SeqCst)
        {
            self.read_signals();
        }
    }
}
