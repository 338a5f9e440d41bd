//! Bytes: where a frame ends, the frames that come and go by the thousand written by hand, all others by amq-protocol.
//! `wire_tests.rs` holds the two codecs against each other.

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic};

use crate::acks::{AckFrame, Settle};

pub(crate) const METHOD: u8 = 1;
pub(crate) const HEADER: u8 = 2;
pub(crate) const BODY: u8 = 3;
pub(crate) const HEARTBEAT: u8 = 8;
const END: u8 = 0xCE;

/// Type, channel, length; the payload; the end.
pub(crate) const OVERHEAD: usize = 8;

const BASIC: u16 = 60;

/// Deepest nesting of tables. amq-protocol's parser recurses, and a frame has room for enough levels
/// to run out of stack.
const DEPTH_MAX: u32 = 32;

/// Largest header frame that is read. A message's properties come in one frame, whatever was agreed: RabbitMQ adds `x-death` to
/// those of a message that filled its frame, and its producer may have agreed on larger frames.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// What is wrong with bytes that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The peer answered with a protocol header: it speaks another version, or does not like ours.
    OtherVersion([u8; 3]),
    /// Not AMQP at all, or a frame that contradicts itself.
    Malformed(&'static str),
}

/// One frame as it lies in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) channel: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) whole: &'a [u8],
}

/// The first frame of `input`, or `None` while it is incomplete.
#[inline]
pub(crate) fn split(input: &[u8], frame_max: usize) -> Result<Option<Frame<'_>>, Fault> {
    let Some((head, rest)) = input.split_first_chunk::<7>() else {
        return match input.first() {
            None | Some(&(METHOD | HEADER | BODY | HEARTBEAT | b'A')) => Ok(None),
            Some(_) => Err(Fault::Malformed("it does not speak AMQP 0-9-1 on this port")),
        };
    };
    if !matches!(head[0], METHOD | HEADER | BODY | HEARTBEAT) {
        return match input {
            [b'A', b'M', b'Q', b'P', _, rest @ ..] => match rest.first_chunk::<3>() {
                Some(version) => Err(Fault::OtherVersion(*version)),
                None => Ok(None),
            },
            _ => Err(Fault::Malformed("it does not speak AMQP 0-9-1 on this port")),
        };
    }
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    let bytes_max = if head[0] == HEADER { frame_max.max(HEADER_BYTES_MAX) } else { frame_max };
    if length > bytes_max - OVERHEAD {
        return Err(Fault::Malformed("a frame is larger than was agreed"));
    }
    let Some((payload, [end, ..])) = rest.split_at_checked(length) else { return Ok(None) };
    if *end != END {
        return Err(Fault::Malformed("a frame does not end where it says"));
    }
    let whole = &input[..length + OVERHEAD];
    Ok(Some(Frame { kind: head[0], channel: u16::from_be_bytes([head[1], head[2]]), payload, whole }))
}

/// `basic.deliver`, by hand.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Deliver<'a> {
    pub(crate) consumer: &'a [u8],
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: &'a [u8],
    pub(crate) routing_key: &'a [u8],
}

/// A method the session meets by the thousand.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hot<'a> {
    Deliver(Deliver<'a>),
    /// Or `basic.nack`, if `!acked`: from a broker, both are confirms.
    Confirm {
        tag: u64,
        multiple: bool,
        acked: bool,
    },
}

pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn skip(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    #[inline]
    pub(crate) fn short_string(&mut self) -> Option<&'a [u8]> {
        let [length] = self.take()?;
        self.skip(length.into())
    }

    pub(crate) fn long(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.take()?);
        self.skip(length as usize)
    }
}

/// `None`: not one of these; ask amq-protocol.
#[inline]
pub(crate) fn hot(payload: &[u8]) -> Option<Hot<'_>> {
    let mut cursor = Cursor(payload);
    let [class, method] = {
        let head = u32::from_be_bytes(cursor.take()?);
        [(head >> 16) as u16, head as u16]
    };
    let hot = match (class, method) {
        (BASIC, 60) => {
            let consumer = cursor.short_string()?;
            let tag = u64::from_be_bytes(cursor.take()?);
            let [bits] = cursor.take()?;
            let exchange = cursor.short_string()?;
            let routing_key = cursor.short_string()?;
            Hot::Deliver(Deliver { consumer, tag, redelivered: bits & 1 != 0, exchange, routing_key })
        }
        (BASIC, 80 | 120) => {
            let tag = u64::from_be_bytes(cursor.take()?);
            let [bits] = cursor.take()?;
            Hot::Confirm { tag, multiple: bits & 1 != 0, acked: method == 80 }
        }
        _ => return None,
    };
    cursor.0.is_empty().then_some(hot)
}

/// A content header: the body's length, and the properties as they came.
#[inline]
pub(crate) fn content_header(payload: &[u8]) -> Option<(u64, &[u8])> {
    let mut cursor = Cursor(payload);
    let class = u16::from_be_bytes(cursor.take()?);
    let _weight: [u8; 2] = cursor.take()?;
    let length = u64::from_be_bytes(cursor.take()?);
    (class == BASIC && cursor.0.len() >= 2).then_some((length, cursor.0))
}

/// Everything else.
pub(crate) fn method(frame: &Frame<'_>) -> Result<AMQPClass, Fault> {
    const UNREADABLE: Fault = Fault::Malformed("a method cannot be read");
    // The one method of a broker's that carries a table.
    if let [0, 10, 0, 10, _, _, table @ ..] = frame.payload
        && !table_is_shallow(table)
    {
        return Err(UNREADABLE);
    }
    match parse_frame(frame.whole) {
        Ok((_, AMQPFrame::Method(_, method))) => Ok(method),
        _ => Err(UNREADABLE),
    }
}

