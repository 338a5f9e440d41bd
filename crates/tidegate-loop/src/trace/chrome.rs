//! A trace in Chrome's trace event format, which Perfetto reads.

use std::fmt::Write as _;
use std::time::Duration;

use super::Trace;
use super::json::{self, quoted};
use super::record::{Record, Span, What, place};
use super::spans::{Arrow, Bar, LOOP, Spans};

/// The whole trace is one process.
const PROCESS: u32 = 1;

/// A lane as a thread. Thread 0 is the idle thread to Perfetto, so the loop is the process's first.
fn thread(lane: usize) -> usize {
    lane + 1
}

pub(super) fn render(trace: &Trace) -> String {
    let spans = Spans::of(&trace.records);
    let axis = Axis::of(trace);
    let mut events = Vec::new();
    let title = if trace.title.is_empty() { "tidegate" } else { &trace.title };
    events.push(metadata("process_name", 0, &format!("\"name\":{}", quoted(title))));
    for (lane, about) in spans.lanes.iter().enumerate() {
        events.push(metadata("thread_name", lane, &format!("\"name\":{}", quoted(&about.name()))));
        events.push(metadata("thread_sort_index", lane, &format!("\"sort_index\":{lane}")));
    }
    events.extend(spans.bars.iter().map(|bar| slice(bar, &axis)));
    events.extend(trace.records.iter().enumerate().filter_map(|(at, record)| instant(at, record, &spans, &axis)));
    for (id, arrow) in spans.arrows.iter().enumerate() {
        events.extend(flow(id, arrow, &axis));
    }

    let mut out = String::from("{\"traceEvents\":");
    json::array(&mut out, events, |out, event| out.push_str(&event));
    let _ = write!(
        out,
        ",\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{{\"setting\":{},\"slot_us\":\"{}\",\"dropped_records\":\"{}\"}}}}\n",
        quoted(&trace.setting().unwrap_or_default()),
        axis.slot.as_micros(),
        trace.dropped
    );
    out
}

/// Where a record lies in time. In virtual time everything between two waits happens at once, so each record is
/// drawn one slot after the one before it.
struct Axis<'a> {
    records: &'a [Record],
    slot: Duration,
}

impl Axis<'_> {
    fn of(trace: &Trace) -> Axis<'_> {
        let records = &trace.records;
        let slot = match (trace.in_virtual_time(), records.last()) {
            (true, Some(last)) => slot_for(last.at, records.len()),
            _ => Duration::ZERO,
        };
        Axis { records, slot }
    }

    fn micros(&self, at: usize) -> f64 {
        let moved = self.records[at].at + self.slot * u32::try_from(at).unwrap_or(u32::MAX);
        moved.as_nanos() as f64 / 1000.0
    }
}

/// Small enough that the steps together take less than the waits, large enough to be seen: a round number.
fn slot_for(whole: Duration, records: usize) -> Duration {
    if whole.is_zero() {
        return Duration::from_millis(1);
    }
    let room = whole.as_micros() / (4 * records as u128);
    let round = (0..9).flat_map(|power| [5, 2, 1].map(|digit| digit * 10_u64.pow(8 - power)));
    let micros = round.into_iter().find(|&micros| u128::from(micros) <= room).unwrap_or(1);
    Duration::from_micros(micros)
}

fn metadata(name: &str, lane: usize, args: &str) -> String {
    let thread = thread(lane);
    format!(r#"{{"ph":"M","name":"{name}","pid":{PROCESS},"tid":{thread},"args":{{{args}}}}}"#)
}

fn slice(bar: &Bar, axis: &Axis<'_>) -> String {
    let (from, to) = (axis.micros(bar.from), axis.micros(bar.to));
    format!(
        r#"{{"ph":"X","name":{},"cat":"{}","pid":{PROCESS},"tid":{},"ts":{from:.3},"dur":{:.3},"args":{{"at":{},"until":{},"tick":{}}}}}"#,
        quoted(&bar.label),
        bar.kind.name(),
        thread(bar.lane),
        to - from,
        quoted(&Span(axis.records[bar.from].at).to_string()),
        quoted(&Span(axis.records[bar.to].at).to_string()),
        axis.records[bar.from].tick
    )
}

/// What has no length: what the program said, how a task began and ended.
fn instant(at: usize, record: &Record, spans: &Spans, axis: &Axis<'_>) -> Option<String> {
    let (name, more) = match &record.what {
        What::Note(text) => (text.to_string(), String::new()),
        What::Created(task) => ("created".to_owned(), format!(r#","spawned":{}"#, quoted(&place(task.location())))),
        What::Finished { outcome, .. } => (outcome.to_string(), String::new()),
        What::CancelRequested(_)
        | What::FutureSet { .. }
        | What::TimerArmed { .. }
        | What::StopRequested
        | What::Slow { .. } => (record.what.to_string(), String::new()),
        _ => return None,
    };
    Some(format!(
        r#"{{"ph":"i","s":"t","name":{},"cat":"event","pid":{PROCESS},"tid":{},"ts":{:.3},"args":{{"at":{}{more}}}}}"#,
        quoted(&name),
        thread(spans.lane_of[at]),
        axis.micros(at),
        quoted(&Span(record.at).to_string()),
    ))
}

fn flow(id: usize, arrow: &Arrow, axis: &Axis<'_>) -> [String; 2] {
    let name = if arrow.to_lane == LOOP { "queues" } else { "wakes" };
    let end = |phase: &str, lane: usize, at: usize| {
        let (thread, at) = (thread(lane), axis.micros(at));
        format!(
            r#"{{"ph":{phase},"name":"{name}","cat":"flow","id":{id},"pid":{PROCESS},"tid":{thread},"ts":{at:.3}}}"#
        )
    };
    [end(r#""s""#, arrow.from_lane, arrow.from), end(r#""f","bp":"e""#, arrow.to_lane, arrow.to)]
}
