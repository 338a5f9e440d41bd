//! A file from its bytes to its pages.

use std::fs::File;
use std::io;

use hayro::hayro_syntax::object::Dict;
use hayro::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use super::Confinement;
use crate::files;
use crate::page::Warning;
use crate::wire::{Refusal, Reply};

/// Where readers look for the header; some files have something before it.
const HEADER_WITHIN: usize = 1024;

pub(super) struct Opened {
    pub(super) pdf: Pdf,
}

pub(super) fn open(document: &File, password: Option<&str>, memory_bytes: u64) -> Result<Opened, Refusal> {
    // One that has grown since its size was looked at is cut.
    let bytes_max = usize::try_from(memory_bytes / 2).unwrap_or(usize::MAX);
    let unreadable = |error: io::Error| Refusal::Unreadable { errno: error.raw_os_error(), message: error.to_string() };
    let bytes = files::read_to_end(document, bytes_max).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err(Refusal::Empty);
    }
    if !bytes[..bytes.len().min(HEADER_WITHIN)].windows(5).any(|window| window == b"%PDF-") {
        return Err(Refusal::NotPdf);
    }
    let pdf = Pdf::new_with_password(bytes, password.unwrap_or_default()).map_err(|error| match error {
        LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
            Refusal::Encrypted { wrong: password.is_some() }
        }
        LoadPdfError::Decryption(DecryptionError::UnsupportedAlgorithm) => {
            Refusal::Broken { why: "its encryption is not supported".to_owned() }
        }
        LoadPdfError::Decryption(_) => Refusal::Broken { why: "its encryption is damaged".to_owned() },
        LoadPdfError::Invalid => Refusal::Broken { why: "no pages can be found in it".to_owned() },
    })?;
    if pdf.pages().is_empty() {
        return Err(Refusal::Empty);
    }
    Ok(Opened { pdf })
}

impl Opened {
    pub(super) fn reply(&self, confinement: Confinement) -> Reply {
        let pages = u32::try_from(self.pdf.pages().len()).unwrap_or(u32::MAX);
        let warnings = match self.promised() {
            Some(promised) if promised > u64::from(pages) => vec![Warning::FewerPages { found: pages, promised }],
            _ => Vec::new(),
        };
        let title = self.pdf.metadata().title.as_deref().and_then(string).filter(|title| !title.trim().is_empty());
        Reply::Opened { confinement, pages, title, warnings }
    }

    /// What the file says about its pages; good for a warning, and for nothing else.
    fn promised(&self) -> Option<u64> {
        let xref = self.pdf.xref();
        let root: Dict<'_> = xref.get(xref.root_id())?;
        let pages: Dict<'_> = root.get(b"Pages")?;
        u64::try_from(pages.get::<i64>(b"Count")?).ok()
    }
}

/// A string of the document's description: UTF-16 with its mark, UTF-8 with its own, or Latin-1.
fn string(bytes: &[u8]) -> Option<String> {
    /// Longer ones are no titles.
    const BYTES_MAX: usize = 1000;
    let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
    if let Some(utf16) = bytes.strip_prefix(&[0xFE, 0xFF]) {
        let units: Vec<u16> = utf16.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        return Some(String::from_utf16_lossy(&units));
    }
    if let Some(utf8) = bytes.strip_prefix(&[0xEF, 0xBB, 0xBF]) {
        return Some(String::from_utf8_lossy(utf8).into_owned());
    }
    Some(bytes.iter().map(|&byte| char::from(byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_read_in_each_encoding() {
        assert_eq!(string(b"\xFE\xFF\x6F\x6E\x6C\x50").unwrap(), "\u{6F6E}\u{6C50}");
        assert_eq!(string(b"\xEF\xBB\xBFGezeiten").unwrap(), "Gezeiten");
        assert_eq!(string(b"Mar\xE9es").unwrap(), "Marées");
    }
}
