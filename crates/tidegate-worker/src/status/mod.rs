//! `/metrics` and `/healthz`: what the worker knows about itself, for those who watch it.

mod page;
mod snapshot;
mod token;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use tidegate_http::local;
use tidegate_loop::{LoopHandle, OnLoop};

use crate::broker::QueueStats;
use crate::master::{Control, MasterHandle};
use crate::metrics::{PREFIX, Text, escaped};
use crate::phase::Phase;
pub use page::MetricsPage;
use snapshot::Snapshots;
pub use token::{BadStatusToken, StatusToken};

/// How long tasks may wait while nothing is received and nothing runs before that is called unhealthy.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// How long a broker may answer errors before that is called unhealthy.
const FAILING_AFTER: Duration = Duration::from_secs(30);

/// What both pages answer from.
struct Pages {
    control: Rc<Control>,
    snapshots: Snapshots,
    token: Option<StatusToken>,
}

impl MasterHandle {
    /// The two pages: `/metrics` in Prometheus's text format, `/healthz` as JSON with status 200 or 503. Serve it with
    /// [`tidegate_http::serve`] on the loop the worker runs on.
    ///
    /// Figures of the worker are those of the moment. Figures of the queues are from a snapshot that is at most five
    /// seconds old: requests share it, so any number of them costs the broker one inspection.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn router(&self) -> Router {
        self.pages(None)
    }

    /// The same pages, for requests that bring the token; others get status 401.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn router_with_token(&self, token: StatusToken) -> Router {
        self.pages(Some(token))
    }

    fn pages(&self, token: Option<StatusToken>) -> Router {
        let snapshots = Snapshots::new(Rc::clone(&self.control.shared.broker));
        let pages = Rc::new(Pages { control: Rc::clone(&self.control), snapshots, token });
        let pages = Arc::new(OnLoop::new(pages));
        let health = Arc::clone(&pages);
        let reach = |pages: &OnLoop<Rc<Pages>>| pages.with(Rc::clone).expect("served on the worker's loop");
        Router::new()
            .route("/metrics", get(move |headers| local(metrics(reach(&pages), headers))))
            .route("/healthz", get(move |headers| local(healthz(reach(&health), headers))))
    }
}

/// The content type of Prometheus's text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Pages {
    fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        refusal(self.token.as_ref(), headers)
    }
}

