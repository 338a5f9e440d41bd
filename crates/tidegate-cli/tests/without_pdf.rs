//! The program without its PDF reader: `cargo test -p tidegate-cli --no-default-features`. The other tests of this crate show
//! that the rest works as ever.
#![cfg(not(feature = "pdf"))]

use std::path::Path;
use std::process::{Command, Output};

const WHY: &str = "this tidegate was built without the PDF reader; build it with the default features";

fn tidegate(place: &Path, words: &[&str]) -> Output {
    // `./test` keeps this program apart from the one with the reader, which its other steps run.
    let program = std::env::var_os("TIDEGATE_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_tidegate").into());
    let mut command = Command::new(program);
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_DATA_HOME", place.join("data"));
    command.args(words).current_dir(place).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_needs_a_pdf_says_what_is_missing() {
    let place = tempfile::tempdir().unwrap();
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples");
    let cases: [&[&str]; 5] = [
        &["explain", samples],
        &["explain", samples, "--out", "there", "--rpm", "5"],
        &["explain", "--help"],
        &["rebuild", samples, "--json"],
        &["plan", samples, "--rpm", "5"],
    ];
    for words in cases {
        let output = tidegate(place.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(text(&output.stderr).ends_with(&format!("{WHY}\n")), "{words:?}: {output:?}");
    }
    let help = text(&tidegate(place.path(), &["--help"]).stdout);
    assert!(!help.contains("explain") && help.contains("worker"), "{help}");
}

#[test]
fn a_configuration_file_for_the_whole_program_is_no_mistake() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("tidegate.toml"), "[explain]\nout = \"there\"\n[plan]\nrpm = 5\n").unwrap();
    let output = tidegate(place.path(), &["plan", "--requests", "5"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