/// The properties of a message, from their flags on.
pub(crate) fn properties(raw: &[u8]) -> Option<BasicProperties> {
    if let Some(table) = headers_within(raw)?
        && !table_is_shallow(table)
    {
        return None;
    }
    match basic::parse_properties(raw) {
        Ok(([], properties)) => Some(properties),
        _ => None,
    }
}

/// From where the headers' table starts, if there is one.
fn headers_within(raw: &[u8]) -> Option<Option<&[u8]>> {
    let mut cursor = Cursor(raw);
    let flags = u16::from_be_bytes(cursor.take()?);
    for bit in [15, 14] {
        if flags & (1 << bit) != 0 {
            cursor.short_string()?;
        }
    }
    Some((flags & (1 << 13) != 0).then_some(cursor.0))
}

fn table_is_shallow(input: &[u8]) -> bool {
    Cursor(input).long().is_some_and(|table| check_fields(table, true).is_some())
}

/// Whether fields can be read to their end, and how deep they nest.
pub(crate) fn check_fields(fields: &[u8], named: bool) -> Option<()> {
    check_within(fields, named, DEPTH_MAX)
}

fn check_within(fields: &[u8], named: bool, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut cursor = Cursor(fields);
    while !cursor.0.is_empty() {
        if named {
            let name = cursor.short_string()?;
            if !name.is_ascii() {
                std::str::from_utf8(name).ok()?;
            }
        }
        let [kind] = cursor.take()?;
        let width = match kind {
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'D' => 5,
            b'V' => 0,
            b'S' | b'x' => {
                cursor.long()?;
                continue;
            }
            b'F' | b'A' => {
                check_within(cursor.long()?, kind == b'F', depth)?;
                continue;
            }
            _ => return None,
        };
        cursor.skip(width)?;
    }
    Some(())
}

/// Appends a method of which there are few.
pub(crate) fn put_method(out: &mut Vec<u8>, channel: u16, class: AMQPClass) {
    put_frame(out, &AMQPFrame::Method(channel, class));
}

pub(crate) fn put_frame(out: &mut Vec<u8>, frame: &AMQPFrame) {
    let context = WriteContext::from(std::mem::take(out));
    match gen_frame(frame)(context) {
        Ok(written) => *out = written.into_inner().0,
        Err(error) => unreachable!("writing to memory cannot fail: {error}"),
    }
}

pub(crate) fn put_protocol_header(out: &mut Vec<u8>) {
    out.extend_from_slice(b"AMQP\0\0\x09\x01");
}

pub(crate) fn put_heartbeat(out: &mut Vec<u8>) {
    out.extend_from_slice(&[HEARTBEAT, 0, 0, 0, 0, 0, 0, END]);
}

/// `basic.ack`, or `basic.nack`.
#[inline]
pub(crate) fn put_ack(out: &mut Vec<u8>, channel: u16, frame: AckFrame) {
    let (method, bits) = match frame.settle {
        Settle::Ack => (80, u8::from(frame.multiple)),
        Settle::Requeue => (120, u8::from(frame.multiple) | 2),
        Settle::Reject => (120, u8::from(frame.multiple)),
    };
    let [high, low] = channel.to_be_bytes();
    out.extend_from_slice(&[METHOD, high, low, 0, 0, 0, 13, 0, BASIC as u8, 0, method]);
    out.extend_from_slice(&frame.tag.to_be_bytes());
    out.extend_from_slice(&[bits, END]);
}

/// `basic.publish`, its header and its body, cut to the agreed size of frames. `properties` are encoded, from their flags on.
#[expect(clippy::too_many_arguments, reason = "it is the frame, field by field")]
pub(crate) fn put_publish(
    out: &mut Vec<u8>,
    channel: u16,
    frame_max: usize,
    exchange: &str,
    routing_key: &str,
    mandatory: bool,
    properties: &[u8],
    body: &[u8],
) {
    let [high, low] = channel.to_be_bytes();
    out.reserve(64 + exchange.len() + routing_key.len() + properties.len() + body.len());
    let length = 4 + 2 + 1 + exchange.len() + 1 + routing_key.len() + 1;
    out.extend_from_slice(&[METHOD, high, low]);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(&[0, BASIC as u8, 0, 40, 0, 0, exchange.len() as u8]);
    out.extend_from_slice(exchange.as_bytes());
    out.push(routing_key.len() as u8);
    out.extend_from_slice(routing_key.as_bytes());
    out.extend_from_slice(&[u8::from(mandatory), END]);

    out.extend_from_slice(&[HEADER, high, low]);
    out.extend_from_slice(&(12 + properties.len() as u32).to_be_bytes());
    out.extend_from_slice(&[0, BASIC as u8, 0, 0]);
    out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    out.extend_from_slice(properties);
    out.push(END);

    for piece in body.chunks(frame_max - OVERHEAD) {
        out.extend_from_slice(&[BODY, high, low]);
        out.extend_from_slice(&(piece.len() as u32).to_be_bytes());
        out.extend_from_slice(piece);
        out.push(END);
    }
}

/// Properties as they go into a header.
pub(crate) fn encode_properties(properties: &BasicProperties) -> Vec<u8> {
    match basic::gen_properties(properties)(WriteContext::from(Vec::with_capacity(64))) {
        Ok(written) => written.into_inner().0,
        Err(error) => unreachable!("writing to memory cannot fail: {error}"),
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
