//! The run: read, ask, write. Requests are read in a thread as they are needed; each is asked in a task of its own, as many
//! as may be under way and a few more in line; one task writes whatever results there are and syncs them together.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use serde_json::Value;
use tidegate_loop::{JobError, JoinHandle, ThreadPool, spawn, timeout, to_thread};
use tidegate_pool::Pool;
use tidegate_sync::{Event as Signal, Queue, Semaphore};

use super::body::{check, estimate, path_below, with_model};
use super::input::{self, Checked, IdSet, Lines, duplicate};
use super::line::{Answered, Format, IdHash, RequestLine, on_one_line, result_line};
use super::results::{self, Known, Sink};
use super::{
    BadLine, BadLines, Batch, BatchError, EndedEarly, Event, Input, Output, Progress, ResultsError, Stop, Summary,
};
use crate::call::Call;
use crate::call_error::CallError;
use crate::caller::Caller;
use crate::concurrency::Attending;
use crate::plan::Tokens;
use crate::provider::{BadModel, Dialect, Unreadable};

/// Requests in a row without a usable answer that end the run: each of them may be paid for.
const UNANSWERED_MAX: u32 = 8;

/// What becomes of a request whose call has ended.
enum Verdict {
    /// Its result is written.
    Write,
    /// Its result is written, and the run ends for this reason.
    WriteAndEnd(String),
    /// The run ends for this reason; the request is asked again by the next.
    End(String),
    /// Its result is written if another request is answered. If none is, the run ends for this reason.
    Hold(String),
    /// The run ends already; the request is asked again by the next.
    Drop,
}

/// So much is read ahead.
const READ_AHEAD: usize = 1 << 20;

pub(super) type Watch = Box<dyn FnMut(&Event, &Progress)>;

/// A result on its way to the disk.
struct Finished {
    event: Event,
    line: Vec<u8>,
    /// Set when it is there, or never will be.
    written: Rc<Signal>,
}

struct Run {
    caller: Caller,
    model: Option<String>,
    output: Output,
    results: Queue<Finished>,
    pool: Pool,
    /// Requests that are sent and whose result is not on the disk: as many as may be in flight.
    unsaved: Arc<Semaphore>,
    stop: Stop,
    progress: RefCell<Progress>,
    watch: RefCell<Watch>,
    /// Why it ends before its input does; the first reason counts.
    ended: RefCell<Option<EndedEarly>>,
    /// Set once a request of this run was answered.
    answered: Signal,
    /// Why requests were refused, for reasons that may hold for all. These requests wait for the first answer: then it is a
    /// matter of single lines.
    refused: RefCell<Vec<String>>,
    /// Requests that have a task.
    asking: Cell<usize>,
    /// Every request has a task.
    all_read: Cell<bool>,
    /// Requests that failed since the last answer, but for those that a server calls wrong after it has answered others.
    unanswered: Cell<u32>,
}

impl Run {
    fn end(&self, why: EndedEarly) {
        self.ended.borrow_mut().get_or_insert(why);
        self.stop.stop();
    }

    /// Takes note of how a request ended, and says what becomes of it.
    fn judge<T>(&self, outcome: &Result<T, CallError>) -> Verdict {
        let error = match outcome {
            Ok(_) => {
                self.answered.set();
                self.unanswered.set(0);
                return Verdict::Write;
            }
            Err(CallError::Closed) => return Verdict::Drop,
            Err(CallError::Shut { reason } | CallError::Journal { reason }) => return Verdict::End(reason.clone()),
            Err(error) => error,
        };
        let lasting = match error {
            CallError::Refused { status: 300..=399 | 403 | 404 | 405 | 407, .. } if !self.answered.is_set() => {
                let advice = "check the model, the address and the rights of the key, then run the same command again";
                return Verdict::Hold(format!("{error}; {advice}"));
            }
            CallError::Refused { .. } | CallError::Declined { .. } => !self.answered.is_set(),
            CallError::Unavailable { .. } | CallError::Garbled { .. } => true,
            _ => false,
        };
        if lasting {
            self.unanswered.set(self.unanswered.get() + 1);
        }
        match self.unanswered.get() {
            UNANSWERED_MAX => Verdict::WriteAndEnd(format!(
                "{UNANSWERED_MAX} requests in a row had no answer; the last time: {error}"
            )),
            _ => Verdict::Write,
        }
    }

