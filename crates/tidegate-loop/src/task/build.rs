//! How tasks are made.

use std::fmt::Display;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use super::join::JoinHandle;
use super::raw::{AnyValue, Judge, NoError, TaskRef, flag};
use crate::context::{ContextVars, Snapshot};
use crate::kernel::current;
use crate::kernel::{Kernel, RunState};
use crate::runtime::event_loop::LoopHandle;

/// Starts a task on the loop that is running. It takes its first step in the next tick.
///
/// # Panics
/// Outside of a running loop; use [`LoopHandle::spawn`] there.
///
/// ```
/// use tidegate_loop::{run, spawn};
/// run(async {
///     let doubled = spawn(async { 21 * 2 });
///     assert_eq!(doubled.await.unwrap(), 42);
/// })
/// .unwrap();
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let location = Location::caller();
    current::with(|kernel| {
        let kernel = kernel.expect("spawn needs a running loop: call it inside run(...), or use LoopHandle::spawn");
        spawn_on::<F, AnyValue>(kernel, future, location)
    })
}

/// Starts a task whose `Err` counts as a failure: it is reported if it is never fetched, and
/// [`wait`](crate::wait) and [`gather`](crate::gather) see it as an error.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{run, spawn_fallible, Outcome};
/// run(async {
///     let handle = spawn_fallible(async { "12x".parse::<u32>() });
///     assert_eq!(handle.task().finished().await, Outcome::Failed);
///     assert!(handle.await.unwrap().is_err());
/// })
/// .unwrap();
/// ```
#[track_caller]
pub fn spawn_fallible<F, T, E>(future: F) -> JoinHandle<Result<T, E>>
where
    F: Future<Output = Result<T, E>> + 'static,
    T: 'static,
    E: Display + 'static,
{
    let location = Location::caller();
    current::with(|kernel| {
        let kernel = kernel.expect("spawn_fallible needs a running loop: call it inside run(...)");
        spawn_on::<F, NoError>(kernel, future, location)
    })
}

#[inline]
pub(crate) fn spawn_on<F, J>(kernel: &Kernel, future: F, location: &'static Location<'static>) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    J: Judge<F::Output> + 'static,
{
    spawn_in::<F, J>(kernel, future, location, Snapshot::current())
}

/// Starts a task in the given context.
#[inline]
pub(crate) fn spawn_in<F, J>(
    kernel: &Kernel,
    future: F,
    location: &'static Location<'static>,
    context: Snapshot,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    J: Judge<F::Output> + 'static,
{
    JoinHandle::new(make::<F, J>(kernel, future, location, context, true))
}

#[inline]
fn make<F, J>(
    kernel: &Kernel,
    future: F,
    location: &'static Location<'static>,
    context: Snapshot,
    queued: bool,
) -> TaskRef
where
    F: Future + 'static,
    J: Judge<F::Output> + 'static,
{
    if kernel.state.get() == RunState::Closed {
        closed(location);
    }
    let task = kernel.insert_task::<F, J>(future, location, context, queued);
    if kernel.watch.is_on() {
        kernel.watch.created(kernel, &task);
        if queued {
            kernel.watch.woken(kernel, &task);
        }
    }
    task
}

#[cold]
fn closed(location: &Location<'_>) -> ! {
    panic!("spawn on a closed loop (at {location}): a closed loop runs nothing more, make a new one");
}

/// A task to be: a name, an eager start, a context of its own.
///
/// ```
/// use tidegate_loop::{run, LoopHandle};
/// run(async {
///     let handle = LoopHandle::current().task().name("greeter").eager().spawn(async { "hello" });
///     assert!(handle.is_finished()); // it never had to wait
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a builder makes nothing until spawn is called"]
pub struct TaskBuilder {
    pub(crate) handle: LoopHandle,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) eager: bool,
    pub(crate) context: Option<ContextVars>,
}

impl TaskBuilder {
    /// A name, for traces, dumps and reports.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let task = tidegate_loop::LoopHandle::current().task().name("n1").spawn(async {}).task();
    /// assert_eq!(&*task.name(), "n1");
    /// # }).unwrap();
    /// ```
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Takes the first step at once, inside of `spawn`, up to the first point where it waits. Only on the running
    /// loop; elsewhere the task starts in the next tick as usual.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// assert!(tidegate_loop::LoopHandle::current().task().eager().spawn(async {}).is_finished());
    /// # }).unwrap();
    /// ```
    pub fn eager(mut self) -> Self {
        self.eager = true;
        self
    }

    /// Runs in `context` itself rather than in a copy of the running one: what it sets can be read there.
    ///
    /// ```
    /// use tidegate_loop::{ContextVars, ContextVar, LoopHandle, run};
    /// static VAR: ContextVar<u32> = ContextVar::new("var");
    /// run(async {
    ///     let context = ContextVars::current();
    ///     LoopHandle::current().task().context(&context).spawn(async { drop(VAR.set(1)) }).await.unwrap();
    ///     assert_eq!(context.get(&VAR), Some(1));
    /// })
    /// .unwrap();
    /// ```
    pub fn context(mut self, context: &ContextVars) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Makes the task.
    ///
    /// # Panics
    /// On a closed loop.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let one = tidegate_loop::LoopHandle::current().task().spawn(async { 1 });
    /// assert_eq!(one.await.unwrap(), 1);
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        self.build::<F, AnyValue>(future, Location::caller())
    }

    /// Makes a task whose `Err` counts as a failure, see [`spawn_fallible`].
    ///
    /// # Panics
    /// On a closed loop.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let task = tidegate_loop::LoopHandle::current().task().spawn_fallible(async { Err::<(), _>("no") });
    /// assert_eq!(task.await.unwrap(), Err("no"));
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn spawn_fallible<F, T, E>(self, future: F) -> JoinHandle<Result<T, E>>
    where
        F: Future<Output = Result<T, E>> + 'static,
        T: 'static,
        E: Display + 'static,
    {
        self.build::<F, NoError>(future, Location::caller())
    }

    fn build<F, J>(self, future: F, location: &'static Location<'static>) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        J: Judge<F::Output> + 'static,
    {
        let kernel = &*self.handle.kernel;
        let context = if self.context.is_some() { Snapshot::default() } else { Snapshot::current() };
        let running_here = current::with(|current| current.is_some_and(|current| std::ptr::eq(current, kernel)));
        let eager = self.eager && running_here;
        let task = make::<F, J>(kernel, future, location, context, !eager);
        if let Some(name) = self.name {
            *task.extras_or_make().name.borrow_mut() = Some(name);
        }
        if let Some(context) = self.context {
            let fresh = task.extras_or_make().context.set(context.cell()).is_ok();
            debug_assert!(fresh, "a new task has no context yet");
            task.set(flag::IN_CONTEXT);
        }
        let name = task.name;
        let handle = JoinHandle::new(task);
        if eager {
            kernel.step_now(name);
        }
        handle
    }
}
