//! The samples, as a reader would see them.

use tidegate_pdf::{Format, OpenError, PICTURE_PX_MAX, PageText, Quality, Want};

use crate::made::{Leaf, document};
use crate::support::{data, file, reader, run, sample};

fn texts(name: &str) -> Vec<PageText> {
    let path = sample(name);
    run(async move {
        let document = reader().open(path).await.unwrap();
        assert!(document.warnings().is_empty());
        let mut texts = Vec::new();
        for number in 1..=document.page_count() {
            let page = document.page(number, Want::text()).await.unwrap();
            assert_eq!(page.number, number);
            assert!(page.picture.is_none(), "no picture was asked for");
            texts.push(page.text.unwrap());
        }
        texts
    })
}

#[test]
fn every_page_of_every_language_is_read() {
    for (name, pages, phrases) in [
        (
            "tides.pdf",
            4,
            ["A tide table is a promise about the future", "Thirty ships in a window is therefore the limit"],
        ),
        ("schleuse.pdf", 3, ["Die Schleuse am Deich", "Große Schiffe brauchen die ganze Kammer."]),
        ("marees.pdf", 2, ["L'horaire des marées", "Le registre est rempli avant l'ouverture de la porte."]),
        ("chaoxi.pdf", 3, ["潮汐与闸门", "更好的办法是一次申请全部。"]),
    ] {
        let texts = texts(name);
        assert_eq!(texts.len(), pages, "{name}");
        let all: String = texts.iter().map(|page| page.text.as_str()).collect::<Vec<_>>().join("\n");
        for phrase in phrases {
            assert!(all.contains(phrase), "{name}: {phrase:?} is not in {all}");
        }
        for text in &texts {
            assert_eq!((text.quality(), text.unknown), (Quality::Good, 0), "{name}: {}", text.text);
        }
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    // Without white space, because lines are broken elsewhere.
    let squeeze = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    for name in ["tides", "schleuse", "marees", "chaoxi"] {
        let written = std::fs::read_to_string(sample(&format!("text/{name}.txt"))).unwrap();
        let pages: Vec<&str> = written.split("\n==\n").collect();
        let read = texts(&format!("{name}.pdf"));
        assert_eq!(pages.len(), read.len());
        for (number, (page, read)) in pages.iter().zip(read).enumerate() {
            let expected = squeeze(page.strip_prefix("# ").unwrap()) + &(number + 1).to_string();
            assert_eq!(squeeze(&read.text), expected, "{name}, page {}", number + 1);
        }
    }
}

#[test]
fn columns_are_read_one_after_the_other() {
    let text = &texts("columns.pdf")[0].text;
    let place = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle:?} is not in {text}"));
    assert!(place("Field notes") < place("The queue at the northern lock"));
    assert!(place("On paper that saves water.") < place("In practice the last boat"));
}

#[test]
fn a_scan_has_a_picture_and_no_text() {
    run(async move {
        let document = reader().open(sample("scan.pdf")).await.unwrap();
        assert_eq!(document.title(), Some("A scan"));
        let page = document.page(2, Want::text().and_picture(300)).await.unwrap();
        let text = page.text.unwrap();
        assert_eq!((text.quality(), text.images), (Quality::Missing, 1));
        let picture = page.picture.unwrap();
        assert_eq!((picture.width, picture.height), (212, 300));
        let dark = dark_pixels(&picture.bytes);
        assert!((1_000..20_000).contains(&dark), "{dark} dark pixels are not a page of text");
    });
}

/// Decodes a PNG and counts what is not paper.
fn dark_pixels(png: &[u8]) -> usize {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    assert_eq!(reader.output_color_type(), (png::ColorType::Rgb, png::BitDepth::Eight));
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels.chunks_exact(3).filter(|pixel| pixel.iter().all(|&channel| channel < 200)).count()
}

/// Answers are kept under a hash of these bytes, also those that earlier versions paid for.
#[test]
fn a_picture_for_a_model_has_the_bytes_that_version_0_1_0_sent() {
    run(async {
        let document = reader().open(sample("tides.pdf")).await.unwrap();
        let picture = document.page(1, Want::picture(300)).await.unwrap().picture.unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&picture.bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, picture.width, picture.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&pixels).unwrap();
        writer.finish().unwrap();
        assert!(picture.bytes == bytes, "{} and {} bytes", picture.bytes.len(), bytes.len());
    });
}

