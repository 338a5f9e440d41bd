//! The limits as JSON.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;
use tidegate_limit::{LimitSnapshot, ScopeSnapshot, Snapshot};

use super::Limits;
use crate::api::Doc;
use crate::site::Site;

/// All limits of all upstreams.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitsView {
    upstreams: Vec<UpstreamView>,
}

/// An upstream: one gate.
#[derive(Debug, Serialize, JsonSchema)]
struct UpstreamView {
    name: String,
    /// When this was true, as an RFC 3339 instant.
    at: String,
    /// Requests in flight.
    in_flight: u64,
    /// The most that were in flight at once.
    in_flight_peak: u64,
    /// Requests admitted, ever.
    admitted: u64,
    /// Requests that wait at the gate.
    blocked: u64,
    /// The limit that the first of them waits for; `scopes` if all wait for the page concurrency of their files.
    bound_by: Option<String>,
    /// When the next of them is admitted, if that is known.
    next_admission: Option<String>,
    /// Seconds that entries of strict limits count beyond their window.
    margin_seconds: f64,
    limits: Vec<LimitView>,
    files: Vec<FileView>,
}

/// A limit.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitView {
    name: String,
    /// What it counts; absent for concurrency.
    dimension: Option<String>,
    /// What is allowed at once, or in its window.
    allowed: u64,
    used: u64,
    /// What is left, after what the server says is gone.
    remaining: u64,
    /// The most that was used at once.
    peak: u64,
    /// What was used, ever.
    total: u64,
    /// Requests that had to wait for it, ever.
    blocked: u64,
    /// Seconds during which the first in line waited for it.
    blocked_seconds: f64,
    /// How often the server refused a request under it.
    refused: u64,
    next_reset: Option<String>,
    /// Until when it is paused as the server asked.
    paused_until: Option<String>,
    /// Why it admits nothing, if so.
    shut: Option<String>,
}

/// A file's page concurrency.
#[derive(Debug, Serialize, JsonSchema)]
struct FileView {
    name: String,
    /// Pages in flight at once that are allowed.
    allowed: u64,
    in_flight: u64,
    peak: u64,
    waiting: u64,
    admitted: u64,
}

fn instant(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map(|at| at.to_string()).unwrap_or_default()
}

fn upstream(name: &str, gate: &Snapshot) -> UpstreamView {
    UpstreamView {
        name: name.to_owned(),
        at: instant(gate.at),
        in_flight: gate.current,
        in_flight_peak: gate.peak,
        admitted: gate.granted,
        blocked: gate.waiting as u64,
        bound_by: gate.blocked_by.clone(),
        next_admission: gate.next_admission.map(instant),
        margin_seconds: gate.margin.as_secs_f64(),
        limits: gate.limits.iter().map(limit).collect(),
        files: gate.scopes.iter().filter_map(file).collect(),
    }
}

fn limit(limit: &LimitSnapshot) -> LimitView {
    LimitView {
        name: limit.name.clone(),
        dimension: limit.dimension.clone(),
        allowed: limit.amount,
        used: limit.used,
        remaining: limit.remaining,
        peak: limit.peak,
        total: limit.total,
        blocked: limit.blocked,
        blocked_seconds: limit.blocked_for.as_secs_f64(),
        refused: limit.pauses,
        next_reset: limit.next_reset.map(instant),
        paused_until: limit.held_until.map(instant),
        shut: limit.shut.clone(),
    }
}

fn file(scope: &ScopeSnapshot) -> Option<FileView> {
    Some(FileView {
        name: scope.name.clone(),
        allowed: scope.cap?,
        in_flight: scope.current,
        peak: scope.peak,
        waiting: scope.waiting as u64,
        admitted: scope.granted,
    })
}

pub(super) fn mount(limits: &Limits, site: &mut Site) {
    let limits = limits.clone();
    site.api_get("/api/v1/limits", &Doc::new("List the limits of all upstreams"), move |_| {
        let look = limits.0.look();
        let upstreams =
            limits.0.upstreams.iter().zip(look.iter()).map(|(one, gate)| upstream(&one.name, gate)).collect();
        std::future::ready(Ok(LimitsView { upstreams }))
    });
}
