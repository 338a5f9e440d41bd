//! What is read from a page, and what may be wanted of it.

use std::fmt;

use crate::quality::{Quality, judge};

/// The longest side of a picture, at most: what is asked beyond it is drawn at this size.
pub const PICTURE_PX_MAX: u32 = 4_096;

/// A blank page may have a background, which is drawn as one or two areas.
const BLANK_PATHS_MAX: u32 = 2;

/// What is wanted of a page.
///
/// ```
/// use tidegate_pdf::Want;
/// let want = Want::text().and_picture(1_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub(crate) text: bool,
    pub(crate) picture: Option<PictureWant>,
}

/// The picture that is wanted of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PictureWant {
    /// The longest side.
    pub(crate) px: u32,
    pub(crate) usage: Use,
}

/// What a picture is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Use {
    /// A model looks at it: exact, and always the same bytes.
    Ask,
    /// People look at it: small.
    Show,
}

impl Want {
    /// Its text.
    #[must_use]
    pub fn text() -> Want {
        Want { text: true, picture: None }
    }

    /// Its picture, `px` pixels on the longest side (at least 16, at most [`PICTURE_PX_MAX`]): a PNG of 24 bits per pixel.
    #[must_use]
    pub fn picture(px: u32) -> Want {
        Want { text: false, picture: Some(PictureWant { px, usage: Use::Ask }) }
    }

    /// Its picture to look at, as small as possible: a PNG with a palette or in grey where the page allows it, or a lossless
    /// WebP where that is smaller. A page of letters and lines has 32 levels per channel; a page with a photograph or a
    /// gradient is exact.
    ///
    /// ```
    /// use tidegate_pdf::Want;
    /// let want = Want::small_picture(1_000);
    /// ```
    #[must_use]
    pub fn small_picture(px: u32) -> Want {
        Want { text: false, picture: Some(PictureWant { px, usage: Use::Show }) }
    }

    /// Its text, too.
    #[must_use]
    pub fn and_text(self) -> Want {
        Want { text: true, ..self }
    }

    /// Its picture, too.
    #[must_use]
    pub fn and_picture(self, px: u32) -> Want {
        Want { picture: Some(PictureWant { px, usage: Use::Ask }), ..self }
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

impl Page {
    /// Returns `true` if there is nothing on the page: nothing was found in its content, and its picture has one colour.
    /// A page of which the text or the picture was not wanted, or with a font or an image that cannot be drawn, is not
    /// called blank: it may have ink that is not in the picture.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.warnings.is_empty()
            && self.text.as_ref().is_some_and(PageText::may_be_blank)
            && self.picture.as_ref().is_some_and(|picture| picture.one_colour)
    }
}

/// A page's text, and how far it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageText {
    /// In reading order; a blank line between paragraphs.
    pub text: String,
    /// How many glyphs were drawn.
    pub glyphs: u32,
    /// How many of them have no known character; they are not in the text.
    pub unknown: u32,
    /// How many pictures were drawn: a page of one picture and no text is a scan.
    pub images: u32,
    /// How many lines and areas were drawn.
    pub paths: u32,
}

impl PageText {
    /// What it is worth.
    #[must_use]
    pub fn quality(&self) -> Quality {
        judge(&self.text, self.glyphs, self.unknown)
    }

    /// Returns `true` if the page may be blank: no text, no image, no glyph without a character, and no drawing beyond a
    /// background. Only its picture can tell for certain: see [`Page::is_blank`].
    #[must_use]
    pub fn may_be_blank(&self) -> bool {
        self.text.trim().is_empty() && self.unknown == 0 && self.images == 0 && self.paths <= BLANK_PATHS_MAX
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
    /// Of the bytes.
    pub format: Format,
    /// The file, without transparency.
    pub bytes: Vec<u8>,
    /// Whether all of its pixels are equal: there is no ink on it.
    pub one_colour: bool,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Picture { width, height, format, bytes, one_colour } = self;
        f.debug_struct("Picture")
            .field("width", width)
            .field("height", height)
            .field("format", format)
            .field("bytes", &bytes.len())
            .field("one_colour", one_colour)
            .finish()
    }
}

/// The format of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Format {
    /// PNG.
    Png,
    /// WebP, lossless.
    WebP,
}

impl Format {
    /// The end of a file's name, without the dot.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::WebP => "webp",
        }
    }

    /// The media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Png => "image/png",
            Format::WebP => "image/webp",
        }
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
    /// Some glyphs have no character: the font does not say which. They are in the picture, and not in the text.
    GlyphsUnknown,
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
            Warning::GlyphsUnknown => {
                f.write_str("a font does not say which characters some of its glyphs are; the text lacks them")
            }
            Warning::ImageUnusable => {
                f.write_str("an image in the file cannot be decoded; it is missing in the picture")
            }
            Warning::TextCut { glyphs } => write!(f, "only the first {glyphs} glyphs of the page were read"),
        }
    }
}
