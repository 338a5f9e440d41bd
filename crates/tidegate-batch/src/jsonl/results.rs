//! The result file: what a run before has left in it is read back and repaired, what comes is appended and synced in
//! groups.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use tidegate_files::Draft;

use super::input::{IdSet, Lines};
use super::line::{IdHash, ResultLine};
use super::result_file::{Appended, ResultFile, is_full};
use crate::answer_sizes::AnswerSizes;

/// Where results go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output, which cannot be read back: every request is sent.
    Stdout,
    /// A file. What it says already is not asked again.
    File(
        /// Its path.
        PathBuf,
    ),
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Stdout => f.write_str("standard output"),
            Output::File(path) => path.display().fmt(f),
        }
    }
}

/// What to do with the results of a run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Earlier {
    /// Neither successes nor failures are asked again.
    #[default]
    Keep,
    /// Failures are taken out and asked again.
    RetryFailed,
    /// Everything is thrown away and asked again.
    Discard,
}

/// Why a result file cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResultsError {
    /// It cannot be opened, read or written.
    Io(
        /// Why.
        io::Error,
    ),
    /// There is no space for the answers to come.
    Full(
        /// How much is needed.
        DiskFull,
    ),
    /// Another process is writing to it.
    Busy,
    /// There is something in it that is no result.
    Foreign {
        /// In which line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<io::Error> for ResultsError {
    fn from(error: io::Error) -> ResultsError {
        match is_full(&error) {
            true => ResultsError::Full(DiskFull::new(&error, 0)),
            false => ResultsError::Io(error),
        }
    }
}

/// A result file cannot grow as far as the answers in flight may need it. Nothing more is sent then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskFull {
    /// What the system says: no space on the disk, none within a quota, or the file may not grow.
    pub reason: String,
    /// Bytes that those answers may need; 0 if none are in flight.
    pub needed: u64,
}

impl DiskFull {
    pub(super) fn new(error: &io::Error, needed: u64) -> DiskFull {
        DiskFull { reason: error.to_string(), needed }
    }
}

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.needed.div_ceil(1_000_000).max(1);
        write!(f, "{}; free at least {megabytes} MB on its disk, then run the same command again", self.reason)
    }
}

/// Requests that a run before has dealt with.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) succeeded: IdSet,
    pub(super) failed: IdSet,
}

impl Known {
    pub(super) fn contains(&self, id: IdHash) -> bool {
        self.succeeded.contains(id) || self.failed.contains(id)
    }
}

/// Writes whole lines to standard output.
pub(super) type WriteStdout = fn(&[u8]) -> io::Result<()>;

/// Writes lines to standard output as they are.
pub(super) fn write_stdout(lines: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(lines)?;
    out.flush()
}

/// Where results are written.
#[derive(Debug)]
pub(super) enum Sink {
    Stdout(WriteStdout),
    File(ResultFile),
    /// A pipe or a device: it can be neither read back nor synced.
    Stream(File),
}

impl Sink {
    /// Writes lines, and returns once they are on the disk.
    pub(super) fn append(&mut self, lines: &[Vec<u8>]) -> Appended {
        if lines.is_empty() {
            return Appended::of(0, Ok(()));
        }
        match self {
            Sink::Stdout(write) => Appended::of(lines.len(), write(&lines.concat())),
            Sink::File(file) => file.append(lines),
            Sink::Stream(file) => Appended::of(lines.len(), file.write_all(&lines.concat())),
        }
    }

    /// Reserves space for `lines` more lines, where there is a disk.
    pub(super) fn reserve(&mut self, lines: usize) -> Result<(), DiskFull> {
        let Sink::File(file) = self else { return Ok(()) };
        file.reserve(lines).map_err(|error| DiskFull::new(&error, file.space_for(lines)))
    }
}

pub(super) fn open(output: &Output, earlier: Earlier, stdout: WriteStdout) -> Result<(Sink, Known), ResultsError> {
    let Output::File(path) = output else { return Ok((Sink::Stdout(stdout), Known::default())) };
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let stream = OpenOptions::new().append(true).open(path)?;
        return Ok((Sink::Stream(stream), Known::default()));
    }
    let mut file = open_locked(path)?;
    let (mut known, sizes) = read_back(&mut file)?;
    if earlier == Earlier::Discard {
        // After reading it: a file with anything else than results is left alone.
        file.set_len(0)?;
        file.rewind()?;
        file.sync_data()?;
        return Ok((Sink::File(ResultFile::new(file, sizes)?), Known::default()));
    }
    if earlier == Earlier::RetryFailed && known.failed.len() > 0 {
        file = without_failures(path, &mut file, &known)?;
        known.failed = IdSet::default();
    }
    Ok((Sink::File(ResultFile::new(file, sizes)?), known))
}

