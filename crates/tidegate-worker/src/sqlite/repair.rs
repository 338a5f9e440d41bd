//! Puts the rows of a whole file in order. Used when a file of an older layout, which has no constraints, is migrated; when a row
//! made a transaction fail; and by hand. Nothing that could still be run is dropped: a task that cannot be run as it is becomes a
//! dead letter.

use std::collections::BTreeMap;

use rusqlite::types::Value;
use rusqlite::{Connection, params};

use super::check::{PLACES, unreadable_tasks};
use super::publish::find_queue;
use super::quarantine::{self, Times, literal, put_back, quarantine};
use super::rows;
use super::rules;

/// Runs within the caller's transaction. Returns how many rows were changed.
pub(super) fn repair(connection: &Connection, times: Times) -> rusqlite::Result<u64> {
    let mut repair = Repair { connection, times, changed: 0 };
    repair.numbers()?;
    repair.queues()?;
    let lost = repair.places()?;
    repair.dead_letters()?;
    repair.workers()?;
    repair.tasks()?;
    repair.doubles()?;
    repair.homeless(&lost)?;
    repair.records()?;
    Ok(repair.changed)
}

struct Repair<'c> {
    connection: &'c Connection,
    times: Times,
    changed: u64,
}

impl Repair<'_> {
    fn change(&mut self, sql: &str) -> rusqlite::Result<()> {
        self.changed += self.connection.execute(sql, [])? as u64;
        Ok(())
    }

    fn note(&mut self, what: &str, row: &str) {
        tracing::warn!(row, "{what}");
        self.changed += 1;
    }

    fn seqs(&self, sql: &str) -> rusqlite::Result<Vec<i64>> {
        self.connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
    }

    /// Numbers that SQLite counts on from: behind the largest integer there is no next one.
    fn numbers(&mut self) -> rusqlite::Result<()> {
        for seq in self.seqs("SELECT seq FROM task WHERE NOT (seq BETWEEN 1 AND 9007199254740991)")? {
            self.connection.execute(
                "UPDATE task SET seq = (SELECT coalesce(max(seq), 0) + 1 FROM task WHERE seq BETWEEN 1 AND 9007199254740990) \
                 WHERE seq = ?1",
                [seq],
            )?;
            self.changed += 1;
        }
        self.change("DELETE FROM revoked WHERE NOT (n BETWEEN 1 AND 9007199254740991)")?;
        for (table, key) in [("consumer", "id"), ("revoked", "n")] {
            self.change(&format!(
                "UPDATE sqlite_sequence SET seq = (SELECT coalesce(max({key}), 0) FROM {table} \
                 WHERE {key} BETWEEN 1 AND 9007199254740991) \
                 WHERE name = '{table}' AND NOT (typeof(seq) = 'integer' AND seq BETWEEN 0 AND 9007199254740990)"
            ))?;
        }
        Ok(())
    }

    /// Names that cannot be read get one that can.
    fn queues(&mut self) -> rusqlite::Result<()> {
        let mut bad = Vec::new();
        let mut statement = self.connection.prepare("SELECT id, name FROM queue")?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            if row.get_ref(1)?.as_str().is_err() {
                bad.push((row.get::<_, i64>(0)?, literal(row.get_ref(1)?)));
            }
        }
        drop(found);
        for (id, name) in bad {
            let mut new = format!("{}-{id}", quarantine::LOST_QUEUE);
            while find_queue(self.connection, &new)?.is_some() {
                new.push('-');
            }
            self.connection.execute("UPDATE queue SET name = ?2 WHERE id = ?1", params![id, new])?;
            self.note(&format!("a queue's name cannot be read; it is called {new} now"), &name);
        }
        Ok(())
    }

    /// Rows of `ready`, `delayed` and `running` that break a rule, or have no task, go. Returns what they were, by `seq`.
    fn places(&mut self) -> rusqlite::Result<BTreeMap<i64, Vec<String>>> {
        let mut lost: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for table in ["ready", "delayed", "running"] {
            let bad = format!("({}) OR seq NOT IN (SELECT seq FROM task)", rules::broken(table));
            for (seq, row) in self.rows(table, &bad)? {
                if let Value::Integer(seq) = seq {
                    lost.entry(seq).or_default().push(format!("its row in {table} was ({row})"));
                }
                self.note(&format!("dropped a row of `{table}` that cannot be used"), &row);
            }
            self.connection.execute(&format!("DELETE FROM {table} WHERE {bad}"), [])?;
        }
        Ok(lost)
    }

    /// The rows of a table that a condition is true for: `seq`, if there is one, and all columns in one line.
    fn rows(&self, table: &str, condition: &str) -> rusqlite::Result<Vec<(Value, String)>> {
        let mut statement = self.connection.prepare(&format!("SELECT * FROM {table} WHERE {condition}"))?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let seq = names.iter().position(|name| name == "seq");
        let mut found = statement.query([])?;
        let mut all = Vec::new();
        while let Some(row) = found.next()? {
            let mut texts = Vec::with_capacity(names.len());
            for (at, name) in names.iter().enumerate() {
                texts.push(format!("{name} = {}", rows::shown(row.get_ref(at)?)));
            }
            let seq = seq.map(|at| row.get(at)).transpose()?.unwrap_or(Value::Null);
            all.push((seq, texts.join(", ")));
        }
        Ok(all)
    }

    fn dead_letters(&mut self) -> rusqlite::Result<()> {
        self.change("DELETE FROM dead WHERE seq NOT IN (SELECT seq FROM task)")?;
        let bad = rules::broken("dead");
        for (seq, row) in self.rows("dead", &bad)? {
            self.connection.execute(
                "UPDATE dead SET at = CASE WHEN typeof(at) = 'integer' THEN at ELSE ?2 END, \
                 retries = CASE WHEN typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647 THEN retries ELSE 0 END, \
                 reason = CAST(reason AS TEXT), traceback = CAST(traceback AS TEXT) WHERE seq = ?1",
                params![seq, self.times.now],
            )?;
            self.note("mended a dead letter's row", &row);
        }
        Ok(())
    }

    /// Workers' rows. What a worker has that has no row returns, as if its lease had run out.
    fn workers(&mut self) -> rusqlite::Result<()> {
        let bad = rules::broken("consumer");
        for (_, row) in self.rows("consumer", &bad)? {
            self.note("removed a worker whose row cannot be read; its tasks return", &row);
        }
        self.connection.execute(&format!("DELETE FROM consumer WHERE {bad}"), [])?;
        self.change(&format!(
            "DELETE FROM subscription WHERE {} OR consumer NOT IN (SELECT id FROM consumer)",
            rules::broken("subscription")
        ))?;
        let orphans = "SELECT seq, retries, crashes FROM running WHERE consumer NOT IN (SELECT id FROM consumer)";
        let mut statement = self.connection.prepare(orphans)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            put_back(self.connection, &row.get(0)?, (row.get_ref(1)?, row.get_ref(2)?), true, self.times)?;
        }
        drop(found);
        self.change("DELETE FROM running WHERE consumer NOT IN (SELECT id FROM consumer)")
    }

    /// Tasks whose rows cannot be read leave their places and become dead letters.
    fn tasks(&mut self) -> rusqlite::Result<()> {
        let bad = unreadable_tasks(self.connection)?;
        if bad.is_empty() {
            return Ok(());
        }
        // With their ids in a table each place is walked through once, however many there are.
        self.connection
            .execute_batch("CREATE TEMP TABLE IF NOT EXISTS bad (seq INTEGER PRIMARY KEY); DELETE FROM temp.bad")?;
        for (seq, problems) in bad {
            self.connection.prepare_cached("INSERT INTO temp.bad VALUES (?1)")?.execute([seq])?;
            let dead: bool = self
                .connection
                .prepare_cached("SELECT EXISTS (SELECT 1 FROM dead WHERE seq = ?1)")?
                .query_row([seq], |row| row.get(0))?;
            if dead {
                let reason: String =
                    self.connection.query_row("SELECT reason FROM dead WHERE seq = ?1", [seq], |row| {
                        Ok(rows::Columns::of(row).text(0, "reason").into_owned())
                    })?;
                quarantine(
                    self.connection,
                    seq,
                    &[&problems[..], &[format!("dead before: {reason}")]].concat(),
                    self.times,
                )?;
            } else {
                quarantine(self.connection, seq, &problems, self.times)?;
            }
            self.changed += 1;
        }
        for table in ["ready", "delayed", "running"] {
            self.connection.execute(&format!("DELETE FROM {table} WHERE seq IN (SELECT seq FROM temp.bad)"), [])?;
        }
        self.connection.execute_batch("DELETE FROM temp.bad")
    }

    /// A task has one place: with the worker that runs it, else ready, else delayed, else among the dead.
    fn doubles(&mut self) -> rusqlite::Result<()> {
        self.change(
            "DELETE FROM running WHERE (consumer, seq) NOT IN (SELECT min(consumer), seq FROM running GROUP BY seq)",
        )?;
        // Also where queue and rank are not the task's own.
        self.change(
            "INSERT OR IGNORE INTO ready (queue, rank, seq, retries, crashes) \
             SELECT t.queue, t.rank, t.seq, max(r.retries), max(r.crashes) FROM ready r JOIN task t USING (seq) \
             WHERE (r.queue, r.rank) IS NOT (t.queue, t.rank) GROUP BY t.seq",
        )?;
        self.change(
            "DELETE FROM ready WHERE (queue, rank) IS NOT (SELECT t.queue, t.rank FROM task t WHERE t.seq = ready.seq)",
        )?;
        self.change("DELETE FROM ready WHERE seq IN (SELECT seq FROM running)")?;
        self.change("DELETE FROM delayed WHERE seq IN (SELECT seq FROM running UNION ALL SELECT seq FROM ready)")?;
        self.change("DELETE FROM delayed WHERE (at, seq) NOT IN (SELECT min(at), seq FROM delayed GROUP BY seq)")?;
        self.change(
            "DELETE FROM dead WHERE seq IN \
             (SELECT seq FROM running UNION ALL SELECT seq FROM ready UNION ALL SELECT seq FROM delayed)",
        )
    }

    /// A task without a place would never run: it becomes a dead letter.
    fn homeless(&mut self, lost: &BTreeMap<i64, Vec<String>>) -> rusqlite::Result<()> {
        for seq in self.seqs(&format!("SELECT seq FROM task WHERE seq NOT IN ({PLACES})"))? {
            let none = vec!["the task was in no place of the queue".to_owned()];
            quarantine(self.connection, seq, lost.get(&seq).unwrap_or(&none), self.times)?;
            self.changed += 1;
        }
        Ok(())
    }

    /// Keys, revokes and results are not tasks: rows that cannot be read are deleted, except results, which a caller may wait for.
    fn records(&mut self) -> rusqlite::Result<()> {
        for table in ["uniq", "revoked"] {
            let bad = rules::broken(table);
            for (_, row) in self.rows(table, &bad)? {
                self.note(&format!("dropped a row of `{table}` that cannot be read"), &row);
            }
            self.connection.execute(&format!("DELETE FROM {table} WHERE {bad}"), [])?;
        }
        let bad = rules::broken("result");
        for (_, row) in self.rows("result", &bad)? {
            self.note("a result cannot be read; its task counts as failed", &row);
        }
        self.connection.execute("DELETE FROM result WHERE typeof(id) <> 'text'", [])?;
        let error =
            serde_json::to_string(&rows::unreadable(&["its row cannot be read".to_owned()])).expect("strings are JSON");
        self.connection.execute(
            &format!(
                "UPDATE result SET until = CASE WHEN typeof(until) = 'integer' THEN until ELSE ?1 END, \
                 state = 'failed', value = NULL, error = ?2 WHERE {bad}"
            ),
            params![self.times.now + self.times.result_ttl_ms, error],
        )?;
        Ok(())
    }
}
