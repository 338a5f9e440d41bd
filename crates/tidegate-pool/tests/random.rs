//! Random programs against a pool, in virtual time and in many orders of equally ready tasks. What must hold is looked
//! at after every single step of the loop, against a model that knows nothing of how the pool decides.
//!
//! A failure prints its seed; `TIDEGATE_SEED=<seed>` runs that one alone.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::panic;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use tidegate_loop::{Duration, LoopEvent, LoopHandle, Observer, explore, sleep, spawn, yield_now};
use tidegate_pool::{JoinError, JoinHandle, Pool, Promise, SubmitError, Watermarks};

const SEEDS: u64 = 400;
const OPERATIONS: usize = 120;

/// SplitMix64: small, seeded, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// What the model knows: what was asked of the pool, and what its tasks and submitters saw themselves.
struct World {
    pool: Pool,
    cap: Cell<usize>,
    marks: Cell<Option<Watermarks>>,
    above_high: Cell<bool>,
    paused: Cell<bool>,
    closed: Cell<bool>,
    /// Tasks between their first step and their last drop.
    inside: Cell<usize>,
    running_before: Cell<usize>,
    /// The submitters in line, in order.
    line: RefCell<Vec<Rc<Waiting>>>,
    /// Changes to the limits so far: each may wake a submitter and take the slot back before that is polled.
    changes: Cell<usize>,
    steps: Cell<usize>,
    /// As many owners as there are futures that have been made and not dropped, and the world itself.
    alive: Rc<()>,
    /// Promises that were made, and those that were settled or came back.
    promised: Cell<usize>,
    kept: Cell<usize>,
    /// A slot was free before what its task held was gone. Told in a destructor, where a panic would go unseen.
    freed_early: Cell<bool>,
}

struct Waiting {
    woken: Arc<Woken>,
    changes_before: usize,
}

impl World {
    fn limit(&self) -> usize {
        if self.paused.get() || self.closed.get() || self.above_high.get() {
            return 0;
        }
        self.marks.get().map_or(self.cap.get(), |marks| marks.high.min(self.cap.get()))
    }

    /// After every step of the loop.
    fn check(&self) {
        self.steps.set(self.steps.get() + 1);
        let stats = self.pool.stats();
        let ended = stats.completed + stats.failed + stats.cancelled;
        assert_eq!(stats.submitted, stats.running as u64 + ended, "a task is not accounted for");
        assert!(self.inside.get() <= stats.running, "{} inside, {} slots taken", self.inside.get(), stats.running);

        assert!(!self.freed_early.get(), "a slot was free before what its task held was gone");

        let before = self.running_before.replace(stats.running);
        if stats.running > before {
            assert_eq!(stats.running, before + 1, "a step starts one task");
            assert!(stats.running <= self.limit(), "{} run, and {} may", stats.running, self.limit());
        }
        if let Some(marks) = self.marks.get() {
            if stats.running >= marks.high {
                self.above_high.set(true);
            } else if stats.running <= marks.low {
                self.above_high.set(false);
            }
        }

        let line = self.line.borrow();
        assert_eq!(stats.waiting, line.len());
        let woken = line.iter().filter(|waiting| waiting.woken.flag.load(SeqCst)).count();
        if woken < line.len() {
            assert!(!self.closed.get(), "a submitter waits for a closed pool");
            assert!(
                stats.running + woken >= self.limit(),
                "a slot idles: {stats:?}, {woken} woken, {} may",
                self.limit()
            );
        }
        for waiting in line.iter() {
            let allowed = 1 + self.changes.get() - waiting.changes_before;
            assert!(waiting.woken.times.load(SeqCst) <= allowed, "woken for nothing");
        }
    }

    /// A submitter in line starts: all before it must have slots kept for them as well.
    fn check_turn(&self, at: usize) {
        let running = self.pool.stats().running;
        assert!(running + at <= self.limit(), "{at} came before, {running} run, {} may", self.limit());
    }

    /// A pool closes once; whatever is asked of it afterwards changes nothing.
    fn close(&self, close: impl FnOnce(&Pool)) {
        self.closed.set(true);
        self.change(close);
    }

    fn change(&self, change: impl FnOnce(&Pool)) {
        self.changes.set(self.changes.get() + 1);
        change(&self.pool);
    }
}

struct EveryStep(Rc<World>);

impl Observer for EveryStep {
    fn observe(&mut self, _at: Duration, event: &LoopEvent<'_>) {
        if matches!(event, LoopEvent::StepEnded { .. }) {
            self.0.check();
        }
    }
}

/// Notes that it was woken, and passes it on.
struct Woken {
    flag: AtomicBool,
    times: AtomicUsize,
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, SeqCst);
        self.times.fetch_add(1, SeqCst);
        self.task.wake_by_ref();
    }
}

/// A submission that the model follows.
struct Followed<F> {
    world: Rc<World>,
    submission: Pin<Box<F>>,
    place: Option<Rc<Waiting>>,
}

