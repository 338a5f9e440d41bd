//! The hand-written codec against amq-protocol's, and both against noise; a failure prints its seed.

use amq_protocol::frame::AMQPContentHeader;
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};

use super::*;
use crate::properties::{Field, Headers, glance};

const FRAME_MAX: usize = 128 * 1024;

fn rounds(short: u64) -> u64 {
    if std::env::var_os("TIDEGATE_SOAK").is_some() { short * 200 } else { short }
}

fn encoded(frame: &AMQPFrame) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, frame);
    out
}

fn text(random: &mut fastrand::Rng) -> String {
    let length = *random.choice(&[0, 1, 5, 30, 255]).unwrap();
    (0..length).map(|_| random.lowercase()).collect()
}

fn basic_method(method: basic::AMQPMethod) -> AMQPFrame {
    AMQPFrame::Method(1, AMQPClass::Basic(method))
}

fn value(random: &mut fastrand::Rng, depth: u32) -> AMQPValue {
    match random.u8(0..if depth == 0 { 11 } else { 13 }) {
        0 => AMQPValue::Boolean(random.bool()),
        1 => AMQPValue::ShortShortInt(random.i8(..)),
        2 => AMQPValue::LongInt(random.i32(..)),
        3 => AMQPValue::LongLongInt(random.i64(..)),
        4 => AMQPValue::Double(random.f64()),
        5 => AMQPValue::LongString(text(random).into()),
        6 => AMQPValue::Timestamp(random.u64(..)),
        7 => AMQPValue::Void,
        8 => AMQPValue::ShortUInt(random.u16(..)),
        9 => AMQPValue::LongUInt(random.u32(..)),
        10 => AMQPValue::Float(random.f32()),
        11 => AMQPValue::FieldArray(FieldArray::from(
            (0..random.usize(0..4)).map(|_| value(random, depth - 1)).collect::<Vec<_>>(),
        )),
        _ => AMQPValue::FieldTable(table(random, depth - 1)),
    }
}

fn table(random: &mut fastrand::Rng, depth: u32) -> FieldTable {
    let mut table = FieldTable::default();
    for _ in 0..random.usize(0..5) {
        table.insert(text(random).into(), value(random, depth));
    }
    table
}

fn some_properties(random: &mut fastrand::Rng) -> BasicProperties {
    let mut properties = BasicProperties::default();
    if random.bool() {
        properties = properties.with_content_type(text(random).into());
    }
    if random.bool() {
        properties = properties.with_content_encoding(text(random).into());
    }
    if random.bool() {
        properties = properties.with_headers(table(random, 3));
    }
    if random.bool() {
        properties = properties.with_delivery_mode(2).with_priority(random.u8(0..10));
    }
    if random.bool() {
        properties = properties.with_message_id(text(random).into()).with_timestamp(random.u64(..));
    }
    properties
}

fn same_value(field: Field<'_>, value: &AMQPValue) -> bool {
    match (field, value) {
        (Field::Void, AMQPValue::Void) => true,
        (Field::Boolean(ours), AMQPValue::Boolean(theirs)) => ours == *theirs,
        (Field::Integer(ours), AMQPValue::ShortShortInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::ShortShortUInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::ShortInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::ShortUInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::LongInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::LongUInt(theirs)) => ours == i64::from(*theirs),
        (Field::Integer(ours), AMQPValue::LongLongInt(theirs)) => ours == *theirs,
        (Field::Float(ours), AMQPValue::Float(theirs)) => ours.to_bits() == f64::from(*theirs).to_bits(),
        (Field::Float(ours), AMQPValue::Double(theirs)) => ours.to_bits() == theirs.to_bits(),
        (Field::Text(ours), AMQPValue::LongString(theirs)) => ours == theirs.as_bytes(),
        (Field::Timestamp(ours), AMQPValue::Timestamp(theirs)) => ours == *theirs,
        (Field::Array(ours), AMQPValue::FieldArray(theirs)) => {
            ours.count() == theirs.as_slice().len()
                && ours.zip(theirs.as_slice()).all(|(ours, theirs)| same_value(ours, theirs))
        }
        (Field::Table(ours), AMQPValue::FieldTable(theirs)) => same_table(ours, theirs),
        (Field::Other, AMQPValue::DecimalValue(_) | AMQPValue::ByteArray(_)) => true,
        _ => false,
    }
}

/// Of a name that is there twice, the last one counts.
fn same_table(ours: Headers<'_>, theirs: &FieldTable) -> bool {
    let ours: std::collections::BTreeMap<&[u8], Field<'_>> = ours.collect();
    ours.len() == theirs.inner().len()
        && ours
            .iter()
            .zip(theirs.inner())
            .all(|((name, ours), (other, theirs))| *name == other.as_str().as_bytes() && same_value(*ours, theirs))
}

