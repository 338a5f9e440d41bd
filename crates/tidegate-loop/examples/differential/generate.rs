//! Programs from seeds: the same seed, the same program.
//!
//! Each program draws a handful of features first and uses only those ("swarm testing"): with all of them in every
//! program, few would meet often enough to interfere. Delays are short and places few, so that deadlines collide,
//! cancellations hit waits, and several things happen in one tick.

use crate::program::{
    Action, Block, Callback, Ending, Handler, Kind, Limit, Mode, Place, Places, Program, Start, Stmt, Ticks,
};

/// What the oracle's CPython does as 3.13 does. Older ones have faults since mended; what these touch is not drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// 3.12: starting eagerly, and `gather` of tasks that are done, and `wait_for` that cannot lose a cancellation.
    eager: bool,
    gather: bool,
    wait_for: bool,
    /// 3.13: groups that keep the count of requests, and `uncancel` that withdraws a request not yet delivered.
    group: bool,
    self_cancel: bool,
}

impl Abilities {
    /// Of CPython 3.`minor`.
    pub(crate) fn of(minor: u32) -> Abilities {
        let (since_12, since_13) = (minor >= 12, minor >= 13);
        Abilities { eager: since_12, gather: since_12, wait_for: since_12, group: since_13, self_cancel: since_13 }
    }
}

/// SplitMix64: one multiplication chain a number, good enough to draw programs from.
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

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// One of the choices, in proportion to the weights beside them.
    fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let mut left = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for &(weight, choice) in choices {
            if left < weight {
                return choice;
            }
            left -= weight;
        }
        unreachable!("the weights sum to more than what was drawn")
    }
}

/// The parts of the language that a program may use or leave alone.
#[derive(Clone, Copy)]
struct Features {
    futures: bool,
    soon: bool,
    timers: bool,
    cancel: bool,
    catch: bool,
    self_cancel: bool,
    wait: bool,
    gather: bool,
    shield: bool,
    timeout: bool,
    wait_for: bool,
    group: bool,
    as_completed: bool,
    done_callbacks: bool,
    context: bool,
    errors: bool,
    eager: bool,
    calls: bool,
    fail: bool,
    /// Stops and interrupts, which a runner answers.
    leave: bool,
}

impl Features {
    fn draw(rng: &mut Rng, abilities: Abilities) -> Self {
        Features {
            futures: rng.chance(55),
            soon: rng.chance(40),
            timers: rng.chance(40),
            cancel: rng.chance(80),
            catch: rng.chance(65),
            self_cancel: rng.chance(30) && abilities.self_cancel,
            wait: rng.chance(40),
            gather: rng.chance(40) && abilities.gather,
            shield: rng.chance(35),
            timeout: rng.chance(45),
            wait_for: rng.chance(35) && abilities.wait_for,
            group: rng.chance(40) && abilities.group,
            as_completed: rng.chance(30),
            done_callbacks: rng.chance(40),
            context: rng.chance(30),
            errors: rng.chance(60),
            eager: rng.chance(25) && abilities.eager,
            calls: rng.chance(40),
            fail: rng.chance(10),
            leave: rng.chance(25),
        }
    }
}

/// Draws the program of that seed.
pub(crate) fn generate(seed: u64, abilities: Abilities) -> Program {
    let mut rng = Rng(seed);
    let mut features = Features::draw(&mut rng, abilities);
    let places = Places {
        tasks: rng.between(3, 6),
        futures: rng.between(1, 3),
        handles: rng.between(1, 3),
        marks: rng.between(1, 2),
        tokens: rng.between(1, 2),
        contexts: 1,
        groups: rng.between(1, 2),
    };
    let ending = rng.one_of(&[Ending::CancelRest, Ending::LetRestFinish, Ending::CloseRunner, Ending::RunTwice]);
    features.leave &= ending.is_runner();
    let watched = rng.chance(50);
    let body_count = rng.between(3, 6);
    let mut generator = Generator { rng, features, places, body_count, body: 0, labels: 0, places_filled: 0 };
    let bodies = (0..body_count).map(|number| generator.body(number)).collect();
    Program { seed, ending, watched, shows_vars: features.context, places, bodies }
}

