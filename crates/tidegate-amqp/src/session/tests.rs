//! A session with a scripted broker at the other end.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, parse_frame};
use amq_protocol::protocol::{BasicProperties, basic, channel, confirm, queue};

use super::*;
use crate::acks::Settle;
use crate::message::{Message, Tag};
use crate::topology::Queue;

fn sasl() -> Sasl {
    Sasl::Plain { user: "me".to_owned(), password: "secret".into() }
}

/// The broker's side of the bytes.
struct Peer {
    session: Session,
    now: Instant,
    heard: Vec<u8>,
    /// Everything it ever said, for telling it again in other pieces.
    said: Vec<u8>,
}

impl Peer {
    fn new(options: SessionOptions) -> Peer {
        let now = Instant::now();
        Peer { session: Session::new(options, now), now, heard: Vec::new(), said: Vec::new() }
    }

    /// With an open channel, and nothing waiting.
    fn open() -> Peer {
        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        peer.say_opening(60);
        assert_eq!(peer.events(), [Event::Open { epoch: 1 }]);
        peer.hear();
        peer
    }

    fn say_opening(&mut self, heartbeat: u16) {
        self.say_connection(connection::AMQPMethod::Start(start("PLAIN AMQPLAIN")));
        let tune = connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat };
        self.say_connection(connection::AMQPMethod::Tune(tune));
        self.say_connection(connection::AMQPMethod::OpenOk(connection::OpenOk {}));
        self.say_channel(AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {})));
        self.say_channel(AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {})));
    }

    fn say(&mut self, frame: &AMQPFrame) {
        let mut bytes = Vec::new();
        wire::put_frame(&mut bytes, frame);
        self.say_bytes(&bytes);
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        self.session.handle_bytes(bytes, self.now);
    }

    fn say_connection(&mut self, method: connection::AMQPMethod) {
        self.say(&AMQPFrame::Method(0, AMQPClass::Connection(method)));
    }

    fn say_channel(&mut self, class: AMQPClass) {
        self.say(&AMQPFrame::Method(CHANNEL, class));
    }

    fn deliver(&mut self, tag: u64, body: &[u8], pieces: usize) {
        let deliver = basic::Deliver {
            consumer_tag: "c".into(),
            delivery_tag: tag,
            redelivered: false,
            exchange: "".into(),
            routing_key: "q".into(),
        };
        self.say_channel(AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver)));
        let properties = BasicProperties::default().with_delivery_mode(2);
        let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties };
        self.say(&AMQPFrame::Header(CHANNEL, header));
        for piece in body.chunks(body.len().div_ceil(pieces).max(1)) {
            self.say(&AMQPFrame::Body(CHANNEL, piece.to_vec()));
        }
    }

    fn hear(&mut self) -> Vec<AMQPFrame> {
        self.session.poll_transmit(self.now, &mut self.heard);
        let mut frames = Vec::new();
        let mut left = &self.heard[..];
        while !left.is_empty() {
            let (rest, frame) = parse_frame(left).unwrap();
            frames.push(frame);
            left = rest;
        }
        self.heard.clear();
        frames
    }

    fn hear_methods(&mut self) -> Vec<AMQPClass> {
        let frames = self.hear().into_iter();
        frames.filter_map(|frame| if let AMQPFrame::Method(_, class) = frame { Some(class) } else { None }).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    fn end(&mut self) -> Closed {
        match self.events().pop() {
            Some(Event::Closed(closed)) => closed,
            other => panic!("not closed: {other:?}"),
        }
    }
}

fn start(mechanisms: &str) -> connection::Start {
    connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: FieldTable::default(),
        mechanisms: mechanisms.into(),
        locales: "en_US".into(),
    }
}

fn close(reply_code: u16, text: &str) -> connection::AMQPMethod {
    let close = connection::Close { reply_code, reply_text: text.into(), class_id: 0, method_id: 0 };
    connection::AMQPMethod::Close(close)
}

