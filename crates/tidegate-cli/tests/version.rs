//! `tidegate --version`: which commit the program is of, wherever it is built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What decides it when the program is built.
#[allow(dead_code, reason = "its main function is cargo's")]
#[path = "../build.rs"]
mod build;

fn version(word: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg(word).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What git prints, whatever the machine's user has set.
fn git(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    for (name, value) in [("NAME", "tidegate"), ("EMAIL", "tidegate@localhost"), ("DATE", "2026-01-31T23:30:00+0200")] {
        command.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
    }
    for name in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(name);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.arg("-C").arg(folder).args(words).output().unwrap();
    assert!(output.status.success(), "git {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A repository with a package in it and one commit.
fn repository(place: &Path) -> PathBuf {
    let package = place.join("repository/package");
    std::fs::create_dir_all(&package).unwrap();
    git(&package, &["init", "--quiet", "--initial-branch=main", ".."]);
    std::fs::write(package.join("Cargo.toml"), "").unwrap();
    std::fs::write(package.join("build.rs"), "").unwrap();
    git(&package, &["add", "."]);
    git(&package, &["commit", "--quiet", "--message=first"]);
    package
}

/// Commits, and asserts that cargo would run the build script again; returns the new commit.
fn notices_a_commit(package: &Path) -> String {
    let state = || -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let read = |path: PathBuf| (path.clone(), std::fs::read(package.join(path)).ok());
        build::watched(package).into_iter().map(read).collect()
    };
    let before = state();
    assert!(
        before.iter().all(|(_, content)| content.is_some()),
        "a missing file means a build at every call: {before:?}"
    );
    git(package, &["commit", "--quiet", "--allow-empty", "--message=next"]);
    let changed = before.iter().any(|(path, content)| std::fs::read(package.join(path)).ok() != *content);
    assert!(changed, "nothing that is watched has changed: {before:?}");
    git(package, &["rev-parse", "HEAD"])
}

#[test]
fn the_short_one_is_a_line_and_the_long_one_names_commit_date_and_target() {
    let first = format!("tidegate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(version("-V"), first);
    let long = version("--version");
    let rest = long.strip_prefix(&first).unwrap();
    let value = |name: &str| {
        let line = rest.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {long}"));
        line.trim_start().to_owned()
    };
    let target = value("target");
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains("linux"), "{long}");
    assert_eq!(value("features"), if cfg!(feature = "pdf") { "pdf" } else { "none" });
    let expected = build::commit(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(value("commit"), expected.unwrap_or_else(|| "unknown".to_owned()));
}

#[test]
fn a_repository_names_its_commit_and_the_commits_own_date() {
    let place = tempfile::tempdir().unwrap();
    let package = repository(place.path());
    let head = notices_a_commit(&package);
    assert_eq!(build::commit(&package), Some(format!("{head} 2026-01-31")));
    git(&package, &["checkout", "--quiet", "--detach"]);
    let head = notices_a_commit(&package);
    assert_eq!(build::commit(&package), Some(format!("{head} 2026-01-31")));
}

#[test]
fn a_branch_without_a_file_of_its_own_is_noticed_too() {
    let place = tempfile::tempdir().unwrap();
    let package = repository(place.path());
    git(&package, &["pack-refs", "--all"]);
    assert!(!package.join("../.git/refs/heads/main").exists());
    let head = notices_a_commit(&package);
    assert_eq!(build::commit(&package), Some(format!("{head} 2026-01-31")));
}

#[test]
fn a_worktree_and_a_shallow_clone_are_repositories() {
    let place = tempfile::tempdir().unwrap();
    let package = repository(place.path());
    git(&package, &["worktree", "add", "--quiet", "-b", "other", "../../worktree"]);
    let worktree = place.path().join("worktree/package");
    assert!(worktree.join("../.git").is_file());
    let head = notices_a_commit(&worktree);
    assert_eq!(build::commit(&worktree), Some(format!("{head} 2026-01-31")));
    assert_ne!(build::commit(&package), build::commit(&worktree));

    notices_a_commit(&package);
    let url = format!("file://{}", place.path().join("repository").display());
    git(place.path(), &["clone", "--quiet", "--depth=1", &url, "shallow"]);
    let shallow = place.path().join("shallow/package");
    assert_eq!(git(&shallow, &["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(build::commit(&shallow), build::commit(&package));
    notices_a_commit(&shallow);
}

#[test]
fn a_package_outside_of_a_repository_is_of_the_commit_that_cargo_noted_or_of_none() {
    let place = tempfile::tempdir().unwrap();
    let unpacked = place.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    std::fs::write(unpacked.join("Cargo.toml"), "").unwrap();
    std::fs::write(unpacked.join("build.rs"), "").unwrap();
    assert_eq!((build::commit(&unpacked), build::watched(&unpacked)), (None, vec!["build.rs".into()]));
    let sha1 = "0123456789abcdef0123456789abcdef01234567";
    let noted =
        format!("{{\n  \"git\": {{\n    \"sha1\": \"{sha1}\"\n  }},\n  \"path_in_vcs\": \"crates/tidegate-cli\"\n}}");
    std::fs::write(unpacked.join(".cargo_vcs_info.json"), noted).unwrap();
    assert_eq!(build::commit(&unpacked), Some(sha1.to_owned()));
    assert_eq!(build::watched(&unpacked), ["build.rs", ".cargo_vcs_info.json"].map(PathBuf::from));

    // Inside another repository, where it is not committed.
    let package = repository(place.path());
    let vendored = package.join("vendored");
    std::fs::create_dir(&vendored).unwrap();
    std::fs::write(vendored.join("Cargo.toml"), "").unwrap();
    assert_eq!(build::commit(&vendored), None);
}
