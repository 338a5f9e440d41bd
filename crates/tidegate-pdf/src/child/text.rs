//! A page's text: the interpreter draws, and we write down which glyph went where.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hayro::hayro_interpret::font::{Glyph, GlyphRun};
use hayro::hayro_interpret::hayro_cmap::{BfString, WritingMode};
use hayro::hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps, InterpreterCache,
    InterpreterSettings, InterpreterWarning, SoftMask, TransformExt, interpret_page,
};
use hayro::hayro_syntax::page::Page;
use hayro::kurbo::{BezPath, Point, Rect, Vec2};

use crate::layout::Glyphs;
use crate::page::Warning;
use crate::wire::TextHead;

/// Most glyphs on a page; a page with more is not readable text.
const GLYPHS_MAX: u32 = 1_000_000;
/// Glyphs are drawn in thousandths of an em.
const UNITS_PER_EM: f64 = 1000.0;
/// For a font that does not say how wide its glyphs are.
const ADVANCE: f32 = 500.0;

/// Reads texts, page after page, and remembers the document's fonts.
pub(super) struct Texts<'a> {
    cache: InterpreterCache<'a>,
    settings: InterpreterSettings,
    font_unusable: Arc<AtomicBool>,
}

impl<'a> Texts<'a> {
    pub(super) fn new() -> Texts<'a> {
        let font_unusable = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&font_unusable);
        let settings = InterpreterSettings {
            warning_sink: Arc::new(move |warning| {
                if matches!(warning, InterpreterWarning::UnsupportedFont) {
                    noted.store(true, Ordering::Relaxed);
                }
            }),
            ..InterpreterSettings::default()
        };
        Texts { cache: InterpreterCache::new(), settings, font_unusable }
    }

    pub(super) fn read(&mut self, page: &'a Page<'a>, warnings: &mut Vec<Warning>) -> (TextHead, String) {
        let (width, height) = page.render_dimensions();
        let area = Rect::new(0.0, 0.0, f64::from(width), f64::from(height));
        let transform = page.initial_transform(true).to_kurbo();
        let mut context = Context::new(transform, area, &self.cache, page.xref(), self.settings.clone());
        let mut collector = Collector::default();
        interpret_page(page, &mut context, &mut collector);
        if collector.glyphs > GLYPHS_MAX {
            warnings.push(Warning::TextCut { glyphs: GLYPHS_MAX });
        }
        if self.font_unusable.swap(false, Ordering::Relaxed) {
            warnings.push(Warning::FontUnusable);
        }
        if collector.unknown > 0 {
            warnings.push(Warning::GlyphsUnknown);
        }
        let text = collector.placed.read();
        let Collector { glyphs, unknown, images, paths, .. } = collector;
        (TextHead { bytes: text.len(), glyphs, unknown, images, paths }, text)
    }
}

#[derive(Default)]
struct Collector {
    placed: Glyphs,
    glyphs: u32,
    unknown: u32,
    images: u32,
    paths: u32,
}

impl Device<'_> for Collector {
    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, '_>, props: DrawProps<'_>, _: &DrawMode) {
        for glyph in run.glyphs() {
            self.glyphs = self.glyphs.saturating_add(1);
            if self.glyphs > GLYPHS_MAX {
                return;
            }
            let Some(text) = glyph.as_unicode() else {
                self.unknown += 1;
                continue;
            };
            let advance = match &**glyph {
                Glyph::Outline(outline) => outline.advance_width(),
                Glyph::Type3(type3) => type3.advance_width(),
            };
            let advance = match run.writing_mode() {
                WritingMode::Horizontal => Vec2::new(f64::from(advance.unwrap_or(ADVANCE)), 0.0),
                // Downwards, and ideographs are an em high.
                WritingMode::Vertical => Vec2::new(0.0, -UNITS_PER_EM),
            };
            let place = props.transform * glyph.transform();
            let origin = place * Point::ZERO;
            let end = place * advance.to_point() - origin;
            let up = place * Point::new(0.0, UNITS_PER_EM) - origin;
            let at = (origin.x as f32, origin.y as f32);
            let end = (end.x as f32, end.y as f32);
            let size = up.hypot() as f32;
            match &text {
                BfString::Char(c) => match ligature(*c) {
                    Some(letters) => self.placed.push(letters, at, end, size),
                    None => self.placed.push(plain(*c).encode_utf8(&mut [0; 4]), at, end, size),
                },
                BfString::String(letters) => self.placed.push(letters, at, end, size),
            }
        }
    }

    fn draw_image(&mut self, _: Image<'_, '_>, _: ImageDrawProps<'_>) {
        self.images = self.images.saturating_add(1);
    }

    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'_>, _: &DrawMode) {
        self.paths = self.paths.saturating_add(1);
    }

    fn draw_rect(&mut self, _: &Rect, _: DrawProps<'_>, _: &DrawMode) {
        self.paths = self.paths.saturating_add(1);
    }

    fn push_clip_path(&mut self, _: &ClipPath) {}
    fn push_clip_rect(&mut self, _: &Rect) {}
    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'_>>, _: BlendMode) {}
    fn pop_clip(&mut self) {}
    fn pop_transparency_group(&mut self) {}
}

/// Characters that look like another one and are not meant otherwise.
fn plain(c: char) -> char {
    match c {
        '\u{A0}' | '\u{2002}'..='\u{200A}' | '\t' | '\n' | '\r' => ' ',
        '\u{AD}' => '-',
        other => other,
    }
}

/// The letters that were joined for beauty.
fn ligature(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{FB00}' => "ff",
        '\u{FB01}' => "fi",
        '\u{FB02}' => "fl",
        '\u{FB03}' => "ffi",
        '\u{FB04}' => "ffl",
        '\u{FB05}' | '\u{FB06}' => "st",
        _ => return None,
    })
}