#[test]
fn the_opening_says_who_and_where() {
    let mut peer = Peer::new(SessionOptions::new(sasl(), "shop"));
    assert!(matches!(peer.hear()[..], [AMQPFrame::ProtocolHeader(_)]));
    peer.say_opening(60);
    let heard = peer.hear_methods();
    let AMQPClass::Connection(connection::AMQPMethod::StartOk(start_ok)) = &heard[0] else { panic!("{heard:?}") };
    assert_eq!((start_ok.mechanism.as_str(), start_ok.response.as_bytes()), ("PLAIN", &b"\0me\0secret"[..]));
    let AMQPClass::Connection(connection::AMQPMethod::TuneOk(tune_ok)) = &heard[1] else { panic!("{heard:?}") };
    assert_eq!((tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat), (1, 131_072, 30));
    let AMQPClass::Connection(connection::AMQPMethod::Open(open)) = &heard[2] else { panic!("{heard:?}") };
    assert_eq!(open.virtual_host.as_str(), "shop");
    assert_eq!(peer.events(), [Event::Open { epoch: 1 }]);
}

#[test]
fn a_mechanism_that_is_not_offered_ends_it() {
    let mut peer = Peer::new(SessionOptions::new(Sasl::External, "/"));
    peer.say_connection(connection::AMQPMethod::Start(start("PLAIN AMQPLAIN")));
    assert_eq!(peer.end(), Closed::NoMechanism { offered: "PLAIN AMQPLAIN".to_owned() });
}

#[test]
fn a_refused_login_is_told_as_one_of_the_opening() {
    let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
    peer.say_connection(connection::AMQPMethod::Start(start("PLAIN")));
    peer.say_connection(close(403, "ACCESS_REFUSED"));
    let refusal = Refusal::new(403, "ACCESS_REFUSED");
    assert_eq!(peer.end(), Closed::ByBroker { refusal, opening: true });
    let heard = peer.hear_methods();
    assert!(matches!(heard.last(), Some(AMQPClass::Connection(connection::AMQPMethod::CloseOk(_)))), "{heard:?}");
    let mut silent = Peer::new(SessionOptions::new(sasl(), "/"));
    silent.session.handle_end();
    assert_eq!(silent.end(), Closed::Ended { opening: true });
}

/// A broker may repeat what it was sent: as it is, percent-encoded, in base64 alone or as SASL PLAIN has it.
#[test]
fn a_password_that_the_broker_repeats_is_in_no_event() {
    let sasl = || Sasl::Plain { user: "me".to_owned(), password: "hun/ter2".into() };
    let forms = ["hun/ter2", "\0me\0hun/ter2", "hun%2Fter2", "aHVuL3RlcjI=", "AG1lAGh1bi90ZXIy"];
    for form in forms {
        let text = format!("REFUSED - no {form:?} here");
        let clean = format!("REFUSED - no {:?} here", form.replace(form.trim_start_matches("\0me\0"), "(secret)"));
        let refusal = |code| Refusal::new(code, clean.clone());

        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        peer.say_connection(connection::AMQPMethod::Start(start(&format!("AMQPLAIN {form}"))));
        let Closed::NoMechanism { offered } = peer.end() else { panic!("a mechanism that is not offered") };
        assert_eq!(offered, format!("AMQPLAIN {}", form.replace(form.trim_start_matches("\0me\0"), "(secret)")));

        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        let mut hello = start("PLAIN");
        hello.server_properties.insert("version".into(), AMQPValue::LongString(text.as_str().into()));
        peer.say_connection(connection::AMQPMethod::Start(hello));
        assert_eq!(peer.session.server_property("version").as_ref(), Some(&clean));
        peer.say_connection(close(403, &text));
        assert_eq!(peer.end(), Closed::ByBroker { refusal: refusal(403), opening: true });

        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        peer.say_opening(60);
        peer.events();
        peer.say_connection(connection::AMQPMethod::Blocked(connection::Blocked { reason: text.as_str().into() }));
        assert_eq!(peer.events(), [Event::Blocked { reason: clean.clone() }]);
        let shut = channel::Close { reply_code: 406, reply_text: text.as_str().into(), class_id: 0, method_id: 0 };
        peer.say_channel(AMQPClass::Channel(channel::AMQPMethod::Close(shut)));
        assert_eq!(peer.events(), [Event::ChannelClosed(refusal(406))]);
        peer.say_connection(close(320, &text));
        assert_eq!(peer.end(), Closed::ByBroker { refusal: refusal(320), opening: false });

        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        peer.say_opening(60);
        peer.session.publish(&Message::to_queue("gone", Vec::new()).mandatory(true)).unwrap();
        peer.events();
        let returned = basic::Return {
            reply_code: 312,
            reply_text: text.as_str().into(),
            exchange: "".into(),
            routing_key: "gone".into(),
        };
        peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::Return(returned)));
        let header = AMQPContentHeader { class_id: 60, body_size: 0, properties: BasicProperties::default() };
        peer.say(&AMQPFrame::Header(CHANNEL, header));
        let events = peer.events();
        let [Event::Returned { returned, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(returned.text, clean);
    }
}

