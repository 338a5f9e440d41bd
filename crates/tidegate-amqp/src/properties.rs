//! Properties as they lie in a message: read in place, nothing is copied.

use crate::wire::{self, Cursor};

/// What a message says of itself, borrowed from [`RawProperties`](crate::RawProperties); what is not there was not said.
///
/// ```
/// use tidegate_amqp::{Field, RawProperties};
/// use tidegate_amqp::types::{AMQPValue, BasicProperties, FieldTable};
///
/// let mut headers = FieldTable::default();
/// headers.insert("tries".into(), AMQPValue::LongInt(3));
/// let properties = BasicProperties::default().with_message_id("a7".into()).with_headers(headers);
/// let raw = RawProperties::from(&properties);
/// let glance = raw.glance().unwrap();
/// assert_eq!(glance.message_id, Some("a7"));
/// assert!(matches!(glance.headers.collect::<Vec<_>>()[..], [(b"tries", Field::Integer(3))]));
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Glance<'a> {
    /// The body's type, as MIME has it.
    pub content_type: Option<&'a str>,
    /// How the body is packed.
    pub content_encoding: Option<&'a str>,
    /// Whatever its producer wrote; empty if there are none.
    pub headers: Headers<'a>,
    /// 2 for a message that outlives its broker.
    pub delivery_mode: Option<u8>,
    /// What a queue with priorities sorts by.
    pub priority: Option<u8>,
    /// What it answers.
    pub correlation_id: Option<&'a str>,
    /// Where answers go.
    pub reply_to: Option<&'a str>,
    /// Its name.
    pub message_id: Option<&'a str>,
}

/// A header's value.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Field<'a> {
    /// There, and empty.
    Void,
    /// Yes or no.
    Boolean(bool),
    /// Of any width.
    Integer(i64),
    /// Of either width.
    Float(f64),
    /// Text, or what a producer takes for it.
    Text(&'a [u8]),
    /// Seconds since 1970.
    Timestamp(u64),
    /// Several.
    Array(Fields<'a>),
    /// Several with names.
    Table(Headers<'a>),
    /// Bytes, or a decimal.
    Other,
}

/// Headers in the order they were written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers<'a>(&'a [u8]);

/// The values of an array.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fields<'a>(&'a [u8]);

/// `None` if they contradict themselves, or nest too deep.
pub(crate) fn glance(raw: &[u8]) -> Option<Glance<'_>> {
    let mut cursor = Cursor(raw);
    let flags = u16::from_be_bytes(cursor.take()?);
    let said = |bit: u32| flags & (1 << bit) != 0;
    // In the order of the flags, from the highest.
    let content_type = text_if(said(15), &mut cursor)?;
    let content_encoding = text_if(said(14), &mut cursor)?;
    let headers = if said(13) {
        let table = cursor.long()?;
        wire::check_fields(table, true)?;
        Headers(table)
    } else {
        Headers::default()
    };
    let delivery_mode = byte_if(said(12), &mut cursor)?;
    let priority = byte_if(said(11), &mut cursor)?;
    let correlation_id = text_if(said(10), &mut cursor)?;
    let reply_to = text_if(said(9), &mut cursor)?;
    let _expiration = text_if(said(8), &mut cursor)?;
    let message_id = text_if(said(7), &mut cursor)?;
    if said(6) {
        cursor.skip(8)?;
    }
    // Type, user, application, cluster.
    (2..6).rev().try_for_each(|bit| text_if(said(bit), &mut cursor).map(drop))?;
    cursor.0.is_empty().then_some(Glance {
        content_type,
        content_encoding,
        headers,
        delivery_mode,
        priority,
        correlation_id,
        reply_to,
        message_id,
    })
}

fn text_if<'a>(said: bool, cursor: &mut Cursor<'a>) -> Option<Option<&'a str>> {
    if !said {
        return Some(None);
    }
    std::str::from_utf8(cursor.short_string()?).ok().map(Some)
}

fn byte_if(said: bool, cursor: &mut Cursor<'_>) -> Option<Option<u8>> {
    if !said {
        return Some(None);
    }
    let [byte] = cursor.take()?;
    Some(Some(byte))
}

/// The next value. Everything was checked when the properties were, so `None` means the end.
fn field<'a>(cursor: &mut Cursor<'a>) -> Option<Field<'a>> {
    let [kind] = cursor.take()?;
    Some(match kind {
        b't' => Field::Boolean(cursor.take::<1>()? != [0]),
        b'b' => Field::Integer(i8::from_be_bytes(cursor.take()?).into()),
        b'B' => Field::Integer(u8::from_be_bytes(cursor.take()?).into()),
        b's' | b'U' => Field::Integer(i16::from_be_bytes(cursor.take()?).into()),
        b'u' => Field::Integer(u16::from_be_bytes(cursor.take()?).into()),
        b'I' => Field::Integer(i32::from_be_bytes(cursor.take()?).into()),
        b'i' => Field::Integer(u32::from_be_bytes(cursor.take()?).into()),
        // RabbitMQ takes both for signed.
        b'l' | b'L' => Field::Integer(i64::from_be_bytes(cursor.take()?)),
        b'f' => Field::Float(f32::from_be_bytes(cursor.take()?).into()),
        b'd' => Field::Float(f64::from_be_bytes(cursor.take()?)),
        b'T' => Field::Timestamp(u64::from_be_bytes(cursor.take()?)),
        b'S' => Field::Text(cursor.long()?),
        b'A' => Field::Array(Fields(cursor.long()?)),
        b'F' => Field::Table(Headers(cursor.long()?)),
        b'V' => Field::Void,
        b'x' => {
            cursor.long()?;
            Field::Other
        }
        b'D' => {
            cursor.skip(5)?;
            Field::Other
        }
        _ => return None,
    })
}

impl<'a> Iterator for Headers<'a> {
    /// A name is UTF-8: that was checked.
    type Item = (&'a [u8], Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut cursor = Cursor(self.0);
        let name = cursor.short_string()?;
        let field = field(&mut cursor)?;
        self.0 = cursor.0;
        Some((name, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let mut cursor = Cursor(self.0);
        let field = field(&mut cursor)?;
        self.0 = cursor.0;
        Some(field)
    }
}
