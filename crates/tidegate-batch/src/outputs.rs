//! A file's outputs: JSON first, which the others can be made from again; Markdown; HTML, whose pictures are drawn page by
//! page. Each is there whole or not at all.

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use tidegate_files::Draft;
use tidegate_loop::to_thread;
use tidegate_pdf::{Document, Want};

use crate::output::atomic::{self, Pending};
use crate::output::html::{self, Picture};
use crate::output::{Entry, Explanations, mark, to_markdown};

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

/// Writes all three. Where the JSON there is the same already, and the others are newer, nothing is drawn again.
pub(crate) async fn write(
    explanations: &Explanations,
    folder: &Path,
    stem: &str,
    document: Option<&Document>,
    picture_px: Option<u32>,
) -> Result<Vec<PathBuf>, WriteError> {
    let paths = paths(folder, stem);
    let json = explanations.to_json();
    paths.iter().try_for_each(|path| replaceable(path))?;
    if is_current(&paths, &json) {
        // Of a run that was killed: no draft is made now that would remove them.
        paths.iter().for_each(|path| Draft::remove_stale(path));
        return Ok(paths.to_vec());
    }
    write_text(&paths[0], json).await?;
    write_shown(explanations, &paths[1], &paths[2], document, picture_px).await?;
    Ok(paths.to_vec())
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

/// Writes Markdown and HTML.
pub(crate) async fn write_shown(
    explanations: &Explanations,
    markdown: &Path,
    page: &Path,
    document: Option<&Document>,
    picture_px: Option<u32>,
) -> Result<(), WriteError> {
    replaceable(markdown)?;
    replaceable(page)?;
    write_text(markdown, to_markdown(explanations)).await?;
    write_html(explanations, page, document, picture_px)
        .await
        .map_err(|source| WriteError { path: page.to_owned(), source })
}

/// The outputs of a file: JSON, Markdown, HTML.
pub(crate) fn paths(folder: &Path, stem: &str) -> [PathBuf; 3] {
    ["json", "md", "html"].map(|ending| folder.join(format!("{stem}.{ending}")))
}

fn replaceable(path: &Path) -> Result<(), WriteError> {
    mark::may_replace(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn is_current(paths: &[PathBuf; 3], json: &str) -> bool {
    let time = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
    let [Some(first), Some(markdown), Some(html)] = [&paths[0], &paths[1], &paths[2]].map(time) else { return false };
    markdown >= first && html >= markdown && std::fs::read(&paths[0]).is_ok_and(|there| there == json.as_bytes())
}

async fn write_text(path: &Path, text: String) -> Result<(), WriteError> {
    let target = path.to_owned();
    let written = to_thread(move || atomic::write(&target, |out| out.write_all(text.as_bytes()))).await;
    let written = written.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

async fn write_html(
    explanations: &Explanations,
    path: &Path,
    document: Option<&Document>,
    picture_px: Option<u32>,
) -> io::Result<()> {
    let mut pending = Pending::new(path)?;
    html::begin(&mut pending.writer, explanations)?;
    for entry in &explanations.explanations {
        let picture = match (document, picture_px) {
            (Some(document), Some(px)) => draw(document, entry.page, px).await,
            _ => Drawn::None,
        };
        match picture {
            Drawn::Picture(picture) => html::page(&mut pending.writer, entry, Some(&picture))?,
            Drawn::None => html::page(&mut pending.writer, entry, None)?,
            Drawn::Failed(reason) => {
                let mut entry: Entry = entry.clone();
                entry.warnings.push(format!("The page's picture could not be drawn: {reason}"));
                html::page(&mut pending.writer, &entry, None)?;
            }
        }
    }
    html::end(&mut pending.writer, explanations)?;
    let finished = to_thread(move || pending.finish()).await;
    finished.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
}

enum Drawn {
    Picture(Picture),
    None,
    Failed(String),
}

async fn draw(document: &Document, page: u32, px: u32) -> Drawn {
    match document.page(page, Want::small_picture(px)).await {
        Ok(page) => page.picture.map_or(Drawn::None, |picture| {
            let tidegate_pdf::Picture { width, height, format, bytes, .. } = picture;
            Drawn::Picture(Picture { format, bytes, width, height })
        }),
        Err(error) => Drawn::Failed(error.to_string()),
    }
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