/// What surrounds the statement being drawn.
#[derive(Clone, Copy, Default)]
struct Scope {
    depth: usize,
    in_timeout: bool,
    in_handler: bool,
}

impl Scope {
    fn deeper(self) -> Self {
        Scope { depth: self.depth + 1, ..self }
    }
}

struct Generator {
    rng: Rng,
    features: Features,
    places: Places,
    body_count: usize,
    /// The body being drawn; it may start and call only those behind it.
    body: usize,
    labels: usize,
    /// Places of tasks that main fills before anything else: references prefer them.
    places_filled: usize,
}

/// The sorts of statement, for the draw.
#[derive(Clone, Copy)]
enum Sort {
    Act,
    Sleep,
    Yield,
    AwaitTask,
    Join,
    AwaitFuture,
    AwaitSelf,
    Call,
    Wait,
    Gather,
    Shield,
    WaitFor,
    AsCompleted,
    Timeout,
    Reschedule,
    Group,
    Try,
    Raise,
    Return,
}

/// The sorts of action, for the draw.
#[derive(Clone, Copy)]
enum Deed {
    Spawn,
    GroupSpawn,
    Cancel,
    CancelSelf,
    Uncancel,
    UncancelTask,
    ShowTask,
    NewFuture,
    SetResult,
    SetError,
    CancelFuture,
    ShowFuture,
    CallSoon,
    CallLater,
    CallAt,
    CancelHandle,
    OnTaskDone,
    OnFutureDone,
    RemoveCallback,
    SetVar,
    GetVar,
    ResetVar,
    CopyContext,
    Fail,
    Stop,
    Interrupt,
}

impl Generator {
    fn body(&mut self, number: usize) -> Block {
        self.body = number;
        let mut stmts = Block::new();
        if number == 0 {
            for place in 0..self.rng.between(2, self.places.tasks) {
                let body = self.later_body();
                let start = self.start();
                stmts.push(Stmt::Do(Action::Spawn { place, body, start }));
                self.places_filled = place + 1;
            }
        }
        let length = if number == 0 { self.rng.between(4, 9) } else { self.rng.between(2, 6) };
        self.extend(&mut stmts, length, Scope::default());
        if self.rng.chance(60) {
            stmts.push(Stmt::Return(self.value()));
        }
        stmts
    }

    fn extend(&mut self, stmts: &mut Block, length: usize, scope: Scope) {
        for _ in 0..length {
            self.statement(stmts, scope);
        }
    }

    fn block(&mut self, low: usize, high: usize, scope: Scope) -> Block {
        let mut stmts = Block::new();
        let length = self.rng.between(low, high);
        self.extend(&mut stmts, length, scope);
        stmts
    }

    fn statement(&mut self, stmts: &mut Block, scope: Scope) {
        let may_spawn = self.body + 1 < self.body_count;
        let compound = scope.depth < 3;
        let f = self.features;
        let on = |wanted: bool, weight: usize| if wanted { weight } else { 0 };
        // The last body can spawn nothing to wait for, and finds what there is claimed by others.
        let claims = |wanted: bool, weight: usize| on(wanted, if may_spawn { weight } else { 2 });
        let sort = self.rng.weighted(&[
            (30, Sort::Act),
            (14, Sort::Sleep),
            (7, Sort::Yield),
            (6, Sort::AwaitTask),
            (6, Sort::Join),
            (on(f.futures, 8), Sort::AwaitFuture),
            (on(f.errors && scope.depth > 0, 1), Sort::AwaitSelf),
            (on(f.calls && may_spawn, 6), Sort::Call),
            (on(f.wait, 7), Sort::Wait),
            (claims(f.gather, 7), Sort::Gather),
            (claims(f.shield, 6), Sort::Shield),
            (claims(f.wait_for, 7), Sort::WaitFor),
            (claims(f.as_completed, 6), Sort::AsCompleted),
            (on(f.timeout && compound, 10), Sort::Timeout),
            (on(f.timeout && scope.in_timeout, 8), Sort::Reschedule),
            (on(f.group && compound && may_spawn, 8), Sort::Group),
            (on(f.catch && compound, 12), Sort::Try),
            (on(f.errors && (self.body > 0 || scope.depth > 0), 3), Sort::Raise),
            (1, Sort::Return),
        ]);
        let stmt = self.draw(sort, stmts, scope);
        let waits = !matches!(sort, Sort::Act | Sort::Reschedule | Sort::Try | Sort::Return);
        let stmt = if waits && self.body == 0 && scope.depth == 0 && self.rng.chance(50) {
            // Main survives what its children do to it often enough to get to its later statements.
            Stmt::Try {
                body: vec![stmt],
                handlers: vec![Handler { catches: Kind::Everything, body: Block::new() }],
                finally: None,
            }
        } else if f.catch && waits && compound && self.rng.chance(20) {
            self.guarded(vec![stmt], scope)
        } else {
            stmt
        };
        let reset = match &stmt {
            Stmt::Do(Action::SetVar { token, .. }) if self.rng.chance(50) => Some(*token),
            _ => None,
        };
        stmts.push(stmt);
        if let Some(token) = reset {
            if self.rng.chance(60) {
                stmts.push(Stmt::Yield);
            }
            stmts.push(Stmt::Do(Action::ResetVar(token)));
        }
    }