fn open_locked(path: &Path) -> Result<File, ResultsError> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => tidegate_files::create_new(path)?,
        other => other?,
    };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ResultsError::Busy),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Reads everything, repairs the last line, and stands at the end.
fn read_back(file: &mut File) -> Result<(Known, AnswerSizes), ResultsError> {
    file.seek(SeekFrom::Start(0))?;
    let mut lines = Lines::new(Box::new(file.try_clone()?));
    let (mut known, mut sizes, mut end, mut complete) = (Known::default(), AnswerSizes::default(), 0, true);
    while let Some(line) = lines.next_raw()? {
        let bytes = line.bytes.as_deref().unwrap_or_default();
        match ResultLine::read(bytes) {
            Ok(result) => {
                let id = IdHash::of(&result.id);
                let set = if result.succeeded { &mut known.succeeded } else { &mut known.failed };
                set.insert(id);
                sizes.add(line.len);
            }
            Err(_) if line.bytes.is_some() && bytes.trim_ascii().is_empty() => {}
            // What a crash left of the last line; its request is asked again.
            Err(_) if !line.ended && is_torn(bytes) => break,
            Err(reason) => return Err(ResultsError::Foreign { line: line.number, reason }),
        }
        end += line.len;
        complete = line.ended;
    }
    file.set_len(end)?;
    file.seek(SeekFrom::End(0))?;
    if !complete {
        file.write_all(b"\n")?;
    }
    Ok((known, sizes))
}

/// Fields with which this and other programs begin a result.
const FIRST_FIELDS: [&str; 3] = ["\"id\"", "\"custom_id\"", "\"key\""];

/// The beginning of a result, and no more of it. What is something else is not ours to cut off: a template or a configuration may
/// begin with a brace, too, and have no line break at its end.
fn is_torn(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"{") else { return false };
    let rest = rest.trim_ascii_start();
    let begins = |field: &str| rest.starts_with(field.as_bytes()) || field.as_bytes().starts_with(rest);
    FIRST_FIELDS.into_iter().any(begins) && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_err()
}

/// The same file with the successes alone; all of it or nothing, whenever the power goes.
fn without_failures(path: &Path, file: &mut File, known: &Known) -> Result<File, ResultsError> {
    // A request that failed once and succeeded later keeps its success.
    rewritten(path, file, |result| result.succeeded && known.succeeded.contains(IdHash::of(&result.id)))
}

/// Leaves only the last result of each of `ids` in the file, whose lock `sink` has: they were asked more than once.
pub(super) fn keep_last(path: &Path, sink: Sink, ids: &[IdHash]) -> Result<(), ResultsError> {
    let Sink::File(file) = sink else { return Ok(()) };
    let mut file = file.into_file()?;
    let mut left: HashMap<IdHash, u64> = ids.iter().map(|id| (*id, 0)).collect();
    file.seek(SeekFrom::Start(0))?;
    let mut lines = Lines::new(Box::new(file.try_clone()?));
    while let Some(line) = lines.next_raw()? {
        let result = line.bytes.as_deref().and_then(|bytes| ResultLine::read(bytes).ok());
        if let Some(count) = result.and_then(|result| left.get_mut(&IdHash::of(&result.id))) {
            *count += 1;
        }
    }
    rewritten(path, &mut file, |result| match left.get_mut(&IdHash::of(&result.id)) {
        None => true,
        Some(count) => {
            *count -= 1;
            *count == 0
        }
    })?;
    Ok(())
}

