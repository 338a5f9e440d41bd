//! Group `io`: the lines and their goals. What is compared is the server's CPU time a message: echo and HTTP are
//! bound by system calls, and what one contestant spends less of is left for the program.
//!
//! The server runs in a process of its own (this binary again, or Python), pinned to one core; the load comes from this
//! process, pinned to another, and is the same for everybody.
//!
//! Reading order: this list; `echo.rs`, `instructions.rs`, `http.rs` (what is measured); `load.rs` (who sends);
//! `process.rs` and the bench's `cpus.rs` (where it runs); `servers/` (the contestants).

mod echo;
mod http;
mod instructions;
mod load;
mod process;
mod servers;

use std::process::ExitCode;

use crate::harness::{BASELINE, Goal, Line, Measured, Stats};
use crate::python::Python;
use echo::Cell;
pub(crate) use process::cpu_of;
use servers::{ASYNCIO, Served, TIDEGATE_URING, TOKIO, TOKIO_LOCAL, UVLOOP};

/// Goals speak of tokio as the better of its two runtimes.
const TOKIOS: &[&str] = &[TOKIO, TOKIO_LOCAL];

const fn against_tokio(limit: f64) -> Goal {
    Goal::Ratio { against: TOKIOS, limit, aim: limit }
}

pub(crate) fn lines() -> Vec<Line> {
    let python = Python::find();
    let cells = [1, 50, 1_000].into_iter().flat_map(|connections| [64, 4096].map(|bytes| Cell { connections, bytes }));
    let mut lines: Vec<Line> = cells.map(|cell| echo_line(cell, &python)).collect();
    lines.extend([1, 50].map(|connections| instructions_line(Cell { connections, bytes: 64 })));
    lines.push(http_line());
    lines
}

fn echo_line(cell: Cell, python: &Python) -> Line {
    let mut line = Line::new(cell.to_string(), "µs CPU")
        .goal(against_tokio(1.0))
        .goal(Goal::Ratio { against: &[ASYNCIO], limit: 2.0, aim: 2.0 })
        .goal(Goal::Ratio { against: &[UVLOOP], limit: 1.1, aim: 1.1 })
        .note(format!("server CPU a message; CPython {}: streams on asyncio, protocols on uvloop", python.version()));
    if cell == echo::RING_CELL {
        line = line.goal(Goal::RatioOf { of: TIDEGATE_URING, against: TOKIOS, limit: 1.3 });
    }
    for server in servers::echo(python) {
        line = line.contestant_if(server.name, move || echo::sample(&server, cell));
    }
    line
}

fn instructions_line(cell: Cell) -> Line {
    let mut line = Line::new(format!("instructions, {cell}"), "instr")
        .goal(against_tokio(2.0))
        .rounds_max(1)
        .note("in user space, a message; callgrind's count");
    for name in [BASELINE, TOKIO, TOKIO_LOCAL] {
        let mut counted = None;
        // Counted once: a second look would see the same.
        line = line.contestant_if(name, move || counted.get_or_insert_with(|| instructions::count(name, cell)).clone());
    }
    line
}

fn http_line() -> Line {
    let mut line = Line::new(format!("HTTP hello, {} connections", http::CONNECTIONS), "µs CPU")
        .goal(Goal::Ratio { against: &[TOKIO], limit: 1.0, aim: 1.0 })
        .rounds_max(11)
        .note("server CPU a request: axum on both, load from wrk");
    for name in [BASELINE, TOKIO] {
        line = line.contestant_if(name, move || http::sample(name));
    }
    line
}

/// The echo cells together: geometric means of the medians, so that every cell counts alike.
pub(crate) fn summary(measured: &[Measured]) -> Option<Measured> {
    const BETTER_TOKIO: &str = "the better tokio";
    let cells: Vec<&Measured> = measured.iter().filter(|line| line.line.starts_with(echo::PREFIX)).collect();
    if cells.len() < 2 {
        return None;
    }
    let mean = |names: &[&'static str]| {
        let costs: Option<Vec<f64>> = cells.iter().map(|cell| cell.cheapest(names)).collect();
        let costs = costs.ok_or("did not run in every cell")?;
        let logs: f64 = costs.iter().map(|cost| cost.ln()).sum();
        Ok(Stats { median: (logs / costs.len() as f64).exp(), spread: 0.0 })
    };
    let rows = [
        (BASELINE, mean(&[BASELINE])),
        (TIDEGATE_URING, mean(&[TIDEGATE_URING])),
        (BETTER_TOKIO, mean(TOKIOS)),
        (ASYNCIO, mean(&[ASYNCIO])),
        (UVLOOP, mean(&[UVLOOP])),
    ];
    Some(Measured::new(
        format!("{}average of {} cells", echo::PREFIX, cells.len()),
        "µs CPU",
        Some("geometric means of the medians".to_owned()),
        rows.into(),
        &[Goal::Ratio { against: &[BETTER_TOKIO], limit: 1.05, aim: 1.05 }],
    ))
}

/// This binary as a server, if that is what it was started for.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != process::SERVE {
        return None;
    }
    let what = args.next().and_then(|word| Served::from_word(&word));
    let name = args.next();
    let done = match (what, name) {
        (Some(what), Some(name)) => servers::serve(what, &name),
        _ => Err("started with arguments that it would not have given itself".to_owned()),
    };
    match done {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(why) => {
            process::announce_unavailable(&why);
            Some(ExitCode::FAILURE)
        }
    }
}
