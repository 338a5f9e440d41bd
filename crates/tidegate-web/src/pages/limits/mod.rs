//! Limits: how full each window is, which limit binds and until when, and what changing one would do.
//!
//! `view.rs` writes the page's parts from a gate's figures and its history, `api.rs` is the same as JSON, `change.rs` the form
//! that changes amounts. This file looks at the gates, remembers, and mounts the rest.

mod api;
mod change;
mod view;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use maud::html;
use tidegate_limit::{Admission, Snapshot};
use tidegate_loop::{LoopHandle, sleep};

use crate::answer::Failure;
use crate::chart;
use crate::format;
use crate::history::History;
use crate::live::{Source, Values};
use crate::page::Page;
use crate::request::Request;
use crate::site::{NavEntry, Site, StripCell};

/// A look at a gate serves everything that asks within this time.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Changes an upstream's limits while requests are in flight, and foretells what that would do.
pub trait Steer {
    /// How long the work that waits now would take with these amounts, by the names of the limits; with none, as things are.
    /// `None`: nothing runs, or it cannot be told.
    fn time_left(&self, amounts: &[(&str, u64)]) -> Option<Duration>;

    /// Changes the amount of a limit, at once.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    fn set(&self, limit: &str, amount: u64) -> Result<(), String>;
}

/// One address with its key and limits, behind one gate.
pub struct Upstream {
    /// Its name, as the page shows it.
    pub name: String,
    /// Its gate.
    pub admission: Admission,
    /// What changes its limits; without, the page has no form for it.
    pub steer: Option<Rc<dyn Steer>>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name)
            .field("steer", &self.steer.is_some())
            .finish_non_exhaustive()
    }
}

/// The section about limits. Clones are the same.
///
/// ```
/// use tidegate_limit::{Gate, Limit};
/// use tidegate_web::{Limits, Site, Upstream};
///
/// # tidegate_loop::run(async {
/// let gate = Gate::builder().limit(Limit::rpm(150)).build().unwrap();
/// let limits = Limits::new(vec![Upstream { name: "gemini".into(), admission: (&gate).into(), steer: None }]);
/// let mut site = Site::new();
/// limits.mount(&mut site);
/// let _remember = limits.watch(); // the last minutes also while no browser looks
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Limits(Rc<Inner>);

struct Inner {
    upstreams: Vec<Upstream>,
    histories: Vec<RefCell<History>>,
    /// History counts from here.
    start: Instant,
    look: RefCell<Option<(Instant, Rc<Vec<Snapshot>>)>>,
    watchers: Cell<usize>,
    is_sampling: Cell<bool>,
}

/// Keeps the history going while it is held: one look per second.
#[must_use = "the history goes on for as long as this is held"]
pub struct Watch(Limits);

impl Drop for Watch {
    fn drop(&mut self) {
        let inner = &(self.0).0;
        inner.watchers.set(inner.watchers.get() - 1);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limits").field(&self.0.upstreams).finish()
    }
}

impl Limits {
    /// A section about these upstreams. Called on the loop.
    #[must_use]
    pub fn new(upstreams: Vec<Upstream>) -> Limits {
        let histories = upstreams.iter().map(|_| RefCell::default()).collect();
        Limits(Rc::new(Inner {
            upstreams,
            histories,
            start: LoopHandle::current().time(),
            look: RefCell::default(),
            watchers: Cell::new(0),
            is_sampling: Cell::new(false),
        }))
    }

    /// Remembers the last minutes while what is returned is held: while a job runs. Otherwise only while a browser listens.
    pub fn watch(&self) -> Watch {
        let inner = &self.0;
        inner.watchers.set(inner.watchers.get() + 1);
        if !inner.is_sampling.replace(true) {
            let weak = Rc::downgrade(inner);
            LoopHandle::current().task().name("history of the limits").spawn(async move {
                while let Some(inner) = weak.upgrade() {
                    if inner.watchers.get() == 0 {
                        return inner.is_sampling.set(false);
                    }
                    inner.look();
                    drop(inner);
                    sleep(Duration::from_secs(1)).await;
                }
            });
        }
        Watch(self.clone())
    }

    /// Adds the page, its topic, its routes of the API and its cells of the system strip.
    pub fn mount(&self, site: &mut Site) {
        site.nav(NavEntry { group: "Documents", title: "Limits", href: "/limits", count: None });
        let limits = self.clone();
        site.get("/limits", move |request| std::future::ready(limits.page(&request)));
        let limits = self.clone();
        site.topics("limits", move |index| {
            let (limits, at) =
                (limits.clone(), index.parse().ok().filter(|&at: &usize| at < limits.0.upstreams.len())?);
            let source: Source = Rc::new(move || limits.values(at));
            Some(source)
        });
        self.mount_strip(site);
        api::mount(self, site);
        change::mount(self, site);
    }