/// The same file with the results that `keep` chooses; all of it or nothing, whenever the power goes.
fn rewritten(path: &Path, file: &mut File, mut keep: impl FnMut(&ResultLine) -> bool) -> Result<File, ResultsError> {
    // A link to the file stays one.
    let path = path.canonicalize()?;
    let mut draft = Draft::new(&path)?;
    file.seek(SeekFrom::Start(0))?;
    let mut lines = Lines::new(Box::new(file.try_clone()?));
    let mut out = BufWriter::with_capacity(1 << 16, draft.file());
    while let Some(line) = lines.next_raw()? {
        let Some(bytes) = line.bytes else { continue };
        if ResultLine::read(&bytes).is_ok_and(|result| keep(&result)) {
            out.write_all(&bytes)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()?;
    drop(out);
    // Locked as the old one was.
    Ok(draft.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "{\"custom_id\":\"a\",\"response\":{\"status_code\":200,\"body\":{}},\"error\":null}\n";
    const FAILED: &str = "{\"custom_id\":\"b\",\"response\":null,\"error\":{\"code\":\"x\",\"message\":\"y\"}}\n";
    const FOREIGN: &str = "{\"custom_id\":\"c\",\"response\":{\"status_code\":400,\"body\":{}},\"error\":null}\n";

    struct Place(tempfile::TempDir);

    impl Place {
        fn with(text: &str) -> Place {
            let place = Place(tempfile::tempdir().unwrap());
            std::fs::write(place.path(), text).unwrap();
            place
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("out.jsonl")
        }

        fn open(&self, earlier: Earlier) -> Result<(Sink, Known), ResultsError> {
            open(&Output::File(self.path()), earlier, write_stdout)
        }

        fn text(&self) -> String {
            std::fs::read_to_string(self.path()).unwrap()
        }
    }

    fn append(sink: &mut Sink, line: &str) {
        assert_eq!(sink.append(&[line.into()]).saved, [true]);
    }

    fn id(text: &str) -> IdHash {
        IdHash::of(text)
    }

    #[test]
    fn both_forms_of_an_error_are_known_as_failures() {
        let place = Place::with(&[OK, FAILED, FOREIGN].concat());
        let (_sink, known) = place.open(Earlier::Keep).unwrap();
        assert!(known.succeeded.contains(id("a")) && known.failed.contains(id("b")) && known.failed.contains(id("c")));
    }

    #[test]
    fn a_torn_line_is_cut_off_wherever_it_was_torn() {
        for torn_at in 1..FAILED.len() {
            let place = Place::with(&[OK, &FAILED[..torn_at]].concat());
            let (mut sink, known) = place.open(Earlier::Keep).unwrap();
            append(&mut sink, "{\"key\":\"z\",\"response\":{}}\n");
            drop(sink);
            let text = place.text();
            assert!(text.starts_with(OK) && text.ends_with("{\"key\":\"z\",\"response\":{}}\n"), "{torn_at}: {text}");
            // Whole but for its end, it is a result.
            assert_eq!(known.failed.contains(id("b")), torn_at == FAILED.len() - 1, "{torn_at}");
            assert!(place.open(Earlier::Keep).unwrap().1.succeeded.contains(id("z")));
        }
    }

    #[test]
    fn failures_are_taken_out_to_be_asked_again() {
        let place = Place::with(&[FAILED, OK, FOREIGN].concat());
        let (mut sink, known) = place.open(Earlier::RetryFailed).unwrap();
        assert!(!known.contains(id("b")) && known.contains(id("a")));
        assert_eq!(place.text(), OK);
        append(&mut sink, FAILED);
        assert_eq!(place.text(), [OK, FAILED].concat(), "what is written goes into the new file");
        assert!(matches!(place.open(Earlier::Keep), Err(ResultsError::Busy)), "which is locked as the old one was");
    }

    #[test]
    fn a_fresh_start_keeps_nothing_and_what_is_no_result_is_not_touched() {
        let place = Place::with(OK);
        assert_eq!(place.open(Earlier::Discard).unwrap().1.succeeded.len(), 0);
        assert_eq!(place.text(), "");
        for text in [
            "my notes\nmore of them\n",
            "a single line",
            "{\"some\":\"configuration\"}",
            "{\"some\":\"torn configura",
            "{{ template }}",
            "{ a: 1 }",
        ] {
            for earlier in [Earlier::Keep, Earlier::RetryFailed, Earlier::Discard] {
                let notes = Place::with(text);
                assert!(matches!(notes.open(earlier), Err(ResultsError::Foreign { line: 1, .. })), "{earlier:?}");
                assert_eq!(notes.text(), text);
            }
        }
    }

    #[test]
    fn one_process_a_file() {
        let place = Place::with(OK);
        let _first = place.open(Earlier::Keep).unwrap();
        assert!(matches!(place.open(Earlier::Keep), Err(ResultsError::Busy)));
    }
}
