//! Fonts that a file uses but does not contain. The fourteen standard ones come with the library; Chinese, Japanese and
//! Korean ones do not, and are looked for on this machine.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hayro::hayro_interpret::font::{FallbackFontQuery, FontData, FontQuery};
use hayro::hayro_interpret::hayro_cmap::CidFamily;

use crate::page::Warning;

/// What people can install where none is found.
const INSTALL: &str = "a Noto CJK font (Debian: fonts-noto-cjk)";

/// Where distributions keep Noto Sans CJK: Debian and Ubuntu, Fedora, Arch, Alpine, a user of their own.
const COLLECTIONS: [&str; 5] = [
    "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/google-noto-sans-cjk-fonts/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/noto-cjk/NotoSansCJK-Regular.ttc",
    "/usr/share/fonts/noto/NotoSansCJK-Regular.ttc",
    "/usr/local/share/fonts/NotoSansCJK-Regular.ttc",
];

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
pub(super) fn resolve(query: &FontQuery, mut note: impl FnMut(Warning)) -> Option<(FontData, u32)> {
    let fallback = match query {
        FontQuery::Standard(font) => return Some(font.get_font_data()),
        FontQuery::Fallback(fallback) => fallback,
    };
    if let Some(script) = script_of(fallback) {
        if let Some(collection) = COLLECTIONS.iter().find_map(|path| fs::read(Path::new(path)).ok()) {
            let data: FontData = Arc::new(collection);
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
