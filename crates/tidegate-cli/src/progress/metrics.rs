//! A run's figures for Prometheus, and the page they are served from. Requests are answered from a text that is made once
//! per second, so any number of them costs the run nothing.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_http::serve;
use tidegate_loop::net::TcpListener;
use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_worker::{MetricsPage, MetricsText, StatusToken, escape_label};

use super::scene::{Gauge, Scene, State};
use super::{Following, Reporter};
use crate::command::status::{StatusSpec, exposure};

/// How often the page is made.
const REFRESHED_EVERY: Duration = Duration::from_secs(1);

/// The page of a run, bound to its address and not served yet.
pub(crate) struct MetricsListener {
    listener: TcpListener,
    token: Option<StatusToken>,
}

impl MetricsListener {
    /// Binds the address, if there is one, and says where the page is.
    pub(crate) async fn bind(spec: Option<StatusSpec>, reporter: &Reporter) -> anyhow::Result<Option<MetricsListener>> {
        let Some(StatusSpec { address, token }) = spec else { return Ok(None) };
        let cannot = || format!("--metrics: cannot listen on {address}");
        let listener = TcpListener::bind(address).await.with_context(cannot)?;
        let bound: SocketAddr = listener.local_addr().with_context(cannot)?;
        reporter.say(&format!("metrics: http://{bound}/metrics"));
        if let Some(warning) = exposure(bound, token.is_some(), "the figures of this run") {
            reporter.say(&format!("warning: {bound}: {warning}"));
        }
        Ok(Some(MetricsListener { listener, token }))
    }
}

impl Following {
    /// Serves the figures of the run until this is dropped.
    pub(crate) fn serve(&mut self, command: &'static str, page: Option<MetricsListener>) {
        let Some(MetricsListener { listener, token }) = page else { return };
        let page = MetricsPage::new(text(command, &self.run.scene()));
        let server = serve(listener, page.router(token)).connections(MetricsPage::CONNECTIONS_MAX);
        let run = std::rc::Rc::clone(&self.run);
        let refreshing: JoinHandle<()> = spawn(async move {
            loop {
                sleep(REFRESHED_EVERY).await;
                page.set(text(command, &run.scene()));
            }
        });
        let reporter = self.reporter.clone();
        let serving = spawn(async move {
            if let Err(error) = server.run().await {
                reporter.say(&format!("the metrics are not served any more: {error}"));
            }
        });
        self.tasks.extend([refreshing, serving]);
    }
}

/// The page: Prometheus's text format.
fn text(command: &str, scene: &Scene) -> String {
    let mut text = MetricsText::new("tidegate_run_");
    text.head("info", "gauge", "The command that runs.");
    text.sample("info", &format!("command=\"{}\"", escape_label(command)), 1.0);
    text.gauge("items", "Pages or requests of the run, as far as they are counted.", scene.pages as f64);
    text.gauge("items_counted", "1 once all of them are counted.", f64::from(u8::from(!scene.more)));
    text.counter("items_done_total", "Pages explained or requests answered, cached ones included.", scene.done);
    text.counter("items_cached_total", "Of those, answered in an earlier run.", scene.cached);
    text.counter("items_failed_total", "Pages or requests that failed.", scene.failed);
    text.counter("items_skipped_total", "Pages without text that can be read.", scene.skipped);
    text.counter("tokens_total", "Tokens paid for, input and output.", scene.tokens);
    text.gauge("answered_last_minute", "Pages or requests answered in the last minute.", scene.pages_per_minute);
    text.gauge("elapsed_seconds", "Time since the start.", scene.elapsed.as_secs_f64());
    if let Some(remaining) = scene.remaining {
        text.gauge("remaining_seconds", "Time left, while it is known.", remaining.as_secs_f64());
    }
    text.gauge("in_flight", "Requests in flight.", scene.queue.in_flight as f64);
    text.gauge("waiting", "Requests that are blocked by a limit.", scene.queue.blocked as f64);
    text.gauge("paused", "1 while the run is paused.", f64::from(u8::from(scene.paused)));
    text.gauge("stopping", "1 once the run stops early.", f64::from(u8::from(scene.stopping)));
    type Column = (&'static str, &'static str, &'static str, fn(&Gauge) -> f64);
    let columns: [Column; 5] = [
        ("limit_amount", "gauge", "What the limit lets through.", |limit| limit.amount as f64),
        ("limit_used", "gauge", "What of that is in use.", |limit| limit.used as f64),
        ("limit_blocked_total", "counter", "Requests that had to wait for the limit.", |limit| limit.blocked as f64),
        ("limit_blocked_seconds_total", "counter", "Time during which the limit blocked.", |limit| {
            limit.blocked_for.as_secs_f64()
        }),
        ("limit_paused_seconds", "gauge", "Time until the limit's pause ends; 0 without one.", |limit| {
            limit.held_for.map_or(0.0, |pause| pause.as_secs_f64())
        }),
    ];
    for (name, kind, help, value) in columns.into_iter().filter(|_| !scene.gauges.is_empty()) {
        text.head(name, kind, help);
        for limit in &scene.gauges {
            text.sample(name, &format!("limit=\"{}\"", escape_label(&limit.name)), value(limit));
        }
    }
    if !scene.files.is_empty() {
        text.head("files", "gauge", "Files by state.");
        let states = [
            ("waiting", State::Waiting),
            ("running", State::Running),
            ("writing", State::Writing),
            ("written", State::Done),
            ("failed", State::Failed),
        ];
        for (name, state) in states {
            let count = scene.files.iter().filter(|file| file.state == state).count();
            text.sample("files", &format!("state=\"{name}\""), count as f64);
        }
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_counts_limits_and_files_and_no_name_breaks_a_line() {
        let scene = Scene {
            pages: 12,
            done: 5,
            remaining: Some(Duration::from_secs(90)),
            gauges: vec![Gauge { name: "a\"b\n".to_owned(), amount: 60, blocked: 7, ..Gauge::default() }],
            files: vec![super::super::scene::File { state: State::Running, ..Default::default() }],
            ..Scene::default()
        };
        let page = text("explain", &scene);
        for line in [
            "tidegate_run_info{command=\"explain\"} 1",
            "# TYPE tidegate_run_items_done_total counter",
            "tidegate_run_items_done_total 5",
            "tidegate_run_items 12",
            "tidegate_run_remaining_seconds 90",
            "tidegate_run_limit_blocked_total{limit=\"a\\\"b\\n\"} 7",
            "tidegate_run_files{state=\"running\"} 1",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is missing:\n{page}");
        }
        let unknown = text("batch", &Scene::default());
        assert!(!unknown.contains("remaining_seconds") && !unknown.contains("files") && !unknown.contains("limit_"));
    }
}
