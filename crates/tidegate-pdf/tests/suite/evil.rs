//! Documents made to do harm: each costs at most its limits, and harms no other.

use std::time::Duration;

use tidegate_pdf::{Fault, Limits, OpenError, PageError, Want};

use crate::made::{Leaf, Made, bomb, document, document_of};
use crate::support::{file, reader, run, strict, strict_limits};

/// Reads all pages of a document with an evil one in the middle; what became of that one. The others are well.
fn middle(bytes: &[u8], want: Want) -> Result<(), Fault> {
    middle_within(strict_limits(), bytes, want)
}

fn middle_within(limits: Limits, bytes: &[u8], want: Want) -> Result<(), Fault> {
    let (_directory, path) = file(bytes);
    run(async move {
        let document = reader().limits(limits).open(&path).await.unwrap();
        assert_eq!(document.page_count(), 3);
        let evil = match document.page(2, want).await {
            Ok(_) => Ok(()),
            Err(PageError::Failed { page: 2, fault, path: named, .. }) => {
                assert_eq!(named, path);
                Err(fault)
            }
            Err(other) => panic!("{other}"),
        };
        for number in [1, 3] {
            let page = document.page(number, Want::text().and_picture(64)).await.unwrap();
            assert_eq!(page.text.unwrap().text, "an honest page of an evil document");
        }
        let stats = document.stats();
        assert_eq!((stats.failed, stats.children), if evil.is_ok() { (0, 1) } else { (1, 2) }, "{evil:?}");
        evil
    })
}

fn honest() -> Leaf {
    Leaf::saying("an honest page of an evil document")
}

/// A document whose second page draws the first of `forms`, which can draw each other as /X1, /X2 …
fn forms(contents: &[String]) -> Vec<u8> {
    let mut made = Made::default();
    let objects: Vec<String> = (1..=contents.len()).map(|number| format!("/X{number} {number} 0 R")).collect();
    let resources = format!("/XObject << {} >>", objects.join(" "));
    for content in contents {
        made.stream(
            &format!("/Type /XObject /Subtype /Form /BBox [0 0 999 999] /Resources << {resources} >>"),
            content,
        );
    }
    let evil = Leaf { resources, ..Leaf::drawing("/X1 Do") };
    let root = document_of(&mut made, &[honest(), evil, honest()], 3);
    made.finish(root)
}

/// Ten to the power of forty forms.
pub(crate) fn endless() -> Vec<u8> {
    let contents: Vec<String> = (2..42).map(|next| format!("/X{next} Do ").repeat(10)).collect();
    forms(&contents)
}

#[test]
fn a_form_that_draws_itself_comes_to_an_end() {
    // Drawn to a depth, and then no further.
    middle(&forms(&["/X1 Do".to_owned()]), Want::text().and_picture(64)).unwrap();
}

#[test]
fn forms_that_draw_each_other_without_end_are_cut_off_in_time() {
    // Side by side: each takes all the time there is.
    let cut_off = [Want::text(), Want::picture(64)].map(|want| std::thread::spawn(move || middle(&endless(), want)));
    for fault in cut_off.map(|thread| thread.join().unwrap()) {
        assert_eq!(fault, Err(Fault::TimedOut { limit: strict_limits().page_time }));
    }
}

#[test]
fn a_bomb_is_stopped_at_the_limit_of_memory() {
    // A gigabyte and a half.
    let evil = Leaf { content: bomb(1500), filter: "/Filter /FlateDecode", ..honest() };
    let bytes = document(&[honest(), evil, honest()]);
    assert!(bytes.len() < 3 << 20, "the bomb is small until it goes off");
    // Without optimisation it takes seconds to get there.
    let limits = Limits { memory_bytes: 128 << 20, page_time: Duration::from_secs(60), ..strict_limits() };
    let fault = middle_within(limits, &bytes, Want::text()).unwrap_err();
    assert_eq!(fault, Fault::Memory { limit: 128 << 20 });
}

