//! What is to be enqueued: from the options, or from a line of JSON with the options as its defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use tidegate_worker::codec::{celery, dramatiq, native};
use tidegate_worker::{Envelope, Task, TaskId, Unique, json};

use crate::span::{instant, span};

use super::{Args, Codec};

#[derive(Debug, Clone)]
pub(super) struct Order {
    codec: Codec,
    pub(super) task: Option<String>,
    pub(super) id: Option<String>,
    queue: String,
    args: Vec<Value>,
    kwargs: Map<String, Value>,
    countdown: Option<Duration>,
    eta: Option<Timestamp>,
    priority: u8,
    expires: Option<Duration>,
    unique: Option<String>,
    unique_for: Duration,
    soft_limit: Option<Duration>,
    hard_limit: Option<Duration>,
    headers: BTreeMap<String, Value>,
}

/// A line as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task: Option<String>,
    id: Option<String>,
    queue: Option<String>,
    args: Option<Vec<Value>>,
    kwargs: Option<Map<String, Value>>,
    countdown: Option<Span>,
    eta: Option<Value>,
    priority: Option<u8>,
    expires: Option<Span>,
    unique: Option<String>,
    unique_for: Option<Span>,
    soft_limit: Option<Span>,
    hard_limit: Option<Span>,
    headers: Option<BTreeMap<String, Value>>,
}

/// Seconds, or as on the command line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Span {
    Seconds(f64),
    Text(String),
}

impl Span {
    fn read(&self, name: &str) -> anyhow::Result<Duration> {
        match self {
            Span::Text(text) => span(text).with_context(|| format!("\"{name}\"")),
            Span::Seconds(seconds) => Duration::try_from_secs_f64(*seconds)
                .map_err(|_| anyhow!("\"{name}\" must be seconds from zero on, not {seconds}")),
        }
    }
}

impl Order {
    pub(super) fn of(args: Args) -> anyhow::Result<Order> {
        Ok(Order {
            codec: args.codec,
            task: None,
            id: args.id,
            queue: args.queue,
            args: args.args.as_deref().map(super::array).transpose()?.unwrap_or_default(),
            kwargs: args.kwargs.as_deref().map(super::object).transpose()?.unwrap_or_default(),
            countdown: args.countdown,
            eta: args.eta,
            priority: args.priority,
            expires: args.expires,
            unique: args.unique,
            unique_for: args.unique_for,
            soft_limit: args.soft_limit,
            hard_limit: args.hard_limit,
            headers: BTreeMap::new(),
        })
    }

    /// A line of JSON, completed from this order.
    pub(super) fn line(&self, text: &str) -> anyhow::Result<Order> {
        let line: Line = json::from_slice(text.as_bytes()).map_err(|error| anyhow!("no task: {error}"))?;
        let read = |name, span: &Option<Span>| span.as_ref().map(|span| span.read(name)).transpose();
        let eta = match &line.eta {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(instant(text).context("\"eta\"")?),
            Some(other) => Some(instant(&other.to_string()).context("\"eta\"")?),
        };
        let countdown = read("countdown", &line.countdown)?;
        if eta.is_some() && countdown.is_some() {
            bail!("\"eta\" and \"countdown\" exclude each other");
        }
        // A line that says when knows better than the options, whichever way it says so.
        let timed = eta.is_some() || countdown.is_some();
        Ok(Order {
            codec: self.codec,
            task: line.task.or_else(|| self.task.clone()),
            id: line.id,
            queue: line.queue.unwrap_or_else(|| self.queue.clone()),
            args: line.args.unwrap_or_else(|| self.args.clone()),
            kwargs: line.kwargs.unwrap_or_else(|| self.kwargs.clone()),
            countdown: if timed { countdown } else { self.countdown },
            eta: if timed { eta } else { self.eta },
            priority: line.priority.unwrap_or(self.priority),
            expires: read("expires", &line.expires)?.or(self.expires),
            unique: line.unique.or_else(|| self.unique.clone()),
            unique_for: read("unique_for", &line.unique_for)?.unwrap_or(self.unique_for),
            soft_limit: read("soft_limit", &line.soft_limit)?.or(self.soft_limit),
            hard_limit: read("hard_limit", &line.hard_limit)?.or(self.hard_limit),
            headers: line.headers.unwrap_or_default(),
        })
    }

    pub(super) fn envelope(self, now: Timestamp) -> anyhow::Result<Envelope> {
        let Some(name) = self.task.filter(|name| !name.is_empty()) else { bail!("no task: its name is missing") };
        if self.soft_limit.zip(self.hard_limit).is_some_and(|(soft, hard)| soft >= hard) {
            bail!("task {name}: the soft limit must be below the hard one");
        }
        let mut task = Task::new(&name);
        if let Some(id) = self.id {
            task.id = TaskId::from(id.as_str());
        }
        (task.args, task.kwargs) = (self.args, self.kwargs);
        (task.soft_limit, task.hard_limit) = (nonzero(self.soft_limit), nonzero(self.hard_limit));
        let later =
            |span: Duration| now.checked_add(span).map_err(|_| anyhow!("{span:?} from now is beyond every calendar"));
        let eta = self.countdown.map(later).transpose()?.or(self.eta);
        let expires = self.expires.map(later).transpose()?;
        let mut envelope = match self.codec {
            Codec::Native => Envelope::of(&task, &self.queue, native::encode(&task)),
            Codec::Celery => {
                let extras = celery::Extras { eta, expires, priority: self.priority, ..celery::Extras::default() };
                celery::encode(&task, &self.queue, &extras)
            }
            // It waits in the broker, not in the delay queue that dramatiq's workers read into their memory.
            Codec::Dramatiq => {
                let envelope = dramatiq::encode(&task, &self.queue, None, now);
                match (expires, dramatiq::read(&envelope)) {
                    (Some(at), Ok(message)) => message.expiring(at).envelope(),
                    _ => envelope,
                }
            }
        };
        (envelope.priority, envelope.eta, envelope.expires) = (self.priority, eta, expires);
        envelope.unique = self.unique.map(|key| Unique { key, hold: self.unique_for, past_settle: false });
        envelope.headers.extend(self.headers);
        Ok(envelope)
    }
}

/// No limit at all.
fn nonzero(limit: Option<Duration>) -> Option<Duration> {
    limit.filter(|limit| !limit.is_zero())
}
