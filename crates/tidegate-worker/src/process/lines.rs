//! What a child writes to its standard output and standard error, by the line. No I/O.

use std::collections::VecDeque;

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
    fn only_the_last_words_are_kept() {
        let mut words = LastWords::default();
        for number in 0..100 {
            words.push(&number.to_string());
        }
        assert!(words.text().starts_with("80\n") && words.text().ends_with("\n99"));
    }
}
