//! Decompresses gzip piece by piece, without I/O and with bounded output.

use bytes::{Buf, Bytes};
use flate2::{Crc, Decompress, FlushDecompress, Status};

/// The longest gzip header accepted. It may contain a file name and a comment.
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// A decoder of one stream. The stream may consist of several members (RFC 1952), and zeros after a member are padding.
pub(crate) struct Gunzip {
    state: GunzipState,
    inflate: Decompress,
    crc: Crc,
}

enum GunzipState {
    /// In a header, with its bytes so far.
    Header(Vec<u8>),
    Deflated,
    /// In checksum and length, with their bytes so far.
    Trailer(Vec<u8>),
    /// After a member.
    Between,
}

const TRAILER_BYTES: usize = 8;

impl Gunzip {
    pub(crate) fn new() -> Gunzip {
        Gunzip { state: GunzipState::Header(Vec::new()), inflate: Decompress::new(false), crc: Crc::new() }
    }

    /// Consumes `input`, fills `output` and returns the number of bytes written. Zero means that all input was consumed and
    /// more is needed.
    pub(crate) fn pull(&mut self, input: &mut Bytes, output: &mut [u8]) -> Result<usize, &'static str> {
        loop {
            match &mut self.state {
                GunzipState::Header(head) => {
                    let had = head.len();
                    head.extend_from_slice(&input[..input.len().min(HEADER_BYTES_MAX + 1 - had)]);
                    match header_length(head)? {
                        Some(length) => {
                            input.advance(length - had);
                            self.inflate.reset(false);
                            self.crc.reset();
                            self.state = GunzipState::Deflated;
                        }
                        None if head.len() > HEADER_BYTES_MAX => return Err("its gzip header has no end"),
                        None => {
                            input.advance(input.len());
                            return Ok(0);
                        }
                    }
                }
                GunzipState::Deflated => {
                    let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
                    let status = self
                        .inflate
                        .decompress(input, output, FlushDecompress::None)
                        .map_err(|_| "its gzip data is damaged")?;
                    input.advance((self.inflate.total_in() - before_in) as usize);
                    let produced = (self.inflate.total_out() - before_out) as usize;
                    self.crc.update(&output[..produced]);
                    if status == Status::StreamEnd {
                        self.state = GunzipState::Trailer(Vec::with_capacity(TRAILER_BYTES));
                    }
                    if produced > 0 {
                        return Ok(produced);
                    }
                    if status != Status::StreamEnd && input.is_empty() {
                        return Ok(0);
                    }
                }
                GunzipState::Trailer(tail) => {
                    let missing = input.len().min(TRAILER_BYTES - tail.len());
                    tail.extend_from_slice(&input.split_to(missing));
                    if tail.len() < TRAILER_BYTES {
                        return Ok(0);
                    }
                    let mut tail = &tail[..];
                    if tail.get_u32_le() != self.crc.sum() || tail.get_u32_le() != self.crc.amount() {
                        return Err("its gzip checksum does not match");
                    }
                    self.state = GunzipState::Between;
                }
                GunzipState::Between => {
                    while input.first() == Some(&0) {
                        input.advance(1);
                    }
                    if input.is_empty() {
                        return Ok(0);
                    }
                    self.state = GunzipState::Header(Vec::new());
                }
            }
        }
    }

    /// Whether the input may end here.
    pub(crate) fn may_end(&self) -> bool {
        match &self.state {
            GunzipState::Between => true,
            // An empty body, as in a response to HEAD or a 304.
            GunzipState::Header(head) => head.is_empty(),
            GunzipState::Deflated | GunzipState::Trailer(_) => false,
        }
    }
}

