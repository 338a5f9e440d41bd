//! The server's directory: where everything of a job is. Paths are made of numbers and random names alone.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::model::{Job, JobFile, JobId};

/// The directory of a server.
///
/// ```text
/// DIR/jobs.db                 the jobs
/// DIR/incoming/               uploads that are not complete; emptied at the start
/// DIR/jobs/ID/files/          uploaded files, under random names
/// DIR/jobs/ID/results.db      every answer about a page that was paid for
/// DIR/jobs/ID/results.jsonl   the result of every request
/// DIR/jobs/ID/out/            outputs
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Place {
    root: PathBuf,
}

impl Place {
    /// Makes what is missing of it.
    pub(crate) fn open(root: &Path) -> io::Result<Place> {
        let place = Place { root: root.to_owned() };
        tidegate_files::create_own_directory(root)?;
        tidegate_files::create_own_directory(&place.incoming())?;
        tidegate_files::create_own_directory(&root.join("jobs"))?;
        Ok(place)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    pub(crate) fn job(&self, id: JobId) -> PathBuf {
        self.root.join("jobs").join(id.to_string())
    }

    pub(crate) fn files(&self, id: JobId) -> PathBuf {
        self.job(id).join("files")
    }

    pub(crate) fn out(&self, id: JobId) -> PathBuf {
        self.job(id).join("out")
    }

    pub(crate) fn results(&self, id: JobId) -> PathBuf {
        self.job(id).join("results.db")
    }

    pub(crate) fn request_results(&self, id: JobId) -> PathBuf {
        self.job(id).join("results.jsonl")
    }

    pub(crate) fn file(&self, id: JobId, file: &JobFile) -> PathBuf {
        self.files(id).join(&file.stored)
    }

    /// Makes the directories of a job.
    pub(crate) fn make(&self, id: JobId) -> io::Result<()> {
        tidegate_files::create_own_directory(&self.job(id))?;
        tidegate_files::create_own_directory(&self.files(id))?;
        tidegate_files::create_own_directory(&self.out(id))
    }

    /// Removes everything of a job.
    pub(crate) fn remove(&self, id: JobId) -> io::Result<()> {
        match fs::remove_dir_all(self.job(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes what an earlier server left behind when it was killed: incomplete uploads, files and directories of no job.
    pub(crate) fn sweep(&self, jobs: &[Job]) -> io::Result<()> {
        for entry in fs::read_dir(self.incoming())? {
            fs::remove_file(entry?.path())?;
        }
        let known: HashMap<String, HashSet<&str>> = jobs
            .iter()
            .map(|job| (job.id.to_string(), job.files.iter().map(|file| file.stored.as_str()).collect()))
            .collect();
        for entry in fs::read_dir(self.root.join("jobs"))? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(files) = name.to_str().and_then(|name| known.get(name)) else {
                fs::remove_dir_all(entry.path())?;
                continue;
            };
            let Ok(stored) = fs::read_dir(entry.path().join("files")) else { continue };
            for file in stored {
                let file = file?;
                if !file.file_name().to_str().is_some_and(|name| files.contains(name)) {
                    fs::remove_file(file.path())?;
                }
            }
        }
        Ok(())
    }

    /// The bytes that uploads and results use, without uploads that are not complete: these have reserved theirs.
    pub(crate) fn bytes_used(&self) -> u64 {
        bytes_below(&self.root, Some(&self.incoming()))
    }
}

fn bytes_below(path: &Path, except: Option<&Path>) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .filter(|entry| except != Some(&entry.path()))
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path(), None),
            Ok(found) => found.len(),
            // Removed meanwhile.
            Err(_) => 0,
        })
        .sum()
}
