//! The hand-written codec against amq-protocol's, and both against noise; a failure prints its seed.

use amq_protocol::frame::AMQPContentHeader;
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};

use super::*;

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
    match random.u8(0..if depth == 0 { 9 } else { 11 }) {
        0 => AMQPValue::Boolean(random.bool()),
        1 => AMQPValue::ShortShortInt(random.i8(..)),
        2 => AMQPValue::LongInt(random.i32(..)),
        3 => AMQPValue::LongLongInt(random.i64(..)),
        4 => AMQPValue::Double(random.f64()),
        5 => AMQPValue::LongString(text(random).into()),
        6 => AMQPValue::Timestamp(random.u64(..)),
        7 => AMQPValue::Void,
        8 => AMQPValue::ShortUInt(random.u16(..)),
        9 => AMQPValue::FieldArray(FieldArray::from(
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

#[test]
fn what_is_read_by_hand_is_what_amq_protocol_wrote() {
    for seed in 0..rounds(500) {
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
        assert_eq!((length, super::properties(raw)), (tag, Some(properties)), "seed {seed}");
    }
}

#[test]
fn what_is_written_by_hand_is_what_amq_protocol_writes() {
    for seed in 0..rounds(500) {
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
}

#[test]
fn noise_is_read_without_a_panic_and_never_differently() {
    for seed in 0..rounds(2000) {
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
        let _ = super::properties(&bytes);
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
