//! The command line.

use std::num::NonZero;
use std::thread;

pub(crate) const USAGE: &str =
    "usage: differential [--programs N] [--seed S] [--jobs J] [--show D] [--print] [--coverage] [--whole]
  --programs N  how many, from seeds S to S+N-1 (default 2000)
  --seed S      the first seed (default 1)
  --jobs J      threads, each with an oracle of its own (default: one a core)
  --show D      how many differences to show (default 3)
  --print       print every program with CPython's transcript
  --coverage    print how often each kind of event came
  --whole       show differing programs as they were drawn, not minimised";

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) programs: u64,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    pub(crate) show: usize,
    pub(crate) print: bool,
    pub(crate) coverage: bool,
    pub(crate) minimise: bool,
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
        let jobs = thread::available_parallelism().map_or(1, NonZero::get);
        let mut args = Args { programs: 2000, seed: 1, jobs, show: 3, print: false, coverage: false, minimise: true };
        while let Some(word) = words.next() {
            let mut number = || -> Result<u64, String> {
                let text = words.next().ok_or_else(|| format!("{word} wants a number"))?;
                text.parse().map_err(|_| format!("{word} wants a number, not {text:?}"))
            };
            match word.as_str() {
                "--programs" => args.programs = number()?,
                "--seed" => args.seed = number()?,
                "--jobs" => args.jobs = number()?.max(1) as usize,
                "--show" => args.show = number()? as usize,
                "--print" => (args.print, args.jobs) = (true, 1),
                "--coverage" => args.coverage = true,
                "--whole" => args.minimise = false,
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(args)
    }
}
