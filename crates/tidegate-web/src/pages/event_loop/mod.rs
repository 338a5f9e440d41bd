//! Loop: how late it is, what its tasks wait for, which steps block it; and traces of the next ticks.
//!
//! `watch.rs` remembers lag and slow steps, `tasks.rs` groups a dump, `traces.rs` records, `api.rs` is the same as JSON. This
//! file writes the page.

mod api;
mod tasks;
mod traces;
mod watch;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use maud::{Markup, html};
use tidegate_loop::{LoopHandle, TaskDump};

use crate::chart;
use crate::format;
use crate::live::Values;
use crate::page::Page;
use crate::request::Request;
use crate::site::{NavEntry, Site};
use tasks::{Group, State, group};
use traces::Traces;
use watch::{Figures, Watched};

/// A step of this length is slow.
const SLOW: Duration = Duration::from_millis(10);

/// A dump is shown for this long, and for this many times as long as it took: the loop that is looked at has work to do.
const DUMP_AGAIN: Duration = Duration::from_secs(1);
const DUMP_SHARE: u32 = 50;

/// Rows of the table of tasks.
const ROWS_MAX: usize = 200;

/// The section about the loop that serves it. Clones are the same.
///
/// From its making on, the loop measures each of its steps (debug mode) and remembers those of 10 ms and more.
#[derive(Clone)]
pub struct EventLoop(Rc<Inner>);

struct Inner {
    handle: LoopHandle,
    /// What this process is, for the page's head: `tidegate explain`.
    process: String,
    watched: Rc<Watched>,
    traces: Traces,
    /// The last dump, which may be of many tasks.
    dump: RefCell<Option<Dumped>>,
}

/// A dump, when it was taken, and how long that took.
struct Dumped {
    at: Instant,
    took: Duration,
    dump: Rc<TaskDump>,
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("process", &self.0.process).finish_non_exhaustive()
    }
}

/// What the table of tasks shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Grouped,
    All,
    Waiting,
}

impl EventLoop {
    /// A section about the loop that runs now, of a process that is called so.
    #[must_use]
    pub fn new(process: &str) -> EventLoop {
        let handle = LoopHandle::current();
        let watched = Watched::new(&handle, SLOW);
        EventLoop(Rc::new(Inner {
            handle,
            process: process.to_owned(),
            watched,
            traces: Traces::default(),
            dump: RefCell::default(),
        }))
    }

    /// Takes a look at the loop, once per second at most: call it each second to have the lag of the last minutes also for the
    /// time when no browser looked.
    pub fn sample(&self) {
        self.0.watched.look(&self.0.handle);
    }

    /// Adds the page, its topic, traces and routes of the API.
    pub fn mount(&self, site: &mut Site) {
        site.nav(NavEntry { group: "Runtime", title: "Loop", href: "/loop", count: None });
        let own = self.clone();
        site.get("/loop", move |request| std::future::ready(Ok(own.page(&request))));
        for (name, shown) in [("grouped", Shown::Grouped), ("all", Shown::All), ("waiting", Shown::Waiting)] {
            let own = self.clone();
            site.topic(&format!("loop-{name}"), move || own.values(shown));
        }
        traces::mount(self, site);
        api::mount(self, site);
    }

