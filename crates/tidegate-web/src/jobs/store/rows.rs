//! Jobs and their files as rows.

use std::collections::HashMap;

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{JobStore, StoreError};
use crate::jobs::model::{FileKind, FileStatus, Job, JobFile, JobId, JobKind, JobState, PageState};

impl JobStore {
    /// Reads every job, the oldest first.
    pub(crate) async fn load(&self) -> Result<Vec<Job>, StoreError> {
        self.read(load).await
    }

    /// Adds a job and returns its number.
    pub(crate) async fn add_job(&self, job: Job) -> Result<JobId, StoreError> {
        self.write(move |connection| {
            connection.execute(
                "INSERT INTO jobs (name, kind, upstream, model, options, state, reason, created, started, changed, tokens_in, tokens_out)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                params![
                    job.name,
                    word(&job.kind),
                    job.upstream,
                    job.model,
                    json(&job.options),
                    job.state.name(),
                    job.reason,
                    job.created.to_string(),
                    job.started.map(|at| at.to_string()),
                    job.changed.to_string(),
                    number(job.tokens.0),
                    number(job.tokens.1),
                ],
            )?;
            let id = JobId(connection.last_insert_rowid());
            job.files.iter().try_for_each(|file| put_file(connection, id, file))?;
            Ok(id)
        })
        .await
    }

    /// Writes everything of a job but its pages.
    pub(crate) async fn update_job(&self, job: Job) -> Result<(), StoreError> {
        self.write(move |connection| {
            update_job(connection, &job)?;
            job.files.iter().try_for_each(|file| put_file(connection, job.id, file))
        })
        .await
    }

    /// Writes one file of a job.
    pub(crate) async fn put_file(&self, job: JobId, file: JobFile) -> Result<(), StoreError> {
        self.write(move |connection| put_file(connection, job, &file)).await
    }

    /// Removes one file of a job.
    pub(crate) async fn remove_file(&self, job: JobId, file: u32) -> Result<(), StoreError> {
        self.write(move |connection| {
            connection.execute("DELETE FROM pages WHERE job = ?1 AND file = ?2", params![job.0, file])?;
            connection.execute("DELETE FROM files WHERE job = ?1 AND number = ?2", params![job.0, file])?;
            Ok(())
        })
        .await
    }

    /// Removes a job with everything that belongs to it.
    pub(crate) async fn remove_job(&self, job: JobId) -> Result<(), StoreError> {
        self.write(move |connection| connection.execute("DELETE FROM jobs WHERE id = ?1", [job.0]).map(|_| ())).await
    }
}

fn update_job(connection: &Connection, job: &Job) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE jobs SET kind = ?12, name = ?2, upstream = ?3, model = ?4, options = ?5, state = ?6, reason = ?7, started = ?8, changed = ?9,
             tokens_in = ?10, tokens_out = ?11
         WHERE id = ?1",
        params![
            job.id.0,
            job.name,
            job.upstream,
            job.model,
            json(&job.options),
            job.state.name(),
            job.reason,
            job.started.map(|at| at.to_string()),
            job.changed.to_string(),
            number(job.tokens.0),
            number(job.tokens.1),
            word(&job.kind),
        ],
    )?;
    Ok(())
}

fn put_file(connection: &Connection, job: JobId, file: &JobFile) -> rusqlite::Result<()> {
    let (status, detail) = match &file.status {
        FileStatus::Unread => ("unread", ""),
        FileStatus::Readable => ("readable", ""),
        FileStatus::NeedsPassword { wrong } => ("needs_password", if *wrong { "wrong" } else { "" }),
        FileStatus::Broken(reason) => ("broken", reason.as_str()),
    };
    connection.execute(
        "INSERT OR REPLACE INTO files (job, number, name, kind, stored, bytes, status, detail, encrypted, page_count, title, page_tokens, numbers)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            job.0,
            file.number,
            file.name,
            word(&file.kind),
            file.stored,
            number(file.bytes),
            status,
            detail,
            file.encrypted,
            file.page_count,
            file.title,
            json(&file.page_tokens),
            json(&file.numbers),
        ],
    )?;
    Ok(())
}

