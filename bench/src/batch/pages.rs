//! A thousand pages at 10 ms each, fifty at once: how close to the ideal 200 ms, and at what cost.

use std::env;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tidegate_rehearsal::{Handle, Latency, Server};

use super::bare;
use super::client::{self, Did, Kind, Work};
use crate::cpus::Cpus;
use crate::harness::{BASELINE, Goal, Line};
use crate::python::{self, Python};
use crate::wakeful::Wakeful;

const PAGES: u64 = 1_000;
const CONCURRENCY: u64 = 50;
const LATENCY: Duration = Duration::from_millis(10);
/// As many as are measured: what a process takes to get going is no cost of a call, and the start has a line of its own.
const WARM_UP: u64 = PAGES;

const ASLEEP: &str = "tidegate, server that sleeps";
const BARE: &str = "bare sockets";
const UNHALTED: &str = "tidegate, no core halts";
const BARE_UNHALTED: &str = "bare sockets, no core halts";
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
        .rounds_max(21)
        .note(format!(
            "ideal {ideal:.0} ms; connections are open before the clock starts; server and client have a core each, and the server's never sleeps; bare sockets send the same and parse nothing: the server's and the machine's part"
        ));
    let cpu = Line::new("1,000 pages at 10 ms, concurrency 50: CPU of the client", "ms")
        .goal(Goal::Ratio { against: &[HTTPX], limit: 2.0, aim: 10.0 })
        .rounds_max(7);
    let wall = wall
        .contestant_if(BASELINE, || Ok(millis(ours(CROWD)?.did.wall)))
        .contestant_if(ASLEEP, || Ok(millis(ours(SLEEPY)?.did.wall)))
        .contestant_if(BARE, || Ok(millis(bare(CROWD)?)))
        .contestant_if(UNHALTED, || Ok(millis(ours(WAKEFUL)?.did.wall)))
        .contestant_if(BARE_UNHALTED, || Ok(millis(bare(WAKEFUL)?)))
        .contestant_if(HTTPX, || Ok(millis(httpx(CROWD)?.did.wall)));
    let cpu = cpu
        .contestant_if(BASELINE, || Ok(millis(ours(CROWD)?.did.cpu)))
        .contestant_if(HTTPX, || Ok(millis(httpx(CROWD)?.did.cpu)));
    let beyond = Line::new("1,000 pages at 10 ms, concurrency 50: time beyond the server's", "ms")
        .contestant_if(BASELINE, || Ok(ours(CROWD)?.beyond() * 1e3))
        .contestant_if(HTTPX, || Ok(httpx(CROWD)?.beyond() * 1e3))
        .rounds_max(3)
        .note(
            "the server's time is from a request's last byte to its answer, as it says itself; late timers are in it",
        );
    let alone = Line::new("100 pages at 10 ms, one at a time: time a page beyond the server's", "us")
        .contestant_if(BASELINE, || Ok(ours(ALONE)?.beyond() * 1e6 / ALONE.pages as f64))
        .contestant_if(HTTPX, || Ok(httpx(ALONE)?.beyond() * 1e6 / ALONE.pages as f64))
        .rounds_max(3)
        .note("a way there and back when both sides sleep in between: twenty of them are in the line above, too");
    vec![wall, beyond, alone, cpu]
}

/// What is asked, and how many at once.
#[derive(Clone, Copy)]
struct Job {
    pages: u64,
    concurrency: u64,
    warm_up: u64,
    /// Of a server that never sleeps: a server is somebody else's, and what this machine takes to wake it up, twice a page,
    /// is not the client's doing.
    awake: bool,
    /// On cores that do not halt: what of it all is the machine's.
    wakeful: bool,
}

const CROWD: Job = Job { pages: PAGES, concurrency: CONCURRENCY, warm_up: WARM_UP, awake: true, wakeful: false };
const SLEEPY: Job = Job { awake: false, ..CROWD };
const WAKEFUL: Job = Job { wakeful: true, ..CROWD };
const ALONE: Job = Job { pages: 100, concurrency: 1, warm_up: 10, awake: false, wakeful: false };

/// What a client measured of itself, and what the server says.
struct Measured {
    job: Job,
    did: Did,
    /// From a page's arrival to its answer, on average, in seconds.
    server: f64,
}

impl Measured {
    fn new(job: Job, did: Did, server: &Handle) -> Measured {
        let last = server.log(usize::try_from(job.pages).unwrap_or(usize::MAX));
        let took: u64 = last.iter().filter_map(|entry| entry.took_us).sum();
        Measured { job, did, server: took as f64 / 1e6 / last.len().max(1) as f64 }
    }

    /// Seconds that the server did not take.
    fn beyond(&self) -> f64 {
        let turns = self.job.pages as f64 / self.job.concurrency as f64;
        self.did.wall.as_secs_f64() - self.server * turns
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Where a job is done: the machine as the job wants it, for as long as this lives.
struct Place {
    server: Handle,
    _cpus: Cpus,
    _wakeful: Option<Wakeful>,
}

impl Place {
    /// The server is on a core of its own: beside its client it would be waited for. The other is this thread's.
    fn new(job: Job) -> Result<Place, String> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let wakeful = job.wakeful.then(Wakeful::hold).transpose()?;
        let cpus = Cpus::claim();
        let server = Server::builder().latency(Latency::Fixed(LATENCY)).awake(job.awake && cores > 1);
        let server = cpus.for_server(|| server.start_in_thread()).map_err(|error| error.to_string())?;
        Ok(Place { server, _cpus: cpus, _wakeful: wakeful })
    }
}

fn ours(job: Job) -> Result<Measured, String> {
    let place = Place::new(job)?;
    let work = Work {
        kind: Kind::Gate,
        requests: job.pages,
        every: Duration::ZERO,
        concurrency: job.concurrency,
        amount: 0,
        window: Duration::ZERO,
        warm_up: job.warm_up,
    };
    let did = client::send(&place.server.base_url(), work)?;
    Ok(Measured::new(job, did, &place.server))
}

fn bare(job: Job) -> Result<Duration, String> {
    let place = Place::new(job)?;
    let run = || {
        let mut client = bare::Client::connect(place.server.addr(), job.concurrency)?;
        client.ask(job.warm_up)?;
        client.ask(job.pages)
    };
    run().map_err(|error: std::io::Error| error.to_string())
}

fn httpx(job: Job) -> Result<Measured, String> {
    let python = environment()?;
    let place = Place::new(job)?;
    let numbers = [job.pages, job.concurrency, job.warm_up].map(|number| number.to_string());
    let said = python::output(Command::new(python).args(["-c", SCRIPT, &place.server.base_url()]).args(numbers))?;
    let did = client::read(&said).ok_or_else(|| format!("httpx printed {said:?}"))?;
    Ok(Measured::new(job, did, &place.server))
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
