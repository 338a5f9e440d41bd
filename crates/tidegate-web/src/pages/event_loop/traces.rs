//! Traces: the next ticks are recorded, then read as a timeline, or downloaded.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use maud::{Markup, html};
use tidegate_loop::trace::{Recorder, Trace};
use tidegate_loop::{LoopEvent, LoopHandle, Observer, sleep};

use super::EventLoop;
use crate::answer::{Answer, Failure};
use crate::assets;
use crate::format;
use crate::request::Request;
use crate::site::Site;

/// Traces that are kept; the oldest goes.
const KEPT_MAX: usize = 5;

/// Records of a trace: what a browser can draw.
const RECORDS_MAX: usize = 100_000;

/// Choices of ticks.
const TICKS: [u64; 3] = [100, 1_000, 10_000];

/// A loop with little to do is recorded for this long at most.
const LONGEST: Duration = Duration::from_secs(30);

struct Kept {
    number: u64,
    at: SystemTime,
    ticks: u64,
    trace: Trace,
}

#[derive(Default)]
pub(super) struct Traces {
    kept: RefCell<VecDeque<Rc<Kept>>>,
    last: Cell<u64>,
    running: RefCell<Option<Rc<Recording>>>,
}

/// Ticks that are being recorded.
struct Recording {
    number: u64,
    recorder: Recorder,
    wanted: u64,
    seen: Cell<u64>,
    is_over: Cell<bool>,
}

/// Passes what it observes to the recorder until enough ticks have begun.
struct Counting(Rc<Recording>, Recorder);

impl Observer for Counting {
    fn observe(&mut self, at: Duration, event: &LoopEvent<'_>) {
        if self.0.is_over.get() {
            return;
        }
        if matches!(event, LoopEvent::Tick { .. }) {
            if self.0.seen.get() == self.0.wanted {
                return self.0.is_over.set(true);
            }
            self.0.seen.set(self.0.seen.get() + 1);
        }
        self.1.observe(at, event);
    }
}

impl Traces {
    fn find(&self, number: &str) -> Result<Rc<Kept>, Failure> {
        let number: Option<u64> = number.parse().ok();
        let kept = self.kept.borrow().iter().find(|kept| Some(kept.number) == number).cloned();
        kept.ok_or_else(|| Failure::not_found("There is no such trace; the last five are kept."))
    }

