//! A file's outputs: JSON first, which the others can be made from again; Markdown; HTML, whose pictures are drawn page by
//! page, in one file or, of a large document, in a folder beside it. Each is there whole or not at all.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use tidegate_files::Draft;
use tidegate_loop::to_thread;
use tidegate_pdf::{Document, Want};

use crate::output::atomic::{self, Pending};
use crate::output::html::{self, Picture, Place};
use crate::output::overview::{self, INDEX, Overview};
use crate::output::page_set::{self, Files, PageSet};
use crate::output::split::{self, Split};
use crate::output::{Entry, Explanations, mark, to_markdown};
use crate::owned::OwnedTask;

/// An output that could not be written.
#[derive(Debug)]
pub(crate) struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be written: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for WriteError {}

/// Where a document's outputs go, and what their pictures are drawn from.
pub(crate) struct Target<'a> {
    pub(crate) folder: &'a Path,
    /// The outputs' name without an ending.
    pub(crate) stem: &'a str,
    pub(crate) document: Option<&'a Document>,
    /// The longest side of the pictures; none if there is none.
    pub(crate) picture_px: Option<u32>,
    /// Called for each page that is in the HTML.
    pub(crate) on_page: &'a dyn Fn(),
}

/// Writes all three. Where the JSON there is the same already, and the others are newer, nothing is drawn again.
pub(crate) async fn write(explanations: &Explanations, target: &Target<'_>) -> Result<Vec<PathBuf>, WriteError> {
    let paths = paths(target.folder, target.stem);
    let json = explanations.to_json();
    paths.iter().try_for_each(|path| replaceable(path))?;
    if is_current(&paths, &json, split::is_split(explanations)) {
        // Of a run that was killed: no draft is made now that would remove them.
        paths.iter().for_each(|path| Draft::remove_stale(path));
        page_set::remove_stale(&paths[2], mark::set_of(&paths[2]));
    } else {
        write_text(&paths[0], json).await?;
        write_shown(explanations, target).await?;
    }
    Ok(all(paths.to_vec()))
}

/// Writes the JSON alone. Where it is the same already, it is left alone.
pub(crate) async fn write_json(
    explanations: &Explanations,
    folder: &Path,
    stem: &str,
) -> Result<Vec<PathBuf>, WriteError> {
    let [path, ..] = paths(folder, stem);
    replaceable(&path)?;
    let json = explanations.to_json();
    if std::fs::read(&path).is_ok_and(|there| there == json.as_bytes()) {
        Draft::remove_stale(&path);
    } else {
        write_text(&path, json).await?;
    }
    Ok(vec![path])
}

