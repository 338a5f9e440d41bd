//! Where the counts of the minute and of the day are kept: in one file per provider, address and key in the user's data directory,
//! so that all runs with a key count together, whatever they write and whenever they run. Without such a directory, in the
//! folder of the run.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tidegate_limit::store::{Store, StoreError};

use crate::{terminal, user_data};

/// The folder of the files, in the user's data directory.
const FOLDER: &str = "quotas";

/// Where a run keeps its counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// The account's name; `None` if no server is asked.
    account: Option<String>,
    /// A file for this run's folder alone.
    folder_file: Option<PathBuf>,
    /// Files in which earlier versions kept the counts of this run.
    earlier: Vec<PathBuf>,
}

impl Counts {
    /// Keeps the counts of `account`, or those of a run that asks no server in its folder.
    pub(crate) fn new(account: Option<String>) -> Counts {
        Counts { account, ..Counts::default() }
    }

    /// The same with a file in the run's folder, where earlier versions kept the counts: for when the account's file cannot be
    /// used.
    pub(crate) fn or_in(mut self, folder_file: PathBuf) -> Counts {
        self.earlier.push(folder_file.clone());
        self.folder_file = Some(folder_file);
        self
    }

    /// The same with another file that an earlier version kept.
    pub(crate) fn earlier(mut self, file: PathBuf) -> Counts {
        self.earlier.push(file);
        self
    }

    /// Returns the file, ready to be used. What earlier versions counted for this run is moved to it. `None`: the counts are kept
    /// by this process alone.
    pub(crate) fn prepare(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(account) = &self.account else { return self.in_folder() };
        let path = user_data::file(FOLDER).map(|folder| folder.join(format!("{account}.db")));
        let unusable = match path {
            None => "neither XDG_DATA_HOME nor HOME is set".to_owned(),
            Some(path) => match open(&path)? {
                Ok(store) => {
                    self.move_earlier(&store, &path)?;
                    return Ok(Some(path));
                }
                Err(reason) => reason,
            },
        };
        let instead = match &self.folder_file {
            Some(file) if open(file)?.is_ok() => Some(file.clone()),
            _ => None,
        };
        let counts = match &instead {
            Some(file) => format!("are kept in {}, which runs with other folders do not see", file.display()),
            None => "are not kept, and other runs do not see them".to_owned(),
        };
        terminal::say(format!("tidegate: {unusable}; the counts of the limits {counts}"));
        Ok(instead)
    }

    fn in_folder(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(file) = &self.folder_file else { return Ok(None) };
        let folder = tidegate_files::parent(file);
        tidegate_files::create_directories(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(Some(file.clone()))
    }

    fn move_earlier(&self, store: &Store, path: &Path) -> anyhow::Result<()> {
        for earlier in self.earlier.iter().filter(|earlier| is_own(earlier)) {
            let moved = store.take_over(earlier)?;
            if moved > 0 {
                terminal::say(format!(
                    "tidegate: the counts in {} now count for all runs with this key: they were moved to {}",
                    earlier.display(),
                    path.display()
                ));
            }
        }
        Ok(())
    }
}

/// Returns `true` for a file that is there and is no symbolic link, nor is its folder: links may lead to the counts of another
/// account.
fn is_own(file: &Path) -> bool {
    let folder = tidegate_files::parent(file).symlink_metadata().is_ok_and(|about| about.is_dir());
    folder && file.symlink_metadata().is_ok_and(|about| about.is_file())
}

/// Opens a file of counts. A place that cannot be used is `Err` with the reason; a file that is there and cannot be used is an
/// error, because without it the day's limit might be exceeded.
fn open(path: &Path) -> anyhow::Result<Result<Store, String>> {
    let folder = tidegate_files::parent(path);
    if let Err(error) = tidegate_files::create_own_directory(folder) {
        return Ok(Err(format!("cannot make the folder {}: {error}", folder.display())));
    }
    match Store::open(path) {
        Ok(store) => Ok(Ok(store)),
        Err(error @ (StoreError::ReadOnly { .. } | StoreError::Full { .. } | StoreError::Failed { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}
