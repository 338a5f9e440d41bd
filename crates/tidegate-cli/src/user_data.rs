//! The user's data directory: what is kept for all runs, wherever they write their results.

use std::env;
use std::path::PathBuf;

/// Returns the path of a file in it: `$XDG_DATA_HOME/tidegate/NAME`, below `~/.local/share` without the variable; `None` without
/// a home.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| set("HOME").map(|home| home.join(".local").join("share")))?;
    Some(data.join("tidegate").join(name))
}
