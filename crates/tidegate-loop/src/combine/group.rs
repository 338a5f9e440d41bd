//! Task groups: children that do not outlive the block that started them, and fail together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::rc::Rc;

use crate::deferred::Deferred;
use crate::runtime::event_loop::LoopHandle;
use crate::task::cancel::catch_cancel;
use crate::task::raw::Judge;
use crate::task::{JoinHandle, Outcome, Task, TaskId, spawn_on};

/// A group of tasks with one end. Children are started with [`spawn`](Self::spawn); the group ends when all of them
/// have. When one fails, the others and the body are cancelled, and the group's error is what they failed with.
///
/// ```
/// use tidegate_loop::{run, sleep, Duration, TaskGroup};
///
/// run(async {
///     let result = TaskGroup::scope(async |group| {
///         let page = group.spawn(async { Ok("page") }).unwrap();
///         group.spawn(async { sleep(Duration::from_millis(1)).await; Err::<(), _>("no ink") }).unwrap();
///         assert_eq!(page.await.unwrap(), Some("page"));
///         sleep(Duration::from_secs(60)).await; // cancelled when the other child fails
///         Ok(())
///     })
///     .await;
///     assert_eq!(result.unwrap_err().to_string(), "1 of the group's tasks failed: no ink");
/// })
/// .unwrap();
/// ```
pub struct TaskGroup<E: 'static> {
    shared: Rc<GroupShared<E>>,
}

struct GroupShared<E> {
    parent: Task,
    /// The children that have not ended, in the order they were spawned, which is the order they are cancelled in.
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    errors: RefCell<Vec<GroupFailure<E>>>,
    /// Errors of children whose done-callback has not run yet.
    raised: RefCell<BTreeMap<TaskId, E>>,
    aborting: Cell<bool>,
    exiting: Cell<bool>,
    parent_cancelled: Cell<bool>,
    all_ended: RefCell<Option<Deferred<()>>>,
}

/// A child of a group that has no value has failed.
struct HasValue;

impl<T> Judge<Option<T>> for HasValue {
    fn is_failure(output: &Option<T>) -> bool {
        output.is_none()
    }

    fn failure(output: &Option<T>) -> Option<String> {
        output.is_none().then(|| "failed; its group has the error".to_owned())
    }
}

impl<E: 'static> TaskGroup<E> {
    /// Runs `body` with a new group and waits for all of its children.
    ///
    /// # Errors
    /// What children and body failed with. If the task is cancelled from outside, the children are cancelled, and the
    /// cancellation goes on when they have ended. If one of them failed, its error is returned instead, and the
    /// cancellation arrives at the next wait.
    ///
    /// # Cancel safety
    /// Dropped, the children go on by themselves. Cancel the task instead.
    ///
    /// # Panics
    /// Outside of a task.
    ///
    /// ```
    /// use tidegate_loop::{run, TaskGroup};
    /// run(async {
    ///     let sum = TaskGroup::<()>::scope(async |group| {
    ///         let parts = [1, 2, 3].map(|n| group.spawn(async move { Ok(n) }).unwrap());
    ///         let mut sum = 0;
    ///         for part in parts {
    ///             sum += part.await.unwrap().unwrap();
    ///         }
    ///         Ok(sum)
    ///     });
    ///     assert_eq!(sum.await.unwrap(), 6);
    /// })
    /// .unwrap();
    /// ```
    pub async fn scope<T>(body: impl AsyncFnOnce(&TaskGroup<E>) -> Result<T, E>) -> Result<T, GroupError<E>> {
        let group = TaskGroup {
            shared: Rc::new(GroupShared {
                parent: Task::current(),
                tasks: RefCell::default(),
                errors: RefCell::default(),
                raised: RefCell::default(),
                aborting: Cell::new(false),
                exiting: Cell::new(false),
                parent_cancelled: Cell::new(false),
                all_ended: RefCell::default(),
            }),
        };
        let outcome = catch_cancel(body(&group)).await;
        group.shared.exit(outcome).await
    }

    /// Starts a child. Its handle yields the child's value, or `None` if it failed: the error is the group's.
    ///
    /// # Errors
    /// [`GroupClosed`] when the group has ended or is shutting down because of an error.
    ///
    /// ```
    /// use tidegate_loop::{run, TaskGroup};
    /// run(async {
    ///     TaskGroup::<()>::scope(async |group| {
    ///         assert_eq!(group.spawn(async { Ok(1) }).unwrap().await.unwrap(), Some(1));
    ///         Ok(())
    ///     })
    ///     .await
    ///     .unwrap();
    /// })
    /// .unwrap();
    /// ```
    #[track_caller]
    pub fn spawn<T: 'static>(
        &self,
        child: impl Future<Output = Result<T, E>> + 'static,
    ) -> Result<JoinHandle<Option<T>>, GroupClosed> {
        let shared = &self.shared;
        if shared.aborting.get() || (shared.exiting.get() && shared.tasks.borrow().is_empty()) {
            return Err(GroupClosed);
        }
        let group = shared.clone();
        let wrapped = async move {
            match child.await {
                Ok(value) => Some(value),
                Err(error) => {
                    group.raised.borrow_mut().insert(Task::current().id(), error);
                    None
                }
            }
        };
        let kernel = LoopHandle::current().kernel;
        let handle = spawn_on::<_, HasValue>(&kernel, wrapped, Location::caller());
        let task = handle.task();
        shared.tasks.borrow_mut().insert(task.id(), task.clone());
        let group = shared.clone();
        task.add_done_callback(move |task| group.one_ended(task));
        Ok(handle)
    }
}

