//! Which files: those named, and those in the folders named; each once, each with a name of its own for its outputs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tidegate_pdf::Reader;
use tidegate_secret::Secret;

/// A file to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Where it is.
    pub path: PathBuf,
    /// What its outputs are called, without an ending; no other input's.
    pub stem: String,
    /// Symbolic links to the same file, or the file itself if `path` is the link: found, too, and left out.
    pub left_out: Vec<PathBuf>,
    /// The name for people, if it is not the path's.
    shown: Option<String>,
    password: Option<Secret>,
}

impl Input {
    /// The file at `path`, with outputs called `stem`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, stem: impl Into<String>) -> Input {
        Input { path: path.into(), stem: stem.into(), left_out: Vec::new(), shown: None, password: None }
    }

    /// A file that is stored under another name than the one it is shown by, in prompts, too.
    #[must_use]
    pub fn stored(path: impl Into<PathBuf>, stem: impl Into<String>, shown: impl Into<String>) -> Input {
        Input { shown: Some(shown.into()), ..Input::new(path, stem) }
    }

    /// The same, with a password of its own.
    #[must_use]
    pub fn with_password(self, password: Option<Secret>) -> Input {
        Input { password, ..self }
    }

    /// `reader`, with the file's own password if it has one.
    pub(crate) fn reader(&self, reader: &Reader) -> Reader {
        match &self.password {
            Some(password) => reader.clone().password(password.clone()),
            None => reader.clone(),
        }
    }

    /// The file's own name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        if let Some(shown) = &self.shown {
            return shown.clone();
        }
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

/// The PDFs that are meant: files as they are named, folders with what is in them. A sub-folder that cannot be read is
/// returned as an input of its own, behind the files: opening it fails, and the others are processed.
///
/// # Errors
/// [`InputError`], before anything else happens.
pub fn find_pdfs(paths: &[PathBuf]) -> Result<Vec<Input>, InputError> {
    find(paths, ".pdf")
}

pub(crate) fn find(paths: &[PathBuf], ending: &'static str) -> Result<Vec<Input>, InputError> {
    find_with(paths, ending, &list)
}

/// Returns the entries of a folder.
type List<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<DirEntry>>;

fn list(folder: &Path) -> io::Result<Vec<DirEntry>> {
    std::fs::read_dir(folder)?.collect()
}

fn find_with(paths: &[PathBuf], ending: &'static str, list: List<'_>) -> Result<Vec<Input>, InputError> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for path in paths {
        let kind = std::fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => InputError::Missing { path: path.clone() },
            _ => InputError::Unreadable { path: path.clone(), source },
        })?;
        if kind.is_dir() {
            let before = found.len() + unreadable.len();
            let entries = list(path).map_err(|source| InputError::Unreadable { path: path.clone(), source })?;
            walk(entries, ending, list, &mut found, &mut unreadable);
            if found.len() + unreadable.len() == before {
                return Err(InputError::Empty { path: path.clone(), ending });
            }
        } else {
            found.push(path.clone());
        }
    }
    let mut seen: HashMap<PathBuf, PathBuf> = HashMap::new();
    let mut left_out: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
    for paths in [&mut found, &mut unreadable] {
        paths.retain(|path| match seen.entry(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(path.clone());
                true
            }
            Entry::Occupied(entry) => {
                let first = entry.get();
                // The same file named twice, or a file beside its folder, is what was meant.
                if path != first && (path.is_symlink() || first.is_symlink()) {
                    left_out.entry(first.clone()).or_default().push(path.clone());
                }
                false
            }
        });
    }
    let mut inputs = with_stems(found, unreadable);
    for input in &mut inputs {
        input.left_out = left_out.remove(&input.path).unwrap_or_default();
    }
    Ok(inputs)
}

/// What is hidden is left out, links to folders are not followed: they may lead in circles.
fn walk(
    mut entries: Vec<DirEntry>,
    ending: &str,
    list: List<'_>,
    found: &mut Vec<PathBuf>,
    unreadable: &mut Vec<PathBuf>,
) {
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            match list(&entry.path()) {
                Ok(entries) => walk(entries, ending, list, found, unreadable),
                Err(_) => unreadable.push(entry.path()),
            }
        } else if name.ends_with(ending) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
}

/// Names for outputs: the file's, with the folder's in front where two would be the same, and a number where that does
/// not help either. The same inputs have the same names in every run, and `folders`, which have no outputs, change no
/// file's name.
fn with_stems(paths: Vec<PathBuf>, folders: Vec<PathBuf>) -> Vec<Input> {
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
        let wanted = match folder.filter(|_| counts.get(&plain.to_lowercase()).is_some_and(|&count| count > 1)) {
            Some(folder) => format!("{folder}-{plain}"),
            None => plain,
        };
        let wanted = short(not_of_the_run(wanted));
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        std::iter::once(wanted.clone())
            .chain(numbered)
            .find(|name| taken.insert(name.to_lowercase()))
            .expect("numbers do not end")
    };
    let paths = [paths, folders].concat();
    let stems: Vec<String> = paths.iter().map(name).collect();
    paths.into_iter().zip(stems).map(|(path, stem)| Input::new(path, stem)).collect()
}

