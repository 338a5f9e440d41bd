//! A page's picture.

use std::sync::{Arc, Mutex};

use hayro::hayro_interpret::{InterpreterSettings, InterpreterWarning};
use hayro::hayro_syntax::page::Page;
use hayro::vello_cpu::color::palette::css::WHITE;
use hayro::{PixmapSettings, RenderCache, RenderSettings, render};

use super::Drawn;
use super::encode;
use super::fonts::{self, Collection};
use crate::error::Fault;
use crate::page::{Format, PICTURE_PX_MAX, PictureWant, Use, Warning};
use crate::wire::PictureHead;

/// Neither side is smaller: a page of no width has a picture, too.
const SIDE_PX_MIN: u32 = 16;
/// The caches only grow, so a new one is made after this many pages.
const PAGES_PER_CACHE: u32 = 64;

/// Draws pictures, page after page.
pub(super) struct Pictures<'a> {
    cache: RenderCache<'a>,
    /// How many pages have used it.
    cached: u32,
    settings: InterpreterSettings,
    noted: Arc<Mutex<Vec<Warning>>>,
}

impl<'a> Pictures<'a> {
    pub(super) fn new(collection: Collection) -> Pictures<'a> {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let (sink, resolver) = (Arc::clone(&noted), Arc::clone(&noted));
        let settings = InterpreterSettings {
            warning_sink: Arc::new(move |warning| match warning {
                InterpreterWarning::UnsupportedFont => note(&sink, Warning::FontUnusable),
                InterpreterWarning::ImageDecodeFailure => note(&sink, Warning::ImageUnusable),
                _ => {}
            }),
            font_resolver: Arc::new(move |query| {
                fonts::resolve(query, &collection, |warning| note(&resolver, warning))
            }),
            ..InterpreterSettings::default()
        };
        Pictures { cache: RenderCache::new(), cached: 0, settings, noted }
    }

    pub(super) fn draw(
        &mut self,
        page: &'a Page<'a>,
        want: PictureWant,
        warnings: &mut Vec<Warning>,
    ) -> Result<Drawn, Fault> {
        if self.cached == PAGES_PER_CACHE {
            (self.cache, self.cached) = (RenderCache::new(), 0);
        }
        self.cached += 1;
        let (points_x, points_y) = page.render_dimensions();
        let (width, height) = size(points_x, points_y, want.px);
        let pixmap = PixmapSettings {
            // The library cuts off what is not a whole pixel.
            x_scale: (width as f32 + 0.01) / points_x,
            y_scale: (height as f32 + 0.01) / points_y,
            bg_color: WHITE,
        };
        let drawn = render(page, &self.cache, &self.settings, &RenderSettings::default(), &pixmap);
        for warning in self.noted.lock().map(|mut noted| std::mem::take(&mut *noted)).unwrap_or_default() {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let (width, height) = (u32::from(drawn.width()), u32::from(drawn.height()));
        let pixels = drawn.data_as_u8_slice();
        let one_colour = has_one_colour(pixels);
        let rgb = without_alpha(pixels);
        drop(drawn);
        let encoded = match want.usage {
            Use::Ask => encode::exact(width, height, &rgb).map(|bytes| (Format::Png, bytes)),
            Use::Show => encode::small(width, height, &rgb),
        };
        let (format, bytes) = encoded.map_err(|error| Fault::Panicked { message: error.to_string() })?;
        Ok((PictureHead { width, height, one_colour, format }, bytes))
    }
}

fn note(noted: &Mutex<Vec<Warning>>, warning: Warning) {
    if let Ok(mut noted) = noted.lock()
        && !noted.contains(&warning)
    {
        noted.push(warning);
    }
}

/// Pixels in both directions, the longest side `px`, whatever the page says of itself.
fn size(points_x: f32, points_y: f32, px: u32) -> (u32, u32) {
    let px = px.clamp(SIDE_PX_MIN, PICTURE_PX_MAX);
    let longest = points_x.max(points_y);
    let side = |points: f32| (((points / longest) * px as f32).round() as u32).clamp(SIDE_PX_MIN, px);
    (side(points_x), side(points_y))
}

/// Returns `true` if all pixels, of four bytes each, are equal.
fn has_one_colour(pixels: &[u8]) -> bool {
    pixels.get(..pixels.len().saturating_sub(4)) == pixels.get(4..)
}

/// Three bytes per pixel: on white paper nothing shines through.
fn without_alpha(pixels: &[u8]) -> Vec<u8> {
    pixels.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pixel_of_ink_is_a_second_colour() {
        let mut pixels = [255, 255, 255, 255].repeat(9);
        assert!(has_one_colour(&pixels));
        for at in [0, 17, 35] {
            pixels[at] = 254;
            assert!(!has_one_colour(&pixels), "byte {at}");
            pixels[at] = 255;
        }
    }

    #[test]
    fn a_picture_keeps_the_pages_shape_and_never_exceeds_what_was_asked() {
        assert_eq!(size(595.0, 842.0, 1000), (707, 1000));
        assert_eq!(size(842.0, 595.0, 1000), (1000, 707));
        assert_eq!(size(2.0, 200_000.0, 1000), (16, 1000));
        assert_eq!(size(200_000.0, 200_000.0, 9_999), (4_096, 4_096));
        assert_eq!(size(f32::NAN, f32::INFINITY, 100), (16, 16));
        assert_eq!(size(1.0, 1.0, 0), (16, 16));
    }
}
