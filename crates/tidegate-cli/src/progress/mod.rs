//! How far a run has come, on standard error: a display that is drawn in place, lines for logs, JSON for programs, or
//! nothing.
//!
//! `run.rs` looks at a run, `live.rs` at its gate, `scene.rs` is what is shown, `draw.rs` how it looks, `screen.rs` how it gets onto the terminal, `figures.rs` how numbers
//! and texts are made to fit. `lines.rs` and `json.rs` are the other two ways; `metrics.rs` is the page for Prometheus.

mod draw;
mod figures;
mod json;
mod lines;
mod live;
mod metrics;
mod pressure;
mod run;
mod scene;
mod screen;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use tidegate_limit::feedback::PROBED_BEYOND;
use tidegate_loop::{JoinHandle, sleep, spawn};

use draw::{Style, draw};
use live::{found, gauges, queue};
pub(crate) use metrics::MetricsListener;
use pressure::Pressure;
use scene::Scene;
use screen::{Screen, size};

use crate::terminal::{self, escape};

/// How often each is written.
const DRAW_EVERY: Duration = Duration::from_millis(125);
const LINE_EVERY: Duration = Duration::from_secs(2);
const JSON_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A display in a terminal, lines elsewhere
    Auto,
    /// A line every two seconds, and one for each file
    Plain,
    /// Everything that happens as a line of JSON, on standard error
    Json,
    /// Nothing
    None,
}

/// Something that makes progress and can be looked at.
pub(crate) trait Run {
    fn scene(&self) -> Scene;

    /// The same for programs; `event` is `progress`.
    fn json(&self) -> Value;
}

/// Tells people or programs what happens. Clones are the same.
#[derive(Clone)]
pub(crate) struct Reporter {
    way: Rc<Way>,
}

enum Way {
    Display(RefCell<Display>),
    Lines(RefCell<Pressure>),
    Json,
    Nothing,
}

impl Reporter {
    pub(crate) fn new(arg: ProgressArg) -> Reporter {
        let way = match arg {
            ProgressArg::Auto => match screen::style() {
                Some(style) => Way::Display(RefCell::new(Display::new(style))),
                None => Way::Lines(RefCell::default()),
            },
            ProgressArg::Plain => Way::Lines(RefCell::default()),
            ProgressArg::Json => Way::Json,
            ProgressArg::None => Way::Nothing,
        };
        Reporter { way: Rc::new(way) }
    }

    /// Something has happened: a line for people, if they want to know, and one of JSON for programs.
    fn tell(&self, line: impl FnOnce() -> Option<String>, json: impl FnOnce() -> String) {
        match &*self.way {
            Way::Display(display) => {
                if let Some(line) = line() {
                    display.borrow_mut().say(&line);
                }
            }
            Way::Lines(_) => {
                if let Some(line) = line() {
                    terminal::say(escape::line(&line));
                }
            }
            Way::Json => terminal::say_json(&json()),
            Way::Nothing => {}
        }
    }

    /// Prints a line for people, whatever kind of progress they chose.
    pub(crate) fn say(&self, line: &str) {
        match &*self.way {
            Way::Display(display) => display.borrow_mut().say(line),
            Way::Json => terminal::say_json(&json::message(line)),
            Way::Lines(_) | Way::Nothing => terminal::say(line),
        }
    }

    /// Writes a line after a run: what to do next. With `--progress json` there is none: `progress` is the last event.
    pub(crate) fn hint(&self, line: &str) {
        match &*self.way {
            Way::Display(_) | Way::Lines(_) => terminal::say(escape::line(line)),
            Way::Json | Way::Nothing => {}
        }
    }

    /// Notes that the run was asked to stop, and prints the reason.
    pub(crate) fn stopping(&self, line: &str) {
        if let Way::Display(display) = &*self.way {
            display.borrow_mut().stopping = true;
        }
        self.say(line);
    }

