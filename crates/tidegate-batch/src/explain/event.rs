//! What happens, as it happens: for whoever shows it or passes it on.

use std::path::PathBuf;

use crate::question::Usage;

/// Something that has happened in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A file is open, and its pages come next.
    FileOpened {
        /// Its place among the inputs.
        file: usize,
        /// Its name.
        name: &'a str,
        /// How many of its pages were chosen.
        pages: u32,
        /// How many of them may be under way at once.
        page_concurrency: u32,
    },
    /// A file cannot be explained; the others can.
    FileFailed {
        /// Its place among the inputs.
        file: usize,
        /// Its name.
        name: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// A page has come a step further.
    Page {
        /// Its file's place among the inputs.
        file: usize,
        /// Its file's name.
        name: &'a str,
        /// Its number, from 1.
        page: u32,
        /// How far.
        status: PageStatus<'a>,
    },
    /// A file's outputs are written.
    FileDone {
        /// Its place among the inputs.
        file: usize,
        /// Its name.
        name: &'a str,
        /// How many of its pages were chosen.
        pages: u64,
        /// How many of them are explained.
        done: u64,
        /// What was written.
        outputs: &'a [PathBuf],
    },
    /// The run ends early: what is under way is finished, nothing new is begun.
    Stopping {
        /// Why.
        reason: &'a str,
    },
}

/// How far a page has come.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PageStatus<'a> {
    /// It stands at the gate, or is being asked about.
    Asking,
    /// It is explained, and that is on the disk.
    Done {
        /// It was explained in an earlier run; nothing was paid.
        kept: bool,
        /// What it cost.
        usage: Usage,
    },
    /// It could not be explained.
    Failed {
        /// For programs.
        code: &'a str,
        /// For people.
        reason: &'a str,
    },
    /// It is blank, or it has no text that can be read and the provider does not look at pictures.
    Skipped {
        /// Why it was not sent.
        reason: &'a str,
    },
}
