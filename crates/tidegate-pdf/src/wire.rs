//! What parent and child say to each other: frames of a JSON head and a body of bytes, each with its length before it.
//! The parent trusts nothing that comes back: lengths are bounded before anything is allocated.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::Confinement;
use crate::error::Fault;
use crate::page::{Format, PICTURE_PX_MAX, PictureWant, Warning};

/// Two lengths of four bytes.
pub(crate) const PREFIX_BYTES: usize = 8;
const HEAD_BYTES_MAX: usize = 1 << 20;
/// The largest picture, uncompressed, with room for a page's text beside it.
const BODY_BYTES_MAX: usize = (PICTURE_PX_MAX * PICTURE_PX_MAX * 4) as usize + (32 << 20);

/// To the child, behind the files that it reads (see `files.rs`). No `Debug`: it has the password.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first: bounds and confines itself, then reads the file.
    Open {
        password: Option<String>,
        memory_bytes: u64,
        cpu: Duration,
    },
    Page {
        number: u32,
        text: bool,
        picture: Option<PictureWant>,
    },
}

/// From the child. The body of `Page` is the text, then the picture.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened {
        confinement: Confinement,
        pages: u32,
        title: Option<String>,
        warnings: Vec<Warning>,
    },
    Refused(Refusal),
    Page {
        text: Option<TextHead>,
        picture: Option<PictureHead>,
        warnings: Vec<Warning>,
        memory_bytes: u64,
    },
    /// The last: the child ends.
    Fault(Fault),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TextHead {
    pub(crate) bytes: usize,
    pub(crate) glyphs: u32,
    pub(crate) unknown: u32,
    pub(crate) images: u32,
    pub(crate) paths: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PictureHead {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) one_colour: bool,
    pub(crate) format: Format,
}

/// Why a document is not opened.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Unreadable { errno: Option<i32>, message: String },
    NotPdf,
    Empty,
    Encrypted { wrong: bool },
    Broken { why: String },
}

/// Lengths of head and body.
pub(crate) fn lengths(prefix: [u8; PREFIX_BYTES]) -> io::Result<(usize, usize)> {
    let [a, b, c, d, e, f, g, h] = prefix;
    let (head, body) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    if head > HEAD_BYTES_MAX || body > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is longer than any can be"));
    }
    Ok((head, body))
}

pub(crate) fn parse<T: DeserializeOwned>(head: &[u8]) -> io::Result<T> {
    // Never `UnexpectedEof`, which means that the other side is gone.
    serde_json::from_slice(head).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Everything but the body.
pub(crate) fn head(message: &impl Serialize, body_bytes: usize) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(message)?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + head.len());
    for length in [head.len(), body_bytes] {
        let length = u32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        frame.extend_from_slice(&length.to_le_bytes());
    }
    frame.extend_from_slice(&head);
    Ok(frame)
}

pub(crate) fn write(to: &mut impl Write, message: &impl Serialize, body: &[&[u8]]) -> io::Result<()> {
    to.write_all(&head(message, body.iter().map(|part| part.len()).sum())?)?;
    for part in body {
        to.write_all(part)?;
    }
    to.flush()
}

/// Nothing: the other side has closed.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut prefix = [0; PREFIX_BYTES];
    match from.read_exact(&mut prefix) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let (head_bytes, body_bytes) = lengths(prefix)?;
    let mut head = vec![0; head_bytes];
    from.read_exact(&mut head)?;
    let mut body = vec![0; body_bytes];
    from.read_exact(&mut body)?;
    Ok(Some((parse(&head)?, body)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Use;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let picture = Some(PictureWant { px: 9, usage: Use::Show });
        write(&mut bytes, &Request::Page { number: 3, text: true, picture }, &[b"ab", b"c"]).unwrap();
        let mut from = bytes.as_slice();
        let (request, body) = read::<Request>(&mut from).unwrap().unwrap();
        assert!(matches!(request, Request::Page { number: 3, text: true, picture: read } if read == picture));
        assert_eq!(body, b"abc");
        assert!(read::<Request>(&mut from).unwrap().is_none());
    }

    #[test]
    fn a_head_that_is_cut_off_is_not_taken_for_the_end_of_the_connection() {
        for head in [&b""[..], b"{\"Open\":", b"!"] {
            assert_eq!(parse::<Request>(head).err().unwrap().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_length_that_no_frame_has_is_refused() {
        assert!(read::<Request>(&mut [255; 64].as_slice()).is_err());
        assert!(lengths([0, 0, 0, 0, 255, 255, 255, 255]).is_err());
    }
}