    fn mount_strip(&self, site: &mut Site) {
        let limits = self.clone();
        site.strip(move || {
            let look = limits.0.look();
            let current: u64 = look.iter().map(|gate| gate.current).sum();
            let allowed: u64 = look
                .iter()
                .flat_map(|gate| &gate.limits)
                .filter(|limit| limit.dimension.is_none())
                .map(|limit| limit.amount)
                .sum();
            let values = limits.0.in_flight();
            let highest = values.iter().flatten().max().copied().unwrap_or(0);
            let label = format!("Requests in flight, last 2 minutes: now {current}, highest {highest}");
            StripCell {
                class: "with-spark",
                content: html! {
                    dt { "Requests in flight" }
                    dd { (format::count(current)) @if allowed > 0 { " " small { "of " (format::count(allowed)) } } }
                    dd { (chart::spark(&values, &label)) }
                },
            }
        });
        let limits = self.clone();
        site.strip(move || {
            let look = limits.0.look();
            let bound = look.iter().zip(&limits.0.upstreams).find(|(gate, _)| gate.blocked_by.is_some());
            let is_one = limits.0.upstreams.len() == 1;
            let running: u64 = look.iter().map(|gate| gate.current).sum();
            let content = match bound {
                Some((gate, upstream)) => html! {
                    dt { "Bound by" }
                    dd {
                        (view::limit_words(gate.blocked_by.as_deref().unwrap_or_default()))
                        @if !is_one { " of " (upstream.name) }
                        @if let Some(at) = gate.next_admission {
                            " " small { "· next admission " (view::when(at, gate.at)) }
                        }
                    }
                },
                None => html! {
                    dt { "Bound by" }
                    dd { small { "no limit" @if running == 0 { ": nothing is running" } } }
                },
            };
            StripCell { class: "grow", content }
        });
        let limits = self.clone();
        site.strip(move || {
            let waiting: usize = limits.0.look().iter().map(|gate| gate.waiting).sum();
            StripCell {
                class: "opt w-s",
                content: html! { dt { "Blocked" } dd { (format::count(waiting as u64)) " " small { "requests" } } },
            }
        });
    }

    /// The upstream of this name; the first without one.
    fn find(&self, name: Option<&str>) -> Result<usize, Failure> {
        let Some(name) = name else { return Ok(0) };
        let found = self.0.upstreams.iter().position(|upstream| upstream.name == name);
        found.ok_or_else(|| Failure::not_found("Unknown upstream; choose one of those on the page Limits."))
    }

    fn page(&self, request: &Request) -> Result<Page, Failure> {
        let at = self.find(request.query("u").as_deref())?;
        if self.0.upstreams.is_empty() {
            return Err(Failure::not_found("There is no upstream."));
        }
        let gate = &self.0.look()[at];
        let form = change::form(self, at, gate, request);
        let names: Vec<&str> = self.0.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        let part = view::Part { at, name: names[at], gate, history: &self.0.histories[at].borrow(), now: self.0.now() };
        Ok(Page::new("Limits", part.page(&names, &form)).live(format!("limits/{at}")))
    }

    fn values(&self, at: usize) -> Values {
        let look = self.0.look();
        let name = &self.0.upstreams[at].name;
        view::Part { at, name, gate: &look[at], history: &self.0.histories[at].borrow(), now: self.0.now() }.values()
    }
}

impl Inner {
    fn now(&self) -> Duration {
        LoopHandle::current().time().saturating_duration_since(self.start)
    }

    /// The gates' figures, at most a tenth of a second old. Once a second they are remembered.
    fn look(&self) -> Rc<Vec<Snapshot>> {
        let now = LoopHandle::current().time();
        if let Some((at, look)) = &*self.look.borrow()
            && now.saturating_duration_since(*at) < LOOK_AGAIN
        {
            return Rc::clone(look);
        }
        let look: Rc<Vec<Snapshot>> =
            Rc::new(self.upstreams.iter().map(|upstream| upstream.admission.stats()).collect());
        let since = self.now();
        for (history, gate) in self.histories.iter().zip(look.iter()) {
            if history.borrow().is_due(since) {
                history.borrow_mut().sample(since, gate);
            }
        }
        *self.look.borrow_mut() = Some((now, Rc::clone(&look)));
        look
    }

    /// Requests in flight in the last two minutes, all upstreams together, per two seconds.
    fn in_flight(&self) -> Vec<Option<u64>> {
        let now = self.now();
        let mut sums: Vec<Option<u64>> = vec![None; 60];
        let look = self.look();
        for (history, gate) in self.histories.iter().zip(look.iter()) {
            let Some(limit) = gate.limits.iter().find(|limit| limit.dimension.is_none()) else { continue };
            let history = history.borrow();
            for (sum, sample) in sums.iter_mut().zip(history.recent(&limit.name, now, chart::SLOT_SECONDS, 60)) {
                if let Some(sample) = sample {
                    *sum = Some(sum.unwrap_or(0) + sample.used);
                }
            }
        }
        sums
    }
}
