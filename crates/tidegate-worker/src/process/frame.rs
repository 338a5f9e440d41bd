//! Frames: a length of four bytes, the highest first, then as many bytes. No I/O.

use std::ops::Range;

/// Bytes before a frame's content.
pub(super) const HEADER: usize = 4;

/// What came in and was not yet taken out as frames.
#[derive(Debug)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    /// What lies before this was taken.
    start: usize,
    /// Content longer than this is refused as soon as its length is known, before any of it is kept.
    max: usize,
}

/// A frame that is longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong {
    pub(super) length: usize,
    pub(super) max: usize,
}

impl Frames {
    pub(super) fn new(max: usize) -> Frames {
        Frames { buffer: Vec::new(), start: 0, max }
    }

    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // One huge frame must not be paid for as long as the child lives.
            if self.buffer.capacity() > KEEP {
                self.buffer = Vec::new();
            }
        } else if self.start >= KEEP {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Where the next whole frame's content lies; it counts as taken.
    ///
    /// # Errors
    /// When it is too long. Nothing behind it can be found any more.
    pub(super) fn next(&mut self) -> Result<Option<Range<usize>>, TooLong> {
        let waiting = &self.buffer[self.start..];
        let Some(header) = waiting.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        if length > self.max {
            return Err(TooLong { length, max: self.max });
        }
        if waiting.len() < HEADER + length {
            return Ok(None);
        }
        let content = self.start + HEADER;
        self.start = content + length;
        Ok(Some(content..content + length))
    }

    /// The content that [`next`](Self::next) has found; valid until the next `push`.
    pub(super) fn content(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }
}

/// Memory that is kept between frames.
const KEEP: usize = 256 << 10;

/// Appends a frame whose content `write` appends.
///
/// # Errors
/// When the content is too long: then nothing was appended.
pub(super) fn append(output: &mut Vec<u8>, max: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), TooLong> {
    let start = output.len();
    output.extend_from_slice(&[0; HEADER]);
    write(output);
    let length = output.len() - start - HEADER;
    if length > max {
        output.truncate(start);
        return Err(TooLong { length, max });
    }
    let header = u32::try_from(length).expect("no longer than the limit, which fits").to_be_bytes();
    output[start..start + HEADER].copy_from_slice(&header);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        append(&mut output, 100, |output| output.extend_from_slice(content)).unwrap();
        output
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let sent: Vec<Vec<u8>> = vec![b"".to_vec(), b"a".to_vec(), vec![7; 100], b"end".to_vec()];
        let bytes: Vec<u8> = sent.iter().flat_map(|content| frame(content)).collect();
        for size in 1..=bytes.len() {
            let mut frames = Frames::new(100);
            let mut received = Vec::new();
            for piece in bytes.chunks(size) {
                frames.push(piece);
                while let Some(range) = frames.next().unwrap() {
                    received.push(frames.content(range).to_vec());
                }
            }
            assert_eq!(received, sent, "in pieces of {size}");
        }
    }

    #[test]
    fn a_frame_too_long_is_refused_by_its_length_alone() {
        let mut frames = Frames::new(100);
        frames.push(&101_u32.to_be_bytes());
        assert_eq!(frames.next(), Err(TooLong { length: 101, max: 100 }));
        let mut output = b"before".to_vec();
        let refused = append(&mut output, 2, |output| output.extend_from_slice(b"abc"));
        assert_eq!((refused, &*output), (Err(TooLong { length: 3, max: 2 }), &b"before"[..]));
    }

    #[test]
    fn memory_of_a_huge_frame_is_given_back() {
        let mut frames = Frames::new(10 * KEEP);
        let mut output = Vec::new();
        append(&mut output, 10 * KEEP, |output| output.resize(9 * KEEP, b' ')).unwrap();
        frames.push(&output);
        assert!(frames.next().unwrap().is_some());
        frames.push(b"\0\0\0\x01x");
        assert!(frames.next().unwrap().is_some());
        assert!(frames.buffer.capacity() <= KEEP);
    }
}
