//! Bounds on what a server may send. The scanner finds the end of a reply before the codec sees it: the codec recurses per level
//! of nesting and keeps what it is sent, so depth, size and element counts must be checked first.
//!
//! It is a loop over a stack of fixed size, without I/O and without allocations. It continues where it stopped, so a reply that
//! arrives in many pieces is scanned once.

use std::fmt;

/// Levels of arrays, maps, sets, pushes and attributes. Redis' own replies have three or four.
pub(crate) const DEPTH_MAX: usize = 16;

/// Elements of one reply. A decoded element takes about 50 times the memory of the shortest encoded one, so the bound on bytes
/// alone is not enough.
pub(crate) const ELEMENTS_MAX: u64 = 256 * 1024;

/// The shortest element is a type and a line end, as in `_\r\n`.
const ELEMENT_BYTES_MIN: u64 = 3;

/// Digits of a length. More of them cannot be within any bound.
const LENGTH_DIGITS_MAX: usize = 19;

/// Why a reply is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyError {
    /// More levels than [`DEPTH_MAX`].
    Depth,
    /// More bytes than allowed, announced or received.
    Bytes { max: usize },
    /// More elements than [`ELEMENTS_MAX`], or than fit into the bytes that are left.
    Elements { announced: u64 },
    /// A length that is not a number.
    Length(String),
    /// A streamed string or aggregate (`$?`, `*?`), which Redis does not send.
    Streamed,
    /// No type of RESP3.
    Type(u8),
    /// No line end after a string of announced length.
    LineEnd,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplyError::Depth => write!(f, "it is nested deeper than {DEPTH_MAX} levels"),
            ReplyError::Bytes { max } => write!(f, "it is larger than {max} bytes"),
            ReplyError::Elements { announced } => write!(f, "it announces {announced} elements, more than allowed"),
            ReplyError::Length(text) => write!(f, "{text:?} is not a length"),
            ReplyError::Streamed => f.write_str("streamed types are not supported"),
            ReplyError::Type(byte) => write!(f, "'{}' is not a type of RESP3", byte.escape_ascii()),
            ReplyError::LineEnd => f.write_str("a string is longer than announced"),
        }
    }
}

/// Finds the end of one reply after the other.
#[derive(Debug)]
pub(crate) struct Scanner {
    /// Bytes that one reply may have.
    bytes_max: usize,
    /// Start of the first element that is not complete, from the start of the reply.
    at: usize,
    /// The end of a line is not before this position.
    searched: usize,
    /// Elements that each open aggregate still needs; only the first `depth` are used.
    open: [u64; DEPTH_MAX],
    depth: usize,
    /// Elements announced so far, the reply itself included.
    announced: u64,
    /// Elements announced and not complete; for an aggregate its header counts.
    owed: u64,
}

/// What an element's header says.
enum Element {
    /// It ends here.
    Leaf { end: usize },
    /// Its header ends here, and `elements` follow.
    Aggregate { end: usize, elements: u64 },
}

impl Scanner {
    pub(crate) fn new(bytes_max: usize) -> Scanner {
        Scanner { bytes_max, at: 0, searched: 0, open: [0; DEPTH_MAX], depth: 0, announced: 1, owed: 1 }
    }

