//! From glyphs to text: lines by position, reading order, spaces from gaps. No PDF here, only places and letters.
//!
//! Glyphs are first joined to *chunks* in the order in which they were drawn, because a line's own order is almost always
//! right; chunks become lines by their baselines, and lines are read from top to bottom, except where a gutter runs
//! through at least [`COLUMN_LINES`] of them: then column by column.

use std::collections::BTreeMap;
use std::ops::Range;

/// A gap this wide, in ems, is a space between two words.
const SPACE_EMS: f32 = 0.17;
/// The same between two ideographs, which stand further apart by nature.
const SPACE_CJK_EMS: f32 = 0.6;
/// A gap this wide, in ems, may be more than a space: a tabulator, or the gutter between two columns.
const GUTTER_EMS: f32 = 1.0;
/// Baselines closer than this, in ems of the smaller, are one line.
const LINE_EMS: f32 = 0.45;
/// Fewest lines, and fewest characters per line, of a column. Less than that is a table, which is read by rows.
const COLUMN_LINES: usize = 4;
const COLUMN_CHARS: usize = 15;
/// Gutters are looked for in the middle of the text: this share of its width is left out on either side.
const MARGIN: f32 = 0.15;

/// What was drawn on a page, in the order of drawing.
#[derive(Debug, Default)]
pub(crate) struct Glyphs {
    text: String,
    places: Vec<Place>,
}

/// A glyph's place on the page: y grows downwards, a unit is a point.
#[derive(Debug, Clone)]
struct Place {
    text: Range<u32>,
    x: f32,
    y: f32,
    /// Where the next glyph would be, seen from here.
    advance: (f32, f32),
    /// An em.
    size: f32,
}

impl Glyphs {
    pub(crate) fn push(&mut self, text: &str, at: (f32, f32), advance: (f32, f32), size: f32) {
        let finite = [at.0, at.1, advance.0, advance.1, size].iter().all(|value| value.is_finite());
        let (start, end) = (self.text.len(), self.text.len() + text.len());
        // Nowhere, or beyond 4 GB of text: not on the page.
        if !finite || size <= 0.0 || end > u32::MAX as usize {
            return;
        }
        self.text.push_str(text);
        self.places.push(Place { text: start as u32..end as u32, x: at.0, y: at.1, advance, size });
    }

    /// The text as people read it.
    pub(crate) fn read(&self) -> String {
        let mut directions: BTreeMap<i32, Vec<&Place>> = BTreeMap::new();
        for place in &self.places {
            directions.entry(direction(place.advance)).or_default().push(place);
        }
        let mut directions: Vec<_> = directions.into_iter().collect();
        // What stands across the rest (a note in the margin, a watermark) comes last.
        directions.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        let mut out = Writer::default();
        for (degrees, places) in directions {
            out.paragraph();
            read_direction(&lines(self.chunks(degrees, &places)), &mut out);
        }
        out.text
    }

    fn chunks(&self, degrees: i32, places: &[&Place]) -> Vec<Chunk> {
        let (sin, cos) = (degrees as f32).to_radians().sin_cos();
        let mut chunks: Vec<Chunk> = Vec::new();
        for place in places {
            let text = &self.text[place.text.start as usize..place.text.end as usize];
            let (along, down) = (place.x * cos + place.y * sin, place.y * cos - place.x * sin);
            let end = along + (place.advance.0 * cos + place.advance.1 * sin).max(0.0);
            match chunks.last_mut() {
                Some(chunk) if chunk.continues(along, down, place.size) => chunk.push(text, along, end, place.size),
                _ => chunks.push(Chunk { text: text.to_owned(), start: along, end, down, size: place.size }),
            }
        }
        chunks.retain(|chunk| !chunk.text.trim().is_empty());
        chunks
    }
}

/// Which way the text runs, in degrees, to the nearest five: a scan is never quite straight.
fn direction((x, y): (f32, f32)) -> i32 {
    if x == 0.0 && y == 0.0 {
        return 0;
    }
    ((y.atan2(x).to_degrees() / 5.0).round() as i32 * 5).rem_euclid(360)
}