/// Longest name of an output without its ending. File systems take 255 bytes, and drafts and folders of parts have longer
/// names.
const STEM_BYTES_MAX: usize = 160;

/// Cuts a name that is too long for outputs. A part of its hash keeps it apart from others that begin alike.
fn short(stem: String) -> String {
    if stem.len() <= STEM_BYTES_MAX {
        return stem;
    }
    let hash: String = Sha256::digest(&stem).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", &stem[..stem.floor_char_boundary(STEM_BYTES_MAX)])
}

/// The run's own files are not to be overwritten: `report.json` and `index.html`.
pub(crate) fn not_of_the_run(stem: String) -> String {
    let is_of_the_run = ["report", "index"].iter().any(|name| stem.eq_ignore_ascii_case(name));
    if is_of_the_run { format!("{stem}-pdf") } else { stem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_file_is_shown_by_its_own_name_and_its_password_by_nothing() {
        let input = Input::stored("/srv/files/3f9a", "1", "Tides.pdf").with_password(Some(Secret::new("hunter2")));
        assert_eq!((input.name().as_str(), input.stem.as_str()), ("Tides.pdf", "1"));
        assert!(!format!("{input:?}").contains("hunter2"));
        assert_eq!(Input::new("/srv/files/3f9a", "1").name(), "3f9a");
    }

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
    fn links_to_a_file_that_is_taken_are_left_out_and_named() {
        let directory = tree(&["a.pdf", "deep/b.pdf"]);
        let root = directory.path().to_owned();
        for link in ["c.pdf", "d.pdf"] {
            std::os::unix::fs::symlink(root.join("a.pdf"), root.join(link)).unwrap();
        }
        let inputs = find_pdfs(&[root.clone(), root.join("deep"), root.join("a.pdf")]).unwrap();
        let found: Vec<_> = inputs.iter().map(|input| (input.path.clone(), input.left_out.clone())).collect();
        let links = vec![root.join("c.pdf"), root.join("d.pdf")];
        assert_eq!(found, [(root.join("a.pdf"), links), (root.join("deep/b.pdf"), Vec::new())]);
    }

    #[test]
    fn a_long_name_is_cut_and_stays_apart_from_others() {
        let long = |end: &str| format!("{}{end}.pdf", "名".repeat(80));
        let directory = tree(&[&long("a"), &long("b")]);
        let inputs = find_pdfs(&[directory.path().to_owned()]).unwrap();
        assert!(inputs.iter().all(|input| input.stem.len() <= STEM_BYTES_MAX + 9), "{inputs:?}");
        assert!(inputs[0].stem.starts_with("名名") && inputs[0].stem != inputs[1].stem, "{inputs:?}");
        let again = find_pdfs(&[directory.path().join(long("b"))]).unwrap();
        assert_eq!(again[0].stem, inputs[1].stem, "whatever else is explained");
    }

    #[test]
    fn files_of_one_name_have_outputs_of_their_own() {
        let directory = tree(&["x/a.pdf", "y/a.pdf", "z/x-a.pdf", "z/report.pdf", "z/Index.pdf"]);
        let inputs = find_pdfs(&[directory.path().to_owned()]).unwrap();
        let stems: Vec<&str> = inputs.iter().map(|input| input.stem.as_str()).collect();
        assert_eq!(stems, ["x-a", "y-a", "Index-pdf", "report-pdf", "x-a-2"]);
    }

    #[test]
    fn an_unreadable_sub_folder_is_an_input_of_its_own_and_changes_no_name() {
        let directory = tree(&["a.pdf", "a/x.pdf", "b/c.pdf"]);
        let (root, locked) = (directory.path().to_owned(), directory.path().join("a"));
        // Permissions do not bind root, whom tests may run as.
        let denied =
            |folder: &Path| if folder == locked { Err(io::ErrorKind::PermissionDenied.into()) } else { list(folder) };
        let inputs = find_with(std::slice::from_ref(&root), ".pdf", &denied).unwrap();
        let found: Vec<_> = inputs.iter().map(|input| (input.path.as_path(), input.stem.as_str())).collect();
        assert_eq!(found, [(&*root.join("a.pdf"), "a"), (&*root.join("b/c.pdf"), "c"), (&*locked, "a-2")]);
        let named = find_with(std::slice::from_ref(&locked), ".pdf", &denied).unwrap_err();
        assert!(matches!(named, InputError::Unreadable { .. }), "a folder that was named has to be readable");
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
