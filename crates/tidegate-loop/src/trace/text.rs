//! A trace as text: a heading a tick, below it who ran and what they did, in order.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use super::Trace;
use super::record::{Actor, Record, Span, TracedTask, What, place};
use super::spans::{Lane, Spans};
use crate::task::TaskId;

/// Names longer than this push the rest of their line to the right.
const NAME_MAX: usize = 16;
/// How far a tick's heading is ruled.
const RULE: usize = 76;
/// What a terminal shows without breaking lines.
const COLUMNS: usize = 80;

pub(super) fn render(trace: &Trace) -> String {
    let mut page = Page {
        out: String::new(),
        width: width_of_names(&trace.records),
        who: None,
        started: HashSet::new(),
        polled: None,
    };
    page.heading(trace);
    let mut rest = trace.records.as_slice();
    while let Some((record, after)) = rest.split_first() {
        let used = page.record(record, after);
        rest = &after[used..];
    }
    page.summary(trace);
    page.out
}

fn width_of_names(records: &[Record]) -> usize {
    let length = |record: &Record| record.by.to_string().chars().count();
    records.iter().map(length).max().unwrap_or(0).clamp("callback".len(), NAME_MAX)
}

struct Page {
    out: String,
    /// Of the column that says who.
    width: usize,
    /// Who the last line was about; not repeated.
    who: Option<String>,
    /// The tasks that have taken a step before.
    started: HashSet<TaskId>,
    /// A poll, told in the heading of the tick that follows.
    polled: Option<(Option<Duration>, usize)>,
}

impl Page {
    fn heading(&mut self, trace: &Trace) {
        if !trace.title.is_empty() {
            self.plain(&trace.title);
        }
        if let Some(setting) = trace.setting() {
            self.plain(&setting);
        }
        if trace.dropped > 0 {
            self.plain(&format!("({} older records were dropped)", trace.dropped));
        }
        if !self.out.is_empty() {
            self.out.push('\n');
        }
    }

    /// Writes one record, together with the `used` next ones that say the same thing.
    fn record(&mut self, record: &Record, after: &[Record]) -> usize {
        let next = after.first().map(|next| &next.what);
        let wakes = |task: &TracedTask| matches!(next, Some(What::Woken(woken)) if woken.id() == task.id());
        match &record.what {
            What::Tick { ready } => self.tick(record, *ready),
            What::Polled { timeout, events } => self.polled = Some((*timeout, *events)),
            What::RunStarted { .. } => self.rule("the loop runs"),
            What::RunEnded => {
                self.unheard_poll();
                self.rule("the loop has stopped");
            }
            What::Closing => self.rule("the loop is closed"),
            What::StepEnded(_) | What::CallbackFinished(_) => {}
            What::Created(task) if wakes(task) => {
                self.act(&record.by, &format!("creates {task}, ready to start"));
                return 1;
            }
            What::TimerFired { task: Some(task) } if wakes(task) => {
                self.begin(&record.by, &format!("fires: wakes {task}"));
                return 1;
            }
            What::Woken(task) if matches!(&record.by, Actor::Task(doer) if doer.id() == task.id()) => {
                self.act(&record.by, "asks for another turn");
            }
            What::Finished { task, outcome } if !matches!(&record.by, Actor::Task(doer) if doer.id() == task.id()) => {
                self.act(&record.by, &format!("ends {task}: {outcome}"));
            }
            What::StepStarted(task) => {
                let again = !self.started.insert(task.id());
                self.begin(&record.by, if again { "goes on" } else { "runs" });
            }
            What::CallbackStarted(callback) => {
                match callback.queued_by() {
                    Some(task) => self.begin(&record.by, &format!("runs, queued by {task}")),
                    None => self.begin(&record.by, "runs"),
                }
                self.act(&record.by, &format!("({callback})"));
            }
            What::TimerFired { .. } => self.begin(&record.by, &record.what.to_string()),
            What::Suspended { .. } | What::Finished { .. } => self.line(&record.by, &record.what.to_string()),
            _ => self.act(&record.by, &record.what.to_string()),
        }
        0
    }

    fn tick(&mut self, record: &Record, ready: usize) {
        let mut heading = format!("tick {} ── {}", record.tick, Span(record.at));
        match self.polled.take() {
            Some((Some(timeout), _)) => {
                let _ = write!(heading, " ── poll {}", Span(timeout));
            }
            Some((None, _)) => heading.push_str(" ── poll without limit"),
            None => {}
        }
        let _ = write!(heading, " ── {ready} ready");
        self.rule(&heading);
    }

    /// A poll that led to no tick: the loop would have waited for ever.
    fn unheard_poll(&mut self) {
        if self.polled.take().is_some() {
            self.plain("  polled, and nothing came");
        }
    }

    fn rule(&mut self, heading: &str) {
        let left = RULE.saturating_sub(heading.chars().count() + 4);
        let _ = writeln!(self.out, "── {heading} {}", "─".repeat(left));
        self.who = None;
    }

    fn plain(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
        self.who = None;
    }

    /// Something that a task or callback does while it runs; what comes from outside of the loop is not part of a step.
    fn act(&mut self, by: &Actor, text: &str) {
        let indent = if matches!(by, Actor::Loop) { "" } else { "  " };
        self.line(by, &format!("{indent}{text}"));
    }

    /// A step or callback begins: its name is written even if the last one had the same.
    fn begin(&mut self, by: &Actor, text: &str) {
        self.who = None;
        self.line(by, text);
    }

    fn line(&mut self, by: &Actor, text: &str) {
        let who = by.to_string();
        let shown = if self.who.as_deref() == Some(&who) { "" } else { who.as_str() };
        for (at, part) in text.lines().enumerate() {
            let (shown, indent) = if at == 0 { (shown, "") } else { ("", "        ") };
            let _ = writeln!(self.out, "  {shown:width$}  {indent}{part}", width = self.width);
        }
        self.who = Some(who);
    }

    fn summary(&mut self, trace: &Trace) {
        let spans = Spans::of(&trace.records);
        let tasks: Vec<&Lane> = spans.lanes.iter().filter(|lane| lane.task.is_some()).collect();
        if tasks.is_empty() {
            return;
        }
        self.out.push('\n');
        let rows = tasks.iter().map(|lane| row(lane, &trace.records));
        let rows: Vec<[String; 4]> = rows.collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (names, counts, ends) = (width(0).max(self.width), width(1), width(2));
        let fits = 8 + names + counts + ends + width(3) <= COLUMNS;
        for [name, steps, end, spawned] in &rows {
            let gap = if fits { "  ".to_owned() } else { format!("\n  {:names$}  ", "") };
            let ends = if fits { ends } else { 0 };
            let _ = writeln!(self.out, "  {name:names$}  {steps:<counts$}  {end:ends$}{gap}{spawned}");
        }
    }
}

/// A task in the summary: name, steps, how it ended, where it comes from.
fn row(lane: &Lane, records: &[Record]) -> [String; 4] {
    let end = match (lane.outcome, lane.end) {
        (Some(outcome), Some(end)) => format!("{outcome} at {}", Span(records[end].at)),
        _ => "still there".to_owned(),
    };
    let steps = format!("{} step{}", lane.steps, if lane.steps == 1 { "" } else { "s" });
    let spawned = lane.task.as_ref().map(|task| format!("spawned at {}", place(task.location()))).unwrap_or_default();
    [lane.name(), steps, end, spawned]
}
