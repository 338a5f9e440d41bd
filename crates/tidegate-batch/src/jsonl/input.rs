//! The request file: read line by line, however long it is, and checked as a whole before anything is sent.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use super::line::{IdHash, RequestLine};
use super::path::Paths;
use crate::provider::Dialect;

/// A line longer than this is a mistake: pictures of a page take a few megabytes.
pub(super) const LINE_LEN_MAX: usize = 64 << 20;

/// What is read from a file at a time.
const BUFFER: usize = 1 << 16;

/// How many faults are listed; the rest is counted.
const FAULTS_LISTED: usize = 20;

/// Where requests come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input, which can be read once and is not checked beforehand.
    Stdin,
    /// A file. A pipe or another special file is treated as standard input is.
    File(
        /// Its path.
        PathBuf,
    ),
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Stdin => f.write_str("standard input"),
            Input::File(path) => path.display().fmt(f),
        }
    }
}

impl Input {
    /// Returns `true` if it can be read only once: standard input, a pipe, a terminal.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        match self {
            Input::Stdin => true,
            // A path that cannot be looked at is an error when it is opened.
            Input::File(path) => path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()),
        }
    }

    pub(super) fn open(&self) -> io::Result<Lines> {
        Ok(match self {
            Input::Stdin => Lines::new(Box::new(io::stdin())).streamed(true),
            Input::File(path) => Lines::new(Box::new(File::open(path)?)).streamed(self.is_stream()),
        })
    }
}

/// Something wrong in a request file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadLine {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Ids, as 128 bits each: ten million take some 300 MB, whatever their length.
#[derive(Debug, Default)]
pub(super) struct IdSet(HashSet<u128, BuildHasherDefault<AsItIs>>);

impl IdSet {
    /// Whether it is new.
    pub(super) fn insert(&mut self, id: IdHash) -> bool {
        self.0.insert(id.0)
    }

    pub(super) fn contains(&self, id: IdHash) -> bool {
        self.0.contains(&id.0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A digest needs no second one.
#[derive(Debug, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

/// Lines, one at a time.
pub(super) struct Lines {
    reader: BufReader<Box<dyn Read + Send>>,
    /// Whether the next line may be a long time coming, so that those that are here should not wait for it.
    is_stream: bool,
    number: u64,
    /// A longer line is not kept.
    len_max: usize,
}

/// A line that is not blank.
#[derive(Debug)]
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    /// Without its end; nothing if it was too long to keep.
    pub(super) bytes: Option<Vec<u8>>,
    /// Whether it ended as a line does.
    pub(super) ended: bool,
    /// How many bytes of the file it takes, its end included.
    pub(super) len: u64,
}

impl Lines {
    pub(super) fn new(reader: Box<dyn Read + Send>) -> Lines {
        Lines { reader: BufReader::with_capacity(BUFFER, reader), is_stream: false, number: 0, len_max: LINE_LEN_MAX }
    }

    fn streamed(mut self, is_stream: bool) -> Lines {
        self.is_stream = is_stream;
        self
    }

    /// The same, keeping no line that is longer than this.
    pub(super) fn limited(mut self, len_max: usize) -> Lines {
        self.len_max = len_max.min(LINE_LEN_MAX);
        self
    }

    /// The line of that number, from 1, if there is one and it is not too long to keep.
    pub(super) fn nth(&mut self, number: u64) -> io::Result<Option<Vec<u8>>> {
        while let Some(line) = self.next_raw()? {
            if line.number == number {
                return Ok(line.bytes);
            }
        }
        Ok(None)
    }

    /// The next line, blank ones included: whoever repairs a file counts its bytes.
    pub(super) fn next_raw(&mut self) -> io::Result<Option<Line>> {
        let (mut bytes, mut len, mut ended) = (Some(Vec::new()), 0, false);
        while !ended {
            let chunk = match self.reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                break;
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(chunk.len(), |end| end + 1);
            if let Some(kept) = &mut bytes {
                kept.extend_from_slice(&chunk[..end.unwrap_or(used)]);
                if kept.len() > self.len_max {
                    bytes = None;
                }
            }
            ended = end.is_some();
            len += used as u64;
            self.reader.consume(used);
        }
        if len == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Line { number: self.number, bytes, ended, len }))
    }

    fn next_filled(&mut self) -> io::Result<Option<Line>> {
        loop {
            match self.next_raw()? {
                Some(Line { bytes: Some(bytes), .. }) if bytes.trim_ascii().is_empty() => {}
                line => return Ok(line),
            }
        }
    }

    /// The next request, or what is wrong with its line.
    pub(super) fn next_request(&mut self) -> io::Result<Option<Result<(u64, RequestLine), BadLine>>> {
        let Some(line) = self.next_filled()? else { return Ok(None) };
        let number = line.number;
        let read = match &line.bytes {
            Some(bytes) => RequestLine::read(bytes),
            None => Err(format!("it is longer than {}", size(self.len_max))),
        };
        Ok(Some(read.map(|request| (number, request)).map_err(|reason| BadLine { line: number, reason })))
    }

