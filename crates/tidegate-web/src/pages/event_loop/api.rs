//! The loop as JSON.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::EventLoop;
use super::tasks::group;
use crate::api::Doc;
use crate::site::Site;

/// The loop that serves this page.
#[derive(Debug, Serialize, JsonSchema)]
struct LoopView {
    /// What the process is.
    process: String,
    pid: u32,
    /// How it waits for descriptors: epoll, io_uring, select.
    selector: String,
    /// Ticks since the start.
    ticks: u64,
    /// Ready entries run since the start.
    steps: u64,
    /// Tasks alive.
    tasks: usize,
    /// Entries ready now.
    ready: usize,
    timers: usize,
    /// Seconds that timers were noticed late in the last minute, on average; absent if none came due.
    lag_mean_seconds: Option<f64>,
    /// The lag that 99 % of the timers of the last ten minutes did not exceed, to the next power of two.
    lag_p99_seconds: Option<f64>,
    /// The worst lag of the last ten minutes, to the next power of two.
    lag_max_seconds: Option<f64>,
    /// The share of the last seconds in which the loop did not wait.
    busy: f64,
    slow_steps: Vec<SlowSteps>,
    groups: Vec<TaskGroup>,
}

/// Steps of one task or callback that took 10 ms or more.
#[derive(Debug, Serialize, JsonSchema)]
struct SlowSteps {
    name: String,
    /// Where it was spawned.
    place: String,
    steps: u64,
    worst_seconds: f64,
    total_seconds: f64,
}

/// Tasks that were spawned at one place and wait for the same.
#[derive(Debug, Serialize, JsonSchema)]
struct TaskGroup {
    name: String,
    count: u64,
    /// `running`, `ready` or `waiting`.
    state: String,
    waits_for: String,
    /// Seconds that the longest of them waits.
    waiting_seconds: f64,
    cancelling: bool,
    /// Where they were spawned.
    place: String,
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

fn view(event_loop: &EventLoop) -> LoopView {
    event_loop.sample();
    let inner = &event_loop.0;
    let (metrics, figures) = (inner.handle.metrics(), inner.watched.figures());
    let slow_steps = inner.watched.culprits().into_iter().map(|culprit| SlowSteps {
        name: culprit.name,
        place: culprit.place,
        steps: culprit.steps,
        worst_seconds: culprit.worst.as_secs_f64(),
        total_seconds: culprit.total.as_secs_f64(),
    });
    let groups = group(&inner.handle.dump(), true).into_iter().map(|group| TaskGroup {
        name: group.name,
        count: group.count,
        state: group.state.name().to_owned(),
        waits_for: group.waits_for,
        waiting_seconds: group.since.as_secs_f64(),
        cancelling: group.cancelling,
        place: group.place,
    });
    LoopView {
        process: inner.process.clone(),
        pid: std::process::id(),
        selector: inner.handle.selector().to_string(),
        ticks: metrics.ticks,
        steps: metrics.steps,
        tasks: metrics.tasks,
        ready: metrics.ready,
        timers: metrics.timers - metrics.timers_cancelled.min(metrics.timers),
        lag_mean_seconds: seconds(figures.mean),
        lag_p99_seconds: seconds(figures.p99),
        lag_max_seconds: seconds(figures.worst),
        busy: figures.busy,
        slow_steps: slow_steps.collect(),
        groups: groups.collect(),
    }
}

pub(super) fn mount(event_loop: &EventLoop, site: &mut Site) {
    let own = event_loop.clone();
    let doc = Doc::new("Show the event loop: lag, slow steps, tasks");
    site.api_get("/api/v1/loop", &doc, move |_| std::future::ready(Ok(view(&own))));
}
