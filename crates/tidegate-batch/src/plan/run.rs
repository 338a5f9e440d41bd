//! The job on a virtual loop: as many workers as may be on their way, and one more, so that there is always somebody in
//! line and the gate knows what the job waits for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, Dimension, EnterError, Gate, Limit, LoopTimer, Scope};
use tidegate_loop::{EventLoop, LoopHandle, sleep, spawn};
use tidegate_sync::Semaphore;

use super::timeline::Timeline;
use super::{Bound, Job, PER_FILE, Part, Plan, PlanError, Tokens};

/// Beyond this many, more requests on their way at once change nothing but the memory they take.
const WORKERS_MAX: u64 = 100_000;

pub(super) fn run(job: Job) -> Result<Plan, PlanError> {
    if let Some(part) = job.parts.iter().find(|part| part.cap == 0) {
        return Err(PlanError::Cap(part.name.clone()));
    }
    let event_loop = EventLoop::builder().virtual_time().build();
    let event_loop = event_loop.map_err(|error| PlanError::Run(error.to_string()))?;
    event_loop.run_until_complete(simulate(job)).map_err(|error| PlanError::Run(error.to_string()))?
}

/// What all workers share.
struct Shared {
    gate: Gate,
    /// Whether prompts and answers are limited apart.
    apart: bool,
    latency: RefCell<Box<dyn FnMut(Tokens) -> Duration>>,
    tally: RefCell<Tally>,
}

#[derive(Default)]
struct Tally {
    answered: u64,
    tokens_in: u64,
    tokens_out: u64,
    too_large: u64,
    too_large_for: Option<(String, u64)>,
    last: Option<Instant>,
}

async fn simulate(job: Job) -> Result<Plan, PlanError> {
    let timer = LoopTimer::new().virtual_start(job.starts);
    let counted = |limit: &Limit| limit.rated().map(|(dimension, _)| dimension);
    let apart = [Dimension::INPUT_TOKENS, Dimension::OUTPUT_TOKENS].map(Some);
    let apart = job.limits.iter().any(|limit| apart.contains(&counted(limit)));
    let gate = Gate::builder().limits(job.limits).timer(timer).build().map_err(PlanError::Limits)?;
    let shared =
        Rc::new(Shared { gate: gate.clone(), apart, latency: RefCell::new(job.latency), tally: RefCell::default() });
    let began = LoopHandle::current().time();
    let timeline = Rc::new(RefCell::new(Timeline::new(began)));
    let watcher = spawn(watch(shared.clone(), timeline.clone()));

    let places = Rc::new(Semaphore::new(job.parts_at_once.min(job.parts.len()).max(1)));
    let parts: Vec<_> =
        job.parts.into_iter().map(|part| spawn(work_through(part, shared.clone(), places.clone()))).collect();
    for part in parts {
        // Nobody cancels them, and a panic in one is a panic of the plan.
        part.await.expect("a part comes to its end");
    }
    watcher.cancel();

    let tally = shared.tally.take();
    let duration = tally.last.map_or(Duration::ZERO, |last| last - began);
    let stats = gate.stats();
    timeline.borrow_mut().sample(began + duration, &stats, tally.answered);
    let mut bound: Vec<(String, Duration)> =
        stats.limits.iter().map(|limit| (limit.name.clone(), limit.blocked_for)).collect();
    bound.push((PER_FILE.to_owned(), stats.blocked_by_scopes_for));
    bound.retain(|(_, waited)| !waited.is_zero());
    bound.sort_by_key(|(_, waited)| std::cmp::Reverse(*waited));
    let share = |waited: Duration| waited.as_secs_f64() / duration.as_secs_f64().max(f64::MIN_POSITIVE);
    let million = |tokens: u64| tokens as f64 / 1e6;
    Ok(Plan {
        duration,
        answered: tally.answered,
        too_large: tally.too_large,
        too_large_for: tally.too_large_for,
        tokens_in: tally.tokens_in,
        tokens_out: tally.tokens_out,
        cost: job.prices.map(|p| p.input * million(tally.tokens_in) + p.output * million(tally.tokens_out)),
        in_flight_peak: stats.peak,
        bound: bound
            .into_iter()
            .map(|(limit, waited)| Bound { limit, waited, share: share(waited).min(1.0) })
            .collect(),
        timeline: timeline.take().into_slices(),
    })
}

async fn work_through(part: Part, shared: Rc<Shared>, places: Rc<Semaphore>) {
    let _place = places.acquire().await.expect("never closed");
    let scope = shared.gate.scope(part.name, part.cap);
    let scope = Rc::new(scope);
    let mut workers = Vec::new();
    for (requests, at_once) in [(part.requests, part.cap.saturating_add(1))].into_iter().chain(part.pictures) {
        let count = requests.count().min(at_once).min(WORKERS_MAX);
        let (requests, next) = (Rc::new(requests), Rc::new(Cell::new(0)));
        workers.extend((0..count).map(|_| {
            let (shared, scope, requests, next) = (shared.clone(), scope.clone(), requests.clone(), next.clone());
            spawn(async move {
                while let Some(tokens) = requests.get(next.replace(next.get() + 1)) {
                    ask(&shared, &scope, tokens).await;
                }
            })
        }));
    }
    for worker in workers {
        worker.await.expect("a worker comes to its end");
    }
}

async fn ask(shared: &Shared, scope: &Scope, tokens: Tokens) {
    let (input, output) = (u64::from(tokens.input), u64::from(tokens.output));
    let mut cost = Cost::tokens(input + output);
    if shared.apart {
        cost = cost.and(Dimension::INPUT_TOKENS, input).and(Dimension::OUTPUT_TOKENS, output);
    }
    let mut lease = match shared.gate.enter(scope, cost).await {
        Ok(lease) => lease,
        Err(error) => {
            let mut tally = shared.tally.borrow_mut();
            tally.too_large += 1;
            if let (None, EnterError::TooLarge { limit, capacity, .. }) = (&tally.too_large_for, error) {
                tally.too_large_for = Some((limit.to_string(), capacity));
            }
            return;
        }
    };
    lease.sent();
    let latency = (shared.latency.borrow_mut())(tokens);
    sleep(latency).await;
    drop(lease);
    let mut tally = shared.tally.borrow_mut();
    tally.answered += 1;
    tally.tokens_in += u64::from(tokens.input);
    tally.tokens_out += u64::from(tokens.output);
    tally.last = Some(LoopHandle::current().time());
}

/// Looks now and then; the longer it takes, the less often.
async fn watch(shared: Rc<Shared>, timeline: Rc<RefCell<Timeline>>) {
    loop {
        let step = timeline.borrow().step();
        sleep(step).await;
        let answered = shared.tally.borrow().answered;
        let now = LoopHandle::current().time();
        timeline.borrow_mut().sample(now, &shared.gate.stats(), answered);
    }
}
