//! The results of pages: version 0 is the job's own, later ones were asked with another prompt or model. One version of each page
//! is shown, and goes into the outputs.

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tidegate_batch::Entry;

use super::{JobStore, StoreError};
use crate::jobs::model::{JobId, PageState};

/// The result of one page, in one version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PageRecord {
    pub(crate) file: u32,
    pub(crate) version: u32,
    /// Whether this version is in the outputs.
    pub(crate) shown: bool,
    pub(crate) state: PageState,
    pub(crate) upstream: String,
    pub(crate) model: String,
    /// Another prompt than the job's.
    pub(crate) prompt: Option<String>,
    pub(crate) at: Timestamp,
    pub(crate) entry: Entry,
    /// Of a request that was asked again: its line of results, for the downloads.
    pub(crate) line: Option<Vec<u8>>,
}

/// Where a text was found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// In all.
    pub(crate) count: usize,
    /// The pages.
    pub(crate) pages: Vec<u32>,
}

impl JobStore {
    /// Writes results of the job's own version, and the tokens paid for so far.
    pub(crate) async fn put_pages(
        &self,
        job: JobId,
        records: Vec<PageRecord>,
        tokens: (u64, u64),
    ) -> Result<(), StoreError> {
        self.write(move |connection| {
            let mut chosen = connection.prepare(
                "SELECT 1 FROM pages WHERE job = ?1 AND file = ?2 AND page = ?3 AND version > 0 AND shown = 1",
            )?;
            for record in &records {
                // A version that a person chose stays shown.
                let page = params![job.0, record.file, record.entry.page];
                let chosen: Option<bool> = chosen.query_row(page, |_| Ok(true)).optional()?;
                put(connection, job, &PageRecord { shown: chosen.is_none(), ..record.clone() })?;
            }
            let (input, output) = (tokens.0 as i64, tokens.1 as i64);
            let update = "UPDATE jobs SET tokens_in = ?2, tokens_out = ?3 WHERE id = ?1";
            connection.execute(update, params![job.0, input, output])?;
            Ok(())
        })
        .await
    }

    /// Adds a version of a page and returns its number; it is not shown yet.
    pub(crate) async fn add_version(&self, job: JobId, record: PageRecord) -> Result<u32, StoreError> {
        self.write(move |connection| {
            let last: Option<u32> = connection.query_row(
                "SELECT max(version) FROM pages WHERE job = ?1 AND file = ?2 AND page = ?3",
                params![job.0, record.file, record.entry.page],
                |row| row.get(0),
            )?;
            let version = last.unwrap_or(0) + 1;
            put(connection, job, &PageRecord { version, shown: false, ..record })?;
            Ok(version)
        })
        .await
    }

    /// Shows another version of a page. Returns its state, or `None` if there is no such version.
    pub(crate) async fn show_version(
        &self,
        job: JobId,
        file: u32,
        page: u32,
        version: u32,
    ) -> Result<Option<PageState>, StoreError> {
        self.write(move |connection| {
            let state: Option<String> = connection
                .query_row(
                    "SELECT state FROM pages WHERE job = ?1 AND file = ?2 AND page = ?3 AND version = ?4",
                    params![job.0, file, page, version],
                    |row| row.get(0),
                )
                .optional()?;
            let Some(state) = state else { return Ok(None) };
            connection.execute(
                "UPDATE pages SET shown = (version = ?4) WHERE job = ?1 AND file = ?2 AND page = ?3",
                params![job.0, file, page, version],
            )?;
            Ok(PageState::parse(&state))
        })
        .await
    }

    /// Removes a version of a page that is not shown. Returns `false` if there is none.
    pub(crate) async fn remove_version(
        &self,
        job: JobId,
        file: u32,
        page: u32,
        version: u32,
    ) -> Result<bool, StoreError> {
        self.write(move |connection| {
            let removed = connection.execute(
                "DELETE FROM pages WHERE job = ?1 AND file = ?2 AND page = ?3 AND version = ?4 AND version > 0 AND shown = 0",
                params![job.0, file, page, version],
            )?;
            Ok(removed > 0)
        })
        .await
    }