#[test]
fn nesting_without_end_is_bounded() {
    let deep = 200_000;
    let arrays = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let dictionaries = format!("{}{}", "<< /A ".repeat(deep), " >>".repeat(deep));
    for nested in [arrays, dictionaries] {
        let drawn = document(&[honest(), Leaf::drawing(format!("{nested} TJ")), honest()]);
        // Skipped, overflowed or ended: in each case the fault has a name.
        match middle(&drawn, Want::text()) {
            Ok(()) | Err(Fault::Nesting | Fault::TimedOut { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let mut made = Made::default();
        made.object(&nested);
        let root = document_of(&mut made, &[honest()], 1);
        let mut bytes = made.finish(root);
        // Once more in the place that readers look at first.
        let trailer = bytes.windows(7).position(|it| it == b"trailer").unwrap();
        bytes.splice(trailer + 10..trailer + 10, format!("/Evil {nested} ").into_bytes());
        let (_directory, path) = file(&bytes);
        match run(async move { strict().open(path).await }) {
            Ok(document) => assert_eq!(document.page_count(), 1),
            Err(
                OpenError::Failed { fault: Fault::Nesting | Fault::TimedOut { .. }, .. } | OpenError::Broken { .. },
            ) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn page_trees_that_bite_their_tail_end() {
    let mut made = Made::default();
    made.object("<< /Type /Catalog /Pages 2 0 R >>");
    made.object("<< /Type /Pages /Kids [3 0 R 2 0 R] /Count 9 >>");
    made.object("<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 9 >>");
    let (_directory, path) = file(&made.finish(1));
    let error = run(async move { strict().open(path).await }).unwrap_err();
    assert!(matches!(error, OpenError::Empty { .. } | OpenError::Broken { .. }), "{error}");
}

#[test]
fn an_image_that_claims_to_be_huge_is_bounded() {
    let mut made = Made::default();
    let image = "/Type /XObject /Subtype /Image /Width 60000 /Height 60000 /BitsPerComponent 8 /ColorSpace /DeviceRGB \
                 /Filter /FlateDecode";
    let image = made.stream(image, bomb(1));
    let resources = format!("/XObject << /I {image} 0 R >>");
    let evil = Leaf { resources, ..Leaf::drawing("q 500 0 0 500 0 0 cm /I Do Q") };
    let root = document_of(&mut made, &[honest(), evil, honest()], 3);
    match middle(&made.finish(root), Want::picture(64)) {
        // Left out with a warning, or too much.
        Ok(()) | Err(Fault::Memory { .. } | Fault::Panicked { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn more_text_than_anybody_reads_is_cut() {
    let many = "(The same words again and again, without end.) Tj ".repeat(30_000);
    let evil = Leaf::drawing(format!("BT /F1 1 Tf {many} ET"));
    let (_directory, path) = file(&document(&[evil]));
    run(async move {
        let limits = Limits { page_time: Duration::from_secs(120), ..Limits::default() };
        let document = reader().limits(limits).open(&path).await.unwrap();
        let page = document.page(1, Want::text()).await.unwrap();
        assert!(
            page.warnings.iter().any(|warning| warning.to_string().contains("1000000 glyphs")),
            "{:?}",
            page.warnings
        );
        assert!(page.text.unwrap().text.len() <= 2_000_000);
    });
}

#[test]
fn a_file_that_needs_more_memory_than_there_is_is_refused_before_it_is_read() {
    let (_directory, path) = file(&document(&[honest()]));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(200 << 20).unwrap();
    let error = run(async move { strict().open(path).await }).unwrap_err();
    assert!(error.to_string().ends_with("it takes more than 256 MiB of memory to read"), "{error}");
}

#[test]
fn a_document_whose_time_is_used_up_is_read_no_further() {
    let (_directory, path) = file(&endless());
    run(async move {
        let time = strict_limits().page_time;
        let limits = Limits { page_time: time, document_time: time, ..strict_limits() };
        let document = reader().limits(limits).open(&path).await.unwrap();
        assert!(matches!(document.page(2, Want::text()).await, Err(PageError::Failed { .. })));
        let error = document.page(1, Want::text()).await.unwrap_err();
        assert!(matches!(error, PageError::DocumentTime { page: 1, .. }), "{error}");
        assert_eq!(document.stats().children, 1, "no child is started for a page that may not be read");
    });
}
