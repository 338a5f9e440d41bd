//! PDFs made by hand.

use std::io::Write;

use flate2::{Compress, Compression, FlushCompress};

/// A PDF under construction: objects are numbered from 1 in the order in which they are added.
#[derive(Default)]
pub(crate) struct Made {
    objects: Vec<Vec<u8>>,
}

impl Made {
    /// What the next object's number will be.
    pub(crate) fn next(&self) -> usize {
        self.objects.len() + 1
    }

    pub(crate) fn object(&mut self, content: impl AsRef<[u8]>) -> usize {
        self.objects.push(content.as_ref().to_vec());
        self.objects.len()
    }

    pub(crate) fn stream(&mut self, dictionary: &str, content: impl AsRef<[u8]>) -> usize {
        let content = content.as_ref();
        let mut object = format!("<< {dictionary} /Length {} >>\nstream\n", content.len()).into_bytes();
        object.extend_from_slice(content);
        object.extend_from_slice(b"\nendstream");
        self.object(object)
    }

    /// The file, with a table of its objects; `root` is the catalog.
    pub(crate) fn finish(self, root: usize) -> Vec<u8> {
        let mut out = b"%PDF-1.7\n".to_vec();
        let mut offsets = Vec::new();
        for (index, object) in self.objects.iter().enumerate() {
            offsets.push(out.len());
            writeln!(out, "{} 0 obj", index + 1).unwrap();
            out.extend_from_slice(object);
            out.extend_from_slice(b"\nendobj\n");
        }
        let table = out.len();
        write!(out, "xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1).unwrap();
        for offset in &offsets {
            writeln!(out, "{offset:010} 00000 n ").unwrap();
        }
        let size = offsets.len() + 1;
        write!(out, "trailer\n<< /Size {size} /Root {root} 0 R >>\nstartxref\n{table}\n%%EOF\n").unwrap();
        out
    }
}

/// A page of a document: what it draws, and entries of its own.
pub(crate) struct Leaf {
    pub(crate) content: Vec<u8>,
    pub(crate) filter: &'static str,
    pub(crate) resources: String,
    pub(crate) entries: &'static str,
}

impl Leaf {
    pub(crate) fn drawing(content: impl AsRef<[u8]>) -> Leaf {
        let font = "/Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>";
        Leaf { content: content.as_ref().to_vec(), filter: "", resources: font.to_owned(), entries: "" }
    }

    /// A page that says `text`, which is long enough to be one.
    pub(crate) fn saying(text: &str) -> Leaf {
        Leaf::drawing(format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET"))
    }
}

/// A document with these pages, which claims to have `count`.
pub(crate) fn document_of(made: &mut Made, leaves: &[Leaf], count: u64) -> usize {
    let contents: Vec<usize> = leaves.iter().map(|leaf| made.stream(leaf.filter, &leaf.content)).collect();
    let pages = made.next() + leaves.len();
    let mut kids = String::new();
    for (leaf, content) in leaves.iter().zip(contents) {
        let Leaf { resources, entries, .. } = leaf;
        let number = made.object(format!(
            "<< /Type /Page /Parent {pages} 0 R /Contents {content} 0 R /Resources << {resources} >> {entries} >>"
        ));
        kids += &format!("{number} 0 R ");
    }
    made.object(format!("<< /Type /Pages /Kids [{kids}] /Count {count} /MediaBox [0 0 595 842] >>"));
    made.object(format!("<< /Type /Catalog /Pages {pages} 0 R >>"))
}

pub(crate) fn document(leaves: &[Leaf]) -> Vec<u8> {
    let mut made = Made::default();
    let root = document_of(&mut made, leaves, leaves.len() as u64);
    made.finish(root)
}

/// A zlib stream of a few kilobytes that becomes `megabytes` of zeros.
pub(crate) fn bomb(megabytes: usize) -> Vec<u8> {
    // Compressed once and repeated: each part ends with a flush, so that it stands alone.
    let mut part = Vec::with_capacity(1 << 16);
    let zeros = vec![0; 1 << 20];
    Compress::new(Compression::best(), false).compress_vec(&zeros, &mut part, FlushCompress::Full).unwrap();
    let mut bomb = vec![0x78, 0xDA];
    for _ in 0..megabytes {
        bomb.extend_from_slice(&part);
    }
    bomb.extend_from_slice(&[0x03, 0x00]);
    // The checksum of that many zeros.
    let length = (megabytes << 20) as u64 % 65_521;
    bomb.extend_from_slice(&((length as u32) << 16 | 1).to_be_bytes());
    bomb
}