    /// Returns the length of the reply that `bytes` begins with, or `None` while it is not complete: then it must be called
    /// again with the same bytes and more behind them.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
        loop {
            let Some(element) = self.element(bytes)? else {
                // All of it belongs to this reply.
                return if bytes.len() >= self.bytes_max { Err(self.too_large()) } else { Ok(None) };
            };
            self.owed -= 1;
            match element {
                Element::Aggregate { end, elements } => {
                    self.begin(end, elements)?;
                    if elements > 0 {
                        continue;
                    }
                }
                Element::Leaf { end } if end > self.bytes_max => return Err(self.too_large()),
                Element::Leaf { end } => self.at = end,
            }
            if self.is_complete() {
                let length = self.at;
                (self.at, self.searched, self.announced, self.owed) = (0, 0, 1, 1);
                return Ok(Some(length));
            }
        }
    }

    /// Reads the element at `at`; `None` while it has not arrived.
    fn element(&mut self, bytes: &[u8]) -> Result<Option<Element>, ReplyError> {
        let Some(kind) = bytes.get(self.at) else { return Ok(None) };
        match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' | b'.' => {
                Ok(self.line_end(bytes).map(|end| Element::Leaf { end }))
            }
            b'$' | b'!' | b'=' | b';' => {
                let Some((length, end)) = self.length(bytes)? else { return Ok(None) };
                match (kind, length) {
                    // The end of a streamed string has no content.
                    (b';', 0) => return Ok(Some(Element::Leaf { end })),
                    // Three letters and a colon come first.
                    (b'=', 0..4) => return Err(ReplyError::Length(length.to_string())),
                    _ => {}
                }
                if length.saturating_add(end as u64 + 2) > self.bytes_max as u64 {
                    return Err(self.too_large());
                }
                let end = end + length as usize + 2;
                match bytes.get(end - 2..end) {
                    Some(b"\r\n") => Ok(Some(Element::Leaf { end })),
                    Some(_) => Err(ReplyError::LineEnd),
                    None => Ok(None),
                }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let Some((length, end)) = self.length(bytes)? else { return Ok(None) };
                let elements = match kind {
                    b'%' => length.saturating_mul(2),
                    // The element that the attributes are about comes behind them.
                    b'|' => length.saturating_mul(2).saturating_add(1),
                    _ => length,
                };
                Ok(Some(Element::Aggregate { end, elements }))
            }
            other => Err(ReplyError::Type(*other)),
        }
    }

    /// Opens an aggregate whose header ends at `end`.
    fn begin(&mut self, end: usize, elements: u64) -> Result<(), ReplyError> {
        if self.depth == DEPTH_MAX {
            return Err(ReplyError::Depth);
        }
        if end > self.bytes_max {
            return Err(self.too_large());
        }
        self.announced = self.announced.saturating_add(elements);
        self.owed = self.owed.saturating_add(elements);
        let left = (self.bytes_max - end) as u64;
        if self.announced > ELEMENTS_MAX || self.owed > left / ELEMENT_BYTES_MIN {
            return Err(ReplyError::Elements { announced: self.announced });
        }
        self.at = end;
        if elements > 0 {
            self.open[self.depth] = elements;
            self.depth += 1;
        }
        Ok(())
    }

    /// Counts an element that is complete, and the aggregates that end with it. Returns `true` if the reply does.
    fn is_complete(&mut self) -> bool {
        while self.depth > 0 {
            let innermost = &mut self.open[self.depth - 1];
            *innermost -= 1;
            if *innermost > 0 {
                return false;
            }
            self.depth -= 1;
        }
        true
    }

    /// The position behind the line of the element at `at`.
    fn line_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let first = self.at + 1;
        let mut from = self.searched.max(first);
        while let Some(found) = bytes.get(from..)?.iter().position(|byte| *byte == b'\n') {
            let end = from + found;
            if end > first && bytes[end - 1] == b'\r' {
                return Some(end + 1);
            }
            from = end + 1;
        }
        self.searched = bytes.len();
        None
    }

    /// The length that the element at `at` announces, and the position behind it.
    fn length(&mut self, bytes: &[u8]) -> Result<Option<(u64, usize)>, ReplyError> {
        let first = self.at + 1;
        let mut length = 0_u64;
        for (count, byte) in bytes[first..].iter().enumerate() {
            match byte {
                b'0'..=b'9' if count < LENGTH_DIGITS_MAX => length = length * 10 + u64::from(byte - b'0'),
                b'\r' if count > 0 => {
                    return match bytes.get(first + count + 1) {
                        Some(b'\n') => Ok(Some((length, first + count + 2))),
                        Some(_) => Err(not_a_length(&bytes[first..])),
                        None => Ok(None),
                    };
                }
                b'?' if count == 0 => return Err(ReplyError::Streamed),
                _ => return Err(not_a_length(&bytes[first..])),
            }
        }
        Ok(None)
    }

    fn too_large(&self) -> ReplyError {
        ReplyError::Bytes { max: self.bytes_max }
    }
}

