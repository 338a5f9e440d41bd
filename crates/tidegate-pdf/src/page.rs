//! What is read from a page, and what may be wanted of it.

use std::fmt;

use crate::quality::{Quality, judge};

/// The longest side of a picture, at most: what is asked beyond it is drawn at this size.
pub const PICTURE_PX_MAX: u32 = 4_096;

/// What is wanted of a page.
///
/// ```
/// use tidegate_pdf::Want;
/// let want = Want::text().and_picture(1_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub(crate) text: bool,
    /// The longest side.
    pub(crate) picture_px: Option<u32>,
}

impl Want {
    /// Its text.
    #[must_use]
    pub fn text() -> Want {
        Want { text: true, picture_px: None }
    }

    /// Its picture, `px` pixels on the longest side (at least 16, at most [`PICTURE_PX_MAX`]).
    #[must_use]
    pub fn picture(px: u32) -> Want {
        Want { text: false, picture_px: Some(px) }
    }

    /// Its picture, too.
    #[must_use]
    pub fn and_picture(self, px: u32) -> Want {
        Want { picture_px: Some(px), ..self }
    }
}

/// A page, as far as it was wanted.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// From 1.
    pub number: u32,
    /// If it was wanted.
    pub text: Option<PageText>,
    /// If it was wanted.
    pub picture: Option<Picture>,
    /// What is not as it should be.
    pub warnings: Vec<Warning>,
}

/// A page's text, and how far it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageText {
    /// In reading order; a blank line between paragraphs.
    pub text: String,
    /// How many glyphs were drawn.
    pub glyphs: u32,
    /// For how many of them nobody knows the character; they are not in the text.
    pub unknown: u32,
    /// How many pictures were drawn: a page of one picture and no text is a scan.
    pub images: u32,
}

impl PageText {
    /// What it is worth.
    #[must_use]
    pub fn quality(&self) -> Quality {
        judge(&self.text, self.glyphs, self.unknown)
    }
}

/// A page's picture.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Picture {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// A PNG file, 8 bits a channel, without transparency.
    pub png: Vec<u8>,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Picture { width, height, png } = self;
        f.debug_struct("Picture").field("width", width).field("height", height).field("png_bytes", &png.len()).finish()
    }
}

/// Something people should know about a document or a page that could be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Warning {
    /// The file says that it has more pages than were found in it: it is damaged, and something is missing.
    FewerPages {
        /// How many were found.
        found: u32,
        /// How many the file promises.
        promised: u64,
    },
    /// A font is not in the file and none that could replace it is installed: its characters are not in the picture.
    FontMissing {
        /// The font's name.
        font: String,
        /// What to install.
        install: String,
    },
    /// A font in the file cannot be used: its characters are neither in the picture nor in the text.
    FontUnusable,
    /// An image in the file cannot be decoded: it is not in the picture.
    ImageUnusable,
    /// There is more text on the page than is read.
    TextCut {
        /// How many glyphs were read.
        glyphs: u32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::FewerPages { found, promised } => {
                write!(f, "only {found} of {promised} pages can be found: the file is damaged; get it again if you can")
            }
            Warning::FontMissing { font, install } => {
                write!(f, "the font {font} is not in the file: install {install} to see its characters in pictures")
            }
            Warning::FontUnusable => f.write_str("a font in the file cannot be used; its characters are missing"),
            Warning::ImageUnusable => {
                f.write_str("an image in the file cannot be decoded; it is missing in the picture")
            }
            Warning::TextCut { glyphs } => write!(f, "only the first {glyphs} glyphs of the page were read"),
        }
    }
}
