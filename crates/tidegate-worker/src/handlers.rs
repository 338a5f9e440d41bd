//! Handlers written in Rust: plain functions, registered by name, their arguments typed. Async ones run in coroutine mode,
//! blocking ones in thread mode.

use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::arguments::{Arguments, FromTask};
use crate::broker::{Local, TaskError};
use crate::context::TaskContext;
use crate::hash::QuickMap;
use crate::json;
use crate::outcome::Outcome;
use crate::task::Task;

/// Runs tasks of one name on the worker's loop. Functions need not implement it, see [`Handlers::task`]; what calls
/// something else does (a command, a URL).
pub trait Handler {
    /// One run. Dropped, the run is over: whatever it started must end.
    fn call(&self, task: Task, context: TaskContext) -> Local<'static, Result<Value, HandlerError>>;
}

/// Runs tasks of one name in a thread.
pub trait BlockingHandler: Send + Sync {
    /// One run, which may block.
    fn call(&self, task: Task, context: TaskContext) -> Result<Value, HandlerError>;
}

/// Why a handler did not do what it was asked. Any [`std::error::Error`] becomes [`Failed`](Self::Failed) by `?`.
///
/// ```
/// use tidegate_worker::HandlerError;
///
/// fn port(text: &str) -> Result<u16, HandlerError> {
///     Ok(text.parse()?)
/// }
///
/// let HandlerError::Failed(error) = port("eighty").unwrap_err() else { panic!() };
/// assert_eq!((error.kind.as_str(), error.message.as_str()), ("ParseIntError", "invalid digit found in string"));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HandlerError {
    /// It went wrong; tried again as far as the policy allows.
    Failed(TaskError),
    /// Again, please; after this long, or after the policy's back-off.
    Retry {
        /// When.
        after: Option<Duration>,
        /// Why.
        error: TaskError,
    },
    /// It can never work: to the dead letters at once.
    Rejected {
        /// Why.
        reason: String,
    },
    /// It came to an end because its soft limit was passed.
    SoftLimit,
}

impl HandlerError {
    /// A failure in words.
    pub fn failed(message: impl Into<String>) -> HandlerError {
        HandlerError::Failed(TaskError { kind: "Error".into(), message: message.into(), traceback: None })
    }

    /// Again after the policy's back-off.
    pub fn retry(message: impl Into<String>) -> HandlerError {
        let error = TaskError { kind: "Retry".into(), message: message.into(), traceback: None };
        HandlerError::Retry { after: None, error }
    }

    /// Again after this long.
    pub fn retry_after(after: Duration, message: impl Into<String>) -> HandlerError {
        let error = TaskError { kind: "Retry".into(), message: message.into(), traceback: None };
        HandlerError::Retry { after: Some(after), error }
    }

    /// Never again.
    pub fn rejected(reason: impl Into<String>) -> HandlerError {
        HandlerError::Rejected { reason: reason.into() }
    }

    pub(crate) fn into_outcome(self, soft_limit: Option<Duration>) -> Outcome {
        match self {
            HandlerError::Failed(error) => Outcome::Failure(error),
            HandlerError::Retry { after, error } => Outcome::Retry { after, error },
            HandlerError::Rejected { reason } => Outcome::Rejected { reason },
            HandlerError::SoftLimit => Outcome::TimedOut { limit: soft_limit.unwrap_or_default() },
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        let path = std::any::type_name::<E>();
        let plain = path.split('<').next().unwrap_or(path);
        let kind = plain.rsplit("::").next().unwrap_or(plain).to_owned();
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        HandlerError::Failed(TaskError { kind, message, traceback: None })
    }
}

/// The outcome of a run that panicked: the handler's failure, not the worker's.
pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Outcome {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let message = text.unwrap_or_else(|| "a panic without a message".to_owned());
    Outcome::Failure(TaskError { kind: "panic".into(), message, traceback: None })
}

pub(crate) fn outcome_of(answer: Result<Value, HandlerError>, soft_limit: Option<Duration>) -> Outcome {
    match answer {
        Ok(value) => Outcome::Success(value),
        Err(error) => error.into_outcome(soft_limit),
    }
}

/// An async function or closure whose parameters are a task's arguments: up to six that can be deserialised, and
/// [`TaskContext`] anywhere among them. `Marker` is the compiler's business.
pub trait TaskFn<Marker>: 'static {
    /// Takes the arguments apart and calls it.
    fn call(&self, arguments: Arguments) -> Local<'static, Result<Value, HandlerError>>;
}

/// A blocking function or closure; otherwise as [`TaskFn`].
pub trait BlockingTaskFn<Marker>: Send + Sync + 'static {
    /// Takes the arguments apart and calls it.
    fn call(&self, arguments: Arguments) -> Result<Value, HandlerError>;
}

