//! Which files: those named, and those in the folders named; each once, each with a name of its own for its outputs.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A file to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Where it is.
    pub path: PathBuf,
    /// What its outputs are called, without an ending; no other input's.
    pub stem: String,
}

impl Input {
    /// The file's own name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(|| self.stem.clone(), |name| name.to_string_lossy().into_owned())
    }
}

/// Why there is nothing to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum InputError {
    /// There is no such file or folder.
    Missing {
        /// What was named.
        path: PathBuf,
    },
    /// A folder without the files that are looked for.
    Empty {
        /// The folder.
        path: PathBuf,
        /// What is looked for: `.pdf`.
        ending: &'static str,
    },
    /// It cannot be read.
    Unreadable {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputError::Missing { path } => write!(f, "there is no {}: check the name", path.display()),
            InputError::Empty { path, ending } => {
                write!(f, "there is no file that ends in {ending} in {} or the folders in it", path.display())
            }
            InputError::Unreadable { path, source } => write!(f, "{} cannot be read: {source}", path.display()),
        }
    }
}

impl std::error::Error for InputError {}

/// The PDFs that are meant: files as they are named, folders with what is in them.
///
/// # Errors
/// [`InputError`], before anything else happens.
pub fn find_pdfs(paths: &[PathBuf]) -> Result<Vec<Input>, InputError> {
    find(paths, ".pdf")
}

pub(crate) fn find(paths: &[PathBuf], ending: &'static str) -> Result<Vec<Input>, InputError> {
    let mut found = Vec::new();
    for path in paths {
        let kind = std::fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => InputError::Missing { path: path.clone() },
            _ => InputError::Unreadable { path: path.clone(), source },
        })?;
        if kind.is_dir() {
            let before = found.len();
            walk(path, ending, &mut found)?;
            if found.len() == before {
                return Err(InputError::Empty { path: path.clone(), ending });
            }
        } else {
            found.push(path.clone());
        }
    }
    let mut seen = HashSet::new();
    found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    Ok(with_stems(found))
}

/// What is hidden is left out, links to folders are not followed: they may lead in circles.
fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) -> Result<(), InputError> {
    let unreadable = |source| InputError::Unreadable { path: folder.to_owned(), source };
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if name.starts_with('.') {
            continue;
        }
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            walk(&entry.path(), ending, found)?;
        } else if name.ends_with(ending) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Names for outputs: the file's, with the folder's in front where two would be the same, and a number where that does
/// not help either. The same inputs have the same names in every run.
fn with_stems(paths: Vec<PathBuf>) -> Vec<Input> {
    let stem = |path: &Path| path.file_stem().map_or_else(|| "file".into(), |stem| stem.to_string_lossy().into_owned());
    // File systems that ignore case must not mix two files up.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in &paths {
        *counts.entry(stem(path).to_lowercase()).or_default() += 1;
    }
    let mut taken = HashSet::new();
    let name = |path: &PathBuf| {
        let plain = stem(path);
        let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let wanted = match folder.filter(|_| counts[&plain.to_lowercase()] > 1) {
            Some(folder) => format!("{folder}-{plain}"),
            None => plain,
        };
        // The run's own files are not to be overwritten.
        let wanted = if wanted.eq_ignore_ascii_case("report") { format!("{wanted}-pdf") } else { wanted };
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        std::iter::once(wanted.clone())
            .chain(numbered)
            .find(|name| taken.insert(name.to_lowercase()))
            .expect("numbers do not end")
    };
    let stems: Vec<String> = paths.iter().map(name).collect();
    paths.into_iter().zip(stems).map(|(path, stem)| Input { path, stem }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        directory
    }

    #[test]
    fn folders_are_searched_and_nothing_is_taken_twice() {
        let directory = tree(&["b.PDF", "a.pdf", "deep/er/c.pdf", ".hidden/d.pdf", "notes.txt"]);
        let root = directory.path().to_owned();
        let inputs = find_pdfs(&[root.join("b.PDF"), root.clone(), root.join("deep")]).unwrap();
        let stems: Vec<&str> = inputs.iter().map(|input| input.stem.as_str()).collect();
        assert_eq!(stems, ["b", "a", "c"]);
    }

    #[test]
    fn files_of_one_name_have_outputs_of_their_own() {
        let directory = tree(&["x/a.pdf", "y/a.pdf", "z/x-a.pdf", "z/report.pdf"]);
        let inputs = find_pdfs(&[directory.path().to_owned()]).unwrap();
        let stems: Vec<&str> = inputs.iter().map(|input| input.stem.as_str()).collect();
        assert_eq!(stems, ["x-a", "y-a", "report-pdf", "x-a-2"]);
    }

    #[test]
    fn what_is_not_there_is_told_before_anything_happens() {
        let directory = tree(&["notes.txt"]);
        let missing = find_pdfs(&[directory.path().join("no.pdf")]).unwrap_err();
        assert!(matches!(missing, InputError::Missing { .. }) && missing.to_string().contains("no.pdf"));
        let empty = find_pdfs(&[directory.path().to_owned()]).unwrap_err();
        assert!(matches!(empty, InputError::Empty { .. }));
    }
}
