//! RESP3: commands as bytes, answers as values. The codec is `redis-protocol`'s; it does not show.

use std::fmt;

use redis_protocol::resp3::decode::complete::decode;
use redis_protocol::resp3::types::OwnedFrame;

/// A command: its name and its arguments, as they go over the wire.
///
/// ```
/// use tidegate_redis::Command;
/// let command = Command::new("SET").arg("key").arg("value").arg("PX").arg_int(5_000);
/// # let _ = command;
/// ```
#[derive(Clone)]
pub struct Command {
    /// All arguments, each with its length in front.
    body: Vec<u8>,
    count: usize,
}

impl Command {
    /// A command of this name, without arguments yet.
    #[must_use]
    pub fn new(name: &str) -> Command {
        Command { body: Vec::with_capacity(64), count: 0 }.arg(name)
    }

    /// The same with one more argument, any bytes.
    #[must_use]
    pub fn arg(mut self, value: impl AsRef<[u8]>) -> Command {
        self.push(value.as_ref());
        self
    }

    /// The same with a number.
    #[must_use]
    pub fn arg_int(mut self, value: i64) -> Command {
        self.push_int(value);
        self
    }

    /// Arguments without a name in front.
    pub(crate) fn arguments() -> Command {
        Command { body: Vec::with_capacity(256), count: 0 }
    }

    /// The same with all the parts of another one behind.
    pub(crate) fn followed_by(mut self, other: &Command) -> Command {
        self.body.extend_from_slice(&other.body);
        self.count += other.count;
        self
    }

    pub(crate) fn push(&mut self, value: &[u8]) {
        self.count += 1;
        push_header(&mut self.body, b'$', value.len());
        self.body.extend_from_slice(value);
        self.body.extend_from_slice(b"\r\n");
    }

    pub(crate) fn push_int(&mut self, value: i64) {
        let mut digits = [0; 20];
        let from = write_digits(&mut digits, value.unsigned_abs());
        self.count += 1;
        push_header(&mut self.body, b'$', digits.len() - from + usize::from(value < 0));
        if value < 0 {
            self.body.push(b'-');
        }
        self.body.extend_from_slice(&digits[from..]);
        self.body.extend_from_slice(b"\r\n");
    }

    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        push_header(out, b'*', self.count);
        out.extend_from_slice(&self.body);
    }
}

/// Without the arguments: one may be a password.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("count", &self.count).finish_non_exhaustive()
    }
}

fn push_header(out: &mut Vec<u8>, kind: u8, count: usize) {
    let mut digits = [0; 20];
    let from = write_digits(&mut digits, count as u64);
    out.push(kind);
    out.extend_from_slice(&digits[from..]);
    out.extend_from_slice(b"\r\n");
}

/// Right-aligned; where they begin.
fn write_digits(digits: &mut [u8; 20], mut value: u64) -> usize {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return at;
        }
    }
}

/// What Redis answers with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// There is none.
    Null,
    /// A number.
    Int(i64),
    /// A number with a fraction.
    Double(f64),
    /// Yes or no.
    Bool(bool),
    /// Text or bytes, long or short.
    Bytes(Vec<u8>),
    /// Several: a list or a set; a map as its keys and values in turn.
    Array(Vec<Value>),
    /// A refusal within an answer, in Redis' words.
    Error(String),
}

impl Value {
    /// The number, if it is one, or text that says one.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The bytes, if it is some.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// What it is, for a message that must not repeat it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Int(_) | Value::Double(_) => "a number",
            Value::Bool(_) => "a truth value",
            Value::Bytes(_) => "text",
            Value::Array(_) => "a list",
            Value::Error(_) => "an error",
        }
    }
}

/// One thing that came in.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// To the oldest command without one.
    Answer(Value),
    /// Told unasked: a message of a channel.
    Push(Vec<Value>),
}

/// What is first in `bytes`, and how long it is; nothing while it is not complete.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Incoming, usize)>, String> {
    let Some((frame, length)) = decode(bytes).map_err(|error| error.to_string())? else { return Ok(None) };
    let incoming = match frame {
        OwnedFrame::Push { data, .. } => Incoming::Push(data.into_iter().map(value).collect()),
        frame => Incoming::Answer(value(frame)),
    };
    Ok(Some((incoming, length)))
}

fn value(frame: OwnedFrame) -> Value {
    match frame {
        OwnedFrame::Null | OwnedFrame::Hello { .. } => Value::Null,
        OwnedFrame::Number { data, .. } => Value::Int(data),
        OwnedFrame::Double { data, .. } => Value::Double(data),
        OwnedFrame::Boolean { data, .. } => Value::Bool(data),
        OwnedFrame::BlobString { data, .. }
        | OwnedFrame::SimpleString { data, .. }
        | OwnedFrame::BigNumber { data, .. }
        | OwnedFrame::VerbatimString { data, .. }
        | OwnedFrame::ChunkedString(data) => Value::Bytes(data),
        OwnedFrame::BlobError { data, .. } => Value::Error(String::from_utf8_lossy(&data).into_owned()),
        OwnedFrame::SimpleError { data, .. } => Value::Error(data),
        OwnedFrame::Array { data, .. } | OwnedFrame::Push { data, .. } => {
            Value::Array(data.into_iter().map(value).collect())
        }
        OwnedFrame::Set { data, .. } => Value::Array(data.into_iter().map(value).collect()),
        OwnedFrame::Map { data, .. } => {
            Value::Array(data.into_iter().flat_map(|(key, of)| [value(key), value(of)]).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(command: &Command) -> String {
        let mut out = Vec::new();
        command.write_to(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        assert_eq!(bytes_of(&Command::new("PING")), "*1\r\n$4\r\nPING\r\n");
        let command = Command::new("INCRBY").arg("k").arg_int(-70);
        assert_eq!(bytes_of(&command), "*3\r\n$6\r\nINCRBY\r\n$1\r\nk\r\n$3\r\n-70\r\n");
        assert!(bytes_of(&Command::new("X").arg_int(i64::MIN)).contains("$20\r\n-9223372036854775808\r\n"));
    }

    #[test]
    fn values_nothings_and_errors_are_read() {
        for (text, expected) in [
            ("_\r\n", Value::Null),
            (":-5\r\n", Value::Int(-5)),
            ("+OK\r\n", Value::Bytes(b"OK".to_vec())),
            ("$0\r\n\r\n", Value::Bytes(Vec::new())),
            ("-OOM no\r\n", Value::Error("OOM no".to_owned())),
            ("*2\r\n:1\r\n*0\r\n", Value::Array(vec![Value::Int(1), Value::Array(Vec::new())])),
        ] {
            let expected = Some((Incoming::Answer(expected), text.len()));
            assert_eq!(read(text.as_bytes()).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_not_complete_waits_for_more() {
        let whole = b"*2\r\n$3\r\nabc\r\n:7\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]).unwrap(), None, "{end}");
        }
    }

    #[test]
    fn a_message_is_not_an_answer() {
        let text = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";
        let Some((Incoming::Push(parts), _)) = read(text).unwrap() else { panic!() };
        assert_eq!(parts[2], Value::Bytes(b"m".to_vec()));
    }
}