macro_rules! task_fn {
    ($($parameter:ident),*) => {
        impl<F, Fut, T, E, $($parameter),*> TaskFn<(Fut, $($parameter,)*)> for F
        where
            F: Fn($($parameter),*) -> Fut + 'static,
            Fut: Future<Output = Result<T, E>> + 'static,
            T: Serialize,
            E: Into<HandlerError>,
            $($parameter: FromTask,)*
        {
            #[allow(non_snake_case, unused_mut, reason = "one macro for every number of parameters")]
            fn call(&self, mut arguments: Arguments) -> Local<'static, Result<Value, HandlerError>> {
                $(let $parameter = match arguments.take::<$parameter>() {
                    Ok(value) => value,
                    Err(reason) => return Box::pin(std::future::ready(Err(HandlerError::Rejected { reason }))),
                };)*
                if let Err(reason) = arguments.finish() {
                    return Box::pin(std::future::ready(Err(HandlerError::Rejected { reason })));
                }
                let future = self($($parameter),*);
                Box::pin(async move { answer(future.await) })
            }
        }

        impl<F, T, E, $($parameter),*> BlockingTaskFn<(T, $($parameter,)*)> for F
        where
            F: Fn($($parameter),*) -> Result<T, E> + Send + Sync + 'static,
            T: Serialize,
            E: Into<HandlerError>,
            $($parameter: FromTask,)*
        {
            #[allow(non_snake_case, unused_mut, reason = "one macro for every number of parameters")]
            fn call(&self, mut arguments: Arguments) -> Result<Value, HandlerError> {
                $(let $parameter = arguments.take::<$parameter>()
                    .map_err(|reason| HandlerError::Rejected { reason })?;)*
                arguments.finish().map_err(|reason| HandlerError::Rejected { reason })?;
                answer(self($($parameter),*))
            }
        }
    };
}

task_fn!();
task_fn!(A);
task_fn!(A, B);
task_fn!(A, B, C);
task_fn!(A, B, C, D);
task_fn!(A, B, C, D, G);
task_fn!(A, B, C, D, G, H);

fn answer<T: Serialize, E: Into<HandlerError>>(result: Result<T, E>) -> Result<Value, HandlerError> {
    let value = result.map_err(Into::into)?;
    json::to_value(&value)
        .map_err(|error| HandlerError::failed(format!("what it returned cannot be written as JSON: {error}")))
}

struct Function<F, M> {
    function: F,
    marker: std::marker::PhantomData<fn() -> M>,
}

impl<M: 'static, F: TaskFn<M>> Handler for Function<F, M> {
    fn call(&self, task: Task, context: TaskContext) -> Local<'static, Result<Value, HandlerError>> {
        self.function.call(Arguments::new(task, context))
    }
}

impl<M: 'static, F: BlockingTaskFn<M>> BlockingHandler for Function<F, M> {
    fn call(&self, task: Task, context: TaskContext) -> Result<Value, HandlerError> {
        self.function.call(Arguments::new(task, context))
    }
}

/// The handlers of coroutine mode, by name.
///
/// ```
/// use tidegate_worker::{HandlerError, Handlers};
///
/// async fn add(a: i64, b: i64) -> Result<i64, HandlerError> {
///     a.checked_add(b).ok_or_else(|| HandlerError::rejected("too large"))
/// }
///
/// let handlers = Handlers::new()
///     .task("math.add", add)
///     .task("ping", || async { Ok::<_, HandlerError>("pong") });
/// assert_eq!(handlers.names(), ["math.add", "ping"]);
/// ```
#[derive(Default, Clone)]
pub struct Handlers {
    by_name: QuickMap<Arc<str>, Rc<dyn Handler>>,
}

impl Handlers {
    /// None yet.
    pub fn new() -> Handlers {
        Handlers::default()
    }

    /// Adds an async function or closure. A second one of the same name takes the place of the first.
    #[must_use]
    pub fn task<M: 'static>(self, name: &str, function: impl TaskFn<M>) -> Handlers {
        self.handler(name, Rc::new(Function { function, marker: std::marker::PhantomData }))
    }

    /// Adds a handler of another kind.
    #[must_use]
    pub fn handler(mut self, name: &str, handler: Rc<dyn Handler>) -> Handlers {
        self.by_name.insert(name.into(), handler);
        self
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<String> {
        sorted(self.by_name.keys().map(|name| &**name))
    }

    pub(crate) fn get(&self, name: &str) -> Option<(&Arc<str>, &Rc<dyn Handler>)> {
        self.by_name.get_key_value(name)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handlers").field(&self.names()).finish()
    }
}

/// The handlers of thread mode, by name.
///
/// ```
/// use tidegate_worker::{BlockingHandlers, HandlerError};
///
/// fn lines(path: String) -> Result<usize, HandlerError> {
///     Ok(std::fs::read_to_string(path)?.lines().count())
/// }
///
/// assert_eq!(BlockingHandlers::new().task("lines", lines).names(), ["lines"]);
/// ```
#[derive(Default, Clone)]
pub struct BlockingHandlers {
    by_name: QuickMap<Box<str>, Arc<dyn BlockingHandler>>,
}

impl BlockingHandlers {
    /// None yet.
    pub fn new() -> BlockingHandlers {
        BlockingHandlers::default()
    }

    /// Adds a function or closure that may block. A second one of the same name takes the place of the first.
    #[must_use]
    pub fn task<M: 'static>(self, name: &str, function: impl BlockingTaskFn<M>) -> BlockingHandlers {
        self.handler(name, Arc::new(Function { function, marker: std::marker::PhantomData }))
    }

    /// Adds a handler of another kind.
    #[must_use]
    pub fn handler(mut self, name: &str, handler: Arc<dyn BlockingHandler>) -> BlockingHandlers {
        self.by_name.insert(name.into(), handler);
        self
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<String> {
        sorted(self.by_name.keys().map(|name| &**name))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn BlockingHandler>> {
        self.by_name.get(name)
    }
}

impl fmt::Debug for BlockingHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingHandlers").field(&self.names()).finish()
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}