    /// All versions of one page, the job's own first.
    pub(crate) async fn versions(&self, job: JobId, file: u32, page: u32) -> Result<Vec<PageRecord>, StoreError> {
        self.read(move |connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT {COLUMNS} FROM pages WHERE job = ?1 AND file = ?2 AND page = ?3 ORDER BY version"
            ))?;
            let rows = statement.query_map(params![job.0, file, page], read_record)?;
            rows.collect()
        })
        .await
    }

    /// The results of a file that are shown, in the order of its pages.
    pub(crate) async fn shown(&self, job: JobId, file: u32) -> Result<Vec<PageRecord>, StoreError> {
        self.read(move |connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT {COLUMNS} FROM pages WHERE job = ?1 AND file = ?2 AND shown = 1 ORDER BY page"
            ))?;
            let rows = statement.query_map(params![job.0, file], read_record)?;
            rows.collect()
        })
        .await
    }

    /// The lines of results that a person chose in place of the job's own.
    pub(crate) async fn chosen_lines(&self, job: JobId) -> Result<Vec<Vec<u8>>, StoreError> {
        self.read(move |connection| {
            let mut statement = connection.prepare(
                "SELECT line FROM pages WHERE job = ?1 AND shown = 1 AND line IS NOT NULL ORDER BY file, page",
            )?;
            let rows = statement.query_map([job.0], |row| row.get(0))?;
            rows.collect()
        })
        .await
    }

    /// The pages of a job that failed, with their results.
    pub(crate) async fn failed(&self, job: JobId) -> Result<Vec<PageRecord>, StoreError> {
        self.read(move |connection| {
            let mut statement = connection.prepare(&format!(
                "SELECT {COLUMNS} FROM pages WHERE job = ?1 AND shown = 1 AND state = 'x' ORDER BY file, page"
            ))?;
            let rows = statement.query_map(params![job.0], read_record)?;
            rows.collect()
        })
        .await
    }

    /// Finds a text in the explanations of a file that are shown; case does not matter.
    pub(crate) async fn find(&self, job: JobId, file: u32, text: String) -> Result<Hits, StoreError> {
        let text = text.to_lowercase();
        self.read(move |connection| {
            let mut statement = connection
                .prepare("SELECT page, entry FROM pages WHERE job = ?1 AND file = ?2 AND shown = 1 ORDER BY page")?;
            let mut rows = statement.query(params![job.0, file])?;
            let mut hits = Hits::default();
            while let Some(row) = rows.next()? {
                let entry = read_entry(row, 1)?;
                let count = entry.explanation.map_or(0, |said| said.to_lowercase().matches(&text).count());
                if count > 0 {
                    hits.count += count;
                    hits.pages.push(row.get(0)?);
                }
            }
            Ok(hits)
        })
        .await
    }
}

const COLUMNS: &str = "file, version, shown, state, upstream, model, prompt, at, entry";

fn put(connection: &Connection, job: JobId, record: &PageRecord) -> rusqlite::Result<()> {
    let entry = serde_json::to_string(&record.entry).expect("texts and numbers");
    connection
        .prepare(
            "INSERT OR REPLACE INTO pages (job, file, page, version, shown, state, upstream, model, prompt, at, entry, line)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            job.0,
            record.file,
            record.entry.page,
            record.version,
            record.shown,
            record.state.letter().to_string(),
            record.upstream,
            record.model,
            record.prompt,
            record.at.to_string(),
            entry,
            record.line,
        ])?;
    Ok(())
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<PageRecord> {
    let unreadable = |at, why: String| rusqlite::Error::FromSqlConversionFailure(at, Type::Text, why.into());
    let at = row.get_ref(7)?.as_str()?;
    Ok(PageRecord {
        file: row.get(0)?,
        version: row.get(1)?,
        shown: row.get(2)?,
        state: PageState::parse(row.get_ref(3)?.as_str()?).unwrap_or_default(),
        upstream: row.get(4)?,
        model: row.get(5)?,
        prompt: row.get(6)?,
        at: at.parse().map_err(|error: jiff::Error| unreadable(7, error.to_string()))?,
        entry: read_entry(row, 8)?,
        // For downloads alone, which read it by itself.
        line: None,
    })
}

fn read_entry(row: &Row<'_>, at: usize) -> rusqlite::Result<Entry> {
    serde_json::from_str(row.get_ref(at)?.as_str()?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(at, Type::Text, error.into()))
}