/// Writes explanations as one page of HTML, with pictures of the pages of `document` that are `picture_px` pixels on their
/// longest side. The file is there as a whole or not at all; one that tidegate did not write is left alone.
///
/// # Errors
/// What the system says, with the path.
pub async fn write_html_page(
    explanations: &Explanations,
    path: &Path,
    document: Option<&Document>,
    picture_px: Option<u32>,
) -> io::Result<()> {
    mark::may_replace(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    write_whole(explanations, path, &Target { folder, stem: "", document, picture_px, on_page: &|| () }).await
}

/// Writes Markdown and HTML.
pub(crate) async fn write_shown(explanations: &Explanations, target: &Target<'_>) -> Result<Vec<PathBuf>, WriteError> {
    let [_, markdown, page] = paths(target.folder, target.stem);
    replaceable(&markdown)?;
    replaceable(&page)?;
    write_text(&markdown, to_markdown(explanations)).await?;
    if split::is_split(explanations) {
        let folder = page_set::folder(&page);
        write_split(explanations, &page, target).await.map_err(|source| WriteError { path: folder, source })?;
    } else {
        let written = write_whole(explanations, &page, target).await;
        written.map_err(|source| WriteError { path: page.clone(), source })?;
        page_set::remove_stale(&page, None);
    }
    Ok(all(vec![markdown, page]))
}

/// The outputs of a file: JSON, Markdown, HTML.
pub(crate) fn paths(folder: &Path, stem: &str) -> [PathBuf; 3] {
    ["json", "md", "html"].map(|ending| folder.join(format!("{stem}.{ending}")))
}

/// The same with the folder of the HTML's parts and pictures, if there is one.
fn all(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let page = paths.last().filter(|page| mark::set_of(page).is_some());
    paths.extend(page.map(|page| page_set::folder(page)));
    paths
}

/// Refuses a document of that many `pages` if its parts would go to a folder that tidegate did not make.
pub(crate) fn check_folder(folder: &Path, stem: &str, pages: usize) -> Result<(), WriteError> {
    let [.., page] = paths(folder, stem);
    if pages <= split::WHOLE_PAGES_MAX {
        return Ok(());
    }
    page_set::may_use(&page).map_err(|source| WriteError { path: page_set::folder(&page), source })
}

fn replaceable(path: &Path) -> Result<(), WriteError> {
    mark::may_replace(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn is_current(paths: &[PathBuf; 3], json: &str, is_split: bool) -> bool {
    let time = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
    let [Some(first), Some(markdown), Some(html)] = [&paths[0], &paths[1], &paths[2]].map(time) else { return false };
    let has_pages = match mark::set_of(&paths[2]) {
        Some(set) => is_split && page_set::folder(&paths[2]).join(set.to_string()).is_dir(),
        None => !is_split,
    };
    has_pages
        && markdown >= first
        && html >= markdown
        && std::fs::read(&paths[0]).is_ok_and(|there| there == json.as_bytes())
}

async fn write_text(path: &Path, text: String) -> Result<(), WriteError> {
    let target = path.to_owned();
    let written = in_thread(move || atomic::write(&target, |out| out.write_all(text.as_bytes()))).await;
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

async fn in_thread<R: Send + 'static>(job: impl FnOnce() -> io::Result<R> + Send + 'static) -> io::Result<R> {
    to_thread(job).await.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
}

/// One file with everything in it.
async fn write_whole(explanations: &Explanations, path: &Path, target: &Target<'_>) -> io::Result<()> {
    let mut pending = Pending::new(path)?;
    html::begin(&mut pending.writer, explanations)?;
    for entry in &explanations.explanations {
        let (entry, picture) = target.draw(entry).await;
        let picture = picture.as_ref().map(|picture| (picture, Place::Inside));
        html::page(&mut pending.writer, &explanations.file, &entry, picture)?;
        (target.on_page)();
    }
    html::end(&mut pending.writer, explanations)?;
    in_thread(move || pending.finish()).await
}

/// Parts and pictures in a folder of their own first, then the file that names the folder.
async fn write_split(explanations: &Explanations, path: &Path, target: &Target<'_>) -> io::Result<()> {
    let current = mark::set_of(path);
    let set = in_thread({
        let path = path.to_owned();
        move || PageSet::begin(&path, current)
    })
    .await?;
    let split = Split::new(explanations, target.stem);
    let mut writes = Writes::new(set.files());
    for (at, part) in split.parts.iter().enumerate() {
        let mut html = Vec::new();
        split.begin_part(&mut html, at)?;
        for entry in part.entries {
            let (entry, mut picture) = target.draw(entry).await;
            let name = picture.as_ref().map(|picture| split::picture_name(entry.page, picture.format));
            let bytes = picture.as_mut().map(|picture| std::mem::take(&mut picture.bytes));
            let place = name.as_deref().map(Place::File);
            html::page(&mut html, &explanations.file, &entry, picture.as_ref().zip(place))?;
            if let (Some(name), Some(bytes)) = (name, bytes) {
                writes.write(name, bytes).await?;
            }
            (target.on_page)();
        }
        split.end_part(&mut html, at)?;
        writes.write(part.name(), html).await?;
    }
    let mut search = Vec::new();
    split.search(&mut search)?;
    writes.write(split::SEARCH.to_owned(), search).await?;
    writes.finish().await?;
    let mut contents = Vec::new();
    split.contents(&mut contents, target.stem, set.number())?;
    let path = path.to_owned();
    in_thread(move || {
        set.sync()?;
        atomic::write(&path, |out| out.write_all(&contents))?;
        set.replace_others();
        Ok(())
    })
    .await
}

/// Files on their way to the disk while the next page is drawn.
struct Writes {
    files: Files,
    running: VecDeque<OwnedTask<io::Result<()>>>,
}

impl Writes {
    /// How many wait for the disk at once.
    const RUNNING_MAX: usize = 4;

    fn new(files: Files) -> Writes {
        Writes { files, running: VecDeque::new() }
    }

    async fn write(&mut self, name: String, bytes: Vec<u8>) -> io::Result<()> {
        if self.running.len() >= Writes::RUNNING_MAX {
            self.next().await?;
        }
        let files = self.files.clone();
        self.running.push_back(OwnedTask::spawn(in_thread(move || files.write(&name, &bytes))));
        Ok(())
    }

    async fn next(&mut self) -> io::Result<()> {
        match self.running.pop_front() {
            Some(write) => write.await.unwrap_or_else(|error| Err(io::Error::other(error.to_string()))),
            None => Ok(()),
        }
    }

    async fn finish(mut self) -> io::Result<()> {
        while !self.running.is_empty() {
            self.next().await?;
        }
        Ok(())
    }
}

impl Target<'_> {
    /// The page's picture, or the entry with a note that there is none.
    async fn draw<'e>(&self, entry: &'e Entry) -> (Cow<'e, Entry>, Option<Picture>) {
        let (Some(document), Some(px)) = (self.document, self.picture_px) else { return (Cow::Borrowed(entry), None) };
        match document.page(entry.page, Want::small_picture(px)).await {
            Ok(page) => {
                let picture = page.picture.map(|picture| {
                    let tidegate_pdf::Picture { width, height, format, bytes, .. } = picture;
                    Picture { format, bytes, width, height }
                });
                (Cow::Borrowed(entry), picture)
            }
            Err(error) => {
                let mut entry = entry.clone();
                entry.warnings.push(format!("The page's picture could not be drawn: {error}"));
                (Cow::Owned(entry), None)
            }
        }
    }
}

/// Writes `index.html` of a folder. Documents of tidegate's in the folder that the overview does not have are linked as
/// earlier ones.
pub(crate) async fn write_overview(folder: &Path, mut overview: Overview) -> io::Result<PathBuf> {
    let path = folder.join(INDEX);
    let folder = folder.to_owned();
    in_thread(move || {
        mark::may_replace(&path)?;
        let stems: Vec<String> = overview.documents.iter().filter_map(|document| document.stem.clone()).collect();
        overview.earlier = overview::earlier(&folder, &stems);
        atomic::write(&path, |out| overview.write(out))?;
        Ok(path)
    })
    .await
}

/// `path` as seen from `folder`, so that both can be moved together.
pub(crate) fn relative(folder: &Path, path: &Path) -> String {
    let (Ok(folder), Ok(path)) = (folder.canonicalize(), path.canonicalize()) else {
        return path.display().to_string();
    };
    let common = folder.components().zip(path.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(common).map(|_| Component::ParentDir);
    let relative: PathBuf = up.chain(path.components().skip(common)).collect();
    relative.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_named_as_seen_from_its_outputs() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("in")).unwrap();
        std::fs::create_dir_all(root.join("out/deep")).unwrap();
        std::fs::write(root.join("in/a.pdf"), "x").unwrap();
        assert_eq!(relative(&root.join("out/deep"), &root.join("in/a.pdf")), "../../in/a.pdf");
        assert_eq!(relative(&root.join("in"), &root.join("in/a.pdf")), "a.pdf");
    }
}
