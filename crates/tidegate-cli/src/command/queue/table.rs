//! Columns: the first to the left, numbers to the right.

use std::fmt;

pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|&name| name.to_owned()).collect()] }
    }

    pub(super) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row.into_iter().map(cut).collect());
    }
}

/// A longer cell is cut; `--json` has all of it.
const CELL_CHARS_MAX: usize = 200;

fn cut(cell: String) -> String {
    match cell.char_indices().nth(CELL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &cell[..at]),
        None => cell,
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |at: usize| self.rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            write!(f, "{:width$}", row[0], width = widths[0])?;
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_is_shown() {
        let mut table = Table::new(&["queue", "ready"]);
        table.row(vec!["ü".repeat(70_000), "1".to_owned()]);
        let text = table.to_string();
        assert_eq!(text.lines().nth(1).unwrap().chars().count(), CELL_CHARS_MAX + 1 + 2 + "ready".len());
        assert!(text.contains('…'), "{text}");
    }
}