fn same_at_a_glance(raw: &[u8], seed: u64) {
    let (ours, theirs) = (glance(raw), super::properties(raw));
    assert_eq!(ours.is_some(), theirs.is_some(), "seed {seed}");
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return };
    for (ours, theirs) in [
        (ours.content_type, theirs.content_type()),
        (ours.content_encoding, theirs.content_encoding()),
        (ours.correlation_id, theirs.correlation_id()),
        (ours.reply_to, theirs.reply_to()),
        (ours.message_id, theirs.message_id()),
    ] {
        assert_eq!(ours, theirs.as_ref().map(|text| text.as_str()), "seed {seed}");
    }
    assert_eq!((ours.delivery_mode, ours.priority), (*theirs.delivery_mode(), *theirs.priority()), "seed {seed}");
    let table = theirs.headers().clone().unwrap_or_default();
    assert!(same_table(ours.headers, &table), "seed {seed}");
}

#[test]
fn what_is_read_by_hand_is_what_amq_protocol_wrote() {
    for seed in tidegate_seeds::seeds(rounds(500)) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (tag, redelivered, multiple) = (random.u64(..), random.bool(), random.bool());
        let (consumer, exchange, routing_key) = (text(random), text(random), text(random));
        let bytes = encoded(&basic_method(basic::AMQPMethod::Deliver(basic::Deliver {
            consumer_tag: consumer.as_str().into(),
            delivery_tag: tag,
            redelivered,
            exchange: exchange.as_str().into(),
            routing_key: routing_key.as_str().into(),
        })));
        let frame = split(&bytes, FRAME_MAX).unwrap().unwrap();
        assert_eq!((frame.kind, frame.channel, frame.whole), (METHOD, 1, &bytes[..]));
        let (consumer, exchange, routing_key) = (consumer.as_bytes(), exchange.as_bytes(), routing_key.as_bytes());
        let expected = Hot::Deliver(Deliver { consumer, tag, redelivered, exchange, routing_key });
        assert_eq!(hot(frame.payload), Some(expected), "seed {seed}");

        let ack = encoded(&basic_method(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple })));
        let nack = basic::Nack { delivery_tag: tag, multiple, requeue: redelivered };
        let nack = encoded(&basic_method(basic::AMQPMethod::Nack(nack)));
        for (bytes, acked) in [(ack, true), (nack, false)] {
            let frame = split(&bytes, FRAME_MAX).unwrap().unwrap();
            assert_eq!(hot(frame.payload), Some(Hot::Confirm { tag, multiple, acked }), "seed {seed}");
        }

        let properties = some_properties(random);
        let header = AMQPContentHeader { class_id: 60, body_size: tag, properties: properties.clone() };
        let bytes = encoded(&AMQPFrame::Header(1, header));
        let frame = split(&bytes, FRAME_MAX).unwrap().unwrap();
        let (length, raw) = content_header(frame.payload).unwrap();
        same_at_a_glance(raw, seed);
        assert_eq!((length, super::properties(raw)), (tag, Some(properties)), "seed {seed}");
    }
}

#[test]
fn what_is_written_by_hand_is_what_amq_protocol_writes() {
    for seed in tidegate_seeds::seeds(rounds(500)) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (tag, multiple) = (random.u64(..), random.bool());
        for (settle, method) in [
            (Settle::Ack, basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple })),
            (Settle::Requeue, basic::AMQPMethod::Nack(basic::Nack { delivery_tag: tag, multiple, requeue: true })),
            (Settle::Reject, basic::AMQPMethod::Nack(basic::Nack { delivery_tag: tag, multiple, requeue: false })),
        ] {
            let mut out = Vec::new();
            put_ack(&mut out, 1, AckFrame { tag, multiple, settle });
            assert_eq!(out, encoded(&basic_method(method)), "seed {seed}");
        }

        let (exchange, routing_key, mandatory) = (text(random), text(random), random.bool());
        let properties = some_properties(random);
        let frame_max = *random.choice(&[4096, FRAME_MAX]).unwrap();
        let body = vec![random.u8(..); *random.choice(&[0, 1, 4088, 4089, 9000]).unwrap()];
        let mut out = Vec::new();
        let raw = encode_properties(&properties);
        put_publish(&mut out, 1, frame_max, &exchange, &routing_key, mandatory, &raw, &body);
        let publish = basic::Publish {
            exchange: exchange.as_str().into(),
            routing_key: routing_key.as_str().into(),
            mandatory,
            immediate: false,
        };
        let mut expected = encoded(&basic_method(basic::AMQPMethod::Publish(publish)));
        let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties };
        expected.extend(encoded(&AMQPFrame::Header(1, header)));
        for piece in body.chunks(frame_max - OVERHEAD) {
            expected.extend(encoded(&AMQPFrame::Body(1, piece.to_vec())));
        }
        assert_eq!(out, expected, "seed {seed}");
    }
}

