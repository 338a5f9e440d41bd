//! All children of a mode: which child gets which task, and what happens when one has ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_sync::Event;

use super::ProcessOptions;
use super::child::{Child, End};
use super::slot::Slot;
use super::ticket::{Ticket, stopped};
use crate::mode::{ModeError, StopReason};
use crate::outcome::Outcome;

/// The pause after a child that died without having done anything; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// This many children in a row may be killed by another process while they start; then the start has failed.
const KILLED_BEFORE_READY_MAX: u32 = 3;

/// The children, and the runs that wait for one.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) options: ProcessOptions,
    slots: Vec<Rc<Slot>>,
    /// First come, first served.
    queue: RefCell<VecDeque<Rc<Ticket>>>,
    lives: RefCell<Vec<JoinHandle<()>>>,
    phase: Cell<Phase>,
    /// Children that are ready for the first time of their slot; only counted while starting.
    first_ready: Cell<usize>,
    /// Why the start failed.
    failure: RefCell<Option<String>>,
    handlers: RefCell<Option<Vec<String>>>,
    changed: Event,
    pub(super) stats: Cell<ProcessStats>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    New,
    Starting,
    Running,
    Stopped,
}

/// What became of the children so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessStats {
    /// Alive now, ready or not.
    pub children: usize,
    /// Started in all.
    pub started: u64,
    /// Ended on request: recycled, stopped, or after a time limit.
    pub ended: u64,
    /// Died by themselves.
    pub died: u64,
}

impl Fleet {
    pub(super) fn new(options: ProcessOptions) -> Rc<Fleet> {
        Rc::new_cyclic(|fleet| Fleet {
            slots: (0..options.children).map(|index| Rc::new(Slot::new(index, fleet.clone()))).collect(),
            options,
            queue: RefCell::default(),
            lives: RefCell::default(),
            phase: Cell::new(Phase::New),
            first_ready: Cell::new(0),
            failure: RefCell::default(),
            handlers: RefCell::default(),
            changed: Event::new(),
            stats: Cell::default(),
        })
    }

    pub(super) fn handlers(&self) -> Option<Vec<String>> {
        self.handlers.borrow().clone()
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.slots.iter().filter_map(|slot| slot.pid.get()).collect()
    }

    /// Runs that wait for a child.
    pub(super) fn waiting(&self) -> usize {
        self.queue.borrow().len()
    }

    pub(super) async fn start(self: &Rc<Fleet>) -> Result<(), ModeError> {
        if self.phase.replace(Phase::Starting) != Phase::New {
            self.phase.set(Phase::Stopped);
            return Err(ModeError { message: "the process mode was started before; make a new one".into() });
        }
        for slot in &self.slots {
            self.lives.borrow_mut().push(spawn(live(self.clone(), slot.clone())));
        }
        while self.first_ready.get() < self.slots.len() {
            let failure = self.failure.borrow_mut().take();
            if let Some(message) = failure {
                self.stop().await;
                return Err(ModeError { message });
            }
            if self.phase.get() == Phase::Stopped {
                return Err(ModeError { message: "the process mode was stopped while it was starting".into() });
            }
            self.changed.wait().await;
        }
        if self.phase.get() == Phase::Starting {
            self.phase.set(Phase::Running);
        }
        Ok(())
    }

    pub(super) async fn stop(&self) {
        self.shut();
        loop {
            let Some(life) = self.lives.borrow_mut().pop() else { break };
            let _ = life.await;
        }
    }

    /// Begins to end everything.
    pub(super) fn shut(&self) {
        self.phase.set(Phase::Stopped);
        for ticket in self.queue.take() {
            ticket.finish(ticket.stop.get().map_or(Outcome::Cancelled, stopped));
        }
        for slot in &self.slots {
            slot.shut.set(true);
            slot.wake();
        }
        self.changed.notify_all();
    }

    pub(super) fn recycle(&self) {
        for slot in &self.slots {
            slot.retire.set(true);
            slot.wake();
        }
    }

    pub(super) fn submit(&self, ticket: Rc<Ticket>) {
        if self.phase.get() != Phase::Running {
            return ticket.finish(Outcome::Cancelled);
        }
        self.queue.borrow_mut().push_back(ticket);
        self.dispatch();
    }

