//! The run: read, ask, write. Requests are read in a thread as they are needed; each is asked in a task of its own, as many
//! as may be in flight and a few more in line; one task writes whatever results there are and syncs them together.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tidegate_limit::Scope;
use tidegate_loop::{JobError, ThreadPool, race, timeout, to_thread};
use tidegate_pool::Pool;
use tidegate_sync::{Event as Signal, Queue, Semaphore};

use super::body::estimate;
use super::input::{self, Checked, IdSet, Lines, duplicate};
use super::line::{Format, IdHash, RequestLine};
use super::path::Paths;
use super::results::{self, DiskFull, Known};
use super::writing::{self, ToWrite};
use super::{
    BadLine, BadLines, Batch, BatchError, EARLIER_RUN, EndedEarly, Input, OnResult, Output, ResultsError, Summary,
};
use crate::caller::Caller;
use crate::concurrency::follow_slots;
use crate::estimate::Estimate;
use crate::owned::{OwnedPool, OwnedTask};
use crate::plan::Tokens;
use crate::provider::Dialect;
use crate::question::Usage;
use crate::run::policy::Policy;
use crate::run::{Control, ItemId, ItemState, Settled, Unit, Wish};

/// So much is read ahead.
const READ_AHEAD: usize = 1 << 20;

/// What everything in a run shares.
pub(super) struct Run {
    pub(super) caller: Caller,
    pub(super) model: Option<String>,
    paths: Paths,
    on_result: OnResult,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) results: Queue<ToWrite>,
    pub(super) pool: Pool,
    /// Requests that are sent and whose result is not on the disk: as many as may be in flight and have space there. So no
    /// more are paid for twice after a crash, and none is lost on a disk that is full. More stand in line at the gate.
    pub(super) unsaved: Arc<Semaphore>,
    /// How many of them there should be.
    pub(super) unsaved_wanted: Cell<usize>,
    /// Why the output takes no more.
    pub(super) full: RefCell<Option<DiskFull>>,
    pub(super) scope: Scope,
    pub(super) control: Control,
    pub(super) policy: Policy,
    /// The line of a stream that is not a request, at which the run ends.
    bad_line: RefCell<Option<BadLine>>,
    tally: Cell<Tally>,
    /// Requests that have a task.
    pub(super) open: Cell<usize>,
    /// Every request has a task.
    pub(super) all_read: Cell<bool>,
    /// Notified when there may be nothing left to be done.
    pub(super) idle: Signal,
    /// Lines that failed and can be asked again, with their ids.
    pub(super) failed: RefCell<HashMap<u64, Rc<str>>>,
    /// Requests are asked again now.
    pub(super) asks_again: Cell<bool>,
    /// Ids with more than one result.
    pub(super) repeated: RefCell<BTreeSet<Rc<str>>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    answered: u64,
    failed: u64,
    cached: u64,
    cached_failed: u64,
    skipped: u64,
    pub(super) unkept: u64,
    usage: Usage,
}

/// Failed lines that can be asked again while the run goes on.
const FAILED_KEPT: usize = 10_000;

