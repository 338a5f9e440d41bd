//! What runs in the children: tidegate's caller, and the pollers. A child is told what to do in its arguments and prints
//! what it measured of itself.

use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use tidegate_batch::{Call, Caller, Dialect, Estimate};
use tidegate_http::Client;
use tidegate_limit::{Gate, Limit, Window};
use tidegate_loop::{run, sleep_until, spawn};
use tidegate_pool::Pool;

use super::pollers;

/// The first argument of this binary when it is started as a client.
const CLIENT: &str = "batch-client-for-bench";

/// How a client keeps to the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gate,
    /// Every millisecond, a bucket that starts full, a pause after a refusal.
    Millisecond,
    /// Looks again after 0.1 s, then longer and longer, up to 2 s.
    Seconds,
}

impl Kind {
    const ALL: [(&'static str, Kind); 3] =
        [("gate", Kind::Gate), ("millisecond", Kind::Millisecond), ("seconds", Kind::Seconds)];

    fn word(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).expect("all of them are there").0
    }
}

/// What a client has to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    pub(super) requests: u64,
    /// From one request's turn to the next's; zero: all at once.
    pub(super) every: Duration,
    pub(super) concurrency: u64,
    /// Requests in a window; zero: no limit.
    pub(super) amount: u64,
    pub(super) window: Duration,
    /// Requests before those that are measured, so that connections are there.
    pub(super) warm_up: u64,
}

/// What it measured of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Did {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
}

/// A client as a process of its own.
pub(super) fn command(base: &str, work: Work) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let micros = |duration: Duration| duration.as_micros().to_string();
    let mut command = Command::new(program);
    command
        .args([CLIENT, base, work.kind.word(), &work.requests.to_string(), &micros(work.every)])
        .args([work.concurrency.to_string(), work.amount.to_string(), micros(work.window), work.warm_up.to_string()])
        .stdin(Stdio::null());
    Ok(command)
}

/// Runs a client in a child process.
pub(super) fn send(base: &str, work: Work) -> Result<Did, String> {
    let child = command(base, work)?.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&child.stdout);
    read(&said).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&child.stderr);
        errors.trim().lines().last().unwrap_or("the client ended without a word").to_owned()
    })
}

/// Wall and CPU time in microseconds.
pub(super) fn read(said: &str) -> Option<Did> {
    let mut numbers = said.split_whitespace().map(|word| word.parse().ok().map(Duration::from_micros));
    Some(Did { wall: numbers.next()??, cpu: numbers.next()?? })
}

pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != CLIENT {
        return None;
    }
    let (base, word) = (args.next()?, args.next()?);
    let numbers: Vec<u64> = args.filter_map(|word| word.parse().ok()).collect();
    let &[requests, every, concurrency, amount, window, warm_up] = &numbers[..] else { return Some(ExitCode::FAILURE) };
    let kind = Kind::ALL.iter().find(|(name, _)| *name == word)?.1;
    let work = Work {
        kind,
        requests,
        every: Duration::from_micros(every),
        concurrency,
        amount,
        window: Duration::from_micros(window),
        warm_up,
    };
    match run(drive(base, work)) {
        Ok(did) => {
            println!("{} {}", did.wall.as_micros(), did.cpu.as_micros());
            Some(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{error}");
            Some(ExitCode::FAILURE)
        }
    }
}

pub(super) fn body(number: u64) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Page {number}: what does it say?"}}]}}"#)
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

async fn drive(base: String, work: Work) -> Did {
    let asker = Asker::new(&base, work);
    asker.all(0, work.warm_up, Duration::ZERO).await;
    let (began, before) = (Instant::now(), cpu());
    asker.all(work.warm_up, work.requests, work.every).await;
    Did { wall: began.elapsed(), cpu: cpu() - before }
}

/// Somebody who asks, in his own way.
enum Asker {
    /// As many again as may be under way are in line, as where pages or lines are read.
    Gate(Caller, usize),
    Polled(Rc<pollers::Polled>),
}

impl Asker {
    fn new(base: &str, work: Work) -> Asker {
        let connections = usize::try_from(work.concurrency).unwrap_or(usize::MAX);
        let client =
            Client::builder().connections_per_host(connections).keep_idle(connections, Duration::from_secs(60));
        let client = client.build().expect("it names no file");
        if work.kind != Kind::Gate {
            return Asker::Polled(Rc::new(pollers::Polled::new(client, base, work)));
        }
        let mut gate = Gate::builder().limit(Limit::concurrency("global", work.concurrency));
        if work.amount > 0 {
            gate = gate.limit(Limit::rpm(work.amount).window(Window::strict(work.window)));
        }
        let gate = gate.build().expect("limits above zero");
        let caller = Caller::new(&gate, Dialect::OpenAi, &format!("{base}/v1")).expect("the server's own address");
        Asker::Gate(caller.with_client(client), connections.saturating_mul(2))
    }

    /// Sends them, each when its turn has come, and waits for all answers.
    async fn all(&self, first: u64, count: u64, every: Duration) {
        let began = Instant::now();
        let turn = async |number: u64| {
            if !every.is_zero() {
                sleep_until(began + every.mul_f64(number as f64)).await;
            }
        };
        match self {
            Asker::Gate(caller, tasks_max) => {
                let (pool, mut asked) = (Pool::new(*tasks_max), Vec::new());
                for number in 0..count {
                    turn(number).await;
                    let asking = pool.submit(ask(caller.clone(), body(first + number)));
                    asked.push(asking.await.unwrap_or_else(|_| unreachable!("nobody closes it")));
                }
                for one in asked {
                    one.await.expect("nobody cancels it");
                }
            }
            Asker::Polled(polled) => {
                let mut asked = Vec::new();
                for number in 0..count {
                    turn(number).await;
                    let (polled, body) = (polled.clone(), body(first + number));
                    asked.push(spawn(async move { polled.ask(body).await }));
                }
                for one in asked {
                    one.await.expect("nobody cancels it");
                }
            }
        }
    }
}

async fn ask(caller: Caller, body: String) {
    let estimate = Estimate { input_tokens: 20, output_tokens: 40 };
    let call = Call::new("/chat/completions", body.into(), estimate);
    let answered = caller.call(caller.gate().unscoped(), &call, |body| caller.dialect().answer(body)).await;
    answered.expect("the server answers in the end");
}
