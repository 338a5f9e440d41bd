//! Fonts that are not in the file.

use std::path::Path;

use tidegate_pdf::{Want, Warning};

use crate::made::{Leaf, document};
use crate::support::{file, reader, run};

/// A page in Japanese whose font is only named.
fn japanese() -> Leaf {
    let font = "/Font << /F1 << /Type /Font /Subtype /Type0 /BaseFont /Ryumin-Light /Encoding /UniJIS-UTF16-H \
                /DescendantFonts [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Ryumin-Light \
                /CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 6 >> /DW 1000 \
                /FontDescriptor << /Type /FontDescriptor /FontName /Ryumin-Light /Flags 4 >> >>] >> >>";
    let text: String = "潮汐と水門の短い手引きと待ち行列".encode_utf16().map(|unit| format!("{unit:04X}")).collect();
    Leaf { resources: font.to_owned(), ..Leaf::drawing(format!("BT /F1 30 Tf 40 700 Td <{text}> Tj ET")) }
}

#[test]
fn japanese_without_its_font_is_read_and_drawn_where_another_is_installed() {
    let (_directory, path) = file(&document(&[japanese()]));
    run(async move {
        let document = reader().open(&path).await.unwrap();
        let page = document.page(1, Want::text().and_picture(300)).await.unwrap();
        assert_eq!(page.text.unwrap().text, "潮汐と水門の短い手引きと待ち行列");
        let installed = Path::new("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc").exists();
        let missing =
            page.warnings.iter().any(|it| matches!(it, Warning::FontMissing { font, .. } if font == "Ryumin-Light"));
        assert_eq!(missing, !installed, "{:?}", page.warnings);
        let mut png = png::Decoder::new(std::io::Cursor::new(page.picture.unwrap().bytes)).read_info().unwrap();
        let mut pixels = vec![0; png.output_buffer_size().unwrap()];
        png.next_frame(&mut pixels).unwrap();
        let dark = pixels.iter().filter(|&&channel| channel < 100).count();
        assert!(!installed || dark > 300, "{dark}: the characters are not in the picture");
    });
}