#[test]
fn a_frame_is_known_by_any_beginning_of_it() {
    let mut out = Vec::new();
    put_publish(&mut out, 1, 4096, "e", "k", false, &[0, 0], &[1; 5000]);
    let first = split(&out, 4096).unwrap().unwrap().whole.len();
    for length in 0..first {
        assert_eq!(split(&out[..length], 4096), Ok(None));
    }
}

#[test]
fn other_protocols_and_lies_are_told_apart() {
    assert_eq!(split(b"AMQP\0\x01\0\0", FRAME_MAX), Err(Fault::OtherVersion([1, 0, 0])));
    assert_eq!(split(b"AMQP\0\x01", FRAME_MAX), Ok(None));
    assert!(matches!(split(b"HTTP/1.1 400", FRAME_MAX), Err(Fault::Malformed(what)) if what.contains("AMQP 0-9-1")));
    assert!(matches!(split(b"\x15\x03", FRAME_MAX), Err(Fault::Malformed(_))));
    assert!(
        matches!(split(&[1, 0, 1, 255, 255, 255, 255], FRAME_MAX), Err(Fault::Malformed(what)) if what.contains("larger"))
    );
    assert!(matches!(split(&[1, 0, 1, 0, 0, 0, 0, 1], FRAME_MAX), Err(Fault::Malformed(what)) if what.contains("end")));
}

#[test]
fn tables_nested_beyond_reason_are_refused_without_recursing() {
    let mut inner = Vec::new();
    // Arrays in arrays: five bytes a level, so a frame has room for 26,000 levels.
    for _ in 0..20_000 {
        let mut outer = vec![b'A'];
        outer.extend_from_slice(&(inner.len() as u32).to_be_bytes());
        outer.extend_from_slice(&inner);
        inner = outer;
    }
    let mut table = vec![1, b'k'];
    table.extend_from_slice(&inner);
    let mut raw = (1u16 << 13).to_be_bytes().to_vec();
    raw.extend_from_slice(&(table.len() as u32).to_be_bytes());
    raw.extend_from_slice(&table);
    assert_eq!(super::properties(&raw), None);
    assert!(glance(&raw).is_none());
}

#[test]
fn noise_is_read_without_a_panic_and_never_differently() {
    for seed in tidegate_seeds::seeds(rounds(2000)) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut bytes = match random.u8(0..3) {
            0 => encode_properties(&some_properties(random)),
            1 => encoded(&basic_method(basic::AMQPMethod::Deliver(basic::Deliver {
                consumer_tag: text(random).into(),
                delivery_tag: 1,
                redelivered: false,
                exchange: text(random).into(),
                routing_key: text(random).into(),
            }))),
            _ => (0..random.usize(0..64)).map(|_| random.u8(..)).collect(),
        };
        for _ in 0..random.usize(0..6) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        bytes.truncate(random.usize(..=bytes.len()));
        same_at_a_glance(&bytes, seed);
        let _ = content_header(&bytes);
        let Ok(Some(frame)) = split(&bytes, FRAME_MAX) else { continue };
        if let Some(Hot::Deliver(deliver)) = hot(frame.payload)
            && let Ok(AMQPClass::Basic(basic::AMQPMethod::Deliver(theirs))) = method(&frame)
        {
            assert_eq!((deliver.tag, deliver.consumer), (theirs.delivery_tag, theirs.consumer_tag.as_str().as_bytes()));
            assert_eq!(deliver.redelivered, theirs.redelivered, "seed {seed}");
        }
    }
}

#[test]
fn only_a_header_may_be_larger_than_was_agreed() {
    let frame = |kind: u8| [&[kind, 0, 1][..], &200_000_u32.to_be_bytes(), &vec![0; 200_000], &[END]].concat();
    assert_eq!(split(&frame(HEADER), FRAME_MAX).unwrap().unwrap().payload.len(), 200_000);
    for kind in [METHOD, BODY] {
        assert_eq!(split(&frame(kind), FRAME_MAX), Err(Fault::Malformed("a frame is larger than was agreed")));
    }
    let announced = [&[HEADER, 0, 1][..], &2_000_000_u32.to_be_bytes()].concat();
    assert_eq!(split(&announced, FRAME_MAX), Err(Fault::Malformed("a frame is larger than was agreed")));
}