    /// Waits until a request is answered. Returns `false` if the run ends before, which it does when all that are asked, or
    /// enough of them, were refused.
    async fn hold(&self, reason: String) -> bool {
        self.refused.borrow_mut().push(reason);
        self.end_if_all_refused();
        let answered = unless_stopped(&self.stop, pin!(self.answered.wait())).await.is_some();
        self.refused.borrow_mut().pop();
        answered
    }

    fn end_if_all_refused(&self) {
        let refused = self.refused.borrow();
        let all = self.all_read.get() && refused.len() == self.asking.get();
        if let Some(reason) =
            refused.first().filter(|_| all || refused.len() >= self.pool.cap().min(UNANSWERED_MAX as usize))
        {
            self.end(EndedEarly::Shut(reason.clone()));
        }
    }

    fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.borrow_mut());
    }

    fn tell(&self, event: &Event) {
        let progress = *self.progress.borrow();
        (self.watch.borrow_mut())(event, &progress);
    }
}

pub(super) async fn run(batch: Batch, caller: &Caller, watch: Watch) -> Result<Summary, BatchError> {
    let Batch { input, output, earlier, bad_lines, model, waiting_max, grace, stop, stdout, auto, counted } = batch;
    let total = match (&input, bad_lines) {
        (Input::File(path), BadLines::Stop) if !input.is_stream() => {
            let (path, dialect) = (path.clone(), caller.dialect());
            Some(finished(to_thread(move || input::check(&path, dialect)), &input).await?)
        }
        _ => None,
    };
    let total = match total {
        Some(Checked::Bad { faults, more }) => return Err(BatchError::BadLines { input, faults, more }),
        Some(Checked::Good { requests }) => Some(requests),
        None => None,
    };
    counted.set(total);
    let opened = {
        let output = output.clone();
        to_thread(move || results::open(&output, earlier, stdout)).await.unwrap_or_else(|error| Err(gone(&error)))
    };
    let (sink, known) = opened.map_err(|error| BatchError::Output { output: output.clone(), error })?;

    let under_way = concurrency(caller);
    // After a crash, no more are paid for twice than may be in flight: a request keeps its permit until its result is on the
    // disk. More stand in line at the gate.
    let unsaved = Arc::new(Semaphore::new(under_way));
    let slots = move |in_flight: usize| in_flight.saturating_add(waiting_max.min(in_flight));
    let pool = Pool::new(slots(under_way));
    let run = Rc::new(Run {
        caller: caller.clone(),
        model,
        output,
        // As long as there are tasks: each waits for its result to be written.
        results: Queue::unbounded(),
        pool: pool.clone(),
        unsaved: Arc::clone(&unsaved),
        stop: stop.clone(),
        progress: RefCell::new(Progress { total, ..Progress::default() }),
        watch: RefCell::new(watch),
        ended: RefCell::default(),
        answered: Signal::new(),
        refused: RefCell::default(),
        asking: Cell::new(0),
        all_read: Cell::new(false),
        unanswered: Cell::new(0),
    });
    let writer = spawn(write(run.clone(), sink));
    let attending = auto.map(|auto| {
        let (gate, caller, pool) = (caller.gate().clone(), caller.clone(), pool.clone());
        let unsaved = Arc::clone(&unsaved);
        Attending::start(auto.attend(
            gate,
            move || caller.typical_cost(),
            move |wanted| {
                let in_flight = usize::try_from(wanted.in_flight).unwrap_or(usize::MAX);
                resize(&unsaved, in_flight);
                let cap = slots(in_flight);
                if cap != pool.cap() {
                    pool.resize(cap);
                }
            },
        ))
    });
    let already_failed = known.failed.len() as u64;

    let fed = feed(&run, &input, &pool, &known, bad_lines).await;
    run.all_read.set(true);
    run.end_if_all_refused();
    let gate = run.caller.gate();
    let mut drained = pin!(pool.close());
    if unless_stopped(&stop, drained.as_mut()).await.is_none() {
        // Who waits is sent home; who has been sent is waited for.
        gate.close();
        if timeout(grace, drained.as_mut()).await.is_err() {
            pool.abort().await;
        }
    }
    drop(attending);
    run.results.close();
    finish(writer).await.map_err(|error| BatchError::Output { output: run.output.clone(), error })?;
    fed?;

    let progress = *run.progress.borrow();
    Ok(Summary {
        answered: progress.answered,
        failed: progress.failed,
        already: progress.already,
        already_failed,
        skipped: progress.skipped,
        usage: progress.usage,
        ended_early: run.ended.take().or_else(|| stop.told.is_set().then_some(EndedEarly::Stopped)),
    })
}

