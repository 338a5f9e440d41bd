//! What a child writes to its standard output and standard error, by the line. No I/O.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longer lines are cut, so that a child without line ends costs no memory.
pub(super) const LINE_MAX: usize = 8 << 10;

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Of a line without its end.
    partial: Vec<u8>,
    /// The rest of the line is dropped: it was too long.
    skipping: bool,
}

impl Lines {
    /// Takes what was read; calls `line` for each that is complete.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.take(&bytes[..end]);
            self.finish(&mut line);
            bytes = &bytes[end + 1..];
        }
        self.take(bytes);
    }

    /// The last line, if its end is missing.
    pub(super) fn end(&mut self, mut line: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            self.finish(&mut line);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.skipping {
            return;
        }
        let room = LINE_MAX - self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.partial.extend_from_slice("…".as_bytes());
            self.skipping = true;
        }
    }

    fn finish(&mut self, line: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.partial);
        line(text.trim_end_matches('\r'));
        self.partial.clear();
        self.skipping = false;
    }
}

/// Lines of one output that are logged per second. Each costs time on the worker's event loop and room in its log, so further
/// lines are only counted.
pub(super) const LINES_PER_SECOND: u32 = 2_000;

/// Decides which lines of one output are logged.
#[derive(Debug, Default)]
pub(super) struct LineRate {
    /// The beginning of the current second; `logged` counts within it.
    since: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl LineRate {
    /// Returns `true` if a line that is written at `now` is to be logged.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1)) {
            (self.since, self.logged) = (Some(now), 0);
        }
        let admitted = self.logged < LINES_PER_SECOND;
        self.logged += u32::from(admitted);
        self.left_out += u64::from(!admitted);
        admitted
    }

    /// Returns the number of lines that were left out since the last call, unless it is zero.
    pub(super) fn take_left_out(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.left_out)).filter(|count| *count > 0)
    }
}

/// The last lines that a child wrote to standard error; they are part of the error when it dies.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    lines: VecDeque<String>,
}

/// Lines that are kept.
const KEPT: usize = 20;

impl LastWords {
    pub(super) fn push(&mut self, line: &str) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    /// Those of the next run are others.
    pub(super) fn clear(&mut self) {
        self.lines.clear();
    }

    pub(super) fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| found.push(line.to_owned()));
        }
        lines.end(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_are_put_together_and_the_last_needs_no_end() {
        assert_eq!(cut(&[b"on", b"e\r\n\ntw", b"o\nthree"]), ["one", "", "two", "three"]);
        assert_eq!(cut(&[b"no \xff text\n"]), ["no \u{fffd} text"]);
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_is_whole() {
        let found = cut(&[&[b'x'; 3 * LINE_MAX], b"more\nnext\n"]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].chars().count(), LINE_MAX + 1);
        assert_eq!(found[1], "next");
    }

    #[test]
    fn lines_beyond_the_rate_are_counted_and_the_next_second_logs_again() {
        let (mut rate, start) = (LineRate::default(), Instant::now());
        let admitted = (0..LINES_PER_SECOND + 5).filter(|_| rate.admits(start)).count();
        assert_eq!(admitted, LINES_PER_SECOND as usize);
        assert!(!rate.admits(start + Duration::from_millis(999)));
        assert!(rate.admits(start + Duration::from_secs(1)));
        assert_eq!((rate.take_left_out(), rate.take_left_out()), (Some(6), None));
    }

    #[test]
    fn only_the_last_words_are_kept() {
        let mut words = LastWords::default();
        for number in 0..100 {
            words.push(&number.to_string());
        }
        assert!(words.text().starts_with("80\n") && words.text().ends_with("\n99"));
    }
}
