//! Files of a job: received, removed, and shown without a request when they are pairs of a PDF and its JSON.

use std::io::Read as _;

use axum::body::Body;
use jiff::Timestamp;
use tidegate_batch::{Explanations, Status};
use tidegate_loop::to_thread;

use super::actions::set_state;
use super::error::JobError;
use super::model::{
    Action, FileKind, FileStatus, JobFile, JobId, JobKind, JobState, PageState, display_name, unique_name,
};
use super::service::Jobs;
use super::store::PageRecord;
use super::upload::{self, Measuring, Received, ReceivedFile, Room, UploadError};

/// The largest JSON that is read for a rebuild.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Why a second file is refused.
const ONE_FILE: &str = "a job of requests has one file and no documents; make another job";

/// What became of an upload.
#[derive(Debug, Default)]
pub(crate) struct Added {
    /// The numbers of the files that were added.
    pub(crate) files: Vec<u32>,
    /// Files that were not, and why.
    pub(crate) refused: Vec<(String, String)>,
}

impl Jobs {
    /// Receives a form to the disk. Nothing is added to a job yet.
    pub(crate) async fn receive(&self, content_type: &str, body: Body, files: usize) -> Result<Received, JobError> {
        let limits = self.inner.settings.uploads;
        let place = self.inner.place.clone();
        let measuring = Measuring::begin(&self.inner.space);
        let used = to_thread(move || place.bytes_used()).await.unwrap_or(u64::MAX);
        let room = Room { limits, files, reservation: measuring.ended(used, limits.disk_bytes_max) };
        let incoming = self.inner.place.incoming();
        Ok(upload::receive(content_type, body, &incoming, room).await?)
    }

    /// How many more files a draft takes.
    pub(crate) fn files_left(&self, id: JobId) -> Result<usize, JobError> {
        self.look(id, |live| {
            live.job.state.after(Action::Start)?;
            Ok(self.inner.settings.uploads.files_max.saturating_sub(live.job.files.len()))
        })?
    }

    /// Adds received files to a draft.
    pub(crate) async fn add(&self, id: JobId, received: Received) -> Result<Added, JobError> {
        let left = self.files_left(id)?;
        let _turn = self.turn().await?;
        if received.files.len() > left {
            let max = self.inner.settings.uploads.files_max;
            return Err(UploadError::TooManyFiles { max }.into());
        }
        let mut added = Added::default();
        let Received { files, mut reservation, .. } = received;
        for file in files {
            let job = self.job(id)?;
            let name = display_name(&file.name, "file.pdf");
            let Some(kind) = kind_of(&name, &file.start) else {
                added.refused.push((name, "it is neither a PDF nor JSON".into()));
                continue;
            };
            let has_requests = job.files.iter().any(|file| file.kind == FileKind::Jsonl);
            if has_requests || (kind == FileKind::Jsonl && !job.files.is_empty()) {
                added.refused.push((name, ONE_FILE.into()));
                continue;
            }
            let name = unique_name(name, job.files.iter().map(|file| file.name.as_str()));
            let bytes = file.bytes;
            let folder = self.inner.place.files(id);
            let stored = file.keep(&folder)?;
            reservation.keep(bytes);
            let file = JobFile {
                number: job.files.last().map_or(1, |last| last.number + 1),
                name,
                kind,
                stored: stored.clone(),
                bytes,
                status: if kind == FileKind::Json { FileStatus::Readable } else { FileStatus::Unread },
                encrypted: false,
                page_count: 0,
                title: None,
                page_tokens: Vec::new(),
                states: Vec::new(),
                numbers: Vec::new(),
            };
            if let Err(error) = self.inner.store.put_file(id, file.clone()).await {
                let _ = std::fs::remove_file(folder.join(stored));
                return Err(error.into());
            }
            added.files.push(file.number);
            self.touch(id, |live| live.job.files.push(file))?;
        }
        self.settle_draft(id).await?;
        self.read_files(id);
        Ok(added)
    }

    /// Removes a file from a draft.
    pub(crate) async fn remove_file(&self, id: JobId, number: u32) -> Result<(), JobError> {
        let _turn = self.turn().await?;
        let job = self.job(id)?;
        job.state.after(Action::Start)?;
        let file = job.file(number).ok_or(JobError::NotFound("file"))?;
        self.inner.store.remove_file(id, number).await?;
        let path = self.inner.place.file(id, file);
        self.touch(id, |live| live.job.files.retain(|file| file.number != number))?;
        self.inner.passwords.borrow_mut().remove(&(id, number));
        self.inner.scans.borrow_mut().remove(&id);
        if let Err(error) = std::fs::remove_file(path) {
            log::warn!("job {id}: file {number} is removed when the server starts again: {error}");
        }
        self.settle_draft(id).await
    }

    /// Names a draft after its first file, and makes it what its files are for.
    async fn settle_draft(&self, id: JobId) -> Result<(), JobError> {
        let job = self.job(id)?;
        let has = |kind| job.files.iter().any(|file| file.kind == kind);
        let kind = match () {
            () if has(FileKind::Jsonl) => JobKind::Batch,
            () if has(FileKind::Json) => JobKind::Rebuild,
            () => JobKind::Explain,
        };
        let first = job.files.first().map(|file| stem(&file.name).to_owned());
        let name = if job.name.is_empty() { first.unwrap_or_default() } else { job.name.clone() };
        if (kind, &name) != (job.kind, &job.name) {
            // Requests name their model.
            let model = if kind == JobKind::Batch { String::new() } else { job.model.clone() };
            self.write(id, |job| (job.kind, job.name, job.model) = (kind, name, model)).await?;
        }
        Ok(())
    }