impl<E> Clone for TaskGroup<E> {
    fn clone(&self) -> Self {
        TaskGroup { shared: self.shared.clone() }
    }
}

impl<E: 'static> GroupShared<E> {
    fn one_ended(&self, task: &Task) {
        self.tasks.borrow_mut().remove(&task.id());
        if self.tasks.borrow().is_empty()
            && let Some(all_ended) = &*self.all_ended.borrow()
        {
            drop(all_ended.set_result(()));
        }
        let failure = match task.outcome() {
            Some(Outcome::Failed) => self.raised.borrow_mut().remove(&task.id()).map(GroupFailure::Failed),
            Some(Outcome::Panicked) => Some(GroupFailure::Panicked(task.error().unwrap_or_default())),
            _ => None,
        };
        let Some(failure) = failure else { return };
        // The group has it: no report.
        task.error();
        self.errors.borrow_mut().push(failure);
        if !self.aborting.get() && !self.parent_cancelled.get() && !self.parent.is_finished() {
            self.abort();
            self.parent_cancelled.set(true);
            self.parent.cancel();
        }
    }

    fn abort(&self) {
        self.aborting.set(true);
        let tasks: Vec<Task> = self.tasks.borrow().values().cloned().collect();
        for task in tasks {
            task.cancel();
        }
    }

    async fn exit<T>(&self, outcome: Result<Result<T, E>, crate::Cancelled>) -> Result<T, GroupError<E>> {
        self.exiting.set(true);
        let mut cancelled = outcome.as_ref().err().copied();
        if !matches!(outcome, Ok(Ok(_))) && !self.aborting.get() {
            self.abort();
        }
        // More than once: a second request can arrive while the children clean up.
        while !self.tasks.borrow().is_empty() {
            let all_ended = LoopHandle::current().create_future();
            *self.all_ended.borrow_mut() = Some(all_ended.clone());
            if let Err(request) = catch_cancel(all_ended.into_future()).await
                && !self.aborting.get()
            {
                cancelled = Some(request);
                self.abort();
            }
            *self.all_ended.borrow_mut() = None;
        }
        // The group withdraws its own request; what is left was requested from outside.
        if self.parent_cancelled.get() && self.parent.uncancel() == 0 {
            cancelled = None;
        }
        let mut errors = self.errors.take();
        if let (Some(request), true) = (cancelled, errors.is_empty()) {
            request.propagate().await;
        }
        let output = match outcome {
            Ok(Ok(output)) => Some(output),
            Ok(Err(error)) => {
                errors.push(GroupFailure::Failed(error));
                None
            }
            Err(_) => None,
        };
        if !errors.is_empty() {
            // A request from outside that gave way to the errors still has to arrive: it is made again.
            if self.parent.cancelling() > 0 {
                self.parent.uncancel();
                self.parent.cancel();
            }
            return Err(GroupError { failures: errors });
        }
        Ok(output.expect("without an output there is an error or a cancellation"))
    }
}

impl<E> fmt::Debug for TaskGroup<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskGroup").field("tasks", &self.shared.tasks.borrow().len()).finish_non_exhaustive()
    }
}

/// The group takes no more tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupClosed;

impl fmt::Display for GroupClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task group has ended or is shutting down after an error")
    }
}

impl std::error::Error for GroupClosed {}

/// What one task of a group failed with.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupFailure<E> {
    /// Its error.
    Failed(E),
    /// What it panicked with.
    Panicked(String),
}

/// What the tasks of a group failed with, in the order they did.
#[derive(Debug)]
pub struct GroupError<E> {
    /// At least one.
    pub failures: Vec<GroupFailure<E>>,
}

impl<E: fmt::Display> fmt::Display for GroupError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the group's tasks failed: ", self.failures.len())?;
        for (at, failure) in self.failures.iter().enumerate() {
            let separator = if at > 0 { "; " } else { "" };
            match failure {
                GroupFailure::Failed(error) => write!(f, "{separator}{error}")?,
                GroupFailure::Panicked(message) => write!(f, "{separator}panicked: {message}")?,
            }
        }
        Ok(())
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for GroupError<E> {}