/// Glyphs drawn one after the other on one line, seen along their own direction.
#[derive(Debug)]
struct Chunk {
    text: String,
    start: f32,
    end: f32,
    /// The baseline; grows from line to line.
    down: f32,
    size: f32,
}

impl Chunk {
    fn continues(&self, along: f32, down: f32, size: f32) -> bool {
        let em = self.size.max(size);
        // A little backwards is kerning or an accent.
        (down - self.down).abs() < LINE_EMS * em && (-0.5 * em..GUTTER_EMS * em).contains(&(along - self.end))
    }

    fn push(&mut self, text: &str, along: f32, end: f32, size: f32) {
        if spaced(&self.text, text, along - self.end, self.size.min(size)) {
            self.text.push(' ');
        }
        self.text.push_str(text);
        self.end = self.end.max(end);
        self.size = self.size.max(size);
    }
}

/// Returns `true` if the gap between `before` and `after` is a space that was not drawn as a glyph.
fn spaced(before: &str, after: &str, gap: f32, em: f32) -> bool {
    let (Some(last), Some(first)) = (before.chars().next_back(), after.chars().next()) else { return false };
    let limit = if is_ideograph(last) && is_ideograph(first) { SPACE_CJK_EMS } else { SPACE_EMS };
    !last.is_whitespace() && !first.is_whitespace() && gap > limit * em
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' | '\u{FF00}'..='\u{FFEF}' | '\u{20000}'..='\u{3FFFF}')
}

/// Everything on one baseline.
#[derive(Debug)]
struct Line {
    down: f32,
    size: f32,
    /// From left to right; between them there is room for a gutter.
    segments: Vec<Chunk>,
}

fn lines(mut chunks: Vec<Chunk>) -> Vec<Line> {
    chunks.sort_by(|one, other| one.down.total_cmp(&other.down));
    let mut lines: Vec<Line> = Vec::new();
    for chunk in chunks {
        match lines.last_mut() {
            Some(line) if chunk.down - line.down < LINE_EMS * line.size.min(chunk.size) => {
                // The baseline is that of the larger letters: an exponent comes before its line.
                if chunk.size > line.size {
                    (line.down, line.size) = (chunk.down, chunk.size);
                }
                line.segments.push(chunk);
            }
            _ => lines.push(Line { down: chunk.down, size: chunk.size, segments: vec![chunk] }),
        }
    }
    for line in &mut lines {
        line.segments.sort_by(|one, other| one.start.total_cmp(&other.start));
        line.segments = join(std::mem::take(&mut line.segments));
    }
    lines
}

/// Chunks of a line that are no more than a space apart.
fn join(chunks: Vec<Chunk>) -> Vec<Chunk> {
    let mut segments: Vec<Chunk> = Vec::new();
    for chunk in chunks {
        match segments.last_mut() {
            // Drawn twice to look bold.
            Some(last) if last.text == chunk.text && (chunk.start - last.start).abs() < 0.2 * chunk.size => {}
            Some(last) if chunk.start - last.end < GUTTER_EMS * last.size.max(chunk.size) => {
                last.push(&chunk.text, chunk.start, chunk.end, chunk.size);
            }
            _ => segments.push(chunk),
        }
    }
    segments
}

fn read_direction(lines: &[Line], out: &mut Writer) {
    let Some(zone) = middle(lines) else { return };
    let leading = leading(lines);
    let mut rest = lines;
    while !rest.is_empty() {
        let (count, gutters) = gutters(rest, &zone);
        let (run, after) = rest.split_at(count);
        rest = after;
        let columns = columns(run, &gutters);
        if columns.len() > 1 && columns.iter().all(|column| is_prose(column)) {
            for column in columns {
                out.paragraph();
                for (down, segment) in column {
                    out.line(down, leading, std::slice::from_ref(segment));
                }
            }
            out.paragraph();
        } else {
            for line in run {
                out.line(line.down, leading, &line.segments);
            }
        }
    }
}

