//! The bottom of the terminal: lines that are drawn again in place, and above them what stays.
//!
//! The cursor is always at the beginning of the line below the display, so that whatever ends the process, even kill -9,
//! leaves a terminal that can be used. Nothing is switched on that would have to be switched off again.

use std::io::Write;

use super::draw::{Size, Style};
use super::figures::width;
use crate::terminal::{self, Drawing};

/// What a terminal is taken for that does not say how large it is.
const SIZE: Size = Size { columns: 80, rows: 24 };

/// Draws on standard error.
pub(crate) struct Screen<W = Drawing> {
    out: W,
    /// How wide each line is that is on the screen now.
    drawn: Vec<usize>,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { out: Drawing, drawn: Vec::new() }
    }
}

impl<W: Write> Screen<W> {
    /// Replaces the display.
    pub(crate) fn show(&mut self, lines: &[String], size: Size) {
        let mut text = self.up(size);
        for line in lines {
            text.push_str(CLEAR_LINE);
            text.push_str(line);
            text.push_str("\r\n");
        }
        text.push_str(CLEAR_BELOW);
        self.drawn = lines.iter().map(|line| visible(line)).collect();
        self.write(&text);
    }

    /// Writes a line that stays, above the display, which is gone until it is shown again.
    pub(crate) fn say(&mut self, line: &str, size: Size) {
        let mut text = self.up(size);
        text.push_str(CLEAR_LINE);
        text.push_str(line);
        text.push('\n');
        // Not before the line: tmux keeps in its history what is cleared from the top of the screen, and shows it again when
        // the window grows.
        text.push_str(CLEAR_BELOW);
        self.write(&text);
    }

    /// Takes the display away.
    pub(crate) fn clear(&mut self, size: Size) {
        let mut text = self.up(size);
        text.push_str(CLEAR_BELOW);
        self.write(&text);
    }

    /// To the first line of the display.
    fn up(&mut self, size: Size) -> String {
        // Lines that have become too wide for the window are broken by it.
        let columns = size.columns.max(1);
        let rows: usize = self.drawn.drain(..).map(|wide| wide.div_ceil(columns).max(1)).sum();
        match rows.min(size.rows.saturating_sub(1)) {
            0 => "\r".to_owned(),
            rows => format!("\r\x1b[{rows}A"),
        }
    }

    /// All at once, so that nothing flickers. A terminal that has gone is no reason to stop working.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// Clears the whole line. A terminal that has become narrower marks the rows of a broken line as one; clearing the rest of
/// a row would leave the mark, and the rows would be joined when the window grows.
const CLEAR_LINE: &str = "\x1b[2K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Columns without the colours.
fn visible(line: &str) -> usize {
    let mut parts = line.split("\x1b[");
    let first = parts.next().map_or(0, width);
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, text)| width(text))).sum::<usize>()
}

/// How large the terminal is now.
pub(crate) fn size() -> Size {
    match terminal::err_size() {
        Some((columns, rows)) if columns > 0 && rows > 0 => {
            Size { columns: usize::from(columns), rows: usize::from(rows) }
        }
        _ => SIZE,
    }
}

/// Whether there is a terminal that can be drawn on, and what it can show.
pub(crate) fn style() -> Option<Style> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let term = variable("TERM");
    if !terminal::err_is_terminal() || term.is_empty() || term == "dumb" {
        return None;
    }
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable).into_iter().find(|it| !it.is_empty()).unwrap_or_default();
    Some(style_of(&variable("NO_COLOR"), &locale))
}

fn style_of(no_color: &str, locale: &str) -> Style {
    let locale = locale.to_ascii_lowercase();
    Style { color: no_color.is_empty(), unicode: locale.contains("utf-8") || locale.contains("utf8") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen<Vec<u8>> {
        Screen { out: Vec::new(), drawn: Vec::new() }
    }

    fn written(screen: &mut Screen<Vec<u8>>) -> String {
        String::from_utf8(std::mem::take(&mut screen.out)).unwrap()
    }

    #[test]
    fn the_display_is_replaced_where_it_stands() {
        let mut screen = screen();
        screen.show(&["one".to_owned(), "two".to_owned()], SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[2Kone\r\n\x1b[2Ktwo\r\n\x1b[J");
        screen.show(&["three".to_owned()], SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[2A\x1b[2Kthree\r\n\x1b[J");
        screen.clear(SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[1A\x1b[J");
        screen.clear(SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[J", "what is not there is not cleared");
    }

    #[test]
    fn what_is_said_stays_above() {
        let mut screen = screen();
        screen.show(&["display".to_owned()], SIZE);
        written(&mut screen);
        screen.say("page 3 failed", SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[1A\x1b[2Kpage 3 failed\n\x1b[J");
        screen.show(&["display".to_owned()], SIZE);
        assert_eq!(written(&mut screen), "\r\x1b[2Kdisplay\r\n\x1b[J");
    }

    #[test]
    fn a_window_that_has_become_narrower_has_broken_the_lines() {
        let mut screen = screen();
        screen.show(&[format!("\x1b[32m{}\x1b[0m", "x".repeat(70)), "y".repeat(10)], SIZE);
        written(&mut screen);
        screen.clear(Size { columns: 30, rows: 24 });
        assert_eq!(written(&mut screen), "\r\x1b[4A\x1b[J");
    }

    #[test]
    fn colours_and_letters_are_those_the_environment_asks_for() {
        assert_eq!(style_of("", "de_DE.UTF-8"), Style { color: true, unicode: true });
        assert_eq!(style_of("1", "C.utf8"), Style { color: false, unicode: true });
        assert_eq!(style_of("", "C"), Style { color: true, unicode: false });
    }
}