#[test]
fn heartbeats_go_out_at_half_the_interval_and_only_when_nothing_else_does() {
    let mut peer = Peer::open();
    let begun = peer.now;
    assert_eq!(peer.session.poll_timeout(), Some(begun + Duration::from_secs(15)));
    peer.now = begun + Duration::from_secs(14);
    peer.session.handle_timeout(peer.now);
    assert!(peer.hear().is_empty());
    peer.session.qos(7).unwrap();
    assert_eq!(peer.hear().len(), 1);
    assert_eq!(peer.session.poll_timeout(), Some(begun + Duration::from_secs(29)));
    peer.now = begun + Duration::from_secs(29);
    peer.session.handle_timeout(peer.now);
    assert_eq!(peer.hear(), [AMQPFrame::Heartbeat]);
}

#[test]
fn two_intervals_of_silence_are_death_and_anything_that_comes_is_life() {
    let mut peer = Peer::open();
    let begun = peer.now;
    peer.now = begun + Duration::from_secs(59);
    peer.session.handle_timeout(peer.now);
    assert!(peer.events().is_empty());
    peer.say(&AMQPFrame::Heartbeat);
    peer.now = begun + Duration::from_secs(59 + 59);
    peer.session.handle_timeout(peer.now);
    assert!(peer.events().is_empty());
    peer.now = begun + Duration::from_secs(59 + 60);
    peer.session.handle_timeout(peer.now);
    assert_eq!(peer.end(), Closed::Silent { silent: Duration::from_secs(60) });
    assert_eq!(peer.session.poll_timeout(), None);
}

#[test]
fn the_smaller_heartbeat_counts_and_none_means_none() {
    for (asked, offered, agreed) in [(30, 60, 30), (30, 10, 10), (30, 0, 30), (0, 60, 0)] {
        let mut options = SessionOptions::new(sasl(), "/");
        options.heartbeat = Duration::from_secs(asked);
        let mut peer = Peer::new(options);
        peer.say_opening(offered);
        assert_eq!(peer.session.heartbeat().map_or(0, |interval| interval.as_secs()), agreed);
        assert_eq!(peer.session.poll_timeout().is_some(), agreed > 0);
    }
}

#[test]
fn a_body_in_many_frames_is_one_message() {
    let mut peer = Peer::open();
    let body: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
    peer.deliver(1, &body, 7);
    peer.deliver(2, b"", 1);
    let events = peer.events();
    let [Event::Delivery(first), Event::Delivery(second)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&first.body, first.tag), (&body, Tag { epoch: 1, number: 1 }));
    assert_eq!((&*first.consumer, &*first.routing_key), ("c", "q"));
    assert_eq!(first.properties.read().unwrap().delivery_mode(), &Some(2));
    assert!(second.body.is_empty());
}

#[test]
fn memory_that_was_taken_back_carries_nothing_over() {
    let mut peer = Peer::open();
    for (tag, length) in (1..).zip([900, 3, 0, 1_000, 40, 5_000, 7]) {
        let body = vec![tag as u8; length];
        peer.deliver(tag, &body, 2);
        let Some(Event::Delivery(delivery)) = peer.events().pop() else { panic!("no delivery {tag}") };
        assert_eq!(delivery.body, body);
        assert_eq!(delivery.properties.read().unwrap().delivery_mode(), &Some(2));
        peer.session.reuse(delivery.properties.into_memory());
        peer.session.reuse(delivery.body);
    }
    // The first body and all properties since, but none that is large.
    assert!(!peer.session.spare.is_empty());
    assert!(peer.session.spare.iter().all(|memory| memory.is_empty() && memory.capacity() <= 1_024));
}

#[test]
fn however_the_bytes_are_cut_the_events_are_the_same() {
    let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
    peer.say_opening(60);
    for tag in 1..=20 {
        peer.deliver(tag, &vec![tag as u8; tag as usize * 37], 3);
    }
    peer.say_connection(close(320, "CONNECTION_FORCED"));
    let (said, events) = (peer.said.clone(), peer.events());
    assert_eq!(events.len(), 22);
    for seed in tidegate_seeds::seeds(50) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut again = Peer::new(SessionOptions::new(sasl(), "/"));
        let mut left = &said[..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(random.usize(1..=left.len().min(200)));
            again.session.handle_bytes(piece, again.now);
            left = rest;
        }
        assert_eq!(again.events(), events, "seed {seed}");
    }
}