    pub(super) fn form(&self, may_act: bool) -> Markup {
        html! {
            @if may_act {
                form.btns method="post" action="/loop/traces" {
                    label.vh for="ticks" { "Length" }
                    select.auto #ticks name="ticks" {
                        @for ticks in TICKS { option value=(ticks) selected[ticks == TICKS[1]] { (format::count(ticks)) " ticks" } }
                    }
                    button.btn.primary { "Record a trace" }
                }
            }
        }
    }

    /// What is being recorded.
    pub(super) fn state(&self) -> Markup {
        let kept = self.kept.borrow();
        let running = self.running.borrow();
        html! {
            @if let Some(running) = &*running {
                p.empty.sub { "Trace " (running.number) ": " (format::count(running.seen.get())) " of " (format::counted(running.wanted, "tick")) " recorded…" }
            }
            @if kept.is_empty() && running.is_none() { p.empty.sub { "No trace has been recorded." } }
            @if !kept.is_empty() {
                table.t.cards {
                    caption.vh { "Recorded traces" }
                    thead { tr { th scope="col" { "Trace" } th scope="col" { "Recorded" } th.num scope="col" { "Ticks" } th.num scope="col" { "Events" } th scope="col" { "Open" } } }
                    tbody {
                        @for kept in kept.iter().rev() {
                            tr {
                                th scope="row" { a href=(format!("/loop/traces/{}", kept.number)) { "Timeline " (kept.number) } }
                                td data-l="recorded" { (format::instant(kept.at, SystemTime::now())) }
                                td.num data-l="ticks" { (format::count(kept.ticks)) }
                                td.num data-l="events" { (format::count(kept.trace.records().len() as u64)) }
                                td.full {
                                    a href=(format!("/loop/traces/{}/timeline.html", kept.number)) download { "HTML" } " · "
                                    a href=(format!("/loop/traces/{}/perfetto.json", kept.number)) download { "Perfetto" } " · "
                                    a href=(format!("/loop/traces/{}/trace.txt", kept.number)) download { "Text" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    pub(super) fn list(&self) -> Markup {
        html! {
            section.sec.traces aria-labelledby="tr-h" {
                div.sec-head { h2 #tr-h { "Traces" } span.dim.small { "every step, wake-up and timer of the ticks after the button was pressed" } }
                div.boxed data-h="loop.trace" { (self.state()) }
            }
        }
    }
}

impl EventLoop {
    /// Records the next ticks, or for half a minute if there are fewer. One trace at a time.
    fn record(&self, wanted: u64) -> Result<u64, Failure> {
        let traces = &self.0.traces;
        if traces.running.borrow().is_some() {
            return Err(Failure::conflict("A trace is being recorded; wait for its end."));
        }
        let number = traces.last.get() + 1;
        traces.last.set(number);
        let recorder = Recorder::with_limit(RECORDS_MAX);
        let recording = Rc::new(Recording {
            number,
            recorder: recorder.clone(),
            wanted,
            seen: Cell::new(0),
            is_over: Cell::new(false),
        });
        *traces.running.borrow_mut() = Some(Rc::clone(&recording));
        self.0.handle.set_observer(Counting(Rc::clone(&recording), recorder));
        let own = self.clone();
        LoopHandle::current().task().name("trace recording").spawn(async move {
            let deadline = own.0.handle.time() + LONGEST;
            while !recording.is_over.get() && LoopHandle::current().time() < deadline {
                sleep(Duration::from_millis(100)).await;
            }
            own.0.handle.clear_observer();
            own.0.traces.finish(&recording, &own.0.process);
        });
        Ok(number)
    }
}

impl Traces {
    fn finish(&self, recording: &Recording, process: &str) {
        let trace = recording.recorder.trace().titled(&format!("{process}: trace {}", recording.number));
        let kept = Kept { number: recording.number, at: SystemTime::now(), ticks: recording.seen.get(), trace };
        let mut all = self.kept.borrow_mut();
        all.push_back(Rc::new(kept));
        if all.len() > KEPT_MAX {
            all.pop_front();
        }
        *self.running.borrow_mut() = None;
    }
}

pub(super) fn mount(event_loop: &EventLoop, site: &mut Site) {
    let own = event_loop.clone();
    site.post("/loop/traces", "record a trace", move |mut request: Request| {
        let own = own.clone();
        async move {
            let form = request.form().await?;
            let ticks = form.get("ticks").and_then(|ticks| ticks.parse().ok()).filter(|ticks| TICKS.contains(ticks));
            let ticks = ticks.ok_or_else(|| Failure::bad_request("Choose one of the offered numbers of ticks."))?;
            let number = own.record(ticks)?;
            request.audit(format!("trace {number}, {ticks} ticks"));
            Ok(Answer::see_other("/loop#tr-h"))
        }
    });
    let own = event_loop.clone();
    site.get("/loop/traces/{number}", move |request: Request| {
        let page = own.0.traces.find(request.path("number")).map(|kept| {
            let html = kept.trace.to_linked_html(&assets::path("timeline.css"), &assets::path("timeline.js"));
            Answer::bytes("text/html; charset=utf-8", html)
        });
        std::future::ready(page)
    });
    let own = event_loop.clone();
    site.get("/loop/traces/{number}/{file}", move |request: Request| {
        let answer = own.0.traces.find(request.path("number")).and_then(|kept| {
            let name = |ending: &str| format!("tidegate-trace-{}{ending}", kept.number);
            match request.path("file") {
                "timeline.html" => {
                    Ok(Answer::download("text/html; charset=utf-8", &name(".html"), kept.trace.to_html()))
                }
                "perfetto.json" => {
                    Ok(Answer::download("application/json", &name(".json"), kept.trace.to_chrome_json()))
                }
                "trace.txt" => Ok(Answer::download("text/plain; charset=utf-8", &name(".txt"), kept.trace.to_text())),
                _ => Err(Failure::new(
                    StatusCode::NOT_FOUND,
                    "A trace can be had as timeline.html, perfetto.json or trace.txt.",
                )),
            }
        });
        std::future::ready(answer)
    });
}