fn resize(permits: &Semaphore, to: usize) {
    match to.checked_sub(permits.capacity()) {
        Some(more) => permits.add_permits(more),
        None => permits.reduce_permits(permits.capacity() - to).expect("there are as many"),
    }
}

/// How many requests the gate lets be under way at once, as far as it says.
fn concurrency(caller: &Caller) -> usize {
    let limits = caller.gate().stats().limits;
    let caps = limits.iter().filter(|limit| limit.dimension.is_none()).map(|limit| limit.amount);
    usize::try_from(caps.min().unwrap_or(200)).unwrap_or(usize::MAX)
}

/// Hands every request that has no result to a task of its own, until there are no more or the run is stopped.
async fn feed(run: &Rc<Run>, input: &Input, pool: &Pool, known: &Known, bad_lines: BadLines) -> Result<(), BatchError> {
    let opening = input.clone();
    // Opening a pipe and reading from it may wait for its writer for ever. In a pool of its own such a read holds up neither the
    // other jobs nor the end of the loop.
    let reader_thread = ThreadPool::builder().threads_max(1).name("tidegate-input").build();
    let opened = finished(reader_thread.run(move || opening.open()), input);
    let Some(opened) = unless_stopped(&run.stop, pin!(opened)).await else { return Ok(()) };
    let mut lines = Some(opened?);
    // A file has been checked; a stream, or a file with faults, is while it is read.
    let mut seen = run.progress.borrow().total.is_none().then(IdSet::default);
    let scope = Rc::new(run.caller.gate().unscoped().clone());
    loop {
        let Some(reader) = lines.take() else { return Ok(()) };
        let reading = finished(reader_thread.run(move || read(reader)), input);
        let Some(read) = unless_stopped(&run.stop, pin!(reading)).await else { return Ok(()) };
        let (reader, requests) = read?;
        if requests.is_empty() {
            return Ok(());
        }
        lines = Some(reader);
        for next in requests {
            let checked = next.and_then(|(line, request)| {
                let id = IdHash::of(&request.id);
                request.fits(run.caller.dialect()).map_err(|reason| BadLine { line, reason })?;
                match seen.as_mut().is_none_or(|seen| seen.insert(id)) {
                    true => Ok((id, request)),
                    false => Err(duplicate(line, &request.id)),
                }
            });
            let (id, request) = match checked {
                Ok(request) => request,
                Err(bad) if bad_lines == BadLines::Skip => {
                    run.count(|progress| progress.skipped += 1);
                    run.tell(&Event::Skipped(bad));
                    continue;
                }
                Err(bad) => {
                    run.end(EndedEarly::BadLine(bad));
                    return Ok(());
                }
            };
            if known.contains(id) {
                run.count(|progress| progress.already += 1);
                continue;
            }
            if request.format == Format::Gemini && run.model.is_none() {
                run.stop.stop();
                return Err(BatchError::NoModel);
            }
            run.count(|progress| progress.under_way += 1);
            let (asked, scope) = (run.clone(), scope.clone());
            let asking = async move {
                asked.asking.set(asked.asking.get() + 1);
                ask(&asked, scope, request).await;
                asked.asking.set(asked.asking.get() - 1);
                asked.end_if_all_refused();
            };
            if unless_stopped(&run.stop, pin!(pool.submit(asking))).await.is_none() {
                return Ok(());
            }
        }
    }
}

type Requests = Vec<Result<(u64, RequestLine), BadLine>>;

fn read(mut lines: Lines) -> io::Result<(Lines, Requests)> {
    let requests = lines.next_requests(READ_AHEAD)?;
    Ok((lines, requests))
}

