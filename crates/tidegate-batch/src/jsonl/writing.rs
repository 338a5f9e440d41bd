//! The writer of a run: it writes whatever results there are, syncs them together, and sees to it that there is space on the disk
//! before more are sent.

use std::io;
use std::mem;
use std::rc::Rc;

use tidegate_loop::to_thread;
use tidegate_sync::{Event as Signal, Semaphore};

use super::ResultsError;
use super::result_file::is_full;
use super::results::{DiskFull, Sink};
use super::run::{Run, gone};
use crate::run::{ItemState, Settled};

/// A result on its way to the disk.
pub(super) struct Finished {
    pub(super) line: u64,
    pub(super) id: Rc<str>,
    pub(super) settled: Settled,
    /// It was asked again, and was so before.
    pub(super) before: Option<ItemState>,
    /// What is written.
    pub(super) text: Vec<u8>,
    /// Set when it is there, or never will be.
    pub(super) written: Rc<Signal>,
}

/// What the writer gets.
pub(super) enum ToWrite {
    Result(Finished),
    /// More requests may be in flight than there is reserved space for.
    MoreInFlight,
}

impl Run {
    /// Lets as many requests be in flight as the gate does: fewer at once, more when there is space for their answers.
    pub(super) fn set_in_flight(&self, in_flight: usize) {
        let in_flight = in_flight.max(1);
        self.unsaved_wanted.set(in_flight);
        match self.unsaved.capacity() {
            // Nothing is to be sent, so far or from now on.
            0 => {}
            _ if self.unsaved.is_closed() => {}
            capacity if in_flight > capacity => self.ask_for_space(),
            _ => resize(&self.unsaved, in_flight),
        }
    }

    /// A request is about to be sent. The first one has space reserved: a run that has nothing to send needs none.
    pub(super) fn will_send(&self) {
        if self.unsaved.capacity() == 0 {
            self.ask_for_space();
        }
    }

    fn ask_for_space(&self) {
        // Closed, nothing more is sent.
        let _ = self.results.try_push(ToWrite::MoreInFlight);
    }

    /// Returns how many results may come besides `written`, at most; before the first is sent, how many are wanted.
    fn to_come(&self, written: usize) -> usize {
        let capacity = match self.unsaved.capacity() {
            0 => return self.unsaved_wanted.get(),
            capacity => capacity,
        };
        match self.all_read.get() && !self.asks_again.get() {
            true => capacity.min(self.open.get().saturating_sub(written)),
            false => capacity,
        }
    }

    /// Sends nothing more: there is no space for the answers.
    fn stop_for_space(&self, full: DiskFull) {
        self.control.give_up(format!("{} has no space for more answers: {full}", self.output));
        self.full.borrow_mut().get_or_insert(full);
        self.unsaved.close();
    }

    /// A result has no space on the disk.
    fn lose(&self, finished: &Finished) {
        let is_paid = finished.settled.state == ItemState::Done;
        self.count(|tally| tally.unkept += u64::from(is_paid));
        finished.written.set();
    }

    /// Nothing that is asked from now on could be kept.
    fn cannot_write(&self, error: io::Error, finished: Vec<Finished>) -> ResultsError {
        self.results.close();
        self.unsaved.close();
        self.control.give_up(format!("cannot write {}: {error}", self.output));
        finished.iter().for_each(|finished| finished.written.set());
        while let Ok(message) = self.results.try_recv() {
            if let ToWrite::Result(finished) = message {
                finished.written.set();
            }
        }
        ResultsError::Io(error)
    }
}

fn resize(permits: &Semaphore, to: usize) {
    match to.checked_sub(permits.capacity()) {
        Some(more) => permits.add_permits(more),
        None => permits.reduce_permits(permits.capacity() - to).expect("there are as many"),
    }
}

/// Writes what there is, syncs it together, and only then says that it is done.
pub(super) async fn write(run: Rc<Run>, mut sink: Sink) -> Result<Sink, ResultsError> {
    while let Ok(messages) = run.results.recv_all().await {
        let mut finished: Vec<Finished> = Vec::with_capacity(messages.len());
        finished.extend(messages.into_iter().filter_map(|message| match message {
            ToWrite::Result(finished) => Some(finished),
            ToWrite::MoreInFlight => None,
        }));
        let lines: Vec<Vec<u8>> = finished.iter_mut().map(|finished| mem::take(&mut finished.text)).collect();
        let (to_come, wanted) = (run.to_come(finished.len()), run.unsaved_wanted.get());
        let done = to_thread(move || {
            let appended = sink.append(&lines);
            // Before the next requests are sent in the place of these.
            let reserved = match wanted > to_come && sink.reserve(wanted).is_ok() {
                true => Ok(wanted),
                false => sink.reserve(to_come).map(|()| to_come),
            };
            (sink, lines, appended, reserved)
        });
        let (lines, appended, reserved) = match done.await {
            Ok((back, lines, appended, reserved)) => {
                sink = back;
                (lines, appended, reserved)
            }
            Err(error) => return Err(gone(&error)),
        };
        finished.iter_mut().zip(lines).for_each(|(finished, line)| finished.text = line);
        match reserved {
            Err(full) => run.stop_for_space(full),
            Ok(lines) if lines > run.unsaved.capacity() && !run.unsaved.is_closed() => {
                resize(&run.unsaved, lines.min(run.unsaved_wanted.get()));
            }
            Ok(_) => {}
        }
        match appended.error {
            Some(error) if matches!(sink, Sink::File(_)) && is_full(&error) => {
                run.stop_for_space(DiskFull::new(&error, 0));
            }
            Some(error) => return Err(run.cannot_write(error, finished)),
            None => {}
        }
        for (finished, saved) in finished.into_iter().zip(appended.saved) {
            match saved {
                true => run.record(finished),
                false => run.lose(&finished),
            }
        }
    }
    Ok(sink)
}
