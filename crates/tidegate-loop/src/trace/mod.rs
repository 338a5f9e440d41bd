//! What a loop did, to look at: a [`Recorder`] watches it, a [`Trace`] is what it has seen, and a trace is read as text
//! (tick by tick), in Perfetto, or as a timeline in a browser.
//!
//! ```
//! use tidegate_loop::{sleep, trace::Recorder, Duration, EventLoop, Runner};
//!
//! let recorder = Recorder::new();
//! let runner = Runner::new(EventLoop::builder().virtual_time().strict(true).build().unwrap());
//! runner.event_loop().set_observer(recorder.clone());
//! runner.run(sleep(Duration::from_secs(1))).unwrap();
//! drop(runner);
//!
//! let text = recorder.trace().to_text();
//! assert!(text.contains("waits for a timer"));
//! ```
//!
//! Called by `tidegate trace` and by programs that want to see themselves. It only reads an observer's events; the
//! loop does not know it. In virtual time the same program gives the same bytes, whatever the machine.
//!
//! `record.rs` is what is kept, `spans.rs` turns it into bars and arrows, `text.rs`, `chrome.rs` and `html.rs` are the
//! three ways to read it, `examples/` five small programs worth watching.

mod chrome;
pub mod examples;
mod html;
mod json;
mod record;
mod spans;
mod text;

use std::rc::Rc;

pub use record::{Actor, Record, Recorder, TracedCallback, TracedTask, What, place};

/// The style sheet of the timeline, for [`Trace::to_linked_html`].
pub const TIMELINE_STYLE: &str = html::STYLE;

/// The script of the timeline, for [`Trace::to_linked_html`].
pub const TIMELINE_SCRIPT: &str = html::SCRIPT;

/// What a [`Recorder`] has seen, and how to read it.
///
/// ```
/// use tidegate_loop::{trace::Recorder, EventLoop};
/// let recorder = Recorder::new();
/// let event_loop = EventLoop::simulated(1);
/// event_loop.set_observer(recorder.clone());
/// event_loop.run_until_complete(async {}).unwrap();
/// let trace = recorder.trace().titled("nothing at all");
/// assert!(trace.to_text().starts_with("nothing at all"));
/// ```
#[derive(Debug, Clone)]
pub struct Trace {
    records: Vec<Record>,
    /// Older records that had to go, because the recorder has a limit.
    dropped: u64,
    title: Rc<str>,
    program: Rc<str>,
}

impl Trace {
    /// Gives it a heading.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// assert!(Recorder::new().trace().titled("before the storm").to_html().contains("before the storm"));
    /// ```
    #[must_use]
    pub fn titled(mut self, title: &str) -> Trace {
        self.title = title.into();
        self
    }

    /// Adds the program's source, which the HTML page shows beside the timeline.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// assert!(Recorder::new().trace().with_program("async fn main()").to_html().contains("async fn main()"));
    /// ```
    #[must_use]
    pub fn with_program(mut self, source: &str) -> Trace {
        self.program = source.into();
        self
    }

    /// What was seen, oldest first.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// assert!(Recorder::new().trace().records().is_empty());
    /// ```
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// How many older records were dropped to stay within the recorder's limit.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// assert_eq!(Recorder::new().trace().dropped(), 0);
    /// ```
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// As text, tick by tick, for a terminal.
    ///
    /// ```
    /// let trace = tidegate_loop::trace::examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// assert!(trace.to_text().contains("tick 2"));
    /// ```
    #[must_use]
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// In Chrome's trace event format, for <https://ui.perfetto.dev> or `chrome://tracing`: one track for the loop, one
    /// a task, arrows from each waking step to the task it wakes.
    ///
    /// In virtual time a step takes no time at all and could not be seen; there every record is drawn a little later
    /// than the one before, by the `slot_us` that `otherData` names. The exact time is in each slice's arguments.
    ///
    /// ```
    /// let trace = tidegate_loop::trace::examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// assert!(trace.to_chrome_json().contains("traceEvents"));
    /// ```
    #[must_use]
    pub fn to_chrome_json(&self) -> String {
        chrome::render(self)
    }

    /// As one HTML page that needs nothing else: a timeline with a lane a task, and a table of the events.
    ///
    /// ```
    /// let trace = tidegate_loop::trace::examples::find("sleep").unwrap().record(&Default::default()).unwrap();
    /// assert!(trace.to_html().starts_with("<!doctype html>"));
    /// ```
    #[must_use]
    pub fn to_html(&self) -> String {
        html::render(self, html::Parts::Inside)
    }

    /// The same page for a site whose policy allows nothing inline: it loads [`TIMELINE_STYLE`] and [`TIMELINE_SCRIPT`] from
    /// these addresses.
    ///
    /// ```
    /// # use tidegate_loop::trace::Recorder;
    /// let page = Recorder::new().trace().to_linked_html("/timeline.css", "/timeline.js");
    /// assert!(page.contains("<script src=\"/timeline.js\">") && !page.contains("<style"));
    /// ```
    #[must_use]
    pub fn to_linked_html(&self, style: &str, script: &str) -> String {
        html::render(self, html::Parts::Linked { style, script })
    }

    /// How the loop was set up, in a line.
    fn setting(&self) -> Option<String> {
        self.records.iter().find_map(|record| match record.what {
            What::RunStarted { virtual_time, strict, seed } => Some(format!(
                "{}, {}, {}",
                if virtual_time { "virtual time" } else { "real time" },
                if strict { "one poll a tick" } else { "polls when it must" },
                match seed {
                    Some(seed) => format!("order of the ready tasks drawn from seed {seed}"),
                    None => "first come, first served".to_owned(),
                }
            )),
            _ => None,
        })
    }

    fn in_virtual_time(&self) -> bool {
        self.records.iter().any(|record| matches!(record.what, What::RunStarted { virtual_time: true, .. }))
    }
}
