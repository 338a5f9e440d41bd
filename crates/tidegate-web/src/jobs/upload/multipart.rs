//! `multipart/form-data` without I/O: bytes in as they come, fields out piece by piece. Memory is bounded: a field's data is
//! handed out as it arrives, and a head longer than [`HEAD_BYTES_MAX`] is refused.

use std::fmt;

use memchr::memmem;

/// The longest head of a field: its two or three header lines.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Longer boundaries are not allowed (RFC 2046).
const BOUNDARY_BYTES_MAX: usize = 70;

/// What comes next in the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A field begins.
    Begin(Head),
    /// Some of its data.
    Data(Vec<u8>),
    /// The field is complete.
    End,
}

/// What a field says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The form's name for it.
    pub(crate) name: String,
    /// The name of the file, if it is one.
    pub(crate) file_name: Option<String>,
}

/// Why a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadMultipart {
    /// The content type names no usable boundary.
    Boundary,
    /// The head of a field is too long, or not a head.
    Head,
    /// The body ended within a field.
    Cut,
}

impl fmt::Display for BadMultipart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadMultipart::Boundary => "the upload is not multipart/form-data with a boundary; send it with a form",
            BadMultipart::Head => "a field of the upload has no valid header; send it with a form",
            BadMultipart::Cut => "the upload ended before its last file was complete; send it again",
        })
    }
}

impl std::error::Error for BadMultipart {}

/// Where in the body the parser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the first boundary.
    Preamble,
    /// Behind a boundary: a line end and a head follow, or `--`.
    Boundary,
    Data,
    /// Behind the last boundary.
    Over,
}

/// Reads a body with one boundary.
#[derive(Debug)]
pub(crate) struct Multipart {
    /// `\r\n--BOUNDARY`: what ends a field.
    delimiter: Vec<u8>,
    phase: Phase,
    /// Received and not handed out.
    buffer: Vec<u8>,
}

impl Multipart {
    /// Reads a body of this content type.
    pub(crate) fn new(content_type: &str) -> Result<Multipart, BadMultipart> {
        let (kind, parameters) = content_type.split_once(';').ok_or(BadMultipart::Boundary)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(BadMultipart::Boundary);
        }
        let boundary = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        });
        let boundary = boundary.filter(|it| !it.is_empty() && it.len() <= BOUNDARY_BYTES_MAX);
        let boundary = boundary.ok_or(BadMultipart::Boundary)?;
        // The first boundary has no line end before it; one is supplied.
        Ok(Multipart {
            delimiter: [b"\r\n--", boundary.as_bytes()].concat(),
            phase: Phase::Preamble,
            buffer: b"\r\n".to_vec(),
        })
    }

    /// Adds bytes that have come.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.phase != Phase::Over {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next piece; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, BadMultipart> {
        loop {
            match self.phase {
                Phase::Over => return Ok(None),
                Phase::Preamble => match memmem::find(&self.buffer, &self.delimiter) {
                    Some(at) => {
                        self.buffer.drain(..at + self.delimiter.len());
                        self.phase = Phase::Boundary;
                    }
                    None => {
                        self.hand_out();
                        return Ok(None);
                    }
                },
                Phase::Boundary => {
                    if self.buffer.len() < 2 {
                        return Ok(None);
                    }
                    if self.buffer.starts_with(b"--") {
                        self.buffer.clear();
                        self.phase = Phase::Over;
                        return Ok(None);
                    }
                    let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
                        return if self.buffer.len() > HEAD_BYTES_MAX { Err(BadMultipart::Head) } else { Ok(None) };
                    };
                    if end > HEAD_BYTES_MAX || !self.buffer.starts_with(b"\r\n") {
                        return Err(BadMultipart::Head);
                    }
                    let head = read_head(&self.buffer[2..end.max(2)]).ok_or(BadMultipart::Head)?;
                    self.buffer.drain(..end + 4);
                    self.phase = Phase::Data;
                    return Ok(Some(Piece::Begin(head)));
                }
                Phase::Data => {
                    if let Some(at) = memmem::find(&self.buffer, &self.delimiter) {
                        if at > 0 {
                            return Ok(Some(Piece::Data(self.buffer.drain(..at).collect())));
                        }
                        self.buffer.drain(..self.delimiter.len());
                        self.phase = Phase::Boundary;
                        return Ok(Some(Piece::End));
                    }
                    return Ok(self.hand_out().map(Piece::Data));
                }
            }
        }
    }

    /// Checks that the body came to its end.
    pub(crate) fn finish(&self) -> Result<(), BadMultipart> {
        if self.phase == Phase::Over { Ok(()) } else { Err(BadMultipart::Cut) }
    }

    /// Removes everything that cannot be the beginning of a delimiter.
    fn hand_out(&mut self) -> Option<Vec<u8>> {
        let safe = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        (safe > 0).then(|| self.buffer.drain(..safe).collect())
    }
}