async fn ask(run: &Run, scope: Rc<tidegate_limit::Scope>, request: RequestLine) {
    let RequestLine { format, id, url, body } = request;
    let dialect = run.caller.dialect();
    // Held until the result is on the disk.
    let mut unsaved = None;
    let outcome = match call_for(run, format, &url, body) {
        Ok(call) => {
            let read = |body: &[u8]| match check(dialect, &call.path, body) {
                Ok(()) => Ok(on_one_line(body)),
                Err(reason) => Err(Unreadable::Garbled(reason)),
            };
            run.caller.call_within(&scope, &call, read, Some(&run.unsaved)).await.map(|(reply, permit)| {
                unsaved = permit;
                Answered { status: reply.status, request_id: reply.request_id, body: reply.value, usage: reply.usage }
            })
        }
        Err(bad) => Err(bad.into()),
    };
    match run.judge(&outcome) {
        Verdict::Write => {}
        Verdict::WriteAndEnd(reason) => run.end(EndedEarly::Shut(reason)),
        Verdict::End(reason) => return run.end(EndedEarly::Shut(reason)),
        Verdict::Hold(reason) => {
            if !run.hold(reason).await {
                return;
            }
        }
        Verdict::Drop => return,
    }
    let event = match &outcome {
        Ok(answered) => Event::Answered { id: id.clone(), usage: answered.usage },
        Err(error) => Event::Failed { id: id.clone(), error: error.clone() },
    };
    let (line, written) = (result_line(format, &id, &outcome), Rc::new(Signal::new()));
    drop(outcome);
    // Closed, nothing more is written.
    if run.results.push(Finished { event, line, written: written.clone() }).await.is_ok() {
        written.wait().await;
    }
    drop(unsaved);
}

fn call_for(run: &Run, format: Format, url: &str, body: Vec<u8>) -> Result<Call, BadModel> {
    let dialect = run.caller.dialect();
    // It is an object: its line was read.
    let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = match (format, &run.model) {
        (Format::Gemini, Some(model)) => dialect.path(model)?,
        _ => path_below(run.caller.base_url(), url).to_owned(),
    };
    let (estimate, admitted_tokens) = estimate(dialect, &path, &parsed);
    let body = match (&run.model, format) {
        (Some(model), Format::OpenAi) => with_model(parsed, model),
        _ => body,
    };
    Ok(Call { admitted_tokens, ..Call::new(path, body.into(), estimate) })
}

/// Writes what there is, syncs it together, and only then says that it is done.
async fn write(run: Rc<Run>, sink: Sink) -> Result<(), ResultsError> {
    let mut sink = sink;
    while let Ok(finished) = run.results.recv_all().await {
        let lines: Vec<u8> = finished.iter().flat_map(|finished| &finished.line).copied().collect();
        let appended = to_thread(move || {
            let done = sink.append(&lines);
            (sink, done)
        })
        .await;
        let done = match appended {
            Ok((back, done)) => {
                sink = back;
                done.map_err(ResultsError::Io)
            }
            Err(error) => return Err(gone(&error)),
        };
        if done.is_err() {
            // Nothing that is asked from now on could be kept.
            run.results.close();
            run.stop.stop();
            let unwritten = std::iter::from_fn(|| run.results.try_recv().ok());
            finished.into_iter().chain(unwritten).for_each(|finished| finished.written.set());
            return done;
        }
        for Finished { event, written, .. } in finished {
            written.set();
            run.count(|progress| {
                progress.under_way = progress.under_way.saturating_sub(1);
                match &event {
                    Event::Answered { usage, .. } => {
                        progress.answered += 1;
                        progress.usage += usage.unwrap_or_default();
                    }
                    _ => progress.failed += 1,
                }
            });
            run.tell(&event);
        }
    }
    Ok(())
}

async fn finish(writer: JoinHandle<Result<(), ResultsError>>) -> Result<(), ResultsError> {
    writer.await.unwrap_or_else(|error| Err(gone(&error)))
}

fn gone(error: &dyn std::error::Error) -> ResultsError {
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

/// `future`'s output, or `None` once the run is stopped.
async fn unless_stopped<F: Future + Unpin>(stop: &Stop, mut future: F) -> Option<F::Output> {
    let mut told = pin!(stop.told.wait());
    poll_fn(|cx| {
        if told.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        pin!(&mut future).poll(cx).map(Some)
    })
    .await
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
        let short = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        costs.push(Tokens { input: short(estimate.input_tokens), output: short(estimate.output_tokens) });
    }
    Ok(costs)
}
