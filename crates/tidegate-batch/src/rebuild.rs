//! Outputs made again from JSON, without a call: our own files, and pairs of a PDF and JSON that came from elsewhere.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_pdf::Reader;
use tidegate_pool::Pool;

use crate::explain::Input;
use crate::explain::inputs::{self, InputError};
use crate::output::overview::{INDEX, Linked, Overview};
use crate::output::report::grouped;
use crate::output::{Explanations, NotExplanations, SCHEMA, Status};
use crate::outputs::{self, Target};

/// Files made again at once, at most.
pub const REBUILD_CONCURRENCY: usize = 20;

/// How outputs are made again.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// Where they go; beside the JSON if there is none.
    pub out: Option<PathBuf>,
    /// Where PDFs are looked for, besides where the JSON says and beside it.
    pub pdf_folder: Option<PathBuf>,
    /// Folders that a PDF which the JSON names may be below, in addition to `pdf_folder` and the JSON's own folder. JSON
    /// may come from elsewhere and name any file; pages of a file outside of these folders are not drawn.
    pub trees: Vec<PathBuf>,
    /// The longest side of the pictures, in pixels; no pictures if there is none.
    pub html_px: Option<u32>,
    /// Reads the PDFs.
    pub reader: Reader,
}

impl Default for Rebuild {
    fn default() -> Rebuild {
        Rebuild { out: None, pdf_folder: None, trees: Vec::new(), html_px: Some(1_000), reader: Reader::new() }
    }
}

/// What became of one file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The JSON.
    pub json: PathBuf,
    /// What was written, or why nothing.
    pub outcome: Result<RebuiltFiles, RebuildError>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuiltFiles {
    /// The files.
    pub outputs: Vec<PathBuf>,
    /// How many pages are in them.
    pub pages: usize,
    /// The PDF that the pictures are from, or why there are none.
    pub pdf: Result<PathBuf, String>,
    /// As it stands in the overview.
    linked: Linked,
}

/// Why a file could not be made again.
#[derive(Debug)]
#[non_exhaustive]
pub enum RebuildError {
    /// The JSON cannot be read.
    Unreadable(std::io::Error),
    /// There are no explanations in it.
    NotExplanations(NotExplanations),
    /// An output cannot be written.
    Unwritable(String),
}

impl fmt::Display for RebuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RebuildError::Unreadable(error) => write!(f, "cannot be read: {error}"),
            RebuildError::NotExplanations(error) => error.fmt(f),
            RebuildError::Unwritable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for RebuildError {}

/// The JSON files that are meant: files as they are named, folders with what is in them but for reports.
///
/// # Errors
/// [`InputError`].
pub fn find_json(paths: &[PathBuf]) -> Result<Vec<Input>, InputError> {
    let mut inputs = inputs::find(paths, ".json")?;
    let named = |input: &Input| paths.contains(&input.path);
    inputs.retain(|input| named(input) || input.path.file_name().is_none_or(|name| name != "report.json"));
    Ok(inputs)
}

/// Writes `index.html` into each folder in which several documents were made again; it links them. Returns each with its number of
/// documents, the one with the most first, or why it could not be written.
///
/// # Cancel safety
/// Dropped, each page is the old one or the new one.
pub async fn write_indexes(done: &[Rebuilt]) -> Vec<Result<(PathBuf, usize), RebuildError>> {
    let mut folders: BTreeMap<PathBuf, Vec<Linked>> = BTreeMap::new();
    for files in done.iter().filter_map(|rebuilt| rebuilt.outcome.as_ref().ok()) {
        if let Some(folder) = files.outputs.first().and_then(|path| path.parent()) {
            folders.entry(folder.to_owned()).or_default().push(files.linked.clone());
        }
    }
    let mut folders: Vec<_> = folders.into_iter().filter(|(_, documents)| documents.len() > 1).collect();
    folders.sort_by_key(|(_, documents)| Reverse(documents.len()));
    let mut written = Vec::new();
    for (folder, documents) in folders {
        let (count, sum) = (documents.len(), |of: fn(&Linked) -> u64| grouped(documents.iter().map(of).sum()));
        let about = format!("{} of {} pages explained · {count} files", sum(|file| file.done), sum(|file| file.pages));
        let report = Some("report.json").filter(|name| folder.join(name).is_file());
        let overview = Overview { about, documents, report, ..Overview::default() };
        let page = outputs::write_overview(&folder, overview).await;
        written.push(match page {
            Ok(path) => Ok((path, count)),
            Err(error) => {
                let path = folder.join(INDEX);
                Err(RebuildError::Unwritable(format!("{} cannot be written: {error}", path.display())))
            }
        });
    }
    written
}

