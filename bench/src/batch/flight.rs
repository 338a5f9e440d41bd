//! Ten thousand requests under way at once: what the client's memory is.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_rehearsal::{Latency, Server};

use super::client::{self, Kind, Work};
use crate::harness::{BASELINE, Goal, Line, Sample};

const IN_FLIGHT: u64 = 10_000;

pub(super) fn line() -> Line {
    Line::new("10,000 requests in flight: memory of the client", "MB")
        .contestant_if(BASELINE, memory)
        .goal(Goal::Below { limit: 200.0, aim: 120.0 })
        .rounds_max(1)
        .note("resident, with a connection and a buffer each; the gate, the requests and the program included")
}

fn memory() -> Sample {
    raise_descriptor_limit()?;
    // Long enough for all of them to come; they are dropped afterwards.
    let server = Server::builder().latency(Latency::Fixed(Duration::from_secs(600)));
    let server = server.start_in_thread().map_err(|error| error.to_string())?;
    let work = Work {
        kind: Kind::Gate,
        requests: IN_FLIGHT,
        every: Duration::ZERO,
        concurrency: IN_FLIGHT,
        amount: 0,
        window: Duration::ZERO,
        warm_up: 0,
    };
    let mut child =
        client::command(&server.base_url(), work)?.stdout(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    let resident = loop {
        if server.stats().in_flight == IN_FLIGHT {
            break resident(child.id());
        }
        if let Ok(Some(status)) = child.try_wait() {
            break Err(format!("the client ended with {status} before all were under way"));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // It has nothing more to say, and may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    resident
}

fn resident(pid: u32) -> Sample {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel does not say")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().map_err(|_| format!("{path}: {line}"))?;
    Ok(kilobytes / 1024.0)
}

fn raise_descriptor_limit() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.maximum.is_some_and(|most| most < IN_FLIGHT + 100) {
        return Err(format!("only {:?} descriptors a process are allowed here", limit.maximum));
    }
    setrlimit(Resource::Nofile, wanted).map_err(|error| error.to_string())
}