#[test]
fn settled_deliveries_go_out_together_with_the_prefix_as_one() {
    let mut peer = Peer::open();
    (1..=6).for_each(|tag| peer.deliver(tag, b"x", 1));
    let tag = |number| Tag { epoch: 1, number };
    for number in [6, 1, 2, 3] {
        assert!(peer.session.settle(tag(number), Settle::Ack));
    }
    assert!(!peer.session.settle(tag(3), Settle::Reject), "settled already");
    assert!(!peer.session.settle(tag(7), Settle::Ack), "never delivered");
    assert!(!peer.session.settle(Tag { epoch: 0, number: 4 }, Settle::Ack), "of another channel");
    assert!(peer.session.settle(tag(4), Settle::Requeue));
    let ack = |tag, multiple| AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple }));
    let nack = basic::Nack { delivery_tag: 4, multiple: false, requeue: true };
    let nack = AMQPClass::Basic(basic::AMQPMethod::Nack(nack));
    assert_eq!(peer.hear_methods(), [ack(3, true), nack, ack(6, false)]);
    assert_eq!(peer.session.outstanding(), 1);
}

#[test]
fn requests_are_answered_in_order_and_anything_else_breaks_the_protocol() {
    let mut peer = Peer::open();
    let first = peer.session.declare_queue(&Queue::durable("a")).unwrap();
    let second = peer.session.qos(5).unwrap();
    let declared = queue::DeclareOk { queue: "a".into(), message_count: 3, consumer_count: 1 };
    peer.say_channel(AMQPClass::Queue(queue::AMQPMethod::DeclareOk(declared)));
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
    let declared = Declared { name: "a".to_owned(), messages: 3, consumers: 1 };
    let expected = [
        Event::Reply { request: first, reply: Reply::Declared(declared) },
        Event::Reply { request: second, reply: Reply::Done },
    ];
    assert_eq!(peer.events(), expected);
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
    assert_eq!(peer.end(), Closed::Protocol { reason: "an answer without a request".to_owned() });
}

fn consume_ok(tag: &str) -> AMQPClass {
    AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(basic::ConsumeOk { consumer_tag: tag.into() }))
}

fn cancel_ok(tag: &str) -> AMQPClass {
    AMQPClass::Basic(basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag: tag.into() }))
}

fn consume(tag: &str) -> Consume {
    Consume { tag: tag.to_owned(), ..Consume::from("q") }
}

#[test]
fn answers_about_consumers_may_come_late_and_find_their_requests() {
    let mut peer = Peer::open();
    let first = peer.session.consume(&consume("a")).unwrap();
    let second = peer.session.consume(&consume("b")).unwrap();
    let third = peer.session.cancel("c").unwrap();
    let fourth = peer.session.qos(5).unwrap();
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
    peer.say_channel(cancel_ok("c"));
    peer.say_channel(consume_ok("b"));
    peer.say_channel(consume_ok("a"));
    let consuming = |consumer: &str| Reply::Consuming { consumer: consumer.to_owned() };
    let expected = [
        Event::Reply { request: fourth, reply: Reply::Done },
        Event::Reply { request: third, reply: Reply::Done },
        Event::Reply { request: second, reply: consuming("b") },
        Event::Reply { request: first, reply: consuming("a") },
    ];
    assert_eq!(peer.events(), expected);
}

#[test]
fn other_answers_out_of_order_and_unknown_consumers_break_the_protocol() {
    let broken = || Closed::Protocol { reason: "an answer without a request".to_owned() };
    let mut peer = Peer::open();
    peer.session.purge("q").unwrap();
    peer.session.qos(5).unwrap();
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
    assert_eq!(peer.end(), broken());
    for answer in [consume_ok("b"), cancel_ok("a")] {
        let mut peer = Peer::open();
        peer.session.consume(&consume("a")).unwrap();
        peer.say_channel(answer);
        assert_eq!(peer.end(), broken());
    }
}

