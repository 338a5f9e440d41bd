//! Names the commit that the program is built from, for `tidegate --version`.
//!
//! Nothing here is needed to build: without git, or outside of a repository, the commit is unknown. The date is the commit's
//! own, so that the same commit gives the same program. Changes that are not committed are not shown: the script would have to
//! run at every build to notice them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What cargo puts into a package beside the sources.
const PACKAGED: &str = ".cargo_vcs_info.json";

fn main() {
    let package = Path::new(".");
    let commit = commit(package);
    for path in watched(package) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let features = if std::env::var_os("CARGO_FEATURE_PDF").is_some() { "pdf" } else { "none" };
    println!("cargo::rustc-env=TIDEGATE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=TIDEGATE_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=TIDEGATE_FEATURES={features}");
}

/// The commit of the package in `folder` and, where git knows it, the date: `0123…cdef 2026-01-31`.
pub(crate) fn commit(folder: &Path) -> Option<String> {
    if let Ok(packaged) = std::fs::read_to_string(folder.join(PACKAGED)) {
        return packaged_commit(&packaged);
    }
    // A package that was unpacked inside another repository does not belong to that repository's commit.
    git(folder, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    git(folder, &["log", "-1", "--no-show-signature", "--date=short", "--format=%H %cd"])
}

fn packaged_commit(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    (commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| commit.to_owned())
}

/// The files that change when the package in `folder` is of another commit, as seen from there. Only those that exist: a file
/// that is missing would make cargo run this at every build.
pub(crate) fn watched(folder: &Path) -> Vec<PathBuf> {
    let mut names = vec!["HEAD".to_owned()];
    if let Some(branch) = git(folder, &["symbolic-ref", "--quiet", "HEAD"]) {
        names.push(branch);
    }
    let exists = |path: &PathBuf| folder.join(path).is_file();
    let find = |name: &String| git(folder, &["rev-parse", "--git-path", name]).map(PathBuf::from).filter(exists);
    let mut found: Vec<PathBuf> = names.iter().filter_map(find).collect();
    if found.len() < names.len() {
        // The branch has no file of its own until its next commit, which these show.
        found.extend(["packed-refs", "logs/HEAD", "reftable/tables.list"].map(str::to_owned).iter().filter_map(find));
    }
    let own = ["build.rs", PACKAGED].map(PathBuf::from);
    found.extend(own.into_iter().filter(exists));
    found
}

/// What git prints, in a line; nothing if it fails or is not installed.
fn git(folder: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Set in hooks, where they are about the repository that the hook is of.
    for name in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(name);
    }
    let output = command.arg("-C").arg(folder).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
