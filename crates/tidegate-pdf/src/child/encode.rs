//! Pixels as the bytes of a picture file: exact for a provider, small for people. Pure.

use std::collections::HashMap;

use image_webp::{EncoderParams, WebPEncoder};
use png::{BitDepth, ColorType, Compression, Encoder, EncodingError, Filter};

use crate::page::Format;

/// Levels per channel of a small picture without gradients: a channel differs by 4 of 255 at most.
const LEVELS: u32 = 32;
/// Two neighbours that differ by this much, or less, are part of a gradient.
const STEP_MAX: u8 = 12;
/// A page with a greater part of such pixels, as one divided by this, has a photograph or a gradient. Letters have a third of it.
const GRADIENT_PART: usize = 12;

/// Returns a PNG of 24 bits per pixel. Its bytes are part of the key under which an answer is kept: a change here would make
/// answers that were paid for unknown.
pub(super) fn exact(width: u32, height: u32, rgb: &[u8]) -> Result<Vec<u8>, EncodingError> {
    png(width, height, rgb, ColorType::Rgb, BitDepth::Eight, &[], Compression::Fast, Filter::Adaptive)
}

/// Returns a picture to look at, as small as it can be made in a few milliseconds. A page of letters and lines has a palette of
/// 32 levels per channel; photographs and gradients stay as they are.
pub(super) fn small(width: u32, height: u32, rgb: &[u8]) -> Result<(Format, Vec<u8>), EncodingError> {
    let palette = |level: fn(u8) -> u8| Palette::of(rgb, level);
    let indexed = |palette: Palette| palette.encode(width, height).map(|bytes| (Format::Png, bytes));
    let has_gradients = has_gradients(width, rgb);
    if !has_gradients && let Some(palette) = palette(level) {
        return indexed(palette);
    }
    if rgb.chunks_exact(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]) {
        let grey: Vec<u8> = rgb.chunks_exact(3).map(|pixel| pixel[0]).collect();
        let encode = |filter| {
            png(width, height, &grey, ColorType::Grayscale, BitDepth::Eight, &[], Compression::Balanced, filter)
        };
        return Ok((Format::Png, smaller(encode(Filter::Adaptive)?, encode(Filter::NoFilter)?)));
    }
    if let Some(palette) = palette(|channel| channel) {
        return indexed(palette);
    }
    let (depth, compression) = (BitDepth::Eight, Compression::Balanced);
    let png = png(width, height, rgb, ColorType::Rgb, depth, &[], compression, Filter::Adaptive)?;
    let webp = [true, false].into_iter().filter_map(|predict| webp(width, height, rgb, predict)).reduce(smaller);
    Ok(match webp {
        Some(webp) if webp.len() < png.len() => (Format::WebP, webp),
        _ => (Format::Png, png),
    })
}

fn smaller(a: Vec<u8>, b: Vec<u8>) -> Vec<u8> {
    if b.len() < a.len() { b } else { a }
}

/// The nearest of the levels.
fn level(channel: u8) -> u8 {
    let steps = LEVELS - 1;
    let nearest = (u32::from(channel) * steps + 127) / 255;
    ((nearest * 255 + steps / 2) / steps) as u8
}

fn has_gradients(width: u32, rgb: &[u8]) -> bool {
    let row = 3 * width as usize;
    let is_step = |at: usize, from: usize| {
        let step = (0..3).map(|channel| rgb[at + channel].abs_diff(rgb[from + channel])).max();
        step.is_some_and(|step| (1..=STEP_MAX).contains(&step))
    };
    let pixels = rgb.len() / 3;
    let steps = (row + 3..rgb.len()).step_by(3).filter(|&at| is_step(at, at - 3) || is_step(at, at - row)).count();
    steps > pixels / GRADIENT_PART
}

/// A picture of at most 256 colours.
struct Palette {
    /// In the order in which they occur, three bytes each.
    colours: Vec<u8>,
    /// A byte per pixel.
    indices: Vec<u8>,
}

impl Palette {
    /// Returns `None` if there are too many colours.
    fn of(rgb: &[u8], level: fn(u8) -> u8) -> Option<Palette> {
        let mut known: HashMap<[u8; 3], u8> = HashMap::new();
        let mut palette = Palette { colours: Vec::new(), indices: Vec::with_capacity(rgb.len() / 3) };
        // Most pixels are like the one before.
        let mut last: Option<(&[u8], u8)> = None;
        for pixel in rgb.chunks_exact(3) {
            let index = match last {
                Some((same, index)) if same == pixel => index,
                _ => {
                    let colour = [level(pixel[0]), level(pixel[1]), level(pixel[2])];
                    match known.get(&colour) {
                        Some(&index) => index,
                        None => {
                            let index = u8::try_from(known.len()).ok()?;
                            known.insert(colour, index);
                            palette.colours.extend(colour);
                            index
                        }
                    }
                }
            };
            last = Some((pixel, index));
            palette.indices.push(index);
        }
        Some(palette)
    }

