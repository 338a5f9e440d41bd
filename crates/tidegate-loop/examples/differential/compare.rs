//! One program on both loops, and what to show when they disagree.

use std::fmt::{self, Display, Formatter};
use std::io;

use crate::interpret;
use crate::minimise::minimise;
use crate::oracle::{Answer, Oracle};
use crate::program::Program;

/// Lines shown before the first that differs, and from it on.
const LINES_BEFORE: usize = 8;
const LINES_AFTER: usize = 6;

/// A program that the two loops run differently.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) program: Program,
    cpython: Vec<String>,
    tidegate: Vec<String>,
}

/// Runs the program on both; the oracle's answer, and the difference if there is one.
pub(crate) fn compare(oracle: &mut Oracle, program: Program) -> io::Result<(Answer, Option<Difference>)> {
    let answer = oracle.run(&program)?;
    let tidegate = interpret::run(&program);
    let difference = (answer.log != tidegate).then(|| Difference { program, cpython: answer.log.clone(), tidegate });
    Ok((answer, difference))
}

impl Difference {
    /// The smallest program that still makes one.
    pub(crate) fn minimised(self, oracle: &mut Oracle) -> io::Result<Difference> {
        let mut failure = None;
        let program = minimise(self.program.clone(), |candidate| match oracle.run(candidate) {
            Ok(answer) => answer.log != interpret::run(candidate),
            Err(error) => {
                failure = Some(error);
                false
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(compare(oracle, program)?.1.unwrap_or(self))
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seed = self.program.seed;
        writeln!(f, "difference: --programs 1 --seed {seed}")?;
        write!(f, "{}", self.program)?;
        let length = self.cpython.len().max(self.tidegate.len());
        let line = |log: &[String], at: usize| log.get(at).cloned().unwrap_or_else(|| "(end)".into());
        let first = (0..length).find(|&at| self.cpython.get(at) != self.tidegate.get(at)).unwrap_or(length);
        writeln!(f, "    {:<56} tidegate", "cpython")?;
        for at in first.saturating_sub(LINES_BEFORE)..length.min(first + LINES_AFTER) {
            let (left, right) = (line(&self.cpython, at), line(&self.tidegate, at));
            let sign = if left == right { ' ' } else { '!' };
            writeln!(f, "  {sign} {left:<56} {right}")?;
        }
        Ok(())
    }
}