impl<F> Followed<F> {
    fn leave(&mut self) -> Option<usize> {
        let place = self.place.take()?;
        let mut line = self.world.line.borrow_mut();
        let at = line.iter().position(|waiting| Rc::ptr_eq(waiting, &place)).expect("in line");
        line.remove(at);
        Some(at)
    }
}

impl<F: Future> Future for Followed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let woken = match &this.place {
            Some(place) => Arc::clone(&place.woken),
            None => {
                Arc::new(Woken { flag: AtomicBool::new(false), times: AtomicUsize::new(0), task: cx.waker().clone() })
            }
        };
        woken.flag.store(false, SeqCst);
        let waker = Waker::from(Arc::clone(&woken));
        let polled = this.submission.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            if let Some(at) = this.leave()
                && !this.world.closed.get()
            {
                this.world.check_turn(at);
            }
        } else if this.place.is_none() {
            let place = Rc::new(Waiting { woken, changes_before: this.world.changes.get() });
            this.world.line.borrow_mut().push(Rc::clone(&place));
            this.place = Some(place);
        }
        polled
    }
}

impl<F> Drop for Followed<F> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Counts itself inside from its first step until it is dropped.
struct Inside(Rc<World>);

impl Inside {
    fn new(world: &Rc<World>) -> Inside {
        world.inside.set(world.inside.get() + 1);
        Inside(Rc::clone(world))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        if self.0.inside.get() >= self.0.pool.stats().running {
            self.0.freed_early.set(true);
        }
    }
}

#[derive(Clone, Copy)]
struct Plan {
    yields: usize,
    micros: u64,
    end: End,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Returns,
    Panics,
    Stays,
}

impl Plan {
    fn random(rng: &mut Rng) -> Plan {
        let end = match rng.below(10) {
            0 | 1 => End::Panics,
            2 => End::Stays,
            _ => End::Returns,
        };
        Plan { yields: rng.below(4), micros: rng.below(3) as u64 * 50, end }
    }
}

/// A task that holds something until it is dropped itself, though it has returned before.
struct Task<F> {
    body: Pin<Box<F>>,
    world: Rc<World>,
    inside: Option<Inside>,
    _alive: Rc<()>,
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.inside.is_none() {
            self.inside = Some(Inside::new(&self.world));
        }
        self.body.as_mut().poll(cx)
    }
}

fn task(world: &Rc<World>, plan: Plan) -> impl Future<Output = ()> + use<> {
    let body = async move {
        for _ in 0..plan.yields {
            yield_now().await;
        }
        if plan.micros > 0 {
            sleep(Duration::from_micros(plan.micros)).await;
        }
        match plan.end {
            End::Returns => {}
            End::Panics => panic::resume_unwind(Box::new("on purpose")), // without the hook's noise
            End::Stays => pending().await,
        }
    };
    Task { body: Box::pin(body), world: Rc::clone(world), inside: None, _alive: Rc::clone(&world.alive) }
}

/// Counts that it is settled.
struct Counted(Rc<World>);

impl Counted {
    fn new(world: &Rc<World>) -> Counted {
        world.promised.set(world.promised.get() + 1);
        Counted(Rc::clone(world))
    }

    fn keep(self) {
        self.0.kept.set(self.0.kept.get() + 1);
    }
}

impl Promise<()> for Counted {
    fn settle(self, _result: Result<(), JoinError>) {
        self.keep();
    }
}

fn submitter(
    world: &Rc<World>,
    handles: &Rc<RefCell<Vec<JoinHandle<()>>>>,
    plan: Plan,
    promise: bool,
) -> impl Future<Output = ()> + use<> {
    let (world, handles) = (Rc::clone(world), Rc::clone(handles));
    async move {
        let pool = world.pool.clone();
        let future = task(&world, plan);
        let handle = if promise {
            let submission = Box::pin(pool.submit_to(Counted::new(&world), future));
            let submitted = Followed { world: Rc::clone(&world), submission, place: None }.await;
            submitted.map_err(|SubmitError((promise, future))| {
                promise.keep();
                future
            })
        } else {
            let submission = Box::pin(pool.submit(future));
            let submitted = Followed { world: Rc::clone(&world), submission, place: None }.await;
            submitted.map_err(|SubmitError(future)| future)
        };
        match handle {
            Ok(handle) => handles.borrow_mut().push(handle),
            Err(_future) => assert!(world.closed.get(), "refused by an open pool"),
        }
    }
}

fn some_marks(rng: &mut Rng) -> Option<Watermarks> {
    let low = rng.below(4);
    (rng.below(3) > 0).then(|| Watermarks { high: low + 1 + rng.below(4), low })
}