    /// Takes a run back that no child has begun; it is the first in line.
    pub(super) fn take_back(&self, ticket: Rc<Ticket>) {
        ticket.slot.set(None);
        ticket.run.set(None);
        if let Some(reason) = ticket.stop.get() {
            return ticket.finish(stopped(reason));
        }
        if self.phase.get() == Phase::Stopped {
            return ticket.finish(Outcome::Cancelled);
        }
        self.queue.borrow_mut().push_front(ticket);
        self.dispatch();
    }

    /// Ends a run early, wherever it is.
    pub(super) fn stop_run(&self, ticket: &Rc<Ticket>, reason: StopReason) {
        if !ticket.is_open() || ticket.stop.get().is_some() {
            return;
        }
        ticket.stop.set(Some(reason));
        match (ticket.slot.get(), ticket.run.get()) {
            (Some(slot), Some(run)) => self.slots[slot].stop_run(run, reason),
            (Some(slot), None) => {
                self.slots[slot].withdraw(ticket);
                ticket.finish(stopped(reason));
            }
            (None, _) => {
                self.queue.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, ticket));
                ticket.finish(stopped(reason));
            }
        }
    }

    /// Hands out what waits, to those that have least to do.
    pub(super) fn dispatch(&self) {
        while !self.queue.borrow().is_empty() {
            let freest = self.slots.iter().filter_map(|slot| Some((slot.load()?, slot))).min_by_key(|(load, _)| *load);
            let Some((_, slot)) = freest else { return };
            let Some(ticket) = self.queue.borrow_mut().pop_front() else { return };
            slot.give(ticket);
        }
    }

    pub(super) fn child_is_ready(&self, handlers: Option<Vec<String>>) {
        *self.handlers.borrow_mut() = handlers;
        if self.phase.get() == Phase::Starting {
            self.first_ready.set(self.first_ready.get() + 1);
            self.changed.notify_all();
        }
    }

    fn count(&self, change: impl FnOnce(&mut ProcessStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// A child could not be started, or ended before it was ready.
    fn start_failed(&self, message: String) {
        if self.phase.get() == Phase::Starting {
            self.failure.borrow_mut().get_or_insert(message);
            self.changed.notify_all();
        }
    }
}

/// One slot's life: a child, and when it has ended another one.
async fn live(fleet: Rc<Fleet>, slot: Rc<Slot>) {
    let mut failures = 0;
    while !slot.shut.get() {
        let end = match Child::spawn(&fleet.options, &slot) {
            Ok(mut child) => {
                fleet.count(|stats| (stats.children, stats.started) = (stats.children + 1, stats.started + 1));
                tracing::debug!(child = slot.index + 1, pid = child.pid(), "a child was started");
                slot.pid.set(Some(child.pid()));
                let end = poll_fn(|cx| child.poll(cx)).await;
                fleet.count(|stats| {
                    stats.children -= 1;
                    *if end.as_told { &mut stats.ended } else { &mut stats.died } += 1;
                });
                slot.vacate();
                // A child that another process killed says nothing about its command, so it counts only if it repeats.
                let excused = end.killed && failures < KILLED_BEFORE_READY_MAX;
                if !end.was_ready && !excused {
                    let command = fleet.options.command_line();
                    fleet.start_failed(format!("a child of `{command}` was not ready: {}", end.story));
                }
                end
            }
            Err(message) => {
                fleet.start_failed(message.clone());
                End { was_ready: false, served: 0, story: message, as_told: false, killed: false }
            }
        };
        if end.as_told || slot.shut.get() {
            failures = 0;
            continue;
        }
        failures = if end.served > 0 { 0 } else { failures + 1 };
        let pause = pause(failures);
        tracing::error!(child = slot.index + 1, served = end.served, ?pause, "a child died: {}", end.story);
        wait(&slot, pause).await;
    }
}

/// How long to wait after this many children in a row that failed without running a task.
fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        failures => PAUSE_MIN.saturating_mul(1 << (failures - 1).min(16)).min(PAUSE_MAX),
    }
}

/// Sleeps, unless the slot is shut before.
async fn wait(slot: &Slot, pause: Duration) {
    if pause.is_zero() {
        return;
    }
    let mut pause = std::pin::pin!(sleep(pause));
    poll_fn(|cx| {
        if slot.shut.get() {
            return Poll::Ready(());
        }
        slot.sleep(cx);
        pause.as_mut().poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_die_at_once_are_started_ever_more_slowly() {
        let pauses: Vec<u64> = (0..9).map(|failures| pause(failures).as_millis() as u64).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