/// Where gutters may be: the width of all the text, without its margins.
fn middle(lines: &[Line]) -> Option<Range<f32>> {
    let start = lines.iter().flat_map(|line| &line.segments).map(|segment| segment.start).min_by(f32::total_cmp)?;
    let end = lines.iter().flat_map(|line| &line.segments).map(|segment| segment.end).max_by(f32::total_cmp)?;
    let margin = (end - start) * MARGIN;
    Some(start + margin..end - margin)
}

/// The usual distance from line to line: a quarter of them are closer, since paragraphs and headings stand further apart.
fn leading(lines: &[Line]) -> f32 {
    let mut steps: Vec<f32> = lines.windows(2).map(|pair| pair[1].down - pair[0].down).collect();
    steps.sort_by(f32::total_cmp);
    steps.get(steps.len() / 4).copied().unwrap_or(f32::MAX)
}

/// How many of the first lines leave the same gutters free, at least one line; and those gutters.
fn gutters(lines: &[Line], zone: &Range<f32>) -> (usize, Vec<Range<f32>>) {
    let mut free = vec![zone.clone()];
    for (count, line) in lines.iter().enumerate() {
        let mut left = Vec::new();
        for gap in &free {
            let mut from = gap.start;
            for segment in &line.segments {
                keep(&mut left, from..segment.start.min(gap.end), line.size);
                from = from.max(segment.end);
            }
            keep(&mut left, from..gap.end, line.size);
        }
        if left.is_empty() {
            return if count == 0 { (1, left) } else { (count, free) };
        }
        free = left;
    }
    (lines.len(), free)
}

fn keep(gaps: &mut Vec<Range<f32>>, gap: Range<f32>, em: f32) {
    if gap.end - gap.start >= 0.9 * GUTTER_EMS * em {
        gaps.push(gap);
    }
}

/// The segments of a run of lines by the column in which they stand; columns in which nothing stands are left out.
fn columns<'a>(run: &'a [Line], gutters: &[Range<f32>]) -> Vec<Vec<(f32, &'a Chunk)>> {
    let mut columns = vec![Vec::new(); gutters.len() + 1];
    for line in run {
        for segment in &line.segments {
            let column = gutters.iter().take_while(|gutter| segment.start >= gutter.start).count();
            columns[column].push((line.down, segment));
        }
    }
    columns.retain(|column| !column.is_empty());
    columns
}

fn is_prose(column: &[(f32, &Chunk)]) -> bool {
    let chars: usize = column.iter().map(|(_, segment)| segment.text.chars().count()).sum();
    column.len() >= COLUMN_LINES && chars >= COLUMN_CHARS * column.len()
}

/// Lines as they are written down.
#[derive(Default)]
struct Writer {
    text: String,
    /// The baseline of the last line, where the next one belongs to the same paragraph unless it is far away.
    last: Option<f32>,
}

impl Writer {
    fn paragraph(&mut self) {
        self.last = None;
    }

