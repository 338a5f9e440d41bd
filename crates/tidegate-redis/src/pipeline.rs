//! The order of commands and answers on one connection, without I/O: bytes in, events out.

use std::borrow::Cow;
use std::collections::VecDeque;

use tidegate_secret::Redactor;

use crate::scan::{ReplyError, Scanner};
use crate::wire::{self, Command, Incoming, Value};

/// What came of handing in bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Event<T> {
    /// To the command that was handed in with `T`.
    Answer(T, Value),
    /// Told unasked.
    Push(Vec<Value>),
}

/// Why a connection cannot be gone on with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Garbled {
    /// Not RESP.
    Bytes(String),
    /// A reply out of bounds, or not RESP.
    Reply(ReplyError),
    /// An answer to no command.
    Unasked,
}

/// One connection's commands, each with what its answer is for.
pub(crate) struct Pipeline<T> {
    /// Written, or about to be; Redis answers in this order.
    asked: VecDeque<T>,
    /// What has come in; everything before `read` is done with.
    incoming: Vec<u8>,
    read: usize,
    /// Has seen everything from `read` on; nothing is decoded before it.
    scanner: Scanner,
    /// Takes the password out of what Redis says in words: it may repeat what it was sent.
    redactor: Redactor,
}

impl<T> Pipeline<T> {
    /// A connection that is broken if a reply has more than `reply_bytes_max`.
    pub(crate) fn new(reply_bytes_max: usize, redactor: Redactor) -> Pipeline<T> {
        let scanner = Scanner::new(reply_bytes_max);
        Pipeline { asked: VecDeque::new(), incoming: Vec::new(), read: 0, scanner, redactor }
    }

    /// Appends a command to what is to be written.
    pub(crate) fn submit(&mut self, command: &Command, asker: T, out: &mut Vec<u8>) {
        command.write_to(out);
        self.asked.push_back(asker);
    }