fn not_a_length(bytes: &[u8]) -> ReplyError {
    let end = bytes.iter().take(LENGTH_DIGITS_MAX + 1).take_while(|byte| !byte.is_ascii_control()).count();
    ReplyError::Length(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use redis_protocol::resp3::decode::complete::decode;

    use super::*;

    const BYTES_MAX: usize = 4096;

    fn scan(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
        Scanner::new(BYTES_MAX).scan(bytes)
    }

    #[test]
    fn every_type_ends_where_the_codec_ends_it() {
        for reply in [
            "+OK\r\n",
            "+a\rb\nc\r\n",
            "+\r\n",
            "-ERR no\r\n",
            ":-12\r\n",
            "_\r\n",
            ",1.5\r\n",
            ",inf\r\n",
            "#t\r\n",
            "(3492890328409238509324850943850943825024385\r\n",
            "$5\r\na\r\nbc\r\n",
            "$0\r\n\r\n",
            "!9\r\nERR no\r\n!\r\n",
            "=7\r\ntxt:abc\r\n",
            "=4\r\nmkd:\r\n",
            "*0\r\n",
            "*2\r\n*0\r\n*1\r\n:1\r\n",
            "~2\r\n:1\r\n:2\r\n",
            ">2\r\n+message\r\n+x\r\n",
            "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
            "|1\r\n+ttl\r\n:3600\r\n*1\r\n:1\r\n",
            "*1\r\n|1\r\n+ttl\r\n:3600\r\n:1\r\n",
            "|0\r\n:1\r\n",
            ";3\r\nabc\r\n",
            ";0\r\n",
            ".\r\n",
        ] {
            let (_, length) = decode(reply.as_bytes()).unwrap().unwrap_or_else(|| panic!("{reply:?} is not complete"));
            assert_eq!(length, reply.len(), "{reply:?}");
            assert_eq!(scan(reply.as_bytes()), Ok(Some(length)), "{reply:?}");
            let followed = format!("{reply}+next\r\n");
            assert_eq!(scan(followed.as_bytes()), Ok(Some(length)), "{followed:?}");
            for end in 0..reply.len() {
                assert_eq!(scan(&reply.as_bytes()[..end]), Ok(None), "{:?}", &reply[..end]);
            }
        }
    }

    #[test]
    fn depth_is_bounded_for_every_aggregate() {
        for header in ["*1\r\n", "~1\r\n", ">1\r\n", "%1\r\n", "|0\r\n", "|1\r\n"] {
            let nested = |depth: usize| format!("{}:1\r\n", header.repeat(depth));
            assert!(scan(nested(DEPTH_MAX).as_bytes()).is_ok(), "{header:?}");
            assert_eq!(scan(nested(DEPTH_MAX + 1).as_bytes()), Err(ReplyError::Depth), "{header:?}");
        }
        // What is closed again does not count.
        let wide = format!("*100\r\n{}", "*1\r\n:1\r\n".repeat(100));
        assert_eq!(scan(wide.as_bytes()), Ok(Some(wide.len())));
        let last = format!("{}*0\r\n", "*1\r\n".repeat(DEPTH_MAX - 1));
        assert_eq!(scan(last.as_bytes()), Ok(Some(last.len())));
    }

    #[test]
    fn a_length_is_refused_when_it_is_announced() {
        let too_large = Err(ReplyError::Bytes { max: BYTES_MAX });
        for kind in ["$", "!", "=", ";"] {
            for length in ["4000000000", "9223372036854775807", "9999999999999999999", "4090"] {
                assert_eq!(scan(format!("{kind}{length}\r\n").as_bytes()), too_large, "{kind}{length}");
            }
            assert_eq!(scan(format!("{kind}4088\r\n").as_bytes()), too_large, "{kind}");
            assert_eq!(scan(format!("{kind}4087\r\n").as_bytes()), Ok(None), "{kind}");
        }
        let largest = format!("$4087\r\n{}\r\n", "x".repeat(4087));
        assert_eq!((largest.len(), scan(largest.as_bytes())), (BYTES_MAX, Ok(Some(BYTES_MAX))));
        // Several strings count together.
        assert_eq!(scan(format!("*2\r\n$2048\r\n{}\r\n$2048\r\n", "x".repeat(2048)).as_bytes()), too_large);
    }

    #[test]
    fn a_line_is_refused_when_it_is_too_long() {
        for kind in ["+", "-", ":", "(", ",", "_", "#", "."] {
            let line = format!("{kind}{}", "1".repeat(BYTES_MAX));
            assert_eq!(scan(&line.as_bytes()[..BYTES_MAX - 1]), Ok(None), "{kind}");
            assert_eq!(scan(line.as_bytes()), Err(ReplyError::Bytes { max: BYTES_MAX }), "{kind}");
            let complete = format!("{line}\r\n");
            assert_eq!(scan(complete.as_bytes()), Err(ReplyError::Bytes { max: BYTES_MAX }), "{kind}");
        }
    }

    #[test]
    fn element_counts_are_bounded_by_the_bytes_that_are_left() {
        for (header, announced) in [
            ("*1000000000\r\n", 1_000_000_001),
            ("~1365\r\n", 1366),
            (">1365\r\n", 1366),
            ("%683\r\n", 1367),
            ("|683\r\n", 1368),
            ("*9999999999999999999\r\n", 10_000_000_000_000_000_000),
            ("%9999999999999999999\r\n", u64::MAX),
            ("*1000\r\n*400\r\n", 1401),
        ] {
            assert_eq!(scan(header.as_bytes()), Err(ReplyError::Elements { announced }), "{header:?}");
        }
        let most = format!("*1363\r\n{}", "_\r\n".repeat(1363));
        assert_eq!(scan(most.as_bytes()), Ok(Some(most.len())));
        // Whatever fits into the bytes.
        let mut scanner = Scanner::new(usize::MAX);
        let many = format!("*{ELEMENTS_MAX}\r\n");
        assert_eq!(scanner.scan(many.as_bytes()), Err(ReplyError::Elements { announced: ELEMENTS_MAX + 1 }));
    }

    #[test]
    fn what_is_not_resp3_is_named() {
        let length = |text: &str| ReplyError::Length(text.to_owned());
        for (bytes, error) in [
            ("HTTP/1.1 400 Bad Request\r\n", ReplyError::Type(b'H')),
            ("HELLO 3\r\n", ReplyError::Type(b'H')),
            ("\r\n", ReplyError::Type(b'\r')),
            ("*2\r\n:1\r\nx", ReplyError::Type(b'x')),
            ("$?\r\n", ReplyError::Streamed),
            ("*?\r\n", ReplyError::Streamed),
            ("$-1\r\n", length("-1")),
            ("*+1\r\n", length("+1")),
            ("*\r\n", length("")),
            ("*1\n", length("1")),
            ("*1\rx", length("1")),
            ("$0000000000000000000000000", length(&"0".repeat(LENGTH_DIGITS_MAX + 1))),
            ("=3\r\ntxt\r\n", length("3")),
            ("$1\r\nabc", ReplyError::LineEnd),
        ] {
            assert_eq!(scan(bytes.as_bytes()), Err(error), "{bytes:?}");
        }
        assert_eq!(ReplyError::Type(b'\r').to_string(), r"'\r' is not a type of RESP3");
        assert_eq!(ReplyError::Depth.to_string(), "it is nested deeper than 16 levels");
    }

    #[test]
    fn random_bytes_neither_panic_nor_pass_what_the_codec_reads_differently() {
        const LETTERS: &[u8] = b"+-:_,#(.$!=;*~>%|0123456789?\r\n\r\n\r\ntxt: ";
        for seed in tidegate_seeds::seeds(50_000) {
            let mut random = fastrand::Rng::with_seed(seed);
            let length = random.usize(..64);
            let mut bytes = Vec::new();
            while bytes.len() < length {
                match random.u8(..4) {
                    0 => bytes.push(random.u8(..)),
                    1 => bytes.extend_from_slice(b"\r\n"),
                    _ => bytes.push(LETTERS[random.usize(..LETTERS.len())]),
                }
            }
            let found = scan(&bytes);
            // The codec may still refuse what stands in a line, as in `:x`.
            if let Ok(Some(end)) = found
                && let Ok(decoded) = decode(&bytes[..end])
            {
                assert_eq!(decoded.map(|(_, end)| end), Some(end), "seed {seed}: {bytes:?}");
            }
            // In pieces it ends the same way.
            let mut scanner = Scanner::new(BYTES_MAX);
            let first = (0..=bytes.len()).map(|end| scanner.scan(&bytes[..end])).find(|found| *found != Ok(None));
            match (first.unwrap_or(Ok(None)), found) {
                (Err(ReplyError::Length(_)), Err(ReplyError::Length(_))) => {}
                (pieces, whole) => assert_eq!(pieces, whole, "seed {seed}: {bytes:?}"),
            }
        }
    }
}