fn read_head(bytes: &[u8]) -> Option<Head> {
    let text = String::from_utf8_lossy(bytes);
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim().to_owned())
    })?;
    let rest = disposition.strip_prefix("form-data").or_else(|| disposition.strip_prefix("Form-Data"))?;
    let mut head = Head::default();
    for (name, value) in parameters(rest) {
        match name.as_str() {
            "name" => head.name = value,
            "filename" => head.file_name = Some(value),
            _ => {}
        }
    }
    Some(head)
}

/// `; name="value"; …`: browsers write `"` in a value as `%22` (HTML), other clients as `\"`.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(tail) = rest.strip_prefix(';') {
        let Some((name, value)) = tail.split_once('=') else { break };
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => match value.split_once(';') {
                Some((value, _)) => (value.trim().to_owned(), &tail[name.len() + 1 + value.len()..]),
                None => (value.trim().to_owned(), ""),
            },
        };
        found.push((name.trim().to_ascii_lowercase(), value));
        rest = after.trim_start();
    }
    found
}

fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"), &text[at + 1..]),
            '\\' if text[at + 1..].starts_with(['"', '\\']) => {
                value.extend(characters.next().map(|(_, escaped)| escaped));
            }
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--XyZ\r\nContent-Disposition: form-data; name=\"files\"; filename=\"a.pdf\"\r\nContent-Type: application/pdf\r\n\r\n\
        %PDF-1\r\n--Xy\r\n-- \r\n--XyZ\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\n\r\n--XyZ\r\n\
        Content-Disposition: form-data; name=\"x\"; filename=\"a;b%22\\\"c.pdf\"\r\n\r\nyes\r\n--XyZ--\r\n";

    type Field = (String, Option<String>, Vec<u8>);

    fn read(body: &[u8], cut: usize) -> Result<Vec<Field>, BadMultipart> {
        let mut multipart = Multipart::new("multipart/form-data; charset=utf-8; boundary=\"XyZ\"").unwrap();
        let (mut fields, mut open): (Vec<Field>, Option<Field>) = (Vec::new(), None);
        for chunk in body.chunks(cut) {
            multipart.push(chunk);
            while let Some(piece) = multipart.next()? {
                match piece {
                    Piece::Begin(head) => open = Some((head.name, head.file_name, Vec::new())),
                    Piece::Data(data) => open.as_mut().unwrap().2.extend(data),
                    Piece::End => fields.extend(open.take()),
                }
            }
        }
        multipart.finish()?;
        Ok(fields)
    }

    #[test]
    fn fields_are_the_same_however_the_body_is_cut() {
        let expected = vec![
            ("files".to_owned(), Some("a.pdf".to_owned()), b"%PDF-1\r\n--Xy\r\n-- ".to_vec()),
            ("name".to_owned(), None, Vec::new()),
            ("x".to_owned(), Some("a;b\"\"c.pdf".to_owned()), b"yes".to_vec()),
        ];
        for cut in 1..=BODY.len() {
            assert_eq!(read(BODY, cut).as_ref(), Ok(&expected), "in pieces of {cut}");
        }
    }

    #[test]
    fn a_body_that_ends_early_is_refused_wherever_it_ends() {
        let complete = BODY.len() - 2; // the last line end belongs to nothing
        for len in 0..complete {
            assert!(read(&BODY[..len], 7).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn heads_and_memory_are_bounded() {
        let mut multipart = Multipart::new("multipart/form-data; boundary=b").unwrap();
        multipart.push(b"--b\r\nContent-Disposition: form-data; name=\"");
        multipart.push(&vec![b'x'; HEAD_BYTES_MAX]);
        assert_eq!(multipart.next(), Err(BadMultipart::Head));

        let mut multipart = Multipart::new("multipart/form-data; boundary=b").unwrap();
        multipart.push(b"--b\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n");
        assert!(matches!(multipart.next(), Ok(Some(Piece::Begin(_)))));
        for _ in 0..100 {
            multipart.push(&[b'\r'; 1000]);
            while multipart.next().unwrap().is_some() {}
            assert!(multipart.buffer.len() < 16, "{} bytes are held back", multipart.buffer.len());
        }
    }

    #[test]
    fn what_is_no_form_is_refused() {
        let long = format!("multipart/form-data; boundary={}", "b".repeat(71));
        for kind in [
            "text/plain",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/mixed; boundary=b",
            &long,
        ] {
            assert_eq!(Multipart::new(kind).map(|_| ()), Err(BadMultipart::Boundary), "{kind}");
        }
        assert_eq!(read(b"--XyZ\r\nContent-Type: text/plain\r\n\r\nx\r\n--XyZ--", 5), Err(BadMultipart::Head));
    }
}
