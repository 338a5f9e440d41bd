//! Jobs on the disk: `jobs.db` in the server's directory. A change counts when its transaction is synced; then the copy in memory
//! follows. One process has the file at a time.
//!
//! `schema.rs` opens the file, `rows.rs` reads and writes jobs and files, `pages.rs` the results of pages.

mod error;
mod pages;
mod rows;
mod schema;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tidegate_loop::to_thread;

pub use error::StoreError;
pub(crate) use pages::{Hits, PageRecord};

/// The name in the server's directory.
const FILE: &str = "jobs.db";

/// The open file. Clones share it.
#[derive(Clone)]
pub(crate) struct JobStore {
    path: PathBuf,
    connection: Arc<Mutex<Connection>>,
}

impl JobStore {
    /// Opens the file in `directory`, or makes it; the directory has to be there.
    pub(crate) fn open(directory: &Path) -> Result<JobStore, StoreError> {
        let path = directory.join(FILE);
        let connection = schema::open(&path)?;
        Ok(JobStore { path, connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs one transaction in a thread; synced when this returns.
    async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.in_thread(move |connection| {
            let transaction = connection.transaction()?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
        .await
    }

    /// Reads in a thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.in_thread(move |connection| read(connection)).await
    }

    async fn in_thread<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (connection, path) = (Arc::clone(&self.connection), self.path.clone());
        let done = to_thread(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            job(&mut connection).map_err(|error| StoreError::of(&path, &error))
        });
        match done.await {
            Ok(done) => done,
            Err(error) => Err(StoreError::Failed { path: self.path.clone(), detail: error.to_string() }),
        }
    }
}