    /// Draws one statement of that sort; what it needs before it (tasks to wait for) goes to `stmts`.
    fn draw(&mut self, sort: Sort, stmts: &mut Block, scope: Scope) -> Stmt {
        match sort {
            Sort::Act => Stmt::Do(self.action(true, 0)),
            Sort::Sleep => Stmt::Sleep(self.delay()),
            Sort::Yield => Stmt::Yield,
            Sort::AwaitTask => Stmt::AwaitTask(self.task()),
            Sort::Join => Stmt::Join(self.task()),
            Sort::AwaitFuture => Stmt::AwaitFuture(self.future()),
            Sort::AwaitSelf => Stmt::AwaitSelf,
            Sort::Call => Stmt::Call(self.later_body()),
            Sort::Wait => Stmt::Wait {
                tasks: self.tasks(stmts, 0),
                mode: self.rng.one_of(&[Mode::FirstCompleted, Mode::FirstException, Mode::All]),
                limit: self.rng.chance(40).then(|| self.delay()),
            },
            Sort::Gather => Stmt::Gather { tasks: self.tasks(stmts, 0), keep_errors: self.rng.chance(50) },
            Sort::Shield => Stmt::Shield(self.tasks(stmts, 1)[0]),
            Sort::WaitFor => Stmt::WaitFor { task: self.tasks(stmts, 1)[0], limit: self.delay() },
            Sort::AsCompleted => Stmt::AsCompleted { tasks: self.tasks(stmts, 0), take: self.rng.between(1, 4) },
            Sort::Timeout => {
                let limit = self.limit();
                let movable = limit == Limit::Never || self.rng.chance(50);
                let inner = Scope { in_timeout: movable, ..scope.deeper() };
                let mut body = Block::new();
                if self.features.self_cancel && self.features.catch && self.rng.chance(25) {
                    // A request from inside, before the first wait: the time-out must not take it for its own.
                    body.push(Stmt::Do(Action::CancelSelf));
                    let wait = self.block(1, 1, inner);
                    body.push(self.guarded(wait, inner));
                }
                body.extend(self.block(1, 4, inner));
                Stmt::Timeout { limit, movable, body }
            }
            Sort::Reschedule => Stmt::Reschedule(self.limit()),
            Sort::Group => {
                let group = self.rng.below(self.places.groups);
                let mut body = Block::new();
                for _ in 0..self.rng.between(1, 3) {
                    body.push(Stmt::Do(self.group_spawn(group)));
                }
                body.extend(self.block(0, 3, scope.deeper()));
                Stmt::Group { place: group, body }
            }
            Sort::Try => {
                let body = self.block(1, 3, scope.deeper());
                self.guarded(body, scope)
            }
            Sort::Raise => Stmt::Raise(self.value()),
            Sort::Return if scope.in_handler => Stmt::Reraise,
            Sort::Return => Stmt::Return(self.value()),
        }
    }

