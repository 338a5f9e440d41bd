//! Fonts that a file uses but does not contain. The fourteen standard ones come with the library; Chinese, Japanese and
//! Korean ones do not, and are read from a file that the parent has opened.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use hayro::hayro_interpret::font::{FallbackFontQuery, FontData, FontQuery};
use hayro::hayro_interpret::hayro_cmap::CidFamily;

use crate::files;
use crate::page::Warning;

/// What people can install where none is found.
const INSTALL: &str = "a Noto CJK font (Debian: fonts-noto-cjk)";

/// A file of fonts for all four scripts, where one is installed; read when the first of them is needed.
pub(super) struct Collection {
    file: Option<File>,
    /// `None`: it cannot be read.
    data: OnceLock<Option<Arc<Vec<u8>>>>,
}

impl Collection {
    pub(super) fn new(file: Option<File>) -> Collection {
        Collection { file, data: OnceLock::new() }
    }

    fn data(&self) -> Option<FontData> {
        let data = self.data.get_or_init(|| files::read_to_end(self.file.as_ref()?, usize::MAX).ok().map(Arc::new));
        Some(Arc::clone(data.as_ref()?) as FontData)
    }
}

/// A language that needs a font of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Japanese,
    Korean,
    Simplified,
    Traditional,
}

impl Script {
    /// Its place in the collection.
    fn index(self) -> u32 {
        match self {
            Script::Japanese => 0,
            Script::Korean => 1,
            Script::Simplified => 2,
            Script::Traditional => 3,
        }
    }
}

/// The data of a font, and its index where it is one of several in a file.
pub(super) fn resolve(
    query: &FontQuery,
    collection: &Collection,
    mut note: impl FnMut(Warning),
) -> Option<(FontData, u32)> {
    let fallback = match query {
        FontQuery::Standard(font) => return Some(font.get_font_data()),
        FontQuery::Fallback(fallback) => fallback,
    };
    if let Some(script) = script_of(fallback) {
        if let Some(data) = collection.data() {
            return Some((data, script.index()));
        }
        let font = fallback.post_script_name.clone().unwrap_or_else(|| "without a name".to_owned());
        note(Warning::FontMissing { font, install: INSTALL.to_owned() });
    }
    Some(fallback.pick_standard_font().get_font_data())
}

fn script_of(query: &FallbackFontQuery) -> Option<Script> {
    match query.character_collection.as_ref()?.family {
        CidFamily::AdobeJapan1 => Some(Script::Japanese),
        CidFamily::AdobeGB1 => Some(Script::Simplified),
        CidFamily::AdobeCNS1 => Some(Script::Traditional),
        CidFamily::AdobeKorea1 => Some(Script::Korean),
        _ => None,
    }
}
