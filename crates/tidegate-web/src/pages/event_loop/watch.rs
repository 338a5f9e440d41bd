//! What is remembered of a loop: a look a second for ten minutes, and its slow steps by culprit.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tidegate_loop::trace::place;
use tidegate_loop::{LoopHandle, Metrics, Report, ReportKind};

/// Looks that are kept: ten minutes.
const LOOKS_MAX: usize = 601;

/// Culprits with entries of their own; more are counted as one.
const CULPRITS_MAX: usize = 200;

/// A second with the loop's figures at its end.
struct Look {
    second: u64,
    at: SystemTime,
    instant: Instant,
    metrics: Metrics,
}

/// Whose steps were slow.
#[derive(Debug, Clone)]
pub(super) struct Culprit {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) steps: u64,
    pub(super) worst: Duration,
    pub(super) total: Duration,
    pub(super) last: SystemTime,
}

/// The loop's figures over the last minutes.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) mean: Option<Duration>,
    pub(super) p99: Option<Duration>,
    pub(super) worst: Option<Duration>,
    pub(super) worst_at: Option<SystemTime>,
    pub(super) ticks_per_second: u64,
    pub(super) steps_per_tick: f64,
    pub(super) busy: f64,
}

pub(super) struct Watched {
    start: Instant,
    looks: RefCell<VecDeque<Look>>,
    culprits: RefCell<HashMap<(String, Option<&'static Location<'static>>), Culprit>>,
}

impl Watched {
    pub(super) fn new(handle: &LoopHandle, slow: Duration) -> Rc<Watched> {
        let watched =
            Rc::new(Watched { start: handle.time(), looks: RefCell::default(), culprits: RefCell::default() });
        handle.set_slow_callback_duration(slow);
        handle.set_debug(true);
        let weak = Rc::downgrade(&watched);
        handle.set_exception_handler(move |report| match (report.kind(), weak.upgrade()) {
            (ReportKind::Slow, Some(watched)) => watched.note(report),
            _ => report.log(),
        });
        watched.look(handle);
        watched
    }

    fn note(&self, report: &Report) {
        let took = report.took().unwrap_or_default();
        // Tasks without a name of their own are numbered; the key also has their place.
        let name = report.name().map_or("a callback", super::tasks::common_name).to_owned();
        let mut culprits = self.culprits.borrow_mut();
        let mut key = (name, report.location());
        if culprits.len() >= CULPRITS_MAX && !culprits.contains_key(&key) {
            key = ("others".to_owned(), None);
        }
        let culprit = culprits.entry(key).or_insert_with_key(|(name, location)| Culprit {
            name: name.clone(),
            place: location.map(place).unwrap_or_default(),
            steps: 0,
            worst: Duration::ZERO,
            total: Duration::ZERO,
            last: SystemTime::UNIX_EPOCH,
        });
        culprit.steps += 1;
        culprit.worst = culprit.worst.max(took);
        culprit.total += took;
        culprit.last = SystemTime::now();
    }

    /// Culprits, the most time first.
    pub(super) fn culprits(&self) -> Vec<Culprit> {
        let mut culprits: Vec<Culprit> = self.culprits.borrow().values().cloned().collect();
        culprits.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
        culprits
    }

    /// Remembers the figures of this second, unless it has.
    pub(super) fn look(&self, handle: &LoopHandle) {
        let instant = handle.time();
        let second = instant.saturating_duration_since(self.start).as_secs();
        let mut looks = self.looks.borrow_mut();
        if looks.back().is_some_and(|last| last.second >= second) {
            return;
        }
        looks.push_back(Look { second, at: SystemTime::now(), instant, metrics: handle.metrics() });
        while looks.len() > LOOKS_MAX || looks.front().is_some_and(|first| first.second + (LOOKS_MAX as u64) < second) {
            looks.pop_front();
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let looks = self.looks.borrow();
        let Some(last) = looks.back() else { return Figures::default() };
        let before = |seconds: u64| looks.iter().find(|look| look.second + seconds >= last.second).unwrap_or(last);
        let (minute, ten) = (before(60), before(600));
        let mut figures = Figures {
            mean: mean_lag(&minute.metrics, &last.metrics),
            p99: last.metrics.lag_quantile(&ten.metrics, 0.99),
            ..Figures::default()
        };
        for (earlier, later) in looks.iter().zip(looks.iter().skip(1)) {
            if let Some(lag) = later.metrics.lag_quantile(&earlier.metrics, 1.0)
                && figures.worst.is_none_or(|worst| lag > worst)
            {
                (figures.worst, figures.worst_at) = (Some(lag), Some(later.at));
            }
        }
        // Of the last seconds: what it does now.
        let recent = before(5);
        let seconds = last.instant.saturating_duration_since(recent.instant).as_secs_f64();
        if seconds > 0.0 {
            let ticks = last.metrics.ticks.saturating_sub(recent.metrics.ticks);
            let steps = last.metrics.steps.saturating_sub(recent.metrics.steps);
            let idle = last.metrics.poll_time.saturating_sub(recent.metrics.poll_time).as_secs_f64();
            figures.ticks_per_second = (ticks as f64 / seconds).round() as u64;
            figures.steps_per_tick = steps as f64 / (ticks.max(1)) as f64;
            figures.busy = (1.0 - idle / seconds).clamp(0.0, 1.0);
        }
        figures
    }

    /// The worst lag of each two seconds of the last ten minutes, oldest first; `None` where there is no look or no timer came
    /// due.
    pub(super) fn lag(&self) -> Vec<Option<Duration>> {
        let looks = self.looks.borrow();
        let mut slots = vec![None; 300];
        let Some(last) = looks.back().map(|look| look.second / 2) else { return slots };
        for (earlier, later) in looks.iter().zip(looks.iter().skip(1)) {
            // What was late during a longer pause belongs to no instant.
            let follows = later.second - earlier.second <= 5;
            let (true, Some(lag)) = (follows, later.metrics.lag_quantile(&earlier.metrics, 1.0)) else { continue };
            let ago = usize::try_from(last - later.second / 2).unwrap_or(usize::MAX);
            if ago < slots.len() {
                let slot = &mut slots[299 - ago];
                *slot = (*slot).max(Some(lag));
            }
        }
        slots
    }
}

fn mean_lag(earlier: &Metrics, later: &Metrics) -> Option<Duration> {
    let total = |metrics: &Metrics| metrics.lag_mean.as_secs_f64() * metrics.timers_fired as f64;
    let fired = later.timers_fired.saturating_sub(earlier.timers_fired);
    (fired > 0).then(|| Duration::from_secs_f64(((total(later) - total(earlier)) / fired as f64).max(0.0)))
}
