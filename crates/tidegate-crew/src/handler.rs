//! The worker's side: a question in a task, an answer in its result.

use std::rc::Rc;

use serde_json::Value;
use tidegate_batch::{Asked, CallError, Caller, Local, Parameters, Provider, Question, Remote};
use tidegate_limit::Admission;
use tidegate_worker::{Handler, HandlerError, Task, TaskContext};

use crate::form::{ARGUMENT, PageOutcome, PageResult, PageTask, Refusal, Server};

/// Whom a worker asks.
#[derive(Clone, Debug)]
pub enum Asks {
    /// A server, with the worker's key, within the worker's gate.
    Server(Caller),
    /// The offline provider, within a gate.
    Local(Admission),
}

impl Asks {
    /// The server that tasks have to name.
    #[must_use]
    pub fn server(&self) -> Server {
        match self {
            Asks::Server(caller) => {
                Server { provider: caller.dialect().name().into(), base_url: caller.base_url().into() }
            }
            Asks::Local(_) => Server { provider: "local".into(), base_url: String::new() },
        }
    }
}

/// What queued pages may ask of the worker's account. By default everything: tasks are trusted as far as the broker is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    models: Vec<String>,
    max_tokens: Option<u32>,
}

impl Allowed {
    /// Answers pages for these models only; every model if there are none.
    #[must_use]
    pub fn with_models(mut self, models: impl IntoIterator<Item = impl Into<String>>) -> Allowed {
        self.models = models.into_iter().map(Into::into).collect();
        self
    }

    /// Asks for at most this many output tokens per page, also for pages that state no maximum.
    #[must_use]
    pub fn with_max_tokens(mut self, max_tokens: u32) -> Allowed {
        self.max_tokens = Some(max_tokens);
        self
    }

    fn admits(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|allowed| allowed == model)
    }

    fn bound(&self, mut parameters: Parameters) -> Parameters {
        parameters.max_tokens = match (parameters.max_tokens, self.max_tokens) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        };
        parameters
    }
}

/// Answers pages that a [`Crew`](crate::Crew) asks about: a handler of the tasks called [`TASK`](crate::TASK).
///
/// What the server says of a page, good or bad, is the task's result; a task fails only if it is none.
#[derive(Clone, Debug)]
pub struct PageHandler {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    asks: Asks,
    server: Server,
    worker: String,
    allowed: Allowed,
}

impl PageHandler {
    /// A handler that asks there; `worker` is its name in results.
    #[must_use]
    pub fn new(asks: Asks, worker: impl Into<String>) -> PageHandler {
        PageHandler::with_allowed(asks, worker, Allowed::default())
    }

    /// The same, for pages within what is allowed; others are rejected before anything is sent.
    #[must_use]
    pub fn with_allowed(asks: Asks, worker: impl Into<String>, allowed: Allowed) -> PageHandler {
        let server = asks.server();
        PageHandler { inner: Rc::new(Inner { asks, server, worker: worker.into(), allowed }) }
    }

    /// Whom it asks.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.inner.server
    }
}

impl Handler for PageHandler {
    fn call(&self, task: Task, _: TaskContext) -> tidegate_worker::Local<'static, Result<Value, HandlerError>> {
        let inner = Rc::clone(&self.inner);
        Box::pin(async move { inner.answer(task).await })
    }
}

impl Inner {
    async fn answer(&self, mut task: Task) -> Result<Value, HandlerError> {
        let page = task.kwargs.remove(ARGUMENT).unwrap_or_default();
        let page: PageTask = serde_json::from_value(page)
            .map_err(|error| HandlerError::rejected(format!("this is no page to explain: {error}")))?;
        if page.server != self.server {
            return Err(HandlerError::rejected(format!(
                "the page is for {}, and worker {} asks {}; start workers for it, or use a queue of its own",
                page.server, self.worker, self.server
            )));
        }
        let parameters = self.allowed.bound(page.parameters());
        if !self.allowed.admits(&parameters.model) {
            return Err(HandlerError::rejected(format!(
                "the page is for model {:?}, and worker {} answers only for {}; start workers for that model, or use a queue of \
                 its own",
                parameters.model,
                self.worker,
                self.allowed.models.join(", ")
            )));
        }
        let question = page.into_question().map_err(HandlerError::rejected)?;
        let asked = match &self.asks {
            Asks::Local(gate) => ask(&Local::new(gate), gate, &question).await,
            Asks::Server(caller) => ask(&Remote::new(caller.clone(), parameters), caller.gate(), &question).await,
        };
        let (attempts, outcome) = match asked {
            Ok(Asked { answer, attempts, .. }) => (attempts, PageOutcome::Answer(answer)),
            // This worker's gate is closed; another worker can run the task.
            Err(CallError::Closed) => return Err(HandlerError::retry("this worker is stopping")),
            Err(error) => (attempts_of(&error), PageOutcome::Error(Refusal::of(&error))),
        };
        let result = PageResult { worker: self.worker.clone(), attempts, outcome };
        serde_json::to_value(result).map_err(Into::into)
    }
}

async fn ask(provider: &dyn Provider, gate: &Admission, question: &Question) -> Result<Asked, CallError> {
    provider.ask(&gate.unscoped().into(), question).await
}

fn attempts_of(error: &CallError) -> u32 {
    match error {
        CallError::Unavailable { attempts, .. } | CallError::Garbled { attempts, .. } => *attempts,
        CallError::TooLarge { .. } | CallError::BadModel { .. } => 0,
        _ => 1,
    }
}