    fn line(&mut self, down: f32, leading: f32, segments: &[Chunk]) {
        if !self.text.is_empty() {
            self.text.push('\n');
            if self.last.is_none_or(|last| down - last > 1.4 * leading) {
                self.text.push('\n');
            }
        }
        self.last = Some(down);
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                self.text.push_str("  ");
            }
            self.text.push_str(segment.text.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `text` from (x, y) on, letters half an em wide, in 10 pt.
    fn write(glyphs: &mut Glyphs, text: &str, x: f32, y: f32) {
        for (index, letter) in text.chars().enumerate() {
            glyphs.push(letter.encode_utf8(&mut [0; 4]), (x + 5.0 * index as f32, y), (5.0, 0.0), 10.0);
        }
    }

    #[test]
    fn gaps_become_spaces_and_lines_are_read_from_the_top() {
        let mut glyphs = Glyphs::default();
        write(&mut glyphs, "second", 10.0, 112.0);
        write(&mut glyphs, "the", 10.0, 100.0);
        write(&mut glyphs, "first", 28.0, 100.0);
        assert_eq!(glyphs.read(), "the first\nsecond");
    }

    #[test]
    fn a_larger_gap_between_lines_is_a_new_paragraph() {
        let mut glyphs = Glyphs::default();
        for (text, y) in [("one", 12.0), ("two", 24.0), ("three", 36.0), ("four", 60.0)] {
            write(&mut glyphs, text, 0.0, y);
        }
        assert_eq!(glyphs.read(), "one\ntwo\nthree\n\nfour");
    }

    #[test]
    fn columns_drawn_line_by_line_are_read_column_by_column() {
        let mut glyphs = Glyphs::default();
        write(&mut glyphs, "A title that stands above both of the columns, all across", 0.0, 0.0);
        for line in 0..5 {
            let y = 30.0 + 12.0 * line as f32;
            write(&mut glyphs, &format!("left column, line {line}"), 0.0, y);
            write(&mut glyphs, &format!("right column, line {line}"), 180.0, y);
        }
        let text = glyphs.read();
        let place = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} is not in {text:?}"));
        assert!(place("A title") < place("left column, line 0"));
        assert!(place("left column, line 4") < place("right column, line 0"), "{text}");
    }

    #[test]
    fn a_table_is_read_by_rows() {
        let mut glyphs = Glyphs::default();
        for (row, (name, value)) in [("rpm", "60"), ("tpm", "9000"), ("rpd", "500"), ("cap", "200")].iter().enumerate()
        {
            write(&mut glyphs, name, 0.0, 12.0 * row as f32);
            write(&mut glyphs, value, 100.0, 12.0 * row as f32);
        }
        assert_eq!(glyphs.read(), "rpm  60\ntpm  9000\nrpd  500\ncap  200");
    }

    #[test]
    fn text_drawn_twice_to_look_bold_is_read_once() {
        let mut glyphs = Glyphs::default();
        write(&mut glyphs, "Bold", 0.0, 0.0);
        write(&mut glyphs, "Bold", 0.3, 0.0);
        assert_eq!(glyphs.read(), "Bold");
    }

    #[test]
    fn an_exponent_stays_in_its_line() {
        let mut glyphs = Glyphs::default();
        write(&mut glyphs, "x", 0.0, 100.0);
        glyphs.push("2", (5.0, 96.0), (3.0, 0.0), 6.0);
        write(&mut glyphs, "+1", 8.0, 100.0);
        assert_eq!(glyphs.read(), "x2+1");
    }

    #[test]
    fn text_across_comes_last_and_in_its_own_order() {
        let mut glyphs = Glyphs::default();
        for (index, letter) in ["n", "o", "t", "e"].iter().enumerate() {
            glyphs.push(letter, (500.0, 300.0 - 5.0 * index as f32), (0.0, -5.0), 10.0);
        }
        write(&mut glyphs, "the text", 0.0, 0.0);
        assert_eq!(glyphs.read(), "the text\n\nnote");
    }

    #[test]
    fn vertical_columns_are_read_from_the_right() {
        let mut glyphs = Glyphs::default();
        for (column, text) in ["潮汐表", "第二行"].iter().enumerate() {
            for (row, letter) in text.chars().enumerate() {
                let at = (300.0 - 14.0 * column as f32, 10.0 * row as f32);
                glyphs.push(letter.encode_utf8(&mut [0; 4]), at, (0.0, 10.0), 10.0);
            }
        }
        assert_eq!(glyphs.read(), "潮汐表\n第二行");
    }

    #[test]
    fn places_that_are_none_are_left_out() {
        let mut glyphs = Glyphs::default();
        glyphs.push("x", (f32::NAN, 0.0), (5.0, 0.0), 10.0);
        glyphs.push("y", (0.0, 0.0), (f32::INFINITY, 0.0), 10.0);
        glyphs.push("z", (0.0, 0.0), (0.0, 0.0), 10.0);
        assert_eq!(glyphs.read(), "z");
        assert_eq!(Glyphs::default().read(), "");
    }
}
