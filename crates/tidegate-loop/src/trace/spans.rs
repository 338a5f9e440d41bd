//! From records to what is drawn: lanes, bars on them, arrows between them. Positions are indices of records, so that
//! the renderer chooses between their order and their time.

use std::collections::HashMap;

use super::record::{Actor, Record, TracedTask, What};
use crate::observe::WaitsFor;
use crate::task::{Outcome, TaskId};

/// The loop's own lane: ticks, polls, timers, callbacks.
pub(super) const LOOP: usize = 0;

pub(super) struct Spans {
    pub(super) lanes: Vec<Lane>,
    pub(super) bars: Vec<Bar>,
    pub(super) arrows: Vec<Arrow>,
    /// For every record the lane it belongs on.
    pub(super) lane_of: Vec<usize>,
}

pub(super) struct Lane {
    /// `None`: the loop's.
    pub(super) task: Option<TracedTask>,
    pub(super) outcome: Option<Outcome>,
    pub(super) steps: u32,
    /// The record it begins with.
    pub(super) first: usize,
    /// The record it ends with, if it has.
    pub(super) end: Option<usize>,
    state: Open,
}

/// What a task is doing, and since which record.
#[derive(Clone)]
enum Open {
    Nothing,
    Ready(usize),
    /// `next` is what it says it will wait for; `woken` means it need not.
    Running {
        since: usize,
        next: Option<WaitsFor>,
        woken: bool,
    },
    Waiting(usize, WaitsFor),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarKind {
    Tick,
    Poll,
    Callback,
    Timer,
    Ready,
    Running,
    Waiting,
}

impl BarKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            BarKind::Tick => "tick",
            BarKind::Poll => "poll",
            BarKind::Callback => "callback",
            BarKind::Timer => "timer",
            BarKind::Ready => "ready",
            BarKind::Running => "running",
            BarKind::Waiting => "waiting",
        }
    }
}

#[derive(Debug)]
pub(super) struct Bar {
    pub(super) lane: usize,
    pub(super) kind: BarKind,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) label: String,
}

/// From what woke or queued something to where it then ran.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) from_lane: usize,
    pub(super) to: usize,
    pub(super) to_lane: usize,
}

impl Spans {
    pub(super) fn of(records: &[Record]) -> Spans {
        let mut weaver = Weaver {
            spans: Spans {
                lanes: vec![Lane::new(None, 0)],
                bars: Vec::new(),
                arrows: Vec::new(),
                lane_of: Vec::with_capacity(records.len()),
            },
            by_task: HashMap::new(),
            pending: HashMap::new(),
            queued: HashMap::new(),
            tick: None,
            callback: None,
            timer: None,
        };
        for (at, record) in records.iter().enumerate() {
            weaver.take(at, record);
        }
        weaver.end(records.len().saturating_sub(1));
        weaver.spans
    }
}

impl Lane {
    fn new(task: Option<TracedTask>, first: usize) -> Lane {
        Lane { task, outcome: None, steps: 0, first, end: None, state: Open::Nothing }
    }

    pub(super) fn name(&self) -> String {
        self.task.as_ref().map_or_else(|| "loop".to_owned(), TracedTask::to_string)
    }
}

struct Weaver {
    spans: Spans,
    by_task: HashMap<TaskId, usize>,
    /// Who woke a lane whose step has not come yet: (record, lane).
    pending: HashMap<usize, (usize, usize)>,
    /// Who queued a callback that has not run yet.
    queued: HashMap<u32, (usize, usize)>,
    /// The current tick: its record and number.
    tick: Option<(usize, u64)>,
    callback: Option<usize>,
    timer: Option<usize>,
}

impl Weaver {
    fn lane(&mut self, task: &TracedTask, at: usize) -> usize {
        let lanes = &mut self.spans.lanes;
        *self.by_task.entry(task.id()).or_insert_with(|| {
            lanes.push(Lane::new(Some(task.clone()), at));
            lanes.len() - 1
        })
    }

    fn lane_of(&mut self, actor: &Actor, at: usize) -> usize {
        match actor {
            Actor::Task(task) => self.lane(task, at),
            _ => LOOP,
        }
    }

    fn bar(&mut self, lane: usize, kind: BarKind, from: usize, to: usize, label: impl Into<String>) {
        self.spans.bars.push(Bar { lane, kind, from, to, label: label.into() });
    }