#[test]
fn a_refused_request_closes_the_channel_and_the_next_one_has_another_epoch() {
    let mut peer = Peer::open();
    peer.deliver(1, b"x", 1);
    peer.session.declare_queue(&Queue::passive("gone")).unwrap();
    let close = channel::Close { reply_code: 404, reply_text: "NOT_FOUND".into(), class_id: 50, method_id: 10 };
    peer.say_channel(AMQPClass::Channel(channel::AMQPMethod::Close(close)));
    assert_eq!(peer.events().pop(), Some(Event::ChannelClosed(Refusal::new(404, "NOT_FOUND"))));
    assert_eq!(peer.session.qos(1), Err(Unsent::NotOpen));
    peer.session.reopen();
    peer.say_channel(AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {})));
    peer.say_channel(AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {})));
    assert_eq!(peer.events(), [Event::Open { epoch: 2 }]);
    peer.hear();
    peer.deliver(1, b"y", 1);
    assert!(!peer.session.settle(Tag { epoch: 1, number: 1 }, Settle::Ack));
    assert!(peer.hear().is_empty());
    assert!(peer.session.settle(Tag { epoch: 2, number: 1 }, Settle::Ack));
}

#[test]
fn publishes_are_confirmed_by_number_and_returns_find_theirs() {
    let mut peer = Peer::open();
    let message = |key: &str| Message::to_queue(key, b"body".to_vec()).mandatory(true);
    for (number, key) in [(1, "a"), (2, "gone"), (3, "a")] {
        assert_eq!(peer.session.publish(&message(key)), Ok(number));
    }
    let returned = basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: "gone".into(),
    };
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::Return(returned)));
    let header = AMQPContentHeader { class_id: 60, body_size: 4, properties: BasicProperties::default() };
    peer.say(&AMQPFrame::Header(CHANNEL, header));
    peer.say(&AMQPFrame::Body(CHANNEL, b"body".to_vec()));
    let ack = basic::Ack { delivery_tag: 3, multiple: true };
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::Ack(ack.clone())));
    match &peer.events()[..] {
        [Event::Returned { number: Some(2), .. }, Event::Confirmed { first: 1, last: 3, acked: true }] => {}
        other => panic!("{other:?}"),
    }
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::Ack(ack)));
    assert_eq!(peer.end(), Closed::Protocol { reason: "it confirms what was never published".to_owned() });
}

#[test]
fn closing_flushes_then_closes_the_channel_then_the_connection() {
    let mut peer = Peer::open();
    peer.deliver(1, b"x", 1);
    peer.session.settle(Tag { epoch: 1, number: 1 }, Settle::Ack);
    peer.session.close();
    let heard = peer.hear_methods();
    assert!(matches!(heard[0], AMQPClass::Basic(basic::AMQPMethod::Ack(_))), "{heard:?}");
    assert!(matches!(heard[1], AMQPClass::Channel(channel::AMQPMethod::Close(_))), "{heard:?}");
    assert_eq!(heard.len(), 2);
    // What was on its way is void.
    peer.deliver(2, b"late", 1);
    peer.events();
    peer.say_channel(AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})));
    let heard = peer.hear_methods();
    assert!(matches!(heard[..], [AMQPClass::Connection(connection::AMQPMethod::Close(_))]), "{heard:?}");
    peer.say_connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}));
    assert_eq!(peer.end(), Closed::ByUs);
    assert!(peer.session.is_closed() && !peer.session.wants_transmit());
}

#[test]
fn acknowledgements_wait_for_company_but_not_for_ever() {
    let patience = Duration::from_millis(5);
    let mut peer = Peer::new(SessionOptions { ack_patience: patience, ..SessionOptions::new(sasl(), "/") });
    peer.say_opening(60);
    peer.session.qos(8).unwrap();
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
    peer.events();
    peer.hear();
    (1..=7).for_each(|tag| peer.deliver(tag, b"x", 1));
    let settle = |peer: &mut Peer, number| assert!(peer.session.settle_lazily(Tag { epoch: 1, number }, Settle::Ack));
    let acked = |peer: &mut Peer| match &peer.hear_methods()[..] {
        [] => 0,
        [AMQPClass::Basic(basic::AMQPMethod::Ack(ack)), ..] => ack.delivery_tag,
        other => panic!("{other:?}"),
    };

    settle(&mut peer, 1);
    assert!(peer.session.wants_transmit(), "the session must be called at the deadline");
    assert_eq!(acked(&mut peer), 0);
    assert!(!peer.session.wants_transmit());
    assert_eq!(peer.session.poll_timeout(), Some(peer.now + patience));
    peer.session.handle_timeout(peer.now + patience / 2);
    assert_eq!(acked(&mut peer), 0);
    peer.session.handle_timeout(peer.now + patience);
    assert_eq!(acked(&mut peer), 1);
    assert_eq!(peer.session.poll_timeout(), Some(peer.now + Duration::from_secs(15)));

    // A quarter of the prefetch does not wait.
    settle(&mut peer, 2);
    assert_eq!(acked(&mut peer), 0);
    settle(&mut peer, 3);
    assert!(peer.session.wants_transmit());
    assert_eq!(acked(&mut peer), 3);

    // Nor does one that shares a frame.
    settle(&mut peer, 4);
    assert_eq!(acked(&mut peer), 0);
    peer.session.qos(8).unwrap();
    let heard = peer.hear_methods();
    assert!(
        heard.iter().any(|said| matches!(said, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)) if ack.delivery_tag == 4))
    );

    // One that was not settled lazily is sent at once, and all others with it.
    settle(&mut peer, 5);
    assert_eq!(acked(&mut peer), 0);
    assert!(peer.session.settle(Tag { epoch: 1, number: 6 }, Settle::Ack));
    assert!(peer.session.wants_transmit());
    assert_eq!(acked(&mut peer), 6);

    // Nor what is settled before the end.
    settle(&mut peer, 7);
    assert_eq!(acked(&mut peer), 0);
    peer.session.close();
    assert_eq!(acked(&mut peer), 7);
}