fn load(connection: &Connection) -> rusqlite::Result<Vec<Job>> {
    let mut states: HashMap<(i64, u32), HashMap<u32, PageState>> = HashMap::new();
    let mut statement = connection.prepare("SELECT job, file, page, state FROM pages WHERE shown = 1")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let state = PageState::parse(row.get_ref(3)?.as_str()?).unwrap_or_default();
        states.entry((row.get(0)?, row.get(1)?)).or_default().insert(row.get(2)?, state);
    }
    let mut files: HashMap<i64, Vec<JobFile>> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT job, number, name, kind, stored, bytes, status, detail, encrypted, page_count, title, page_tokens, numbers FROM files
         ORDER BY job, number",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let job = row.get(0)?;
        files.entry(job).or_default().push(read_file(row, states.remove(&(job, row.get(1)?)))?);
    }
    let mut statement = connection.prepare(
        "SELECT id, name, kind, upstream, model, options, state, reason, created, started, changed, tokens_in, tokens_out
         FROM jobs ORDER BY id",
    )?;
    let jobs = statement.query_map([], |row| {
        let id = JobId(row.get(0)?);
        let state = row.get_ref(6)?.as_str()?;
        Ok(Job {
            id,
            name: row.get(1)?,
            kind: unword::<JobKind>(row, 2)?,
            upstream: row.get(3)?,
            model: row.get(4)?,
            options: from_json(row, 5)?,
            state: JobState::parse(state).ok_or_else(|| unreadable(6, &format!("there is no state {state}")))?,
            reason: row.get(7)?,
            created: instant(row, 8)?,
            started: row.get_ref(9)?.as_str_or_null()?.map(|_| instant(row, 9)).transpose()?,
            changed: instant(row, 10)?,
            tokens: (row.get::<_, i64>(11)?.unsigned_abs(), row.get::<_, i64>(12)?.unsigned_abs()),
            files: files.remove(&id.0).unwrap_or_default(),
        })
    })?;
    jobs.collect()
}

fn read_file(row: &Row<'_>, known: Option<HashMap<u32, PageState>>) -> rusqlite::Result<JobFile> {
    let numbers: Vec<u32> = from_json(row, 12)?;
    let known = known.unwrap_or_default();
    let detail: String = row.get(7)?;
    let encrypted = row.get(8)?;
    let status = match row.get_ref(6)?.as_str()? {
        // Passwords are not stored.
        "readable" if encrypted => FileStatus::NeedsPassword { wrong: false },
        "readable" => FileStatus::Readable,
        "needs_password" => FileStatus::NeedsPassword { wrong: detail == "wrong" },
        "broken" => FileStatus::Broken(detail),
        _ => FileStatus::Unread,
    };
    Ok(JobFile {
        number: row.get(1)?,
        name: row.get(2)?,
        kind: unword::<FileKind>(row, 3)?,
        stored: row.get(4)?,
        bytes: row.get::<_, i64>(5)?.unsigned_abs(),
        status,
        encrypted,
        page_count: row.get(9)?,
        title: row.get(10)?,
        page_tokens: from_json(row, 11)?,
        states: numbers.iter().map(|page| known.get(page).copied().unwrap_or_default()).collect(),
        numbers,
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts and numbers")
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(at)?.as_str()?).map_err(|error| unreadable(at, &error.to_string()))
}

/// A unit variant as a plain word.
fn word(value: &impl Serialize) -> String {
    json(value).trim_matches('"').to_owned()
}

fn unword<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let word = row.get_ref(at)?.as_str()?;
    serde_json::from_value(word.into()).map_err(|error| unreadable(at, &error.to_string()))
}

fn instant(row: &Row<'_>, at: usize) -> rusqlite::Result<Timestamp> {
    row.get_ref(at)?.as_str()?.parse().map_err(|error: jiff::Error| unreadable(at, &error.to_string()))
}

fn unreadable(at: usize, why: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, why.to_owned().into())
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