impl Run {
    pub(super) fn count(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    /// Hands a request to a task of its own. Returns `false` if the run stops before there is room for it.
    pub(super) async fn submit(self: &Rc<Self>, line: u64, request: RequestLine, wish: Option<Wish>) -> bool {
        let open = Open::new(self);
        let run = Rc::clone(self);
        let asking = async move {
            let _open = open;
            run.ask(line, request, wish).await;
        };
        match self.control.unless_stopping(self.pool.submit(asking)).await {
            Some(Ok(task)) => {
                task.detach();
                true
            }
            _ => false,
        }
    }

    /// Stops the run if all requests that are asked, or enough of them, are held.
    pub(super) fn stop_if_all_held(&self) {
        if let Some(reason) = self.policy.all_held(self.open.get(), self.all_read.get(), self.pool.cap()) {
            self.control.give_up(reason);
        }
    }

    fn is_idle(&self) -> bool {
        self.open.get() == 0 && !self.asks_again.get() && !self.control.has_again()
    }

    /// Takes note of a result that is on the disk.
    pub(super) fn record(&self, finished: writing::Finished) {
        let writing::Finished { line, id, settled, before, text, written } = finished;
        written.set();
        let answered = settled.state == ItemState::Done;
        self.count(|tally| {
            match before {
                Some(ItemState::Failed { code, .. }) if code == EARLIER_RUN => {
                    tally.cached -= 1;
                    tally.cached_failed -= 1;
                }
                Some(_) => tally.failed -= 1,
                None => {}
            }
            if answered {
                tally.answered += 1;
                tally.usage += settled.usage.unwrap_or_default();
            } else {
                tally.failed += 1;
            }
        });
        if !answered {
            self.note_failed(line, &id);
        }
        // Before the event: its readers may need it.
        (self.on_result)(ItemId::Request { line }, &text);
        self.control.settle(ItemId::Request { line }, &id, settled);
    }

    fn note_failed(&self, line: u64, id: &Rc<str>) {
        let mut failed = self.failed.borrow_mut();
        if !self.input.is_stream() && failed.len() < FAILED_KEPT {
            failed.insert(line, Rc::clone(id));
        }
    }
}

/// A request that has a task, until this is dropped.
struct Open(Rc<Run>);

impl Open {
    fn new(run: &Rc<Run>) -> Open {
        run.open.set(run.open.get() + 1);
        Open(Rc::clone(run))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.stop_if_all_held();
        self.0.idle.notify_all();
    }
}

pub(super) async fn run(batch: Batch, caller: &Caller) -> Result<Summary, BatchError> {
    let Batch { input, output, earlier, bad_lines, paths, model, waiting_max, grace, control, stdout, auto, on_result } =
        batch;
    let costing = caller.clone();
    control.begin(caller.gate(), move || costing.typical_cost());
    let total = match (&input, bad_lines) {
        (Input::File(path), BadLines::Stop) if !input.is_stream() => {
            let (path, dialect) = (path.clone(), caller.dialect());
            Some(finished(to_thread(move || input::check(&path, dialect, paths)), &input).await?)
        }
        _ => None,
    };
    let total = match total {
        Some(Checked::Bad(faults)) => {
            let more = faults.count() - faults.listed().len() as u64;
            return Err(BatchError::BadLines { input, faults: faults.listed().to_vec(), more });
        }
        Some(Checked::Good { requests: 0 }) => return Err(BatchError::NoRequests { input }),
        Some(Checked::Good { requests }) => Some(requests),
        None => None,
    };
    control.count_requests(total);
    let opened = {
        let output = output.clone();
        to_thread(move || results::open(&output, earlier, stdout)).await.unwrap_or_else(|error| Err(gone(&error)))
    };
    let (sink, known) = opened.map_err(|error| BatchError::Output { output: output.clone(), error })?;

    let in_flight = concurrency(caller);
    let answers_max = total.map_or(usize::MAX, |total| usize::try_from(total).unwrap_or(usize::MAX));
    let slots = move |in_flight: usize| in_flight.saturating_add(waiting_max.min(in_flight)).max(1);
    let pool = Pool::new(slots(in_flight));
    let run = Rc::new(Run {
        caller: caller.clone(),
        model,
        paths,
        on_result,
        input,
        output,
        // As long as there are tasks: each waits for its result to be written.
        results: Queue::unbounded(),
        pool: pool.clone(),
        // None until there is space for the answers.
        unsaved: Arc::new(Semaphore::new(0)),
        unsaved_wanted: Cell::new(in_flight.min(answers_max)),
        full: RefCell::default(),
        scope: caller.gate().unscoped().clone(),
        control: control.clone(),
        policy: Policy::new(Unit::Requests),
        bad_line: RefCell::default(),
        tally: Cell::default(),
        open: Cell::new(0),
        all_read: Cell::new(false),
        idle: Signal::new(),
        failed: RefCell::default(),
        asks_again: Cell::new(false),
        repeated: RefCell::default(),
    });
    // Dropped in this order: requests are cancelled before what writes their results.
    let writer = OwnedTask::spawn(writing::write(run.clone(), sink));
    let _asking = OwnedPool(pool.clone());
    let resize_all = {
        let (run, pool) = (Rc::downgrade(&run), pool.clone());
        move |in_flight: u64| {
            let Some(run) = run.upgrade() else { return };
            let in_flight = usize::try_from(in_flight).unwrap_or(usize::MAX);
            run.set_in_flight(in_flight.min(answers_max));
            let cap = slots(in_flight);
            if cap != pool.cap() {
                pool.resize(cap);
            }
        }
    };
    let gate = caller.gate().clone();
    let attending = match auto {
        Some(auto) => {
            let caller = caller.clone();
            let apply = move |wanted: crate::concurrency::Wanted| resize_all(wanted.in_flight);
            OwnedTask::spawn(auto.attend(gate, move || caller.typical_cost(), apply))
        }
        None => OwnedTask::spawn(follow_slots(gate, resize_all)),
    };
    let weak = Rc::downgrade(&run);
    control.set_retryable(move |item| {
        let (run, ItemId::Request { line }) = (weak.upgrade()?, item) else { return None };
        run.failed.borrow().get(&line).cloned()
    });
    let again = OwnedTask::spawn(Rc::clone(&run).serve_again());

    let fed = feed(&run, &known, bad_lines, total.is_some()).await;
    run.all_read.set(true);
    control.all_requests_read();
    run.stop_if_all_held();
    let settled = async {
        while !run.is_idle() {
            let _ = run.idle.wait().await;
        }
    };
    let is_settled = control.unless_stopping(settled).await.is_some();
    again.end().await;
    let drained = race(pool.close(), control.calls_dropped());
    // Requests in line leave it; those in flight are waited for.
    // Nothing hurries a run whose disk is full.
    let grace = if is_settled || run.full.borrow().is_some() { None } else { Some(grace) };
    let is_drained = match grace {
        None => drained.await.left().is_some(),
        Some(grace) => timeout(grace, drained).await.is_ok_and(|drained| drained.left().is_some()),
    };
    if !is_drained {
        pool.abort().await;
    }
    drop(attending);
    run.results.close();
    let sink = writer.await.unwrap_or_else(|error| Err(gone(&error)));
    let sink = sink.map_err(|error| BatchError::Output { output: run.output.clone(), error })?;
    fed?;
    let repeated = run.repeated.take();
    if let (Output::File(path), false) = (&run.output, repeated.is_empty()) {
        let path = path.clone();
        let ids: Vec<IdHash> = repeated.iter().map(|id| IdHash::of(id)).collect();
        let tidied = to_thread(move || results::keep_last(&path, sink, &ids)).await;
        // A full disk is reported below; the next run tidies up.
        tidied
            .unwrap_or_else(|error| Err(gone(&error)))
            .or_else(|error| if run.full.borrow().is_some() { Ok(()) } else { Err(error) })
            .map_err(|error| BatchError::Output { output: run.output.clone(), error })?;
    }

    let Tally { answered, failed, cached, cached_failed, skipped, unkept, usage } = run.tally.get();
    let ended_early = match (run.bad_line.take(), run.full.take()) {
        (Some(bad), _) => Some(EndedEarly::BadLine(bad)),
        (None, Some(full)) => Some(EndedEarly::Full(full)),
        (None, None) if control.has_given_up() => control.reason().map(EndedEarly::Shut),
        (None, None) => control.is_stopping().then_some(EndedEarly::Stopped),
    };
    if ended_early.is_none() && answered + failed + cached + skipped == 0 {
        return Err(BatchError::NoRequests { input: run.input.clone() });
    }
    Ok(Summary { answered, failed, cached, cached_failed, skipped, unkept, usage, ended_early })
}

/// How many requests the gate lets be in flight at once, as far as it says.
fn concurrency(caller: &Caller) -> usize {
    let limits = caller.gate().stats().limits;
    let caps = limits.iter().filter(|limit| limit.dimension.is_none()).map(|limit| limit.amount);
    usize::try_from(caps.min().unwrap_or(200)).unwrap_or(usize::MAX)
}

/// Hands every request that has no result to a task of its own, until there are no more or the run is stopped.
async fn feed(run: &Rc<Run>, known: &Known, bad_lines: BadLines, is_checked: bool) -> Result<(), BatchError> {
    let (input, control) = (&run.input, &run.control);
    let opening = input.clone();
    // Opening a pipe and reading from it may wait for its writer for ever. In a pool of its own such a read holds up neither the
    // other jobs nor the end of the loop.
    let reader_thread = ThreadPool::builder().threads_max(1).name("tidegate-input").build();
    let opened = finished(reader_thread.run(move || opening.open()), input);
    let Some(opened) = control.unless_stopping(opened).await else { return Ok(()) };
    let mut lines = Some(opened?);
    // A file has been checked; a stream, or a file with faults, is while it is read.
    let mut seen = (!is_checked).then(IdSet::default);
    loop {
        let Some(reader) = lines.take() else { return Ok(()) };
        let reading = finished(reader_thread.run(move || read(reader)), input);
        let Some(read) = control.unless_stopping(reading).await else { return Ok(()) };
        let (reader, requests) = read?;
        if requests.is_empty() {
            return Ok(());
        }
        lines = Some(reader);
        for next in requests {
            let checked = next.and_then(|(line, request)| {
                let id = IdHash::of(&request.id);
                request.fits(run.caller.dialect(), run.paths).map_err(|reason| BadLine { line, reason })?;
                match seen.as_mut().is_none_or(|seen| seen.insert(id)) {
                    true => Ok((line, id, request)),
                    false => Err(duplicate(line, &request.id)),
                }
            });
            let (line, id, request) = match checked {
                Ok(request) => request,
                Err(bad) if bad_lines == BadLines::Skip => {
                    run.count(|tally| tally.skipped += 1);
                    control.skip_line(bad.line, bad.reason);
                    continue;
                }
                Err(bad) => {
                    control.give_up(bad.to_string());
                    *run.bad_line.borrow_mut() = Some(bad);
                    return Ok(());
                }
            };
            if !known.contains(id) && request.format == Format::Gemini && run.model.is_none() {
                control.finish("no model is given");
                return Err(BatchError::NoModel);
            }
            control.add_request(line);
            let again = control.take_chosen(ItemId::Request { line }).is_some() && known.failed.contains(id);
            if again {
                run.repeated.borrow_mut().insert(request.id.as_str().into());
            }
            if known.succeeded.contains(id) || (known.failed.contains(id) && !again) {
                run.is_known(line, &request.id, known.succeeded.contains(id));
            } else if !run.submit(line, request, None).await {
                return Ok(());
            }
        }
    }
}

impl Run {
    /// An earlier run has a result for this request.
    fn is_known(&self, line: u64, id: &str, succeeded: bool) {
        let id: Rc<str> = id.into();
        self.count(|tally| {
            tally.cached += 1;
            tally.cached_failed += u64::from(!succeeded);
        });
        let state = match succeeded {
            true => ItemState::Cached,
            false => {
                self.note_failed(line, &id);
                ItemState::Failed {
                    code: EARLIER_RUN.into(),
                    reason: "it failed in an earlier run; see the results".into(),
                }
            }
        };
        self.control.settle(ItemId::Request { line }, &id, Settled { state, usage: None });
    }
}

type Requests = Vec<Result<(u64, RequestLine), BadLine>>;

fn read(mut lines: Lines) -> io::Result<(Lines, Requests)> {
    let requests = lines.next_requests(READ_AHEAD)?;
    Ok((lines, requests))
}

pub(super) fn gone(error: &dyn std::error::Error) -> ResultsError {
    ResultsError::Io(io::Error::other(error.to_string()))
}

/// The result of a job that reads `input`.
async fn finished<T>(
    job: impl Future<Output = Result<io::Result<T>, JobError>>,
    input: &Input,
) -> Result<T, BatchError> {
    let done = job.await.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    done.map_err(|error| BatchError::Input { input: input.clone(), error })
}

pub(super) fn costs(input: &Input, dialect: Dialect) -> Result<Vec<Tokens>, BatchError> {
    let failed = |error| BatchError::Input { input: input.clone(), error };
    let mut lines = input.open().map_err(failed)?;
    let mut costs = Vec::new();
    while let Some(next) = lines.next_request().map_err(failed)? {
        let (_, request) =
            next.map_err(|fault| BatchError::BadLines { input: input.clone(), faults: vec![fault], more: 0 })?;
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let (estimate, _) = estimate(dialect, &request.url, &body);
        costs.push(tokens(estimate));
    }
    Ok(costs)
}

/// An estimate for a plan.
pub(super) fn tokens(estimate: Estimate) -> Tokens {
    let short = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    Tokens { input: short(estimate.input_tokens), output: short(estimate.output_tokens) }
}