/// Returns the length of the header at the start of `head`, or `None` if it is incomplete.
fn header_length(head: &[u8]) -> Result<Option<usize>, &'static str> {
    const HAS_CRC: u8 = 2;
    const HAS_EXTRA: u8 = 4;
    const HAS_NAME: u8 = 8;
    const HAS_COMMENT: u8 = 16;
    const FIXED: usize = 10;

    let magic = [0x1f, 0x8b, 8];
    if !magic.starts_with(&head[..head.len().min(3)]) {
        return Err("it is not gzip, although its header says so");
    }
    let Some(flags) = head.get(3) else { return Ok(None) };
    let mut at = FIXED;
    if flags & HAS_EXTRA != 0 {
        let Some(length) = head.get(at..at + 2) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    for text in [HAS_NAME, HAS_COMMENT] {
        if flags & text != 0 {
            let Some(end) = head.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0)) else {
                return Ok(None);
            };
            at += end + 1;
        }
    }
    if flags & HAS_CRC != 0 {
        at += 2;
    }
    Ok((head.len() >= at).then_some(at))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use flate2::{Compression, GzBuilder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    /// Feeds `packed` in pieces of `piece` bytes and reads with a buffer of `room`.
    fn unpack(packed: &[u8], piece: usize, room: usize) -> Result<Vec<u8>, &'static str> {
        let mut gunzip = Gunzip::new();
        let mut plain = Vec::new();
        let mut output = vec![0; room];
        for piece in packed.chunks(piece) {
            let mut input = Bytes::copy_from_slice(piece);
            loop {
                let n = gunzip.pull(&mut input, &mut output)?;
                plain.extend_from_slice(&output[..n]);
                if n == 0 {
                    assert!(input.is_empty());
                    break;
                }
            }
        }
        if gunzip.may_end() { Ok(plain) } else { Err("broke off") }
    }

    #[test]
    fn any_split_of_input_and_output_gives_the_same() {
        let plain: Vec<u8> = (0..50_000u32).flat_map(|n| (n % 251).to_le_bytes()).collect();
        let packed = gzip(&plain);
        for (piece, room) in [(1, 1 << 16), (7, 13), (1000, 4096), (1 << 20, 100)] {
            assert!(unpack(&packed, piece, room).unwrap() == plain, "pieces of {piece}, room for {room}");
        }
    }

    #[test]
    fn every_optional_header_field_is_skipped_and_members_follow_each_other() {
        let mut first = GzBuilder::new()
            .filename("a name")
            .comment("a comment")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), Compression::fast());
        first.write_all(b"one ").unwrap();
        let mut packed = first.finish().unwrap();
        packed.extend(gzip(b"two"));
        packed.extend([0; 5]);
        for piece in [1, 3, 1000] {
            assert_eq!(unpack(&packed, piece, 64).unwrap(), b"one two");
        }
    }

    #[test]
    fn damage_is_noticed() {
        let good = gzip(b"some text that is long enough to be worth packing, packing, packing");
        assert!(unpack(b"plain text", 100, 64).is_err());
        assert!(unpack(&good[..good.len() - 1], 100, 64).is_err());
        assert!(unpack(&good[..good.len() / 2], 100, 64).is_err());
        let mut flipped = good.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1;
        assert!(unpack(&flipped, 100, 64).is_err());
        let mut trailing = good.clone();
        trailing.extend(b"garbage");
        assert!(unpack(&trailing, 100, 64).is_err());
        let mut endless = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 0];
        endless.resize(100_000, b'x');
        assert!(unpack(&endless, 1000, 64).is_err());
    }

    #[test]
    fn bomb_unfolds_no_further_than_the_room_it_is_given() {
        let packed = gzip(&vec![0; 16 << 20]);
        assert!(packed.len() < 32_000);
        let mut input = Bytes::from(packed);
        let mut gunzip = Gunzip::new();
        let mut output = vec![0; 32 * 1024];
        let mut total = 0;
        loop {
            let n = gunzip.pull(&mut input, &mut output).unwrap();
            if n == 0 {
                break;
            }
            total += n;
        }
        assert_eq!(total, 16 << 20);
        assert!(gunzip.may_end());
    }

    #[test]
    fn what_was_flushed_comes_out_before_the_rest_arrives() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&[b'a'; 100_000]).unwrap();
        encoder.flush().unwrap();
        let mut input = Bytes::from(encoder.get_ref().clone());
        let mut gunzip = Gunzip::new();
        let mut output = vec![0; 1000];
        let mut total = 0;
        loop {
            match gunzip.pull(&mut input, &mut output).unwrap() {
                0 => break,
                n => total += n,
            }
        }
        assert_eq!(total, 100_000);
        assert!(!gunzip.may_end());
    }
}