    fn take(&mut self, at: usize, record: &Record) {
        if !matches!(record.what, What::Woken(_) | What::CancelRequested(_)) {
            // A poll's bar reaches back to the record before it, where the tick has ended.
            self.end_timer(if matches!(record.what, What::Polled { .. }) { at.saturating_sub(1) } else { at });
        }
        let doer = self.lane_of(&record.by, at);
        let mut lane = doer;
        match &record.what {
            What::Tick { .. } => {
                self.end_tick(at);
                self.tick = Some((at, record.tick));
            }
            What::Polled { .. } => {
                self.end_tick(at.saturating_sub(1));
                self.bar(LOOP, BarKind::Poll, at.saturating_sub(1), at, record.what.to_string());
            }
            What::RunStarted { .. } | What::RunEnded | What::Closing => self.end_tick(at),
            What::TimerFired { .. } => self.timer = Some(at),
            What::CallbackQueued(callback) | What::TimerArmed { callback: Some(callback), .. } => {
                self.queued.insert(callback.info.number, (at, doer));
            }
            What::CallbackStarted(callback) => {
                self.callback = Some(at);
                if let Some((from, from_lane)) = self.queued.remove(&callback.info.number) {
                    self.spans.arrows.push(Arrow { from, from_lane, to: at, to_lane: LOOP });
                }
            }
            What::CallbackFinished(callback) => {
                if let Some(from) = self.callback.take() {
                    self.bar(LOOP, BarKind::Callback, from, at, format!("callback {callback}"));
                }
            }
            What::Created(task) => lane = self.lane(task, at),
            What::Woken(task) => lane = self.woken(task, at, &record.by, doer),
            What::StepStarted(_) => self.step_starts(lane, at),
            What::Suspended { on, .. } => {
                if let Open::Running { next, .. } = &mut self.spans.lanes[lane].state {
                    *next = Some(on.clone());
                }
            }
            What::StepEnded(_) => self.step_ends(lane, at),
            What::Finished { task, outcome } => {
                lane = self.lane(task, at);
                self.finished(lane, at, *outcome);
            }
            _ => {}
        }
        self.spans.lane_of.push(lane);
    }

    fn woken(&mut self, task: &TracedTask, at: usize, by: &Actor, doer: usize) -> usize {
        let lane = self.lane(task, at);
        match self.spans.lanes[lane].state.clone() {
            Open::Running { since, next, .. } => {
                self.spans.lanes[lane].state = Open::Running { since, next, woken: true };
                return lane;
            }
            Open::Waiting(since, on) => self.bar(lane, BarKind::Waiting, since, at, format!("waits for {on}")),
            Open::Nothing | Open::Ready(_) => {}
        }
        self.spans.lanes[lane].state = Open::Ready(at);
        // Code outside of the loop has no bar an arrow could begin at.
        if !matches!(by, Actor::Loop) {
            self.pending.insert(lane, (self.timer.unwrap_or(at), doer));
        }
        lane
    }

    fn step_starts(&mut self, lane: usize, at: usize) {
        if let Open::Ready(since) = self.spans.lanes[lane].state {
            self.bar(lane, BarKind::Ready, since, at, "ready");
        }
        if let Some((from, from_lane)) = self.pending.remove(&lane)
            && from_lane != lane
        {
            self.spans.arrows.push(Arrow { from, from_lane, to: at, to_lane: lane });
        }
        self.spans.lanes[lane].steps += 1;
        self.spans.lanes[lane].state = Open::Running { since: at, next: None, woken: false };
    }

    fn step_ends(&mut self, lane: usize, at: usize) {
        let Open::Running { since, next, woken } = self.spans.lanes[lane].state.clone() else { return };
        self.bar(lane, BarKind::Running, since, at, "runs");
        self.spans.lanes[lane].state = match next {
            _ if self.spans.lanes[lane].end.is_some() => Open::Nothing,
            _ if woken => Open::Ready(at),
            Some(on) => Open::Waiting(at, on),
            None => Open::Nothing,
        };
    }

    /// Usually within its last step, whose end closes the bar; a loop that is closed ends what waits.
    fn finished(&mut self, lane: usize, at: usize, outcome: Outcome) {
        self.spans.lanes[lane].outcome = Some(outcome);
        self.spans.lanes[lane].end = Some(at);
        if !matches!(self.spans.lanes[lane].state, Open::Running { .. }) {
            self.close(lane, at);
        }
    }

    fn close(&mut self, lane: usize, at: usize) {
        match std::mem::replace(&mut self.spans.lanes[lane].state, Open::Nothing) {
            Open::Nothing => {}
            Open::Ready(since) => self.bar(lane, BarKind::Ready, since, at, "ready"),
            Open::Running { since, .. } => self.bar(lane, BarKind::Running, since, at, "runs"),
            Open::Waiting(since, on) => self.bar(lane, BarKind::Waiting, since, at, format!("waits for {on}")),
        }
    }

    fn end_tick(&mut self, at: usize) {
        if let Some((from, number)) = self.tick.take() {
            self.bar(LOOP, BarKind::Tick, from, at, format!("tick {number}"));
        }
    }

    fn end_timer(&mut self, at: usize) {
        if let Some(from) = self.timer.take() {
            self.bar(LOOP, BarKind::Timer, from, at, "timer");
        }
    }

    fn end(&mut self, last: usize) {
        self.end_timer(last);
        self.end_tick(last);
        for lane in 1..self.spans.lanes.len() {
            self.close(lane, last);
        }
    }
}
