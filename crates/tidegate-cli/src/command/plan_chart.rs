//! A plan over time, drawn with letters and blocks: requests per minute, and the limit that blocks them.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_batch::plan::{Plan, Slice};

use super::plan::{for_people, thousands};

const HEIGHT: usize = 6;
const WIDTH: usize = 64;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Nothing for a plan that takes no time.
pub(super) fn draw(plan: &Plan) -> String {
    if plan.duration.is_zero() || plan.timeline.is_empty() {
        return String::new();
    }
    let columns: Vec<Column<'_>> = (0..WIDTH).map(|at| Column::of(plan, at)).collect();
    let top = columns.iter().map(|column| column.rate).fold(0.0, f64::max);
    let label = thousands(top.round() as u64);
    let width = label.len().max(1);
    let mut text = String::from("\nrequests a minute\n");
    for row in (0..HEIGHT).rev() {
        let name = if row == HEIGHT - 1 { label.as_str() } else { "" };
        let line: String = columns.iter().map(|column| block(column.rate / top.max(f64::MIN_POSITIVE), row)).collect();
        text.push_str(format!("{name:>width$} ┤{line}").trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:>width$} └{}\n", "0", "─".repeat(WIDTH)));
    let end = for_people(plan.duration);
    text.push_str(&format!("{:width$}  0{end:>pad$}\n", "", pad = WIDTH - 1));

    let letters = letters(&columns);
    let waits: String = columns.iter().map(|column| column.bound_by.map_or('·', |limit| letters[limit])).collect();
    text.push_str(&format!("{:width$}  {waits}\n{:width$}  waits for", "", ""));
    for (limit, letter) in &letters {
        text.push_str(&format!("  {letter} {limit}"));
    }
    text.push_str("  · nothing but the answers\n");
    text
}

struct Column<'p> {
    /// Requests per minute.
    rate: f64,
    bound_by: Option<&'p str>,
}

impl<'p> Column<'p> {
    /// The part of the plan that is drawn in this column.
    fn of(plan: &'p Plan, at: usize) -> Column<'p> {
        let edge = |at: usize| plan.duration.mul_f64(at as f64 / WIDTH as f64);
        let (from, to) = (edge(at), edge(at + 1));
        let overlap = |slice: &Slice| slice.to.min(to).saturating_sub(slice.from.max(from));
        let mut sent = 0.0;
        let mut longest: (Duration, Option<&str>) = (Duration::ZERO, None);
        for slice in plan.timeline.iter().filter(|slice| slice.from < to && slice.to > from) {
            let overlap = overlap(slice);
            sent += slice.sent as f64 * overlap.as_secs_f64() / (slice.to - slice.from).as_secs_f64();
            if overlap > longest.0 {
                longest = (overlap, slice.bound_by.as_deref());
            }
        }
        Column { rate: sent * 60.0 / (to - from).as_secs_f64().max(f64::MIN_POSITIVE), bound_by: longest.1 }
    }
}

/// The piece of a bar that reaches `share` of the height, in a row from the bottom.
fn block(share: f64, row: usize) -> char {
    let eighths = (share * (HEIGHT * 8) as f64).round() as usize;
    BLOCKS[eighths.saturating_sub(row * 8).min(8)]
}

/// A letter for each limit: its first that is still free.
fn letters<'p>(columns: &[Column<'p>]) -> BTreeMap<&'p str, char> {
    let mut letters: BTreeMap<&str, char> = BTreeMap::new();
    for limit in columns.iter().filter_map(|column| column.bound_by) {
        if !letters.contains_key(limit) {
            let free = |letter: &char| letter.is_alphanumeric() && !letters.values().any(|taken| taken == letter);
            let letter = limit.chars().chain('a'..='z').find(free).unwrap_or('?');
            letters.insert(limit, letter);
        }
    }
    letters
}

#[cfg(test)]
mod tests {
    use tidegate_batch::plan::{Job, Requests, Tokens};
    use tidegate_limit::Limit;

    use super::*;

    #[test]
    fn a_chart_shows_the_bursts_and_what_is_waited_for() {
        let tokens = Tokens { input: 100, output: 10 };
        let plan = Job::new([Limit::rpm(60)])
            .part("a", Requests::Alike { count: 600, tokens }, 100)
            .latency(|_| Duration::from_secs(1))
            .run()
            .unwrap();
        let chart = draw(&plan);
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines.len(), 3 + HEIGHT + 3, "{chart}");
        assert!(lines[2].contains('█'), "{chart}");
        assert!(chart.contains("9 min 1 s") && chart.contains("r rpm"), "{chart}");
        assert!(chart.contains("rrrrrrrrrrrrrrrrrrrr"), "{chart}");
    }

    #[test]
    fn a_plan_of_nothing_has_no_chart() {
        assert_eq!(draw(&Job::new([]).run().unwrap()), "");
    }
}