/// Returns the answer to a request without the token, if one is asked for.
fn refusal(token: Option<&StatusToken>, headers: &HeaderMap) -> Option<Response> {
    (!token?.admits(headers))
        .then(|| (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response())
}

async fn metrics(pages: Rc<Pages>, headers: HeaderMap) -> Response {
    if let Some(refusal) = pages.refusal(&headers) {
        return refusal;
    }
    let queues = pages.snapshots.queues().await;
    let control = &pages.control;
    let mut text = Text::new(PREFIX);
    let shared = &control.shared;
    shared.counters.write(&mut text);
    text.gauge("tasks_in_hand", "Tasks received and not yet ended.", shared.hands.len() as f64);
    text.gauge("broker_up", "Whether the broker answered in the last seconds.", f64::from(u8::from(queues.is_some())));
    type Column = (&'static str, &'static str, fn(&QueueStats) -> f64);
    let columns: [Column; 6] = [
        ("queue_ready", "Tasks that wait and could run.", |queue| queue.ready as f64),
        ("queue_delayed", "Tasks that wait for their time.", |queue| queue.delayed as f64),
        ("queue_running", "Tasks with a worker, any worker.", |queue| queue.running as f64),
        ("queue_dead", "Dead letters.", |queue| queue.dead as f64),
        ("queue_consumers", "Workers subscribed.", |queue| queue.consumers as f64),
        ("queue_oldest_seconds", "How long the oldest ready task has waited.", |queue| queue.oldest_ms as f64 / 1e3),
    ];
    for (name, help, value) in columns {
        text.head(name, "gauge", help);
        for queue in queues.iter().flat_map(|queues| queues.iter()) {
            text.sample(name, &format!("queue=\"{}\"", escaped(&queue.queue)), value(queue));
        }
    }
    for figure in shared.mode.figures() {
        match figure.name.ends_with("_total") {
            true => text.counter(figure.name, figure.help, figure.value),
            false => text.gauge(figure.name, figure.help, figure.value as f64),
        }
    }
    let metrics = LoopHandle::current().metrics();
    text.gauge("loop_lag_mean_seconds", "How late timers were noticed, on average.", metrics.lag_mean.as_secs_f64());
    text.gauge("loop_lag_max_seconds", "How late the latest was.", metrics.lag_max.as_secs_f64());
    text.gauge("loop_tasks", "Tasks of the event loop.", metrics.tasks as f64);
    text.gauge("slots", "Tasks that may run at a time.", shared.mode.slots() as f64);
    ([(header::CONTENT_TYPE, METRICS_TYPE)], text.finish()).into_response()
}

async fn healthz(pages: Rc<Pages>, headers: HeaderMap) -> Response {
    if let Some(refusal) = pages.refusal(&headers) {
        return refusal;
    }
    let queues = pages.snapshots.queues().await;
    let control = &pages.control;
    let now = LoopHandle::current().time();
    let counters = &control.shared.counters;
    let ago = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
    let seen = Seen {
        phase: control.phase(),
        broker_answers: queues.is_some(),
        failing_for: ago(counters.failing_since.get()),
        ready: queues.iter().flat_map(|queues| queues.iter()).map(|queue| queue.ready).sum(),
        oldest: queues
            .iter()
            .flat_map(|queues| queues.iter())
            .map(|queue| queue.oldest_ms)
            .max()
            .map_or(Duration::ZERO, Duration::from_millis),
        running: counters.running.get(),
        received_ago: ago(counters.last_received.get()),
    };
    let trouble = seen.trouble();
    let milliseconds = |ago: Option<Duration>| ago.map(|ago| ago.as_millis() as u64);
    let body = json!({
        "status": if trouble.is_none() { "ok" } else { "unhealthy" },
        "reason": trouble,
        "phase": seen.phase.as_str(),
        "broker": control.shared.broker.describe(),
        "running": seen.running,
        "ready": seen.ready,
        "last_received_ms_ago": milliseconds(seen.received_ago),
        "last_settled_ms_ago": milliseconds(ago(counters.last_settled.get())),
        "received": counters.received.get(),
    });
    let status = if trouble.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// What a worker's health is judged by.
struct Seen {
    phase: Phase,
    broker_answers: bool,
    failing_for: Option<Duration>,
    ready: u64,
    oldest: Duration,
    running: u64,
    received_ago: Option<Duration>,
}

impl Seen {
    /// What is wrong, if anything is. A worker that has nothing to do is well; one that has something to do, does nothing
    /// and receives nothing is not.
    fn trouble(&self) -> Option<String> {
        if self.phase != Phase::Running {
            return Some(format!("it is {}", self.phase));
        }
        if let Some(failing) = self.failing_for.filter(|failing| *failing >= FAILING_AFTER) {
            return Some(format!("the broker has answered nothing but errors for {} s", failing.as_secs()));
        }
        if !self.broker_answers {
            return Some("the broker does not say what waits".to_owned());
        }
        let silent = self.received_ago.is_none_or(|ago| ago >= STALLED_AFTER);
        let waiting = self.ready > 0 && self.oldest >= STALLED_AFTER;
        (waiting && silent && self.running == 0)
            .then(|| format!("{} tasks wait, none runs, and none was received for a minute", self.ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Seen {
        Seen {
            phase: Phase::Running,
            broker_answers: true,
            failing_for: None,
            ready: 0,
            oldest: Duration::ZERO,
            running: 0,
            received_ago: None,
        }
    }

    const MINUTES: Duration = Duration::from_secs(120);

    #[test]
    fn a_worker_without_work_is_well_however_long_ago_it_received() {
        assert_eq!(well().trouble(), None);
        assert_eq!(Seen { received_ago: Some(MINUTES), ..well() }.trouble(), None);
    }

    #[test]
    fn a_worker_that_lets_tasks_wait_is_not() {
        let stalled = || Seen { ready: 9, oldest: MINUTES, received_ago: Some(MINUTES), ..well() };
        assert_eq!(stalled().trouble().unwrap(), "9 tasks wait, none runs, and none was received for a minute");
        assert_eq!(Seen { running: 1, ..stalled() }.trouble(), None);
        assert_eq!(Seen { received_ago: Some(Duration::ZERO), ..stalled() }.trouble(), None);
    }

    #[test]
    fn a_broker_in_trouble_and_a_stop_are_told() {
        assert!(Seen { failing_for: Some(MINUTES), ..well() }.trouble().unwrap().contains("errors for 120 s"));
        assert_eq!(Seen { failing_for: Some(Duration::from_secs(1)), ..well() }.trouble(), None);
        assert!(Seen { broker_answers: false, ..well() }.trouble().is_some());
        assert_eq!(Seen { phase: Phase::Draining, ..well() }.trouble().unwrap(), "it is draining");
    }
}
