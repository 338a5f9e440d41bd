//! The programs that both loops run: a small language of coroutines over numbered things.
//!
//! A program owns a fixed number of *places* of each sort (tasks, settable futures, handles, done-callback marks,
//! context tokens); statements refer to them by number. A place may be empty when it is used: both interpreters then
//! write `none` and go on. A task has one claim on its result (tidegate's join handle); `Join`, `Shield`, `Gather`,
//! `WaitFor`, `AsCompleted` and `AwaitSelf` need it and pass over tasks whose claim is in use. CPython knows no
//! such thing, but its interpreter keeps the same account, so that both choose the same tasks. Nothing loops and a body starts or calls only bodies behind itself, so every program ends.

use serde::{Deserialize, Serialize};

/// Ticks of virtual time; one is 1/512 s, which a float and a count of nanoseconds both hold exactly.
pub(crate) type Ticks = i64;
/// The number of a place: a task, a future, a handle, …
pub(crate) type Place = usize;
/// Statements run one after the other.
pub(crate) type Block = Vec<Stmt>;

/// A whole program. `bodies[0]` is the main coroutine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) ending: Ending,
    /// An observer counts the turns of the loop, and the transcript has them beside the time. Half of the programs run
    /// without: an observed loop takes other code paths.
    pub(crate) watched: bool,
    /// Whatever begins to run says what the context variables are to it.
    pub(crate) shows_vars: bool,
    pub(crate) places: Places,
    pub(crate) bodies: Vec<Block>,
}

/// How many places of each sort the program has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Places {
    pub(crate) tasks: usize,
    pub(crate) futures: usize,
    pub(crate) handles: usize,
    pub(crate) marks: usize,
    pub(crate) tokens: usize,
    pub(crate) contexts: usize,
    pub(crate) groups: usize,
}

/// What becomes of the tasks that are left when main is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// They are cancelled at once, in the order they were spawned.
    CancelRest,
    /// They run until nothing is due any more; what still waits then is cancelled.
    LetRestFinish,
    /// Main is run by a `Runner`, which then closes.
    CloseRunner,
    /// Body 1 is run by the same `Runner`, too, before it closes.
    RunTwice,
}

impl Ending {
    pub(crate) fn is_runner(self) -> bool {
        matches!(self, Ending::CloseRunner | Ending::RunTwice)
    }
}

/// What a coroutine does; each statement writes what came of it to the transcript.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Stmt {
    Do(Action),
    Sleep(Ticks),
    Yield,
    /// Awaits a task through its `Task`, which any number of tasks may do.
    AwaitTask(Place),
    /// Awaits a task through its join handle, of which there is one.
    Join(Place),
    AwaitFuture(Place),
    AwaitSelf,
    /// Awaits another body as a plain coroutine, without a task of its own.
    Call(usize),
    Wait {
        tasks: Vec<Place>,
        mode: Mode,
        limit: Option<Ticks>,
    },
    Gather {
        tasks: Vec<Place>,
        keep_errors: bool,
    },
    Shield(Place),
    WaitFor {
        task: Place,
        limit: Ticks,
    },
    /// Takes at most `take` results in the order of completion.
    AsCompleted {
        tasks: Vec<Place>,
        take: usize,
    },
    Timeout {
        limit: Limit,
        /// Whether `Reschedule` may move it (in tidegate another type).
        movable: bool,
        body: Block,
    },
    /// Moves the deadline of the nearest enclosing `Timeout` of this coroutine.
    Reschedule(Limit),
    Group {
        place: Place,
        body: Block,
    },
    Try {
        body: Block,
        handlers: Vec<Handler>,
        finally: Option<Block>,
    },
    Raise(i64),
    /// Raises again what the nearest enclosing handler caught.
    Reraise,
    Return(i64),
}

/// What never suspends: allowed in coroutines and in callbacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    Spawn {
        place: Place,
        body: usize,
        start: Start,
    },
    /// Spawns into a group, which may have ended.
    GroupSpawn {
        group: Place,
        place: Place,
        body: usize,
    },
    Cancel(Place),
    CancelSelf,
    Uncancel,
    /// Withdraws a request made to another task.
    UncancelTask(Place),
    ShowTask(Place),
    NewFuture(Place),
    SetResult(Place, i64),
    SetError(Place, i64),
    CancelFuture(Place),
    ShowFuture(Place),
    CallSoon {
        place: Place,
        callback: Callback,
    },
    CallLater {
        place: Place,
        delay: Ticks,
        callback: Callback,
    },
    CallAt {
        place: Place,
        when: Ticks,
        callback: Callback,
    },
    CancelHandle(Place),
    OnTaskDone {
        mark: Place,
        task: Place,
        callback: Callback,
    },
    OnFutureDone {
        mark: Place,
        future: Place,
        callback: Callback,
    },
    RemoveCallback(Place),
    SetVar {
        var: usize,
        value: i64,
        token: Place,
    },
    GetVar(usize),
    ResetVar(Place),
    /// Keeps a copy of the current context, for `Start::Inside`.
    CopyContext(Place),
    /// Fails where it stands; only in callbacks, whose failures go to the loop's exception handler.
    Fail(i64),
    /// Stops the loop after this tick; only under a `Runner`.
    Stop,
    /// Leaves the loop as Python's KeyboardInterrupt does; only in callbacks under a `Runner`.
    Interrupt,
}

/// How a task is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    Queued,
    /// Runs up to its first suspension inside the spawning call (CPython 3.12+).
    Eager,
    /// Runs in a context kept by `CopyContext` instead of a copy of the current one.
    Inside(Place),
}

/// Something the loop calls; the label names it in the transcript.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Callback {
    pub(crate) label: usize,
    pub(crate) actions: Vec<Action>,
}

/// The three modes of `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    FirstCompleted,
    FirstException,
    All,
}

/// When a time-out strikes: after a number of ticks, at a tick (which may have passed), or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Limit {
    In(Ticks),
    At(Ticks),
    Never,
}

/// One `except` clause. It swallows unless its block ends in a raise, a re-raise or a return.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handler {
    pub(crate) catches: Kind,
    pub(crate) body: Block,
}

/// What a handler catches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Cancelled,
    Timeout,
    Error,
    Group,
    /// Python's `except Exception`: everything but a cancellation.
    Exception,
    /// Python's `except BaseException`.
    Everything,
}
