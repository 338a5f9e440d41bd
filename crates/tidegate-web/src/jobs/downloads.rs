//! Results of documents as files: made from what is shown, when they are asked for. Pages of HTML have pictures, so they are kept on the disk
//! under the hash of their explanations.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tidegate_batch::{Entry, Explanations, SCHEMA, Status, to_markdown, write_html_page};
use tidegate_loop::to_thread;

use super::error::JobError;
use super::files::stem;
use super::model::{FileKind, Job, JobFile, JobId, JobKind};
use super::service::Jobs;
use super::upload::random_name;
use super::zip::{ZipWriter, entry_name};

/// The longest side of the pictures in a page of HTML.
const HTML_PX: u32 = 1_000;

/// What a result is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The explanations as data; what `rebuild` reads.
    Json,
    /// Markdown.
    Markdown,
    /// One page of HTML with pictures, complete in itself.
    Html,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Html, Format::Markdown, Format::Json];

    /// The ending of its files.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Markdown => "md",
            Format::Html => "html",
        }
    }

    /// The format with that ending.
    #[must_use]
    pub fn parse(ending: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.ending() == ending)
    }

    fn media_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Markdown => "text/markdown; charset=utf-8",
            Format::Html => "text/html; charset=utf-8",
        }
    }
}

/// A file to be sent; open, so that it can be read to its end whatever happens to its name.
#[derive(Debug)]
pub struct Download {
    /// Its name, for the browser.
    pub name: String,
    /// Its media type.
    pub media_type: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its content.
    pub file: File,
}

impl Jobs {
    /// The results of one file.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn download(&self, id: JobId, number: u32, format: Format) -> Result<Download, JobError> {
        let job = self.job(id)?;
        let is_document = |file: &&JobFile| file.kind != FileKind::Jsonl;
        let file = job.file(number).filter(is_document).ok_or(JobError::NotFound("file"))?;
        let path = self.make(&job, file, format).await?;
        let opened = File::open(&path)?;
        let bytes = opened.metadata()?.len();
        let name = entry_name(stem(&file.name), format.ending(), &mut HashSet::new());
        Ok(Download { name, media_type: format.media_type(), bytes, file: opened })
    }

    /// The results of all files, in one archive; all formats unless one is named.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn download_all(&self, id: JobId, format: Option<Format>) -> Result<Download, JobError> {
        let job = self.job(id)?;
        if job.kind == JobKind::Batch {
            return match format {
                None => self.download_all_results(&job).await,
                Some(_) => Err(JobError::NotFound("format")),
            };
        }
        let formats = format.map_or(Format::ALL.to_vec(), |format| vec![format]);
        let (mut entries, mut taken): (Vec<(String, PathBuf)>, _) = (Vec::new(), HashSet::new());
        for file in job.files.iter().filter(|file| !file.numbers.is_empty()) {
            for &format in &formats {
                let path = self.make(&job, file, format).await?;
                entries.push((entry_name(stem(&file.name), format.ending(), &mut taken), path));
            }
        }
        if entries.is_empty() {
            return Err(JobError::NotFound("result"));
        }
        let path = self.inner.place.incoming().join(random_name());
        let name = entry_name(&job.name, "zip", &mut HashSet::new());
        let written = to_thread(move || {
            let open = |(name, path)| Ok::<_, std::io::Error>((name, File::open::<PathBuf>(path)?));
            let entries = entries.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let archive = archive(&path, entries);
            // Open, it lasts as long as it is read.
            let _ = std::fs::remove_file(&path);
            archive
        });
        let (file, bytes) = written.await.map_err(|error| std::io::Error::other(error.to_string()))??;
        Ok(Download { name, media_type: "application/zip", bytes, file })
    }

    /// The explanations of a file that are shown.
    pub(crate) async fn explanations(&self, job: &Job, file: &JobFile) -> Result<Explanations, JobError> {
        let mut records = self.inner.store.shown(job.id, file.number).await?.into_iter().peekable();
        let mut entries = Vec::with_capacity(file.numbers.len());
        for &page in &file.numbers {
            while records.next_if(|record| record.entry.page < page).is_some() {}
            let found = records.next_if(|record| record.entry.page == page).map(|record| record.entry);
            entries.push(found.unwrap_or(Entry { page, status: Status::Missing, ..Entry::default() }));
        }
        let upstream = self.upstream(&job.upstream);
        Ok(Explanations {
            schema: SCHEMA.into(),
            file: file.name.clone(),
            title: file.title.clone(),
            pages: file.page_count.max(file.numbers.last().copied().unwrap_or(0)),
            provider: upstream.map(|upstream| upstream.provider().to_owned()).unwrap_or_default(),
            model: job.model.clone(),
            language: job.options.language.clone(),
            prompt: job.options.prompt.clone(),
            explanations: entries,
            ..Explanations::default()
        })
    }

    /// Writes a file's results, unless the same are there.
    async fn make(&self, job: &Job, file: &JobFile, format: Format) -> Result<PathBuf, JobError> {
        let explanations = self.explanations(job, file).await?;
        let json = explanations.to_json();
        let hash: String = Sha256::digest(json.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let prefix = format!("{}-", file.number);
        let made = self.inner.place.job(job.id).join("made");
        let path = made.join(format!("{prefix}{hash}.{}", format.ending()));
        if path.exists() {
            return Ok(path);
        }
        tidegate_files::create_own_directory(&made)?;
        remove_older(&made, &prefix, format);
        match format {
            Format::Html => {
                let document = match file.kind {
                    FileKind::Pdf => self.document(job.id, file.number).await.ok(),
                    FileKind::Json | FileKind::Jsonl => None,
                };
                write_html_page(&explanations, &path, document.as_deref(), Some(HTML_PX)).await?;
            }
            Format::Json | Format::Markdown => {
                let text = if format == Format::Json { json } else { to_markdown(&explanations) };
                let target = path.clone();
                let written = to_thread(move || {
                    let mut draft = tidegate_files::Draft::new(&target)?;
                    std::io::Write::write_all(draft.file(), text.as_bytes())?;
                    draft.commit().map(drop)
                });
                written.await.map_err(|error| std::io::Error::other(error.to_string()))??;
            }
        }
        Ok(path)
    }
}

/// Writes an archive of open files.
pub(super) fn archive(path: &Path, entries: Vec<(String, File)>) -> std::io::Result<(File, u64)> {
    let mut zip = ZipWriter::new(tidegate_files::create_new(path)?);
    for (name, file) in entries {
        zip.add(&name, file)?;
    }
    zip.finish()?;
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn remove_older(folder: &Path, prefix: &str, format: Format) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_older = name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(format.ending()));
        if is_older {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