impl Rebuild {
    /// Makes Markdown and HTML again for each file, up to [`REBUILD_CONCURRENCY`] at once; `on_done` is told of each as it
    /// is done.
    ///
    /// # Cancel safety
    /// Dropped, files that are done are done, the others are as they were.
    pub async fn run(self, inputs: Vec<Input>, mut on_done: impl FnMut(&Rebuilt)) -> Vec<Rebuilt> {
        let pool = Pool::new(inputs.len().clamp(1, REBUILD_CONCURRENCY));
        let rebuild = std::rc::Rc::new(self);
        let mut tasks = pool.map(inputs, |input| {
            let rebuild = std::rc::Rc::clone(&rebuild);
            async move {
                let outcome = rebuild.one(&input).await;
                Rebuilt { json: input.path, outcome }
            }
        });
        let mut all = Vec::new();
        while let Some((at, done)) = tasks.next().await {
            match done {
                Ok(done) => {
                    on_done(&done);
                    all.push((at, done));
                }
                Err(error) => tracing::error!(%error, "a file could not be made again"),
            }
        }
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, done)| done).collect()
    }

    async fn one(&self, input: &Input) -> Result<RebuiltFiles, RebuildError> {
        let json = std::fs::read(&input.path).map_err(RebuildError::Unreadable)?;
        let mut explanations = Explanations::read(&json).map_err(RebuildError::NotExplanations)?;
        let beside = input.path.parent().unwrap_or(Path::new("."));
        let folder = self.out.as_deref().unwrap_or(beside);
        let (document, pdf) = match self.find_pdf(&explanations, &input.path) {
            Ok(path) => match self.reader.open(&path).await {
                Ok(document) => (Some(document), Ok(path)),
                Err(error) => (None, Err(error.to_string())),
            },
            Err(reason) => (None, Err(reason)),
        };
        if let Some(document) = &document {
            let pages = document.page_count();
            explanations.explanations.retain(|entry| entry.page <= pages);
            explanations.pages = pages;
            if explanations.file.is_empty() {
                explanations.file = document.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            }
        }
        if explanations.file.is_empty() {
            explanations.file.clone_from(&input.stem);
        }
        debug_assert_eq!(explanations.schema, SCHEMA);
        // Names of their own are needed only where files of several folders meet.
        let plain = input.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let stem = plain.filter(|_| self.out.is_none()).unwrap_or_else(|| input.stem.clone());
        let stem = inputs::not_of_the_run(stem);
        let target =
            Target { folder, stem: &stem, document: document.as_ref(), picture_px: self.html_px, on_page: &|| () };
        let outputs = outputs::write_shown(&explanations, &target).await;
        let outputs = outputs.map_err(|error| RebuildError::Unwritable(error.to_string()))?;
        let count = |status| explanations.count(status) as u64;
        let linked = Linked {
            name: explanations.file.clone(),
            stem: Some(stem),
            pages: explanations.explanations.len() as u64,
            done: count(Status::Done),
            failed: count(Status::Failed),
            skipped: count(Status::Skipped),
            missing: count(Status::Missing),
            error: None,
        };
        Ok(RebuiltFiles { outputs, pages: explanations.explanations.len(), pdf, linked })
    }

    /// Finds the PDF: where the JSON says, in the folder of PDFs or beside the JSON under the name it gives, or beside it
    /// under its own name. Returns why there is none otherwise.
    fn find_pdf(&self, explanations: &Explanations, json: &Path) -> Result<PathBuf, String> {
        let beside = json.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let own = json.with_extension("pdf");
        let name = |text: &str| Path::new(text).file_name().map(Path::new).map(Path::to_owned);
        let names = [name(&explanations.file), name(&explanations.source), name(&own.to_string_lossy())];
        let source = Some(&explanations.source).filter(|source| !source.is_empty()).map(|source| beside.join(source));
        let in_folders = [self.pdf_folder.as_deref(), Some(beside)]
            .into_iter()
            .flatten()
            .flat_map(|folder| names.iter().flatten().map(|name| folder.join(name)));
        let is_pdf = |path: &PathBuf| {
            path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("pdf")) && path.is_file()
        };
        let mut outside = None;
        for path in source.into_iter().chain(in_folders).filter(is_pdf) {
            if self.may_draw(&path, beside) {
                return Ok(path);
            }
            outside.get_or_insert(path);
        }
        Err(match outside {
            Some(path) => format!(
                "it names {}, which is neither below its own folder nor below the current one; name the PDF's folder with --pdf",
                path.display()
            ),
            None => "there is no PDF beside it, or where it says (--pdf names a folder)".to_owned(),
        })
    }

    /// Returns `true` if the file lies, links resolved, below a folder that was named or that of the JSON. A file of the
    /// folder of PDFs may be a link to anywhere: the caller named the folder, and with it what is in it.
    fn may_draw(&self, path: &Path, beside: &Path) -> bool {
        let named = self.pdf_folder.as_deref();
        if named.is_some_and(|folder| path.parent() == Some(folder)) {
            return true;
        }
        let Ok(real) = path.canonicalize() else { return false };
        let trees = self.trees.iter().map(PathBuf::as_path).chain(named).chain([beside]);
        trees.filter_map(|tree| tree.canonicalize().ok()).any(|tree| real.starts_with(tree))
    }
}
