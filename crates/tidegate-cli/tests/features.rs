//! What the program is built of.

use std::process::Command;

/// The packages that the program needs with these features.
fn tree(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "--package",
            "tidegate-cli",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
        ])
        .args(words)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_pdf_reader_can_be_left_out() {
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let (whole, without) = (tree(&[]), tree(&["--no-default-features"]));
    for name in ["tidegate-pdf", "hayro", "pulldown-cmark"] {
        assert!(has(&whole, name), "{name} is not in\n{whole}");
        assert!(!has(&without, name), "{name} is in\n{without}");
    }
    for name in ["tidegate-batch", "tidegate-crew", "tidegate-worker"] {
        assert!(has(&without, name), "{name} is not in\n{without}");
    }
}