    /// `body` inside a `try` with handlers, a `finally`, or both.
    fn guarded(&mut self, body: Block, scope: Scope) -> Stmt {
        let mut handlers = Vec::new();
        let inner = Scope { in_handler: true, ..scope.deeper() };
        if self.rng.chance(75) {
            handlers.push(self.handler(Kind::Cancelled, inner));
        }
        if self.features.errors && self.rng.chance(40) {
            let kind = self.rng.one_of(&[Kind::Error, Kind::Timeout, Kind::Group, Kind::Exception, Kind::Exception]);
            handlers.push(self.handler(kind, inner));
        }
        if handlers.is_empty() {
            let kind = self.rng.one_of(&[Kind::Timeout, Kind::Exception, Kind::Everything]);
            handlers.push(self.handler(kind, inner));
        }
        let finally = self.rng.chance(20).then(|| self.block(1, 2, Scope { in_handler: false, ..inner }));
        Stmt::Try { body, handlers, finally }
    }

    fn handler(&mut self, catches: Kind, scope: Scope) -> Handler {
        let mut body = self.block(0, 2, Scope { depth: scope.depth + 1, ..scope });
        if catches == Kind::Cancelled && self.features.self_cancel && self.rng.chance(40) {
            body.push(Stmt::Do(Action::Uncancel));
        }
        match self.rng.below(100) {
            0..35 => {}
            35..65 => body.push(Stmt::Reraise),
            65..80 => body.push(Stmt::Return(self.value())),
            _ if self.features.errors => body.push(Stmt::Raise(self.value())),
            _ => {}
        }
        Handler { catches, body }
    }

    /// An action; `in_task` says whether a coroutine acts, `depth` how many callbacks lie around it.
    fn action(&mut self, in_task: bool, depth: usize) -> Action {
        let f = self.features;
        let on = |wanted: bool, weight: usize| if wanted { weight } else { 0 };
        let may_spawn = self.body + 1 < self.body_count;
        let nest = depth < 2;
        let deed = self.rng.weighted(&[
            (on(may_spawn, 9), Deed::Spawn),
            (on(f.cancel, 14), Deed::Cancel),
            (on(f.group && may_spawn, 5), Deed::GroupSpawn),
            (on(f.self_cancel && in_task, 7), Deed::CancelSelf),
            (on(f.self_cancel && in_task, 3), Deed::Uncancel),
            (on(f.self_cancel && f.cancel, 4), Deed::UncancelTask),
            (2, Deed::ShowTask),
            (on(f.futures, 4), Deed::NewFuture),
            (on(f.futures, 7), Deed::SetResult),
            (on(f.futures && f.errors, 4), Deed::SetError),
            (on(f.futures && f.cancel, 4), Deed::CancelFuture),
            (on(f.futures, 1), Deed::ShowFuture),
            (on(f.soon && nest, 8), Deed::CallSoon),
            (on(f.timers && nest, 7), Deed::CallLater),
            (on(f.timers && nest, 3), Deed::CallAt),
            (on(f.soon || f.timers, 4), Deed::CancelHandle),
            (on(f.done_callbacks && nest, 7), Deed::OnTaskDone),
            (on(f.done_callbacks && f.futures && nest, 5), Deed::OnFutureDone),
            (on(f.done_callbacks, 3), Deed::RemoveCallback),
            (on(f.context, 8), Deed::SetVar),
            (on(f.context, 8), Deed::GetVar),
            (on(f.context, 6), Deed::ResetVar),
            (on(f.context, 4), Deed::CopyContext),
            (on(f.fail && !in_task, 5), Deed::Fail),
            (on(f.leave, 2), Deed::Stop),
            (on(f.leave && !in_task, 4), Deed::Interrupt),
        ]);
        match deed {
            Deed::Spawn => {
                let start = self.start();
                Action::Spawn { place: self.task_place(), body: self.later_body(), start }
            }
            Deed::GroupSpawn => {
                let group = self.rng.below(self.places.groups);
                self.group_spawn(group)
            }
            Deed::Cancel => Action::Cancel(self.task()),
            Deed::CancelSelf => Action::CancelSelf,
            Deed::Uncancel => Action::Uncancel,
            Deed::UncancelTask => Action::UncancelTask(self.task()),
            Deed::ShowTask => Action::ShowTask(self.task()),
            Deed::NewFuture => Action::NewFuture(self.future()),
            Deed::SetResult => Action::SetResult(self.future(), self.value()),
            Deed::SetError => Action::SetError(self.future(), self.value()),
            Deed::CancelFuture => Action::CancelFuture(self.future()),
            Deed::ShowFuture => Action::ShowFuture(self.future()),
            Deed::CallSoon => Action::CallSoon { place: self.handle(), callback: self.callback(depth) },
            Deed::CallLater => {
                let delay = if self.rng.chance(10) { -self.delay() } else { self.delay() };
                Action::CallLater { place: self.handle(), delay, callback: self.callback(depth) }
            }
            Deed::CallAt => {
                let when = self.rng.below(12) as Ticks;
                Action::CallAt { place: self.handle(), when, callback: self.callback(depth) }
            }
            Deed::CancelHandle => Action::CancelHandle(self.handle()),
            Deed::OnTaskDone => {
                Action::OnTaskDone { mark: self.mark(), task: self.task(), callback: self.callback(depth) }
            }
            Deed::OnFutureDone => {
                Action::OnFutureDone { mark: self.mark(), future: self.future(), callback: self.callback(depth) }
            }
            Deed::RemoveCallback => Action::RemoveCallback(self.mark()),
            Deed::SetVar => Action::SetVar { var: self.rng.below(2), value: self.value(), token: self.token() },
            Deed::GetVar => Action::GetVar(self.rng.below(2)),
            Deed::ResetVar => Action::ResetVar(self.token()),
            Deed::CopyContext => Action::CopyContext(0),
            Deed::Fail => Action::Fail(self.value()),
            Deed::Stop => Action::Stop,
            Deed::Interrupt => Action::Interrupt,
        }
    }