#[test]
fn a_cancelled_consumer_and_a_blocked_broker_are_told() {
    let mut peer = Peer::open();
    let cancel = basic::Cancel { consumer_tag: "c".into(), nowait: false };
    peer.say_channel(AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
    let heard = peer.hear_methods();
    assert!(matches!(heard[..], [AMQPClass::Basic(basic::AMQPMethod::CancelOk(_))]), "{heard:?}");
    let blocked = connection::Blocked { reason: "low on memory".into() };
    peer.say_connection(connection::AMQPMethod::Blocked(blocked));
    peer.say_connection(connection::AMQPMethod::Unblocked(connection::Unblocked {}));
    let expected = [
        Event::ConsumerCancelled { consumer: "c".to_owned() },
        Event::Blocked { reason: "low on memory".to_owned() },
        Event::Unblocked,
    ];
    assert_eq!(peer.events(), expected);
}

#[test]
fn what_cannot_be_sent_is_said_before_it_is() {
    let mut peer = Peer::open();
    let long = "x".repeat(256);
    assert_eq!(peer.session.publish(&Message::to_queue(&long, Vec::new())), Err(Unsent::NameTooLong));
    assert_eq!(peer.session.declare_queue(&Queue::durable(&long)), Err(Unsent::NameTooLong));
    let mut headers = FieldTable::default();
    headers.insert("h".into(), AMQPValue::LongString(vec![0; 140_000].into()));
    let large = Message::to_queue("q", Vec::new()).properties(&BasicProperties::default().with_headers(headers));
    assert_eq!(peer.session.publish(&large), Err(Unsent::PropertiesTooLong));
    assert!(peer.hear().is_empty());
}

/// Everything a broker may say, damaged: the session must end or go on, and never panic, hang or grow without bound.
#[test]
fn damaged_bytes_end_the_session_at_worst() {
    let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 200_000 } else { 1_000 };
    let mut whole = Peer::new(SessionOptions::new(sasl(), "/"));
    whole.say_opening(60);
    let opening = whole.said.len();
    (1..=3).for_each(|tag| whole.deliver(tag, &[tag as u8; 40], 2));
    let cancel = basic::Cancel { consumer_tag: "c".into(), nowait: false };
    whole.say_channel(AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
    whole.say_connection(close(320, "CONNECTION_FORCED"));
    for seed in tidegate_seeds::seeds(rounds) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = whole.said.clone();
        // Half of them get past the opening, where most is to be found.
        let from = if random.bool() { opening } else { 0 };
        for _ in 0..random.usize(1..4) {
            let at = random.usize(from..bytes.len());
            match random.u8(0..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u8(0..8),
                2 => drop(bytes.drain(at..(at + random.usize(1..30)).min(bytes.len()))),
                _ => {
                    let piece = bytes[at..(at + random.usize(1..60)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.len() <= from {
                break;
            }
        }
        let mut peer = Peer::new(SessionOptions::new(sasl(), "/"));
        for piece in bytes.chunks(random.usize(1..400)) {
            peer.session.handle_bytes(piece, peer.now);
            for event in peer.events() {
                if let Event::Delivery(delivery) = event {
                    let _ = delivery.properties.read();
                    peer.session.settle(delivery.tag, Settle::Ack);
                }
            }
            peer.hear();
        }
        peer.session.handle_end();
        assert!(peer.session.is_closed(), "seed {seed}");
    }
}
