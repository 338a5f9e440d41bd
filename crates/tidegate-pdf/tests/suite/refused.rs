//! What is not opened, and what is said about it.

use std::path::Path;

use tidegate_pdf::{Garble, OpenError, PageError, Quality, Want, Warning};

use crate::made::{Leaf, Made, document, document_of};
use crate::support::{data, file, reader, run, sample};

async fn refusal(path: &Path) -> OpenError {
    let error = reader().open(path).await.unwrap_err();
    assert_eq!(error.path(), path);
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    error
}

#[test]
fn what_is_no_file_is_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    run(async move {
        let missing = refusal(Path::new("/nowhere/at/all.pdf")).await;
        assert_eq!(missing.to_string(), "/nowhere/at/all.pdf cannot be read: No such file or directory (os error 2)");
        assert!(refusal(directory.path()).await.to_string().ends_with("cannot be read: Is a directory (os error 21)"));
        assert!(refusal(&pipe).await.to_string().ends_with("it is no regular file; save it to one first"));
    });
}

#[test]
fn what_is_no_pdf_is_told_so() {
    run(async move {
        let (_directory, path) = file(b"");
        let error = refusal(&path).await;
        assert!(
            matches!(error, OpenError::Empty { .. }) && error.to_string().ends_with("is empty (0 bytes)"),
            "{error}"
        );
        let (_directory, path) = file(b"PK\x03\x04 this is something else");
        assert!(matches!(refusal(&path).await, OpenError::NotPdf { .. }));
        let (_directory, path) = file(b"%PDF-1.7\nand that is all");
        assert!(matches!(refusal(&path).await, OpenError::Broken { .. }));
    });
}

#[test]
fn a_document_without_pages_is_empty() {
    run(async move {
        let (_directory, path) = file(&document(&[]));
        let error = refusal(&path).await;
        assert!(matches!(error, OpenError::Empty { .. }), "{error}");
        assert!(error.to_string().ends_with("has no pages"));
    });
}

#[test]
fn an_encrypted_document_is_opened_with_its_password_only() {
    // samples/marees.pdf, by: qpdf --encrypt USER OWNER 256 --
    let path = data("encrypted.pdf");
    run(async move {
        let error = refusal(&path).await;
        assert!(matches!(error, OpenError::Encrypted { wrong: false, .. }));
        assert!(error.to_string().ends_with("is encrypted: give its password"));
        let error = reader().password("guess").open(&path).await.unwrap_err();
        assert!(matches!(error, OpenError::Encrypted { wrong: true, .. }));
        for password in ["user-secret", "owner-secret"] {
            let reader = reader().password(password);
            assert!(!format!("{reader:?}").contains("secret"), "passwords are not shown");
            let document = reader.open(&path).await.unwrap();
            let text = document.page(1, Want::text()).await.unwrap().text.unwrap();
            assert!(text.text.contains("L'horaire des marées"));
        }
        // A password that is not needed does no harm.
        assert!(crate::support::reader().password("guess").open(sample("tides.pdf")).await.is_ok());
    });
}

#[test]
fn a_count_is_never_believed_and_a_lack_of_pages_is_told() {
    let mut made = Made::default();
    let root = document_of(&mut made, &[Leaf::saying("one"), Leaf::saying("two")], 2_000_000_000);
    let (_directory, path) = file(&made.finish(root));
    run(async move {
        let document = reader().open(&path).await.unwrap();
        assert_eq!(document.page_count(), 2);
        assert_eq!(document.warnings(), [Warning::FewerPages { found: 2, promised: 2_000_000_000 }]);
        assert_eq!(document.page(2, Want::text()).await.unwrap().text.unwrap().text, "two");
    });
}

#[test]
fn a_page_that_is_not_there_is_named() {
    run(async move {
        let document = reader().open(sample("marees.pdf")).await.unwrap();
        for number in [0, 3, u32::MAX] {
            let error = document.page(number, Want::text()).await.unwrap_err();
            assert!(matches!(error, PageError::NoSuchPage { pages: 2, .. }), "{error}");
        }
        assert_eq!(document.stats().children, 1);
    });
}

#[test]
fn a_cut_off_tail_leaves_the_pages_before_it() {
    let whole = std::fs::read(sample("tides.pdf")).unwrap();
    let (_directory, path) = file(&whole[..whole.len() - 600]);
    run(async move {
        let document = reader().open(&path).await.unwrap();
        assert_eq!(document.page_count(), 4);
        assert!(document.page(4, Want::text()).await.unwrap().text.unwrap().quality().is_good());
    });
}

#[test]
fn text_whose_fonts_do_not_name_their_characters_is_garbled() {
    let mut bytes = std::fs::read(sample("tides.pdf")).unwrap();
    let name = b"/ToUnicode";
    let places: Vec<usize> =
        bytes.windows(name.len()).enumerate().filter(|(_, it)| it == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place + 1] = b'X';
    }
    let (_directory, path) = file(&bytes);
    run(async move {
        let document = reader().open(&path).await.unwrap();
        let text = document.page(1, Want::text()).await.unwrap().text.unwrap();
        assert!(text.unknown > 500);
        assert_eq!(text.quality(), Quality::Garbled { why: Garble::UnknownGlyphs });
    });
}