    /// Takes over the explanations in the JSON files. Each belongs to the PDF of the same name, if there is one.
    pub(super) async fn rebuild(&self, id: JobId) -> Result<(), JobError> {
        let turn = self.turn().await?;
        let job = self.job(id)?;
        for json in job.files.iter().filter(|file| file.kind == FileKind::Json) {
            let path = self.inner.place.file(id, json);
            let read = to_thread(move || {
                let mut text = Vec::new();
                std::fs::File::open(path)?.take(JSON_BYTES_MAX + 1).read_to_end(&mut text)?;
                Ok::<_, std::io::Error>(text)
            });
            let text = read.await.map_err(|error| std::io::Error::other(error.to_string()))??;
            let explanations = match Explanations::read(&text) {
                Ok(explanations) if text.len() as u64 <= JSON_BYTES_MAX => explanations,
                Ok(_) => {
                    return Err(JobError::Invalid(format!(
                        "{} is larger than {} MiB",
                        json.name,
                        JSON_BYTES_MAX >> 20
                    )));
                }
                Err(error) => return Err(JobError::Invalid(format!("{}: {error}", json.name))),
            };
            let pair = job.files.iter().find(|file| file.kind == FileKind::Pdf && stem(&file.name) == stem(&json.name));
            self.take_over(id, pair.unwrap_or(json).number, explanations).await?;
        }
        self.write(id, |job| set_state(job, JobState::Running, "")).await?;
        self.write(id, |job| set_state(job, JobState::Done, "")).await?;
        drop(turn);
        Ok(())
    }

    /// Records explanations as the results of a file. Their `source`, a path, is not looked at.
    async fn take_over(&self, id: JobId, number: u32, explanations: Explanations) -> Result<(), JobError> {
        let pages = self.look(id, |live| live.job.file(number).map(|file| file.page_count))?.unwrap_or(0);
        let mut entries = explanations.explanations;
        entries.retain(|entry| pages == 0 || entry.page <= pages);
        entries.sort_by_key(|entry| entry.page);
        entries.dedup_by_key(|entry| entry.page);
        let model = explanations.model;
        let records: Vec<PageRecord> = entries
            .into_iter()
            .map(|entry| PageRecord {
                file: number,
                version: 0,
                shown: true,
                state: match entry.status {
                    Status::Done => PageState::Cached,
                    Status::Failed => PageState::Failed,
                    Status::Skipped => PageState::Skipped,
                    _ => PageState::Waiting,
                },
                upstream: String::new(),
                model: model.clone(),
                prompt: None,
                at: Timestamp::now(),
                entry,
                line: None,
            })
            .collect();
        let (numbers, states): (Vec<u32>, Vec<PageState>) =
            records.iter().map(|record| (record.entry.page, record.state)).unzip();
        self.inner.store.put_pages(id, records, (0, 0)).await?;
        let file = self.touch(id, |live| {
            live.job.model = model;
            let file = live.job.file_mut(number)?;
            (file.numbers, file.states) = (numbers, states);
            file.title = explanations.title.or(file.title.take());
            Some(file.clone())
        })?;
        if let Some(file) = file {
            self.inner.store.put_file(id, file).await?;
        }
        Ok(())
    }
}

/// Returns `true` if a file that was received has requests in it.
pub(crate) fn has_requests(file: &ReceivedFile) -> bool {
    kind_of(&file.name, &file.start) == Some(FileKind::Jsonl)
}

/// Returns what a file is, by its first bytes. A file of requests is recognised by its name, because its first line may be what is
/// wrong with it, or by an id in that line.
fn kind_of(name: &str, start: &[u8]) -> Option<FileKind> {
    if memchr::memmem::find(start, b"%PDF-").is_some() {
        return Some(FileKind::Pdf);
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let name = name.to_lowercase();
    let is_named = [".jsonl", ".ndjson"].iter().any(|ending| name.ends_with(ending));
    if is_named || (text.starts_with(b"{") && memchr::memmem::find(text, b"\"custom_id\"").is_some()) {
        return Some(FileKind::Jsonl);
    }
    text.starts_with(b"{").then_some(FileKind::Json)
}

/// A name without its ending.
pub(super) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_first_bytes_say() {
        assert_eq!(kind_of("a", b"\n\n%PDF-1.7"), Some(FileKind::Pdf));
        assert_eq!(kind_of("a", b"\xef\xbb\xbf {\"a\":1}"), Some(FileKind::Json));
        assert_eq!(kind_of("a.json", b"{\"custom_id\": \"1\""), Some(FileKind::Jsonl));
        assert_eq!(kind_of("a.JSONL", b"nonsense"), Some(FileKind::Jsonl));
        assert_eq!(kind_of("a.jsonl", b"%PDF-1.7"), Some(FileKind::Pdf));
        assert_eq!(kind_of("a", b"<html>"), None);
        assert_eq!(kind_of("a", b""), None);
        assert_eq!((stem("a.b.pdf"), stem("a"), stem(".pdf")), ("a.b", "a", ".pdf"));
    }
}