    fn encode(&self, width: u32, height: u32) -> Result<Vec<u8>, EncodingError> {
        let (depth, bits) = match self.colours.len() / 3 {
            0..=2 => (BitDepth::One, 1),
            3..=4 => (BitDepth::Two, 2),
            5..=16 => (BitDepth::Four, 4),
            _ => (BitDepth::Eight, 8),
        };
        let per_byte = 8 / bits;
        let pack = |pixels: &[u8]| {
            let place = |at: usize| 8 - bits * (at + 1);
            pixels.iter().enumerate().fold(0, |byte, (at, index)| byte | index << place(at))
        };
        let rows = self.indices.chunks_exact(width as usize);
        let packed: Vec<u8> = rows.flat_map(|row| row.chunks(per_byte).map(pack)).collect();
        let (compression, filter) = (Compression::Balanced, Filter::NoFilter);
        png(width, height, &packed, ColorType::Indexed, depth, &self.colours, compression, filter)
    }
}

#[expect(clippy::too_many_arguments, reason = "the fields of a PNG's head, once each")]
fn png(
    width: u32,
    height: u32,
    pixels: &[u8],
    colour: ColorType,
    depth: BitDepth,
    palette: &[u8],
    compression: Compression,
    filter: Filter,
) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, width, height);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    if colour == ColorType::Indexed {
        encoder.set_palette(palette);
    }
    encoder.set_compression(compression);
    encoder.set_filter(filter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Returns a lossless WebP, or nothing if the format does not allow these sides.
fn webp(width: u32, height: u32, rgb: &[u8], predict: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = WebPEncoder::new(&mut bytes);
    let mut params = EncoderParams::default();
    params.use_predictor_transform = predict;
    encoder.set_params(params);
    encoder.encode(rgb, width, height, image_webp::ColorType::Rgb8).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use png::{Decoder, Transformations};

    use super::*;

    const SIDE: u32 = 96;

    fn picture(pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
        (0..SIDE * SIDE).flat_map(|at| pixel(at % SIDE, at / SIDE)).collect()
    }

    /// The file's kind of colours, and its pixels as RGB.
    fn read(format: Format, bytes: &[u8]) -> (Option<ColorType>, Vec<u8>) {
        if format == Format::WebP {
            let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).unwrap();
            let mut pixels = vec![0; decoder.output_buffer_size().unwrap()];
            decoder.read_image(&mut pixels).unwrap();
            return (None, pixels);
        }
        let mut decoder = Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let colour = reader.info().color_type;
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        if reader.output_color_type().0 == ColorType::Grayscale {
            pixels = pixels.into_iter().flat_map(|grey| [grey; 3]).collect();
        }
        (Some(colour), pixels)
    }

    /// Strokes with soft edges, some of them blue.
    fn letters(x: u32, y: u32) -> [u8; 3] {
        let ink = [0, 90, 255, 140, 0, 0, 0, 0, 0, 0, 0, 0][(x % 12) as usize];
        let paper = 255 - if y % 16 < 10 { ink } else { 0 };
        if y > 60 { [paper, paper, 255] } else { [paper; 3] }
    }

    #[test]
    fn a_page_of_letters_has_a_palette_and_looks_the_same() {
        for side in [SIDE, SIDE - 3] {
            let rgb: Vec<u8> = (0..side * SIDE).flat_map(|at| letters(at % side, at / side)).collect();
            let (format, bytes) = small(side, SIDE, &rgb).unwrap();
            let (colour, pixels) = read(format, &bytes);
            assert_eq!((format, colour), (Format::Png, Some(ColorType::Indexed)));
            let farthest = rgb.iter().zip(&pixels).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(farthest <= Some(4) && pixels.len() == rgb.len(), "{farthest:?}");
            assert!(bytes.len() * 3 < exact(side, SIDE, &rgb).unwrap().len());
        }
        assert_eq!([0, 255].map(level), [0, 255], "paper stays white, ink black");
    }

    #[test]
    fn gradients_and_photographs_stay_exact() {
        let noise = |x: u32, y: u32| (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)) as u8 % 9;
        let grey = picture(|x, y| [(x + y) as u8; 3]);
        let few = picture(|x, _| [x as u8, 0, 0]);
        let photograph = picture(|x, y| [(2 * x) as u8 + noise(x, y), (x + y) as u8, (2 * y) as u8 + noise(y, x)]);
        for (rgb, expected) in [(grey, Some(ColorType::Grayscale)), (few, Some(ColorType::Indexed)), (photograph, None)]
        {
            let (format, bytes) = small(SIDE, SIDE, &rgb).unwrap();
            let (colour, pixels) = read(format, &bytes);
            assert_eq!(colour, expected, "no colour type: WebP, which is smaller than PNG here");
            assert!(pixels == rgb, "{expected:?}: a pixel differs");
        }
    }

    #[test]
    fn two_colours_need_a_bit_per_pixel() {
        let rgb = picture(|x, y| if (x / 8 + y / 8) % 2 == 0 { [0; 3] } else { [255; 3] });
        let (format, bytes) = small(SIDE, SIDE, &rgb).unwrap();
        assert_eq!(Decoder::new(Cursor::new(&bytes)).read_info().unwrap().info().bit_depth, BitDepth::One);
        assert!(read(format, &bytes).1 == rgb);
    }
}
