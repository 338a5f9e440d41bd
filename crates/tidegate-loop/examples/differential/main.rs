//! Random programs on CPython's asyncio and on tidegate: what happens must be the same, event by event.
//!
//! `cargo run --release -p tidegate-loop --example differential -- --programs 2000 --seed 1`
//!
//! Read `program.rs` first (the language), then `oracle.py` (its meaning, by CPython's own asyncio), `interpret.rs`
//! (the same on tidegate), `generate.rs` (programs from seeds), `compare.rs` and `minimise.rs` (what is shown when the
//! two disagree). `docs/differential.md` says what is left out and why.

mod args;
mod compare;
mod generate;
mod interpret;
mod minimise;
mod oracle;
mod print;
mod program;

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use args::Args;
use compare::{Difference, compare};
use generate::{Abilities, generate};
use oracle::{Oracle, Python};

/// A program takes milliseconds; one that takes this long has hung one of the loops.
const HANG: Duration = Duration::from_secs(30);

/// Where CPython leaves an order to chance, or has a fault, and tidegate's behaviour is defined. The oracle takes
/// tidegate's side in these and counts the programs in which it did; nothing else is excused.
const REFINEMENTS: [(&str, &str); 7] = [
    ("equal-deadlines", "timers with one deadline: a heap has no stable order; FIFO by sequence number"),
    ("group-cancel-order", "a failing group cancels its tasks in the order of a set; in the order of spawning"),
    ("as-completed-done-order", "tasks done beforehand come in the order of a set; in the order of the arguments"),
    ("self-await", "a task that awaits itself fails a turn later, and cannot be awaited any more; at once, and it can"),
    ("runner-cancel-order", "a runner cancels the tasks that are left in the order of a set; in the order of spawning"),
    ("run-keeps-value", "a value that main returns with a cancellation pending is dropped; it is returned"),
    ("closed-loop", "a task spawned while a runner closes stays pending; it is cancelled with the loop"),
];

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let Some(python) = Python::find() else {
        eprintln!("no CPython 3.11 to 3.13 found; name one in TIDEGATE_PYTHON");
        return ExitCode::from(2);
    };
    match differential(&args, &python) {
        Ok(tally) => {
            tally.print(&args, &python);
            if tally.differences == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("could not compare: {error}");
            ExitCode::from(2)
        }
    }
}

/// What the programs came to.
#[derive(Default)]
struct Tally {
    events: usize,
    differences: usize,
    shown: Vec<Difference>,
    refined: BTreeMap<String, usize>,
    /// Transcript lines without their numbers, and how often each came.
    coverage: BTreeMap<String, usize>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.events += other.events;
        self.differences += other.differences;
        self.shown.extend(other.shown);
        for (name, count) in other.refined {
            *self.refined.entry(name).or_default() += count;
        }
        for (line, count) in other.coverage {
            *self.coverage.entry(line).or_default() += count;
        }
    }

    fn print(&self, args: &Args, python: &Python) {
        for difference in self.shown.iter().take(args.show) {
            println!("{difference}");
        }
        if args.coverage {
            for (line, count) in &self.coverage {
                println!("{count:>8}  {line}");
            }
        }
        println!("{} events; oracle: CPython 3.{}", self.events, python.minor);
        for (name, what) in REFINEMENTS {
            println!("refinement in {} programs: {name}: {what}", self.refined.get(name).copied().unwrap_or(0));
        }
        println!("{} programs, {} differences", args.programs, self.differences);
    }
}

/// What a worker is at, for the watchdog.
type Current = Mutex<Option<(u64, Instant)>>;

fn differential(args: &Args, python: &Python) -> io::Result<Tally> {
    let current: Vec<Current> = (0..args.jobs).map(|_| Mutex::new(None)).collect();
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs)
            .map(|job| {
                let current = &current[job];
                scope.spawn(move || work(args, python, job, current))
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(10));
            watch(&current);
        }
        for worker in workers {
            tally.add(worker.join().map_err(|_| io::Error::other("a worker panicked"))??);
        }
        Ok(tally)
    })
}

/// A loop that hangs cannot be interrupted from outside: all that is left is to say which program it was.
fn watch(current: &[Current]) {
    for worker in current {
        if let Ok(Some((seed, since))) = worker.lock().as_deref()
            && since.elapsed() > HANG
        {
            eprintln!("hangs: --programs 1 --seed {seed}");
            std::process::exit(1);
        }
    }
}

/// Every `jobs`-th program, with an oracle of its own.
fn work(args: &Args, python: &Python, job: usize, current: &Current) -> io::Result<Tally> {
    let mut oracle = Oracle::start(python)?;
    let abilities = Abilities::of(python.minor);
    let mut tally = Tally::default();
    for number in (job as u64..args.programs).step_by(args.jobs) {
        let seed = args.seed.wrapping_add(number);
        *current.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some((seed, Instant::now()));
        let program = generate(seed, abilities);
        if args.print {
            print!("{program}");
        }
        let (answer, difference) = compare(&mut oracle, program)?;
        tally.events += answer.log.len();
        for (name, count) in answer.refined {
            *tally.refined.entry(name).or_default() += usize::from(count > 0);
        }
        if args.coverage {
            for line in &answer.log {
                *tally.coverage.entry(kind_of(line)).or_default() += 1;
            }
        }
        if args.print {
            answer.log.iter().for_each(|line| println!("  {line}"));
        }
        if let Some(difference) = difference {
            tally.differences += 1;
            if tally.shown.len() < args.show {
                tally.shown.push(if args.minimise { difference.minimised(&mut oracle)? } else { difference });
            }
        }
    }
    Ok(tally)
}

/// A transcript line without its time, its speaker and its numbers.
fn kind_of(line: &str) -> String {
    let what = line.splitn(3, ' ').nth(2).unwrap_or(line);
    what.chars().filter(|c| !c.is_ascii_digit()).collect()
}