    pub(crate) fn handle_bytes(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// The next thing that is complete.
    pub(crate) fn poll_event(&mut self) -> Result<Option<Event<T>>, Garbled> {
        let bytes = &self.incoming[self.read..];
        let Some(length) = self.scanner.scan(bytes).map_err(Garbled::Reply)? else {
            self.incoming.drain(..self.read);
            self.read = 0;
            return Ok(None);
        };
        let garbled = |reason: String| Garbled::Bytes(self.redactor.redact(&reason).into_owned());
        let incoming = match wire::read(&bytes[..length]).map_err(garbled)? {
            Some((incoming, read)) if read == length => incoming,
            _ => return Err(Garbled::Bytes("the end of a reply is unclear".to_owned())),
        };
        self.read += length;
        match incoming {
            Incoming::Push(parts) => Ok(Some(Event::Push(parts))),
            Incoming::Answer(mut value) => {
                redact_errors(&mut value, &self.redactor);
                let asker = self.asked.pop_front().ok_or(Garbled::Unasked)?;
                Ok(Some(Event::Answer(asker, value)))
            }
        }
    }

    /// What the oldest command without an answer was handed in with.
    pub(crate) fn oldest(&self) -> Option<&T> {
        self.asked.front()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// The connection is gone: those who will get no answer, in their order.
    pub(crate) fn unanswered(&mut self) -> impl Iterator<Item = T> + '_ {
        self.asked.drain(..)
    }
}

/// Values are data and stay as they are.
fn redact_errors(value: &mut Value, redactor: &Redactor) {
    match value {
        Value::Error(reason) => {
            if let Cow::Owned(clean) = redactor.redact(reason) {
                *reason = clean;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| redact_errors(value, redactor)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::ELEMENTS_MAX;

    const BYTES_MAX: usize = 64 * 1024;

    #[test]
    fn answers_come_in_the_order_of_commands_however_the_bytes_are_cut() {
        let stream = b":1\r\n>2\r\n+message\r\n+x\r\n$2\r\nab\r\n-ERR no\r\n";
        for size in 1..=stream.len() {
            let mut pipeline = Pipeline::new(BYTES_MAX, Redactor::default());
            let mut out = Vec::new();
            for name in ["a", "b", "c"] {
                pipeline.submit(&Command::new(name), name, &mut out);
            }
            let mut seen = Vec::new();
            for piece in stream.chunks(size) {
                pipeline.handle_bytes(piece);
                while let Some(event) = pipeline.poll_event().unwrap() {
                    seen.push(event);
                }
            }
            let text = |text: &str| Value::Bytes(text.into());
            let expected = [
                Event::Answer("a", Value::Int(1)),
                Event::Push(vec![text("message"), text("x")]),
                Event::Answer("b", text("ab")),
                Event::Answer("c", Value::Error("ERR no".to_owned())),
            ];
            assert_eq!(seen, expected, "in pieces of {size}");
            assert_eq!(pipeline.in_flight(), 0);
        }
    }

    #[test]
    fn an_answer_to_nothing_and_bytes_that_are_no_protocol_end_it() {
        let mut pipeline = Pipeline::<()>::new(BYTES_MAX, Redactor::default());
        pipeline.handle_bytes(b"+OK\r\n");
        assert_eq!(pipeline.poll_event(), Err(Garbled::Unasked));
        let mut pipeline = Pipeline::<()>::new(BYTES_MAX, Redactor::default());
        pipeline.handle_bytes(b"HTTP/1.1 400 Bad Request\r\n");
        assert_eq!(pipeline.poll_event(), Err(Garbled::Reply(ReplyError::Type(b'H'))));
        let mut pipeline = Pipeline::<()>::new(BYTES_MAX, Redactor::default());
        pipeline.handle_bytes(b":x\r\n");
        assert!(matches!(pipeline.poll_event(), Err(Garbled::Bytes(_))));
    }

    /// A reply that the codec accepts; `key`: one that may be an element of a set.
    fn reply(random: &mut fastrand::Rng, depth: usize, key: bool, out: &mut Vec<u8>) {
        let text: Vec<u8> = (0..random.usize(..12)).map(|_| *random.choice(b"ab\r\n$*: ").unwrap()).collect();
        let plain = random.alphanumeric();
        match random.u8(..if key || depth == 0 { 9 } else { 14 }) {
            0 => out.extend(format!("+{plain}\r\n").bytes()),
            1 => out.extend(format!("-ERR {plain}\r\n").bytes()),
            2 => out.extend(format!(":{}\r\n", random.i64(..)).bytes()),
            3 => out.extend(format!(",{}\r\n", random.i32(..)).bytes()),
            4 => out.extend(format!("#{}\r\n", random.choice(['t', 'f']).unwrap()).bytes()),
            5 if !key => out.extend(format!("({}\r\n", random.u128(..)).bytes()),
            6 if !key => out.extend(format!("=5\r\ntxt:{plain}\r\n").bytes()),
            7 if !key => out.extend(format!("!5\r\nERR {plain}\r\n").bytes()),
            5..=8 => {
                out.extend(format!("${}\r\n", text.len()).bytes());
                out.extend(text);
                out.extend(b"\r\n");
            }
            kind => {
                let count = random.usize(..4);
                let pairs = matches!(kind, 9 | 10);
                out.extend(format!("{}{count}\r\n", ['%', '|', '~', '*', '*'][usize::from(kind - 9)]).bytes());
                for _ in 0..count {
                    if pairs {
                        // A number of its own: which one of equal keys is kept is not defined.
                        let key = out.len();
                        out.extend(format!(":{key}\r\n").bytes());
                    }
                    reply(random, depth - 1, kind == 11, out);
                }
                if kind == 10 {
                    out.extend(b":1\r\n");
                }
            }
        }
    }

    #[test]
    fn random_replies_cut_at_every_byte_are_decoded_as_in_one_piece() {
        for seed in tidegate_seeds::seeds(1_000) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = Vec::new();
            reply(&mut random, 4, false, &mut bytes);
            let Some((Incoming::Answer(expected), length)) = wire::read(&bytes).unwrap() else {
                panic!("seed {seed}: {bytes:?}")
            };
            assert_eq!(length, bytes.len(), "seed {seed}: {bytes:?}");
            let whole = sorted(expected);
            let mut out = Vec::new();
            for cut in 1..=bytes.len() {
                let mut pipeline = Pipeline::new(BYTES_MAX, Redactor::default());
                pipeline.submit(&Command::new("A"), (), &mut out);
                pipeline.handle_bytes(&bytes[..cut]);
                if cut < bytes.len() {
                    assert_eq!(pipeline.poll_event(), Ok(None), "seed {seed}: {bytes:?} at {cut}");
                    pipeline.handle_bytes(&bytes[cut..]);
                }
                let Ok(Some(Event::Answer((), value))) = pipeline.poll_event() else {
                    panic!("seed {seed}: {bytes:?} cut at {cut}")
                };
                assert_eq!(sorted(value), whole, "seed {seed}: {bytes:?} cut at {cut}");
            }
        }
    }

    /// All parts in an order of their own: the codec's maps and sets have none.
    fn sorted(value: Value) -> Vec<String> {
        let mut parts = match value {
            Value::Array(parts) => parts.into_iter().flat_map(sorted).collect(),
            value => vec![format!("{value:?}")],
        };
        parts.sort();
        parts
    }

    #[test]
    fn a_reply_out_of_bounds_ends_it_before_it_is_kept() {
        for (reply, error) in [
            ("*1\r\n".repeat(6_000), ReplyError::Depth),
            ("$4000000000\r\n".to_owned(), ReplyError::Bytes { max: BYTES_MAX }),
            (format!("*{ELEMENTS_MAX}\r\n"), ReplyError::Elements { announced: ELEMENTS_MAX + 1 }),
        ] {
            let mut pipeline = Pipeline::new(BYTES_MAX, Redactor::default());
            pipeline.submit(&Command::new("A"), (), &mut Vec::new());
            pipeline.handle_bytes(reply.as_bytes());
            assert_eq!(pipeline.poll_event(), Err(Garbled::Reply(error)));
        }
        let mut pipeline = Pipeline::new(BYTES_MAX, Redactor::default());
        pipeline.submit(&Command::new("A"), (), &mut Vec::new());
        pipeline.handle_bytes(b"+");
        let mut kept = 1;
        while pipeline.poll_event() == Ok(None) {
            pipeline.handle_bytes(&[b'x'; 1024]);
            kept += 1024;
            assert!(kept <= BYTES_MAX + 1024, "{kept} bytes are kept");
        }
    }

    #[test]
    fn who_gets_no_answer_is_named_in_order() {
        let mut pipeline = Pipeline::new(BYTES_MAX, Redactor::default());
        let mut out = Vec::new();
        for asker in 0..3 {
            pipeline.submit(&Command::new("PING"), asker, &mut out);
        }
        pipeline.handle_bytes(b"+PONG\r\n+PO");
        assert!(matches!(pipeline.poll_event(), Ok(Some(Event::Answer(0, _)))));
        assert_eq!(pipeline.poll_event(), Ok(None));
        assert_eq!(pipeline.unanswered().collect::<Vec<_>>(), [1, 2]);
    }
}
