//! What is wrong with the file, row by row. Reads only; `repair.rs` mends what is found here.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};

use super::quarantine::literal;
use super::rows::{self, Columns};
use super::rules::{self, RULES};

/// At most this many rows are named for each kind of problem.
const NAMED_MAX: usize = 20;

/// All places a task can be in.
pub(super) const PLACES: &str = "SELECT seq FROM ready UNION ALL SELECT seq FROM delayed \
                                 UNION ALL SELECT seq FROM running UNION ALL SELECT seq FROM dead";

/// The problems, one line each; none if the file is sound.
pub(super) fn check(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    // One snapshot, so that a task on its way is not in two places.
    let snapshot = connection.unchecked_transaction()?;
    let mut problems: Vec<String> = snapshot
        .prepare("PRAGMA integrity_check(20)")?
        .query_map([], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<_>>()?;
    // Constraints are looked at below, where the rows are named.
    problems.retain(|line| line != "ok" && !line.starts_with("CHECK constraint failed"));
    broken_rules(&snapshot, &mut problems)?;
    let unreadable = unreadable_tasks(&snapshot)?;
    let named = unreadable.iter().map(|(seq, problem)| format!("task seq {seq}: {}", problem.join("; ")));
    problems.extend(cut(named.collect()));
    misplaced(&snapshot, &mut problems)?;
    Ok(problems)
}

fn cut(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(NAMED_MAX);
    lines.truncate(NAMED_MAX);
    if more > 0 {
        lines.push(format!("… and {more} more of this kind"));
    }
    lines
}

fn broken_rules(connection: &Connection, problems: &mut Vec<String>) -> rusqlite::Result<()> {
    // The columns of tasks are read one by one below, which sees more.
    for rule in RULES.iter().filter(|rule| rule.table != "task" || rule.column == "seq") {
        let keys = rules::keys(rule.table);
        let sql = format!("SELECT {}, {} FROM {} WHERE NOT ({})", keys.join(", "), rule.column, rule.table, rule.holds);
        let name = |row: &Row<'_>| -> rusqlite::Result<String> {
            let value = row.get_ref(keys.len())?;
            Ok(format!(
                "{}: {} is {}, expected {}",
                row_name(rule.table, row)?,
                rule.column,
                rows::shown(value),
                rule.expected
            ))
        };
        let found: Vec<String> = connection.prepare(&sql)?.query_map([], name)?.collect::<rusqlite::Result<_>>()?;
        problems.extend(cut(found));
    }
    Ok(())
}

/// `ready (queue 1, rank 5, seq 9)`, from the first columns of the row.
fn row_name(table: &str, row: &Row<'_>) -> rusqlite::Result<String> {
    let keys: Vec<String> = rules::keys(table)
        .iter()
        .enumerate()
        .map(|(at, key)| Ok(format!("{key} {}", rows::shown(row.get_ref(at)?))))
        .collect::<rusqlite::Result<_>>()?;
    Ok(if keys.len() == 1 { format!("{table} {}", keys[0]) } else { format!("{table} ({})", keys.join(", ")) })
}

/// Tasks whose rows cannot be read, with what is wrong.
pub(super) fn unreadable_tasks(connection: &Connection) -> rusqlite::Result<Vec<(i64, Vec<String>)>> {
    // Bodies are large, and any bytes will do.
    let columns =
        rows::ENVELOPE.replace("t.body", "CASE WHEN typeof(t.body) IN ('blob', 'text') THEN x'' ELSE t.body END");
    let sql =
        format!("SELECT {columns}, t.published, t.seq FROM task t LEFT JOIN queue q ON q.id = t.queue ORDER BY t.seq");
    let mut statement = connection.prepare(&sql)?;
    let mut found = statement.query([])?;
    let mut unreadable = Vec::new();
    while let Some(row) = found.next()? {
        let mut columns = Columns::of(row);
        columns.envelope(0);
        columns.integer(9, "published");
        if !columns.problems.is_empty() {
            unreadable.push((row.get(10)?, columns.problems));
        }
    }
    Ok(unreadable)
}

fn misplaced(connection: &Connection, problems: &mut Vec<String>) -> rusqlite::Result<()> {
    for (what, sql) in [
        (
            "tasks in no place, so that no worker would run them",
            format!("SELECT seq FROM task WHERE seq NOT IN ({PLACES})"),
        ),
        ("places without a task", format!("SELECT seq FROM ({PLACES}) WHERE seq NOT IN (SELECT seq FROM task)")),
        ("tasks in two places at once", format!("SELECT seq FROM ({PLACES}) GROUP BY seq HAVING count(*) > 1")),
        (
            "ready tasks under a wrong queue or priority",
            "SELECT r.seq FROM ready r JOIN task t USING (seq) WHERE (r.queue, r.rank) IS NOT (t.queue, t.rank)".into(),
        ),
        (
            "running tasks without a worker",
            "SELECT seq FROM running WHERE consumer NOT IN (SELECT id FROM consumer)".into(),
        ),
    ] {
        let mut statement = connection.prepare(&sql)?;
        let found: Vec<Value> = statement.query_map(params![], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        if !found.is_empty() {
            let mut named: Vec<String> = found.iter().take(NAMED_MAX).map(|seq| literal(seq.into())).collect();
            if found.len() > NAMED_MAX {
                named.push("…".into());
            }
            problems.push(format!("{} {what}: seq {}", found.len(), named.join(", ")));
        }
    }
    Ok(())
}