    fn page(&self, request: &Request) -> Page {
        let (shown, topic) = match request.query("tasks").as_deref() {
            Some("all") => (Shown::All, "loop-all"),
            Some("waiting") => (Shown::Waiting, "loop-waiting"),
            _ => (Shown::Grouped, "loop-grouped"),
        };
        self.sample();
        let inner = &self.0;
        let body = html! {
            div.head {
                div {
                    h1 { "Loop" }
                    p.sub { "Event loop of " (inner.process) ", pid " (std::process::id()) " · " (inner.handle.selector()) " · "
                        span data-v="loop.count" { (format::counted(inner.handle.metrics().tasks as u64, "task")) } }
                }
                (inner.traces.form(request.may_act()))
            }
            dl.figs.panel data-h="loop.figures" { (self.figures()) }
            section.sec aria-labelledby="lg-h" {
                div.sec-head { h2 #lg-h { "Lag" } span.dim.small { "how late timers were noticed, worst per 2 s, logarithmic" } }
                figure.panel data-h="loop.lag" { (self.lag()) }
            }
            section.sec aria-labelledby="sl-h" {
                div.sec-head { h2 #sl-h { "Slow steps, by culprit" } span.dim.small { "steps of " (format::duration(SLOW)) " and more since the start" } }
                div.boxed.scroll tabindex="0" role="region" aria-label="Slow steps" data-h="loop.slow" { (self.slow()) }
            }
            (inner.traces.list())
            section.sec aria-labelledby="tk-h" {
                div.sec-head {
                    h2 #tk-h { "Tasks" }
                    nav.seg.end aria-label="Tasks shown" {
                        @for (name, own, words) in [("grouped", Shown::Grouped, "Grouped"), ("all", Shown::All, "All"), ("waiting", Shown::Waiting, "Waiting above 1 min")] {
                            a href=(format!("/loop?tasks={name}")) aria-current=[(own == shown).then_some("true")] { (words) }
                        }
                    }
                }
                div.boxed.scroll tabindex="0" role="region" aria-label="Tasks" data-h="loop.tasks" { (self.tasks(shown)) }
            }
        };
        Page::new("Loop", body).live(topic)
    }

    fn values(&self, shown: Shown) -> Values {
        self.sample();
        let mut values = Values::new();
        values.text("loop.count", format::counted(self.0.handle.metrics().tasks as u64, "task"));
        values.html("loop.figures", self.figures());
        values.html("loop.lag", self.lag());
        values.html("loop.slow", self.slow());
        values.html("loop.trace", self.0.traces.state());
        values.html("loop.tasks", self.tasks(shown));
        values
    }

    fn figures(&self) -> Markup {
        let Figures { mean, p99, worst, worst_at, ticks_per_second, steps_per_tick, busy } = self.0.watched.figures();
        let metrics = self.0.handle.metrics();
        let now = SystemTime::now();
        let shown = |lag: Option<Duration>| lag.map_or("–".to_owned(), format::duration);
        html! {
            div { dt { "Lag, mean" } dd { (shown(mean)) small { "last minute" } } }
            div { dt { "Lag, p99" } dd { "≤ " (shown(p99)) small { "last 10 minutes" } } }
            div { dt { "Lag, worst" } dd { "≤ " (shown(worst)) small { @if let Some(at) = worst_at { (format::instant(at, now)) } @else { "last 10 minutes" } } } }
            div { dt { "Ticks / s" } dd { (format::count(ticks_per_second)) small { (format!("{steps_per_tick:.1}")) " callbacks each" } } }
            div { dt { "Timers" } dd { (format::count((metrics.timers - metrics.timers_cancelled.min(metrics.timers)) as u64)) small { (format::count(metrics.ready as u64)) " entries ready" } } }
            div { dt { "Busy" } dd { (format!("{:.0} %", busy * 100.0)) small { "of one core" } } }
        }
    }

    fn lag(&self) -> Markup {
        let values = self.0.watched.lag();
        let worst = values.iter().flatten().max().copied();
        let above = values.iter().flatten().filter(|lag| **lag > Duration::from_millis(20)).count() as u64;
        let finding = match worst {
            Some(worst) => format!(
                "Loop lag over 10 minutes: worst {}; above 20 ms {}.",
                format::duration(worst),
                format::counted(above, "time")
            ),
            None => "Loop lag over 10 minutes: nothing measured yet.".to_owned(),
        };
        chart::lag(&values, &finding, SystemTime::now())
    }

    fn slow(&self) -> Markup {
        let culprits = self.0.watched.culprits();
        if culprits.is_empty() {
            return html! { p.empty.sub { "No step has taken " (format::duration(SLOW)) " or more." } };
        }
        let most = culprits.iter().map(|culprit| culprit.total).max().unwrap_or_default();
        let now = SystemTime::now();
        html! {
            table.t.cards {
                caption.vh { "Slow steps by culprit" }
                thead { tr {
                    th scope="col" { "Culprit" } th scope="col" { "Where" } th.num scope="col" { "Steps" } th.num scope="col" { "Worst" }
                    th scope="col" { "Time in all" } th.num scope="col" { "Last" }
                } }
                tbody {
                    @for culprit in culprits {
                        tr {
                            th scope="row" { (format::shortened(&culprit.name, 80)) }
                            td { code { (culprit.place) } }
                            td.num data-l="steps" { (format::count(culprit.steps)) }
                            td.num data-l="worst" .bad[culprit.worst >= SLOW * 10] { (format::duration(culprit.worst)) }
                            td.full data-l="in all" {
                                span.timebar {
                                    svg.bar aria-hidden="true" { rect.f-block width=(chart::percent(millis(culprit.total), millis(most))) height="100%" {} }
                                    (format::duration(culprit.total))
                                }
                            }
                            td.num data-l="last" { (format::instant(culprit.last, now)) }
                        }
                    }
                }
            }
        }
    }

    fn dump(&self) -> Rc<TaskDump> {
        let now = self.0.handle.time();
        if let Some(last) = &*self.0.dump.borrow()
            && now.saturating_duration_since(last.at) < DUMP_AGAIN.max(last.took * DUMP_SHARE)
        {
            return Rc::clone(&last.dump);
        }
        let began = Instant::now();
        let dump = Rc::new(self.0.handle.dump());
        *self.0.dump.borrow_mut() = Some(Dumped { at: now, took: began.elapsed(), dump: Rc::clone(&dump) });
        dump
    }

    fn tasks(&self, shown: Shown) -> Markup {
        let dump = self.dump();
        let mut groups = group(&dump, shown == Shown::Grouped);
        if shown == Shown::Waiting {
            groups.retain(|group| group.state == State::Waiting && group.since >= Duration::from_secs(60));
        }
        let more = groups.len().saturating_sub(ROWS_MAX);
        groups.truncate(ROWS_MAX);
        html! {
            @if groups.is_empty() { p.empty.sub { "No task waits for more than a minute." } }
            @else {
                table.t.cards.tasks-of-loop {
                    caption.vh { "Tasks of the loop" }
                    thead { tr {
                        th scope="col" { "Name" } th scope="col" { "State" } th scope="col" { "Waits for" }
                        th.num scope="col" { "Since" } th.num scope="col" { "Count" } th scope="col" { "Spawned at" }
                    } }
                    tbody { @for group in &groups { (row(group)) } }
                }
            }
            @if more > 0 { p.pager { (format::counted(more as u64, "more row")) } }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn row(group: &Group) -> Markup {
    let (letter, word) = match group.state {
        _ if group.cancelling => ("x", "cancelling"),
        State::Running => ("i", "running"),
        State::Ready => ("i", "ready"),
        State::Waiting => ("w", "waiting"),
    };
    html! {
        tr {
            th scope="row" { (format::shortened(&group.name, 80)) }
            td { span.st { i class=(format!("c {letter}")) aria-hidden="true" {} (word) } }
            td.full { (format::shortened(&group.waits_for, 120)) }
            td.num data-l="since" { @if group.state == State::Waiting { (since(group.since)) } @else { "now" } }
            td.num data-l="count" { (format::count(group.count)) }
            td.full { code.dim { (group.place) } }
        }
    }
}

/// Whole seconds: a table of changing tenths cannot be read.
fn since(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        "< 1 s".to_owned()
    } else {
        format::duration(Duration::from_secs(time.as_secs()))
    }
}