#[test]
fn a_picture_for_people_is_smaller_and_shows_the_same_page() {
    run(async {
        let document = reader().open(sample("tides.pdf")).await.unwrap();
        let exact = document.page(1, Want::picture(1_000)).await.unwrap().picture.unwrap();
        let small = document.page(1, Want::small_picture(1_000)).await.unwrap().picture.unwrap();
        assert_eq!((small.width, small.height, small.format), (exact.width, exact.height, Format::Png));
        assert!(small.bytes.len() * 3 < exact.bytes.len(), "{} of {}", small.bytes.len(), exact.bytes.len());
        let rgb = |png: &[u8]| {
            let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
            decoder.set_transformations(png::Transformations::EXPAND);
            let mut reader = decoder.read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            pixels
        };
        let (exact, small) = (rgb(&exact.bytes), rgb(&small.bytes));
        assert_eq!(exact.len(), small.len());
        assert!(exact.iter().zip(&small).all(|(a, b)| a.abs_diff(*b) <= 4));
    });
}

#[test]
fn a_page_is_blank_if_it_has_no_ink_at_all() {
    // Each page, and whether it is blank.
    let drawn = [
        ("", true),
        ("1 1 1 rg 0 0 595 842 re f", true),
        ("0.9 0.9 1 rg 0 0 595 842 re f", true),
        ("BT /F1 12 Tf 72 700 Td ( ) Tj ET", true),
        ("BT /F1 12 Tf 290 30 Td (7) Tj ET", false),
        ("72 700 m 500 700 l S", false),
        ("0.98 g 300 400 20 20 re f", false),
        ("300 400 0.5 0.5 re f", false),
        // Drawn beyond the page: no ink, but content, so it is looked at.
        ("2000 2000 50 50 re f 2100 2000 50 50 re f 2200 2000 50 50 re f", false),
        // An image that cannot be decoded is not in the picture.
        ("q 100 0 0 100 90 90 cm BI /W 9 /H 9 /BPC 8 /CS /RGB /F /DCT ID x EI Q", false),
    ];
    let leaves: Vec<Leaf> = drawn.iter().map(|(content, _)| Leaf::drawing(content)).collect();
    let (_directory, path) = file(&document(&leaves));
    run(async move {
        let document = reader().open(&path).await.unwrap();
        for (number, (content, blank)) in (1..).zip(drawn) {
            let page = document.page(number, Want::text().and_picture(1_400)).await.unwrap();
            assert_eq!(page.is_blank(), blank, "{content}: {page:?}");
        }
        let text = document.page(1, Want::text()).await.unwrap();
        assert!(!text.is_blank(), "only a picture shows that there is no ink");
    });
}

#[test]
fn a_picture_shows_the_writing() {
    run(async move {
        let document = reader().open(sample("tides.pdf")).await.unwrap();
        let picture = document.page(1, Want::picture(400)).await.unwrap().picture.unwrap();
        assert_eq!((picture.width, picture.height), (283, 400));
        assert!(dark_pixels(&picture.bytes) > 500);
    });
}

#[test]
fn a_page_of_any_size_has_a_picture_within_bounds() {
    let mut leaves = Vec::new();
    for entries in [
        "/MediaBox [0 0 2 200000]",
        "/MediaBox [0 0 200000 2]",
        "/MediaBox [0 0 0 0]",
        "/MediaBox [9 9 -99999999999 99999999999]",
    ] {
        leaves.push(Leaf { entries, ..Leaf::saying("as wide as the sea") });
    }
    let (_directory, path) = file(&document(&leaves));
    run(async move {
        let document = reader().open(&path).await.unwrap();
        for number in 1..=4 {
            let picture = document.page(number, Want::picture(64)).await.unwrap().picture.unwrap();
            assert!((1..=64).contains(&picture.width) && (1..=64).contains(&picture.height), "{picture:?}");
        }
        let picture = document.page(3, Want::picture(u32::MAX)).await.unwrap().picture.unwrap();
        assert_eq!(picture.width.max(picture.height), PICTURE_PX_MAX);
    });
}

#[test]
fn a_page_that_lies_on_its_side_is_read_upright() {
    let turned = Leaf {
        entries: "/Rotate 90",
        ..Leaf::drawing(
            "BT /F1 12 Tf 0 1 -1 0 300 100 Tm (first line of the turned page) Tj 0 -14 Td (second line of it) Tj ET",
        )
    };
    let (_directory, path) = file(&document(&[turned]));
    run(async move {
        let document = reader().open(&path).await.unwrap();
        let text = document.page(1, Want::text()).await.unwrap().text.unwrap().text;
        assert_eq!(text, "first line of the turned page\nsecond line of it");
    });
}

#[test]
fn a_broken_file_says_what_to_do() {
    run(async move {
        let error = reader().open(data("broken.pdf")).await.unwrap_err();
        assert!(matches!(error, OpenError::Broken { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("broken.pdf is broken: ") && message.contains("get it again"), "{message}");
    });
}
