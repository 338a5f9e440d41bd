//! PDFs of our own making.

use std::fmt::Write as _;

/// A PDF with so many pages of plain text.
pub(crate) fn pdf(name: &str, pages: usize) -> Vec<u8> {
    let mut objects = vec!["<</Type/Catalog/Pages 2 0 R>>".to_owned()];
    let kids: String = (0..pages).fold(String::new(), |mut kids, page| {
        write!(kids, "{} 0 R ", 4 + 2 * page).unwrap();
        kids
    });
    objects.push(format!("<</Type/Pages/Count {pages}/Kids[{kids}]>>"));
    objects.push("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned());
    for page in 1..=pages {
        let lines = format!(
            "BT /F1 12 Tf 50 700 Td (Page {page} of {name} is about the tides, which turn twice a day.) Tj \
             0 -20 Td (The moon pulls the sea, and the sea follows; the gate opens and closes with it.) Tj ET"
        );
        let content = objects.len() + 2;
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>/Contents {content} 0 R>>"
        ));
        objects.push(format!("<</Length {}>>stream\n{lines}\nendstream", lines.len()));
    }
    let (mut file, mut places) = (b"%PDF-1.4\n".to_vec(), Vec::new());
    for (at, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.extend_from_slice(format!("{} 0 obj{object}endobj\n", at + 1).as_bytes());
    }
    let (start, size) = (file.len(), objects.len() + 1);
    file.extend_from_slice(format!("xref\n0 {size}\n0000000000 65535 f \n").as_bytes());
    for place in places {
        file.extend_from_slice(format!("{place:010} 00000 n \n").as_bytes());
    }
    file.extend_from_slice(format!("trailer<</Size {size}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF\n").as_bytes());
    file
}