    fn callback(&mut self, depth: usize) -> Callback {
        self.labels += 1;
        let label = self.labels;
        let count = self.rng.between(0, 2);
        Callback { label, actions: (0..count).map(|_| self.action(false, depth + 1)).collect() }
    }

    fn start(&mut self) -> Start {
        match self.rng.below(100) {
            0..40 if self.features.eager => Start::Eager,
            40..60 if self.features.context => Start::Inside(0),
            _ => Start::Queued,
        }
    }

    /// Tasks to wait for; half the time they are spawned for the purpose. `exactly` 0 means one to three, rarely none.
    fn tasks(&mut self, stmts: &mut Block, exactly: usize) -> Vec<Place> {
        let count = if exactly > 0 { exactly } else { self.rng.weighted(&[(1, 0), (8, 1), (16, 2), (10, 3)]) };
        let fresh = self.body + 1 < self.body_count && self.rng.chance(75);
        let first = self.task_place();
        let mut places: Vec<Place> = (0..count).map(|step| (first + step) % self.places.tasks).collect();
        places.dedup();
        if fresh {
            for &place in &places {
                let start = self.start();
                stmts.push(Stmt::Do(Action::Spawn { place, body: self.later_body(), start }));
            }
            if self.features.cancel && self.rng.chance(15) {
                stmts.push(Stmt::Do(Action::Cancel(places.first().copied().unwrap_or(0))));
            }
        }
        places
    }

    fn group_spawn(&mut self, group: Place) -> Action {
        Action::GroupSpawn { group, place: self.task_place(), body: self.later_body() }
    }

    fn later_body(&mut self) -> usize {
        self.rng.between(self.body + 1, self.body_count - 1)
    }

    fn limit(&mut self) -> Limit {
        match self.rng.below(100) {
            0..72 => Limit::In(self.delay()),
            72..90 => Limit::At(self.rng.below(10) as Ticks),
            _ => Limit::Never,
        }
    }

    fn delay(&mut self) -> Ticks {
        self.rng.weighted(&[(2, 0), (5, 1), (5, 2), (4, 3), (2, 4), (1, 5), (1, 8)])
    }

    fn value(&mut self) -> i64 {
        self.rng.below(10) as i64
    }

    fn task(&mut self) -> Place {
        if self.rng.chance(80) { self.rng.below(self.places_filled.max(1)) } else { self.task_place() }
    }

    fn task_place(&mut self) -> Place {
        self.rng.below(self.places.tasks)
    }

    fn future(&mut self) -> Place {
        self.rng.below(self.places.futures)
    }

    fn handle(&mut self) -> Place {
        self.rng.below(self.places.handles)
    }

    fn mark(&mut self) -> Place {
        self.rng.below(self.places.marks)
    }

    fn token(&mut self) -> Place {
        self.rng.below(self.places.tokens)
    }
}