    /// The last words of a process that leaves at once: nothing is shown after them.
    pub(crate) fn leave(&self, line: &str) {
        if let Way::Display(display) = &*self.way {
            display.borrow_mut().end();
        }
        self.say(line);
    }

    /// Shows how far the run has come until what is returned is dropped.
    pub(crate) fn follow(&self, run: impl Run + 'static) -> Following {
        let run: Rc<dyn Run> = Rc::new(run);
        let announces = spawn(announce_pauses(self.clone(), Rc::clone(&run)));
        let every = match &*self.way {
            Way::Display(display) => {
                display.borrow_mut().run = Some(Rc::clone(&run));
                DRAW_EVERY
            }
            Way::Lines(_) => LINE_EVERY,
            Way::Json => JSON_EVERY,
            Way::Nothing => return Following { tasks: vec![announces], reporter: self.clone(), run },
        };
        let (reporter, seen) = (self.clone(), Rc::clone(&run));
        let shows = spawn(async move {
            loop {
                sleep(every).await;
                reporter.progress(&*seen);
            }
        });
        Following { tasks: vec![shows, announces], reporter: self.clone(), run }
    }

    fn progress(&self, run: &dyn Run) {
        match &*self.way {
            Way::Display(display) => display.borrow_mut().redraw(),
            Way::Lines(pressure) => {
                let mut scene = run.scene();
                pressure.borrow_mut().note(&mut scene);
                terminal::say(escape::line(&lines::progress(&scene)));
            }
            Way::Json => terminal::say_json(&run.json().to_string()),
            Way::Nothing => {}
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        matches!(*self.way, Way::Nothing)
    }
}

/// Says when the server has asked for a pause so long that the run seems to hang, once per pause and limit, whatever people
/// want to know of the progress.
async fn announce_pauses(reporter: Reporter, run: Rc<dyn Run>) {
    let mut announced: BTreeSet<String> = BTreeSet::new();
    loop {
        sleep(LINE_EVERY).await;
        for gauge in run.scene().gauges {
            match gauge.held_for {
                Some(pause) if pause > PROBED_BEYOND => {
                    if announced.insert(gauge.name.clone()) {
                        reporter.say(&format!(
                            "{}: the server asked for a pause of {}; a request is tried now and then, and the run goes on once \
                             one is served. Ctrl-C stops the run; what is answered is kept",
                            gauge.name,
                            figures::time(pause)
                        ));
                    }
                }
                Some(_) => {}
                None => drop(announced.remove(&gauge.name)),
            }
        }
    }
}

/// A run that is being shown. Dropped, the terminal is clean again.
pub(crate) struct Following {
    reporter: Reporter,
    run: Rc<dyn Run>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.cancel();
        }
        match &*self.reporter.way {
            Way::Display(display) => display.borrow_mut().end(),
            // Programs want to know how it ended; people read the report.
            Way::Json => self.reporter.progress(&*self.run),
            Way::Lines(_) | Way::Nothing => {}
        }
    }
}

/// What is drawn in place.
struct Display {
    screen: Screen,
    style: Style,
    /// `None`: nothing to show yet, or any more.
    run: Option<Rc<dyn Run>>,
    /// The run was asked to stop.
    stopping: bool,
    pressure: Pressure,
}

impl Display {
    fn new(style: Style) -> Display {
        Display { screen: Screen::new(), style, run: None, stopping: false, pressure: Pressure::default() }
    }

    fn redraw(&mut self) {
        let Some(run) = &self.run else { return };
        let size = size();
        let mut scene = run.scene();
        scene.stopping |= self.stopping;
        self.pressure.note(&mut scene);
        self.screen.show(&draw(&scene, size, self.style), size);
    }

    fn say(&mut self, line: &str) {
        self.screen.say(&escape::line(line), size());
        self.redraw();
    }

    fn end(&mut self) {
        self.run = None;
        self.screen.clear(size());
    }
}