async fn one_program(seed: u64) {
    let mut rng = Rng(seed);
    let cap = rng.below(6);
    let world = Rc::new(World {
        pool: Pool::new(cap),
        cap: Cell::new(cap),
        marks: Cell::default(),
        above_high: Cell::default(),
        paused: Cell::default(),
        closed: Cell::default(),
        inside: Cell::default(),
        running_before: Cell::default(),
        line: RefCell::default(),
        changes: Cell::default(),
        steps: Cell::default(),
        alive: Rc::default(),
        promised: Cell::default(),
        kept: Cell::default(),
        freed_early: Cell::default(),
    });
    LoopHandle::current().set_observer(EveryStep(Rc::clone(&world)));
    yield_now().await; // the step that sets an observer is not observed
    let handles = Rc::new(RefCell::new(Vec::new()));
    let mut submitters = Vec::new();
    for _ in 0..OPERATIONS {
        operate(&mut rng, &world, &handles, &mut submitters);
        if rng.below(3) > 0 {
            sleep(Duration::from_micros(rng.below(40) as u64)).await;
        }
        yield_now().await; // the model looks at one operation at a time
    }
    finish(&mut rng, &world, &handles, submitters).await;
    assert!(world.steps.get() > OPERATIONS, "nobody looked");
}

fn operate(
    rng: &mut Rng,
    world: &Rc<World>,
    handles: &Rc<RefCell<Vec<JoinHandle<()>>>>,
    submitters: &mut Vec<tidegate_loop::JoinHandle<()>>,
) {
    match rng.below(17) {
        0..=6 => {
            let (plan, promise) = (Plan::random(rng), rng.below(4) == 0);
            submitters.push(spawn(submitter(world, handles, plan, promise)));
        }
        7 => {
            let before = world.line.borrow().iter().any(|waiting| !waiting.woken.flag.load(SeqCst));
            if let Ok(handle) = world.pool.try_submit(task(world, Plan::random(rng))) {
                assert!(!before, "it passed a submitter in line");
                assert!(!world.closed.get(), "the pool is closed");
                handles.borrow_mut().push(handle);
            }
        }
        8 if !submitters.is_empty() => {
            submitters[rng.below(submitters.len())].cancel();
        }
        9 | 10 if !handles.borrow().is_empty() => {
            let handles = handles.borrow();
            handles[rng.below(handles.len())].cancel();
        }
        11 if !handles.borrow().is_empty() => {
            let at = rng.below(handles.borrow().len());
            let detached = handles.borrow_mut().swap_remove(at);
            // One that stays for ever would keep the program from ending.
            detached.cancel();
            drop(detached);
        }
        12 | 13 => {
            world.cap.set(rng.below(6));
            world.change(|pool| pool.resize(world.cap.get()));
        }
        14 => {
            world.paused.set(!world.paused.get());
            world.change(|pool| if world.paused.get() { pool.pause() } else { pool.resume() });
        }
        15 => {
            let marks = some_marks(rng);
            world.marks.set(marks);
            world.above_high.set(marks.is_some_and(|marks| world.pool.stats().running >= marks.high));
            world.change(|pool| pool.set_watermarks(marks));
        }
        // In about half of the programs, and they go on after it.
        16 if rng.below(12) == 0 => match rng.below(2) {
            0 => world.close(|pool| drop(pool.close())),
            _ => world.close(|pool| drop(pool.abort())),
        },
        _ => {}
    }
}

/// Ends in one of three ways, and leaves nothing behind.
async fn finish(
    rng: &mut Rng,
    world: &Rc<World>,
    handles: &Rc<RefCell<Vec<JoinHandle<()>>>>,
    submitters: Vec<tidegate_loop::JoinHandle<()>>,
) {
    let cancel_all = || handles.borrow().iter().for_each(|handle| _ = handle.cancel());
    match rng.below(3) {
        // All submitters in line are started.
        0 => {
            world.paused.set(false);
            world.marks.set(None);
            world.above_high.set(false);
            world.cap.set(3);
            world.change(Pool::resume);
            world.change(|pool| pool.set_watermarks(None));
            world.change(|pool| pool.resize(3));
            while submitters.iter().any(|submitter| !submitter.is_finished()) {
                cancel_all();
                sleep(Duration::from_micros(100)).await;
            }
            cancel_all();
            world.closed.set(true);
            world.pool.close().await;
        }
        1 => {
            world.closed.set(true);
            let drained = world.pool.close();
            cancel_all();
            drained.await;
        }
        _ => {
            world.closed.set(true);
            world.pool.abort().await;
        }
    }
    for submitter in submitters {
        if let Err(tidegate_loop::JoinError::Panicked(panic)) = submitter.await {
            panic.resume(); // an assertion in it failed
        }
    }
    let stats = world.pool.stats();
    assert_eq!((stats.running, stats.waiting, world.inside.get()), (0, 0, 0), "{stats:?}");
    assert_eq!(Rc::strong_count(&world.alive), 1, "a future was never dropped");
    assert_eq!(world.kept.get(), world.promised.get(), "a promise was not kept, or twice");
    idle(world).await;
}

/// With nothing to do the loop does nothing.
async fn idle(world: &World) {
    let before = world.steps.get();
    sleep(Duration::from_secs(3600)).await;
    assert!(world.steps.get() - before <= 2, "{} steps in an idle hour", world.steps.get() - before);
}

#[test]
fn random_schedules_keep_the_bound_and_the_order_and_leak_nothing() {
    explore(0..SEEDS, one_program);
}
