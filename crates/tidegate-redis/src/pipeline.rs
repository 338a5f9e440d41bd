//! The order of commands and answers on one connection, without I/O: bytes in, events out.

use std::collections::VecDeque;

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
}

impl<T> Pipeline<T> {
    pub(crate) fn new() -> Pipeline<T> {
        Pipeline { asked: VecDeque::new(), incoming: Vec::new(), read: 0 }
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
        let Some((incoming, length)) = wire::read(&self.incoming[self.read..]).map_err(Garbled::Bytes)? else {
            self.incoming.drain(..self.read);
            self.read = 0;
            return Ok(None);
        };
        self.read += length;
        match incoming {
            Incoming::Push(parts) => Ok(Some(Event::Push(parts))),
            Incoming::Answer(value) => {
                let asker = self.asked.pop_front().ok_or(Garbled::Unasked)?;
                Ok(Some(Event::Answer(asker, value)))
            }
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// The connection is gone: those who will get no answer, in their order.
    pub(crate) fn unanswered(&mut self) -> impl Iterator<Item = T> + '_ {
        self.asked.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_commands_however_the_bytes_are_cut() {
        let stream = b":1\r\n>2\r\n+message\r\n+x\r\n$2\r\nab\r\n-ERR no\r\n";
        for size in 1..=stream.len() {
            let mut pipeline = Pipeline::new();
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
        let mut pipeline = Pipeline::<()>::new();
        pipeline.handle_bytes(b"+OK\r\n");
        assert_eq!(pipeline.poll_event(), Err(Garbled::Unasked));
        let mut pipeline = Pipeline::<()>::new();
        pipeline.handle_bytes(b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(pipeline.poll_event(), Err(Garbled::Bytes(_))));
    }

    #[test]
    fn who_gets_no_answer_is_named_in_order() {
        let mut pipeline = Pipeline::new();
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
