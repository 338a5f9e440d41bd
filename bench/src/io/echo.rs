//! Echo over TCP on loopback: the server's CPU time a message.

use std::fmt;
use std::time::Duration;

use super::load::{Load, Until};
use super::servers::EchoServer;
use crate::cpus::Cpus;
use crate::harness::Sample;

/// How the lines of all cells begin.
pub(super) const PREFIX: &str = "echo, ";

/// Before the measured batch: connections are accepted, buffers and caches are warm.
const WARM_UP: Duration = Duration::from_millis(30);
const MEASURED: Duration = Duration::from_millis(200);

/// Where a ring must pay off.
pub(super) const RING_CELL: Cell = Cell { connections: 1_000, bytes: 64 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) connections: usize,
    pub(super) bytes: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = match self.connections {
            1_000.. => format!("{},{:03}", self.connections / 1_000, self.connections % 1_000),
            count => count.to_string(),
        };
        let (size, unit) = if self.bytes >= 1024 { (self.bytes / 1024, "KiB") } else { (self.bytes, "B") };
        write!(f, "{PREFIX}{connections} x {size} {unit}")
    }
}

/// One batch on a fresh server.
pub(super) fn sample(server: &EchoServer, cell: Cell) -> Sample {
    let cpus = Cpus::claim();
    let server = cpus.for_server(|| server.start())?;
    let mut load = Load::connect(server.port, cell)?;
    load.run(Until::Passed(WARM_UP))?;
    let before = server.cpu()?;
    let messages = load.run(Until::Passed(MEASURED))?;
    let spent = server.cpu()? - before;
    Ok(spent.as_secs_f64() * 1e6 / messages as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_as_people_say_them() {
        assert_eq!(RING_CELL.to_string(), "echo, 1,000 x 64 B");
        assert_eq!(Cell { connections: 50, bytes: 4096 }.to_string(), "echo, 50 x 4 KiB");
    }
}
