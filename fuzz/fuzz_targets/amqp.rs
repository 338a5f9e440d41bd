//! What an AMQP broker sends, from its first byte on: the session ends or goes on, and never panics, hangs or grows without
//! bound. The first byte says in which pieces it comes.

#![no_main]

use std::time::Instant;

use tidegate_amqp::{Event, Sasl, Session, SessionOptions, Settle};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((size, bytes)) = data.split_first() else { return };
    let now = Instant::now();
    let mut session = Session::new(SessionOptions::new(Sasl::External, "/"), now);
    let mut output = Vec::new();
    for piece in bytes.chunks(usize::from(*size).max(1)) {
        session.handle_bytes(piece, now);
        while let Some(event) = session.poll_event() {
            if let Event::Delivery(delivery) = event {
                let _ = delivery.properties.read();
                session.settle(delivery.tag, Settle::Ack);
            }
        }
        output.clear();
        while session.poll_transmit(now, &mut output) {}
        assert!(output.len() <= 64 << 10, "{} bytes are sent in answer to {}", output.len(), piece.len());
    }
    session.handle_end();
    assert!(session.is_closed());
});
