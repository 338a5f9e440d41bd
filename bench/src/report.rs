//! What the harness measured, as a table for people and as JSON rows for programs.

use std::io::{self, Write};

use serde::Serialize;

use crate::harness::{Mark, Measured, Row, Thefts};

#[derive(Serialize)]
struct JsonRow<'a> {
    group: &'a str,
    line: &'a str,
    contestant: &'a str,
    median: Option<f64>,
    unit: &'a str,
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<&'a str>,
}

/// One object a contestant, one a line of text.
pub(crate) fn write_json(out: &mut impl Write, group: &str, measured: &Measured) -> anyhow::Result<()> {
    for row in &measured.rows {
        let row = JsonRow {
            group,
            line: &measured.line,
            contestant: row.contestant,
            median: row.outcome.as_ref().ok().map(|stats| stats.median),
            unit: measured.unit,
            ratio: row.ratio,
            unavailable: row.outcome.as_ref().err().map(String::as_str),
        };
        serde_json::to_writer(&mut *out, &row).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

const HEADER: [&str; 8] = ["line", "contestant", "median", "unit", "spread", "ratio", "goal", ""];
/// Columns of figures, set flush right.
const FIGURES: [bool; 8] = [false, false, true, false, true, true, false, false];

/// The whole run as one table, notes under their lines, and a closing count of the goals.
pub(crate) fn write_table(out: &mut impl Write, measured: &[Measured]) -> anyhow::Result<()> {
    let cells: Vec<Vec<[String; 8]>> = measured
        .iter()
        .map(|line| line.rows.iter().enumerate().map(|(at, row)| cells(line, at, row)).collect())
        .collect();
    let widths: [usize; 8] = std::array::from_fn(|column| {
        let longest = cells.iter().flatten().map(|row| row[column].chars().count()).max();
        longest.unwrap_or(0).max(HEADER[column].len())
    });

    write_row(out, &HEADER.map(str::to_owned), &widths)?;
    for (line, rows) in measured.iter().zip(&cells) {
        writeln!(out)?;
        for (row, cells) in line.rows.iter().zip(rows) {
            write_row(out, cells, &widths)?;
            if let Err(why) = &row.outcome {
                writeln!(out, "    {} not available: {why}", row.contestant)?;
            }
        }
        if let Some(note) = &line.note {
            writeln!(out, "    ({note})")?;
        }
        if let Some(told) = told(line.thefts) {
            writeln!(out, "    ({told})")?;
        }
    }

    let marks = || {
        measured.iter().flat_map(|line| &line.rows).filter_map(|row| row.verdict.as_ref().map(|verdict| verdict.mark))
    };
    let count = |wanted: Mark| marks().filter(|mark| *mark == wanted).count();
    let (aim, ok, miss) = (count(Mark::Aim), count(Mark::Ok), count(Mark::Miss));
    writeln!(out)?;
    writeln!(out, "ratio = contestant / tidegate in cost: above 1, tidegate is ahead.")?;
    writeln!(out, "goals: {} met, {aim} of them to the aim; {miss} missed", aim + ok)?;
    Ok(())
}

/// What was measured again because the host had the cores meanwhile, and what could not be.
fn told(thefts: Thefts) -> Option<String> {
    let batches = |count: u32| if count == 1 { "1 batch".to_owned() } else { format!("{count} batches") };
    match (thefts.repeated, thefts.kept) {
        (0, 0) => None,
        (repeated, 0) => Some(format!("the host took the cores away during {}, run again", batches(repeated))),
        (repeated, kept) => Some(format!(
            "the host took the cores away during {}: {repeated} run again, {kept} counted all the same",
            batches(repeated + kept)
        )),
    }
}

fn cells(line: &Measured, at: usize, row: &Row) -> [String; 8] {
    let name = if at == 0 { line.line.clone() } else { String::new() };
    let stats = row.outcome.as_ref().ok();
    let verdict = row.verdict.as_ref();
    [
        name,
        row.contestant.to_owned(),
        stats.map_or("-".to_owned(), |stats| figure(stats.median)),
        line.unit.to_owned(),
        stats.map_or(String::new(), |stats| format!("{:.0}%", stats.spread * 100.0)),
        row.ratio.map_or("-".to_owned(), |ratio| format!("{}x", figure(ratio))),
        verdict.map_or(String::new(), |verdict| verdict.goal.clone()),
        verdict.map_or(String::new(), |verdict| mark(verdict.mark).to_owned()),
    ]
}

fn mark(mark: Mark) -> &'static str {
    match mark {
        Mark::Miss => "MISS",
        Mark::Ok => "ok",
        Mark::Aim => "ok, aim",
    }
}

/// Three significant digits or so: enough to compare, too few to pretend.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn write_row(out: &mut impl Write, cells: &[String; 8], widths: &[usize; 8]) -> io::Result<()> {
    let mut text = String::new();
    for column in 0..cells.len() {
        let (cell, width) = (&cells[column], widths[column]);
        if FIGURES[column] {
            text.push_str(&format!("{cell:>width$}  "));
        } else {
            text.push_str(&format!("{cell:<width$}  "));
        }
    }
    writeln!(out, "{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{BASELINE, Goal, Line};
    use crate::host::Honest;

    fn sample() -> Measured {
        Line::new("spin", "ns")
            .contestant(BASELINE, || 2.0)
            .contestant("peer", || 8.0)
            .contestant_if("absent", || Err("not installed".to_owned()))
            .goal(Goal::Ratio { against: &["peer"], limit: 3.0, aim: 5.0 })
            .measure(1, &Honest, &mut |_| {})
    }

    #[test]
    fn json_rows_have_the_documented_fields_in_order() {
        let mut out = Vec::new();
        write_json(&mut out, "loop", &sample()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[1],
            r#"{"group":"loop","line":"spin","contestant":"peer","median":8.0,"unit":"ns","ratio":4.0}"#
        );
        assert!(rows[2].contains(r#""median":null"#) && rows[2].contains("not installed"));
    }

    #[test]
    fn what_the_host_took_is_told() {
        let told = |repeated, kept| {
            let mut out = Vec::new();
            write_table(&mut out, &[Measured { thefts: Thefts { repeated, kept }, ..sample() }]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(!told(0, 0).contains("the host"));
        assert!(told(1, 0).contains("(the host took the cores away during 1 batch, run again)"));
        assert!(told(6, 2).contains("during 8 batches: 6 run again, 2 counted all the same)"));
    }

    #[test]
    fn the_table_shows_goal_and_mark_on_the_deciding_row() {
        let mut out = Vec::new();
        write_table(&mut out, &[sample()]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let peer = text.lines().find(|line| line.contains("peer")).unwrap();
        assert!(peer.contains("4.00x") && peer.contains(">= 3 (aim 5)") && peer.ends_with("ok"));
        assert!(text.contains("absent not available: not installed"));
        assert!(text.contains("goals: 1 met, 0 of them to the aim; 0 missed"));
    }
}
