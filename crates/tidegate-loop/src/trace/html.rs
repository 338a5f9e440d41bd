//! A trace as an HTML page: the template beside this file, with the data put into it. Style and script stand in the page
//! itself, or are files that it links to.

use std::fmt::Write as _;

use super::Trace;
use super::json::{self, string};
use super::record::{Actor, Span, What, place};
use super::spans::Spans;

const TEMPLATE: &str = include_str!("timeline.html");

pub(super) const STYLE: &str = include_str!("timeline.css");
pub(super) const SCRIPT: &str = include_str!("timeline.js");

/// Of a page that holds everything: nothing is fetched, and only the script of this digest runs.
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
                      script-src 'sha256-TUCxNTgAsQi3KF5LG21cNA1j8Qi40DsEmfLpa+qkzN4='; base-uri 'none'; form-action \
                      'none'\">\n";

/// Where style and script are.
#[derive(Clone, Copy)]
pub(super) enum Parts<'a> {
    /// In the page.
    Inside,
    /// At these addresses.
    Linked { style: &'a str, script: &'a str },
}

pub(super) fn render(trace: &Trace, parts: Parts<'_>) -> String {
    let title = if trace.title.is_empty() { "trace" } else { &trace.title };
    let data = data(trace);
    let mut page = String::with_capacity(TEMPLATE.len() + data.len() + trace.program.len());
    let mut rest = TEMPLATE;
    // One pass, so that nothing in the data is taken for a mark of the template.
    while let Some((before, mark_on)) = rest.split_once("{{") {
        let (mark, after) = mark_on.split_once("}}").expect("the template closes its marks");
        page.push_str(before);
        match mark {
            "title" => escape(&mut page, title),
            "setting" => escape(&mut page, &trace.setting().unwrap_or_default()),
            "program" => escape(&mut page, &trace.program),
            "data" => page.push_str(&data),
            "policy" if matches!(parts, Parts::Inside) => page.push_str(POLICY),
            "policy" => {}
            "style" => match parts {
                Parts::Inside => ["<style>\n", STYLE, "</style>"].iter().for_each(|part| page.push_str(part)),
                Parts::Linked { style, .. } => link(&mut page, "<link rel=\"stylesheet\" href=\"", style, "\">"),
            },
            "script" => match parts {
                Parts::Inside => ["<script>\n", SCRIPT, "</script>"].iter().for_each(|part| page.push_str(part)),
                Parts::Linked { script, .. } => link(&mut page, "<script src=\"", script, "\"></script>"),
            },
            _ => unreachable!("the template has seven marks"),
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

fn link(page: &mut String, before: &str, address: &str, after: &str) {
    page.push_str(before);
    escape(page, address);
    page.push_str(after);
}

fn escape(page: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            _ => page.push(character),
        }
    }
}

/// What the page's script draws; its reader is at the top of the script.
fn data(trace: &Trace) -> String {
    let spans = Spans::of(&trace.records);
    let mut out = String::from("{\"lanes\":");
    json::array(&mut out, &spans.lanes, |out, lane| {
        out.push('[');
        string(out, &lane.name());
        out.push(',');
        string(out, &lane.task.as_ref().map(|task| place(task.location())).unwrap_or_default());
        out.push(',');
        string(out, &lane.outcome.map(|outcome| outcome.to_string()).unwrap_or_default());
        let end = lane.end.map_or(-1, |end| end as i64);
        let _ = write!(out, ",{},{},{end}]", lane.steps, lane.first);
    });
    out.push_str(",\"records\":");
    json::array(&mut out, trace.records.iter().enumerate(), |out, (at, record)| {
        let _ = write!(out, "[{:.3},", record.at.as_nanos() as f64 / 1000.0);
        string(out, &Span(record.at).to_string());
        let _ = write!(out, ",{},{},", record.tick, spans.lane_of[at]);
        let who = match &record.by {
            Actor::Callback(callback) => format!("callback {}", callback.info.number),
            other => other.to_string(),
        };
        string(out, &who);
        out.push(',');
        string(out, &record.what.to_string());
        let _ = write!(out, ",\"{}\"]", mark(&record.what));
    });
    out.push_str(",\"bars\":");
    json::array(&mut out, &spans.bars, |out, bar| {
        let _ = write!(out, "[{},\"{}\",{},{},", bar.lane, bar.kind.name(), bar.from, bar.to);
        string(out, &bar.label);
        out.push(']');
    });
    out.push_str(",\"arrows\":");
    json::array(&mut out, &spans.arrows, |out, arrow| {
        let _ = write!(out, "[{},{},{},{}]", arrow.from, arrow.from_lane, arrow.to, arrow.to_lane);
    });
    let _ = write!(out, ",\"virtual\":{},\"dropped\":{}}}", trace.in_virtual_time(), trace.dropped);
    out
}

/// What is drawn on the lane at this record; nothing for most.
fn mark(what: &What) -> &'static str {
    match what {
        What::Note(_) => "note",
        What::Created(_) => "created",
        What::Finished { .. } => "end",
        What::CancelRequested(_) => "cancel",
        What::FutureSet { .. } => "set",
        What::Tick { .. } => "tick",
        _ => "",
    }
}