    /// Some requests at a time: as many as come with this many bytes, at least one. A stream's are handed on as soon as the next
    /// is not here yet.
    pub(super) fn next_requests(&mut self, bytes_max: usize) -> io::Result<Vec<Result<(u64, RequestLine), BadLine>>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max {
            let Some(next) = self.next_request()? else { break };
            bytes += next.as_ref().map_or(0, |(_, request)| request.body.len()) + 256;
            batch.push(next);
            if self.is_stream && !self.reader.buffer().contains(&b'\n') {
                break;
            }
        }
        Ok(batch)
    }
}

fn size(bytes: usize) -> String {
    if bytes >> 20 == 0 { format!("{bytes} bytes") } else { format!("{} MB", bytes >> 20) }
}

/// Lines of a file that make no sense: the first of them, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    listed: Vec<BadLine>,
    more: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: BadLine) {
        if self.listed.len() < FAULTS_LISTED {
            self.listed.push(fault);
        } else {
            self.more += 1;
        }
    }

    /// The first of them, in the order of their lines.
    #[must_use]
    pub fn listed(&self) -> &[BadLine] {
        &self.listed
    }

    /// How many there are in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.listed.len() as u64 + self.more
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }
}

/// What a check found: how many requests there are, or what is wrong.
#[derive(Debug)]
pub(super) enum Checked {
    Good { requests: u64 },
    Bad(Faults),
}

/// Looks at every line of a file, at whether the provider understands it, and at whether an id occurs twice.
pub(super) fn check(path: &Path, dialect: Dialect, paths: Paths) -> io::Result<Checked> {
    let mut lines = Input::File(path.to_owned()).open()?;
    let mut ids = IdSet::default();
    let mut faults = Faults::default();
    while let Some(next) = lines.next_request()? {
        let fault = match next {
            Ok((line, request)) => match (ids.insert(IdHash::of(&request.id)), request.fits(dialect, paths)) {
                (true, Ok(())) => continue,
                (true, Err(reason)) => BadLine { line, reason },
                (false, _) => duplicate(line, &request.id),
            },
            Err(fault) => fault,
        };
        faults.add(fault);
    }
    Ok(match faults.is_empty() {
        true => Checked::Good { requests: ids.len() as u64 },
        false => Checked::Bad(faults),
    })
}

pub(super) fn duplicate(line: u64, id: &str) -> BadLine {
    BadLine { line, reason: format!("the id {id:?} occurred before; ids must be unique in a file") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Lines {
        Lines::new(Box::new(io::Cursor::new(text.to_vec())))
    }

    #[test]
    fn lines_are_numbered_as_an_editor_does_and_blank_ones_passed_over() {
        let mut lines = lines(b"\n{\"key\":\"a\",\"request\":{}}\r\n   \n{\"key\":\"b\",\"request\":{}}");
        let mut next = || lines.next_request().unwrap().map(|next| next.map(|(line, request)| (line, request.id)));
        assert_eq!(next(), Some(Ok((2, "a".to_owned()))));
        assert_eq!(next(), Some(Ok((4, "b".to_owned()))));
        assert_eq!(next(), None);
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let endless = [vec![b'x'; LINE_LEN_MAX + 10], b"\n{\"key\":\"a\",\"request\":{}}\n".to_vec()].concat();
        let mut lines = Lines::new(Box::new(io::Cursor::new(endless)));
        let fault = lines.next_request().unwrap().unwrap().unwrap_err();
        assert_eq!(fault.to_string(), "line 1: it is longer than 64 MB");
        assert_eq!(lines.next_request().unwrap().unwrap().unwrap().0, 2);
    }

    /// Each read returns one piece, as a pipe does.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            into[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn requests_of_a_stream_do_not_wait_for_those_behind_them() {
        let pieces = || Pieces(vec![b"{\"key\":\"a\",\"request\":{}}\n{\"key\":", b"\"b\",\"request\":{}}\n"]);
        let sizes = |mut lines: Lines| [(); 3].map(|()| lines.next_requests(1 << 20).unwrap().len());
        assert_eq!(sizes(Lines::new(Box::new(pieces())).streamed(true)), [1, 1, 0]);
        assert_eq!(sizes(Lines::new(Box::new(pieces()))), [2, 0, 0]);
    }

    #[test]
    fn a_check_lists_every_fault_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("in.jsonl");
        let mut text = String::from("{\"key\":\"a\",\"request\":{}}\nnonsense\n{\"key\":\"a\",\"request\":{}}\n");
        text.push_str(&"{}\n".repeat(30));
        std::fs::write(&path, &text).unwrap();
        let Checked::Bad(found) = check(&path, Dialect::Gemini, Paths::Any).unwrap() else { panic!("32 faults") };
        let faults = found.listed();
        assert_eq!((faults.len(), found.count()), (FAULTS_LISTED, 32));
        assert!(faults[0].to_string().starts_with("line 2: it is not JSON"), "{}", faults[0]);
        assert_eq!(faults[1].to_string(), "line 3: the id \"a\" occurred before; ids must be unique in a file");
    }
}
