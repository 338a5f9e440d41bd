//! User-space instructions a message, as callgrind counts them: the one figure that a busy machine does not blur.
//!
//! Two runs with different numbers of messages; the difference is free of start-up and shutdown.

use std::process::Command;

use super::echo::Cell;
use super::load::{Load, Until};
use super::process::Server;
use super::servers::{self, Served};
use crate::cpus::Cpus;
use crate::harness::Sample;

const FEW: u32 = 500;
const MANY: u32 = 2_500;

pub(super) fn count(name: &'static str, cell: Cell) -> Sample {
    let messages = |all: u32| all / cell.connections as u32;
    let few = run(name, cell, messages(FEW))?;
    let many = run(name, cell, messages(MANY))?;
    Ok((many - few) / f64::from((messages(MANY) - messages(FEW)) * cell.connections as u32))
}

/// Instructions of a server's whole life.
fn run(name: &'static str, cell: Cell, each: u32) -> Sample {
    let cpus = Cpus::claim();
    let served = servers::command(Served::Echo, name)?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(served.get_program()).args(served.get_args());
    let mut server = cpus.for_server(|| Server::start(&mut command))?;
    let mut load = Load::connect(server.port, cell)?;
    load.run(Until::Each(each))?;
    collected(&server.end()?).ok_or_else(|| "valgrind did not say how much it counted".to_owned())
}

/// From callgrind's closing line, `==1234== Collected : 56789`.
fn collected(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_closing_line_is_understood() {
        let text = "==7== Events    : Ir\n==7== Collected : 56789\n==7==\n";
        assert_eq!(collected(text), Some(56789.0));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }
}
