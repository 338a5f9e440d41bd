//! A broker of a few words.

use std::cell::RefCell;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, confirm, connection, queue};
use amq_protocol::types::FieldTable;
use tidegate_loop::net::{TcpListener, TcpStream};

pub(crate) async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    (listener, host)
}

pub(crate) struct Scripted {
    stream: TcpStream,
    heard: RefCell<Vec<u8>>,
}

impl Scripted {
    /// Takes a connection and opens it.
    pub(crate) async fn open(listener: &TcpListener) -> Scripted {
        let (stream, _) = listener.accept().await.unwrap();
        let server = Scripted { stream, heard: RefCell::default() };
        assert!(matches!(server.hear().await, AMQPFrame::ProtocolHeader(_)));
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: FieldTable::default(),
            mechanisms: "PLAIN".into(),
            locales: "en_US".into(),
        };
        server.say(0, AMQPClass::Connection(connection::AMQPMethod::Start(start))).await;
        server.hear().await;
        let tune = connection::Tune { channel_max: 0, frame_max: 131_072, heartbeat: 60 };
        server.say(0, AMQPClass::Connection(connection::AMQPMethod::Tune(tune))).await;
        server.hear().await;
        server.hear().await;
        server.say(0, AMQPClass::Connection(connection::AMQPMethod::OpenOk(connection::OpenOk {}))).await;
        server.hear().await;
        server.hear().await;
        server.say(1, AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}))).await;
        server.say(1, AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}))).await;
        server
    }

    async fn say(&self, channel: u16, class: AMQPClass) {
        self.stream.write_all(&bytes(&AMQPFrame::Method(channel, class))).await.unwrap();
    }

    /// Messages of a hundred bytes, in one piece.
    pub(crate) async fn deliver(&self, tags: std::ops::Range<u64>) {
        let all = tags.flat_map(|delivery_tag| {
            let deliver = basic::Deliver {
                consumer_tag: "c".into(),
                delivery_tag,
                redelivered: false,
                exchange: "".into(),
                routing_key: "q".into(),
            };
            let header = AMQPContentHeader { class_id: 60, body_size: 100, properties: BasicProperties::default() };
            let frames = [
                AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver))),
                AMQPFrame::Header(1, header),
                AMQPFrame::Body(1, vec![b'x'; 100]),
            ];
            frames.iter().flat_map(bytes).collect::<Vec<u8>>()
        });
        self.stream.write_all(&all.collect::<Vec<u8>>()).await.unwrap();
    }

    /// The next frame; `None` at the end of the connection.
    async fn try_hear(&self) -> Option<AMQPFrame> {
        loop {
            let parsed = parse_frame(&self.heard.borrow()[..]).ok().map(|(rest, frame)| (rest.len(), frame));
            if let Some((rest, frame)) = parsed {
                let mut heard = self.heard.borrow_mut();
                let used = heard.len() - rest;
                heard.drain(..used);
                return Some(frame);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).await {
                Ok(count) if count > 0 => self.heard.borrow_mut().extend_from_slice(&buffer[..count]),
                _ => return None,
            }
        }
    }

    async fn hear(&self) -> AMQPFrame {
        self.try_hear().await.expect("the client is there")
    }

    /// Until a queue was asked for.
    pub(crate) async fn hear_declare(&self) {
        loop {
            if let AMQPFrame::Method(_, AMQPClass::Queue(queue::AMQPMethod::Declare(_))) = self.hear().await {
                return;
            }
        }
    }

    /// How many came until the client hung up.
    pub(crate) async fn heartbeats(&self) -> usize {
        let mut count = 0;
        while let Some(frame) = self.try_hear().await {
            count += usize::from(matches!(frame, AMQPFrame::Heartbeat));
        }
        count
    }

    /// Answers nothing; returns once the client has hung up.
    pub(crate) async fn hung_up(&self) {
        while self.try_hear().await.is_some() {}
    }

    /// Answers a close in order: the channel's, then the connection's.
    pub(crate) async fn close(&self) {
        let heard = self.hear().await;
        assert!(matches!(heard, AMQPFrame::Method(1, AMQPClass::Channel(channel::AMQPMethod::Close(_)))), "{heard:?}");
        self.say(1, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}))).await;
        let heard = self.hear().await;
        let closes = matches!(heard, AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::Close(_))));
        assert!(closes, "{heard:?}");
        self.say(0, AMQPClass::Connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}))).await;
    }
}

fn bytes(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(WriteContext::from(Vec::new())).unwrap().into_inner().0
}
