//! A thousand pages at 10 ms each, fifty at once: how close to the ideal 200 ms, and at what cost.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tidegate_rehearsal::{Handle, Latency, Server};

use super::client::{self, Did, Kind, Work};
use crate::cpus::Cpus;
use crate::harness::{BASELINE, Goal, Line};
use crate::python::{self, Python};

const PAGES: u64 = 1_000;
const CONCURRENCY: u64 = 50;
const LATENCY: Duration = Duration::from_millis(10);
const WARM_UP: u64 = 200;

const HTTPX: &str = "asyncio + httpx, semaphore";
const PACKAGE: &str = "httpx==0.28.1";

/// Prints wall and CPU time in microseconds.
const SCRIPT: &str = r#"
import asyncio, sys, time
import httpx
base, pages, concurrency, warm_up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

async def main():
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=base, limits=limits, timeout=60) as client:
        slots = asyncio.Semaphore(concurrency)
        async def ask(number):
            async with slots:
                body = {"model": "m", "messages": [{"role": "user", "content": f"Page {number}: what does it say?"}]}
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                return answer.json()["choices"][0]["message"]["content"]
        await asyncio.gather(*(ask(n) for n in range(warm_up)))
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(ask(n) for n in range(warm_up, warm_up + pages)))
        print(int((time.perf_counter() - began) * 1e6), int((time.process_time() - cpu) * 1e6))

asyncio.run(main())
"#;

pub(super) fn lines() -> Vec<Line> {
    let ideal = LATENCY.as_secs_f64() * 1e3 * PAGES as f64 / CONCURRENCY as f64;
    let wall = Line::new("1,000 pages at 10 ms, concurrency 50: time", "ms")
        .goal(Goal::Below { limit: ideal / 0.95, aim: ideal / 0.98 })
        .rounds_max(7)
        .note(format!(
            "ideal {ideal:.0} ms; connections are open before the clock starts; server and client have a core each"
        ));
    let cpu = Line::new("1,000 pages at 10 ms, concurrency 50: CPU of the client", "ms")
        .goal(Goal::Ratio { against: &[HTTPX], limit: 2.0, aim: 10.0 })
        .rounds_max(7);
    let wall =
        wall.contestant_if(BASELINE, || Ok(millis(ours()?.wall))).contestant_if(HTTPX, || Ok(millis(httpx()?.wall)));
    let cpu = cpu.contestant_if(BASELINE, || Ok(millis(ours()?.cpu))).contestant_if(HTTPX, || Ok(millis(httpx()?.cpu)));
    vec![wall, cpu]
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// On a core of its own: a server is somebody else's, and beside its client it would be waited for. The client's core is
/// this thread's as long as the other thing lives.
fn server() -> Result<(Handle, Cpus), String> {
    let cpus = Cpus::claim();
    let server = Server::builder().latency(Latency::Fixed(LATENCY));
    let server = cpus.for_server(|| server.start_in_thread()).map_err(|error| error.to_string())?;
    Ok((server, cpus))
}

fn ours() -> Result<Did, String> {
    let (server, _cpus) = server()?;
    let work = Work {
        kind: Kind::Gate,
        requests: PAGES,
        every: Duration::ZERO,
        concurrency: CONCURRENCY,
        amount: 0,
        window: Duration::ZERO,
        warm_up: WARM_UP,
    };
    client::send(&server.base_url(), work)
}

fn httpx() -> Result<Did, String> {
    let python = environment()?;
    let (server, _cpus) = server()?;
    let numbers = [PAGES, CONCURRENCY, WARM_UP].map(|number| number.to_string());
    let said = python::output(Command::new(python).args(["-c", SCRIPT, &server.base_url()]).args(numbers))?;
    client::read(&said).ok_or_else(|| format!("httpx printed {said:?}"))
}

/// An interpreter that has httpx; installs it if need be.
fn environment() -> Result<PathBuf, String> {
    let interpreter = Python::find().interpreter()?;
    let executable = env::current_exe().map_err(|error| error.to_string())?;
    let target = executable.ancestors().nth(2).ok_or("the build's directory is not known")?;
    let environment = target.join("bench-python-httpx");
    let python = environment.join("bin/python");
    let imports = || python::output(Command::new(&python).args(["-c", "import httpx"]));
    if imports().is_err() {
        eprintln!("installing {PACKAGE} into {}", environment.display());
        python::output(Command::new(interpreter).args(["-m", "venv"]).arg(&environment))?;
        python::output(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
        imports()?;
    }
    Ok(python)
}
