//! The chat server of the examples: clients come, send lines and leave, and all others receive that.

#[path = "../examples/chat/room.rs"]
mod room;

use std::net::SocketAddr;

use tidegate_loop::net::{OwnedReadHalf, Server, TcpListener, TcpStream};
use tidegate_loop::stream::{StreamReader, StreamWriter};
use tidegate_loop::{Duration, EventLoop, SelectorKind};

struct Client {
    reader: StreamReader<OwnedReadHalf>,
    writer: StreamWriter,
}

impl Client {
    async fn enter(address: SocketAddr, name: &str, others: usize) -> Client {
        let (reader, writer) = TcpStream::connect(address).await.unwrap().into_streams();
        let mut client = Client { reader, writer };
        client.hears("your name?").await;
        client.says(name);
        client.hears(&format!("* {others} others are here")).await;
        client
    }

    fn says(&self, line: &str) {
        self.writer.write(format!("{line}\n").as_bytes());
    }

    async fn line(&mut self) -> String {
        String::from_utf8(self.reader.read_line().await.unwrap().expect("a line")).unwrap()
    }

    async fn hears(&mut self, line: &str) {
        assert_eq!(self.line().await, line);
    }
}

fn with_server(kind: SelectorKind, test: impl AsyncFnOnce(SocketAddr, Server) + 'static) {
    let event_loop = EventLoop::builder().selector(kind).build().unwrap();
    let served = event_loop.run_until_complete(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let room = room::Room::default();
        let server = Server::builder().serve(listener, move |stream, peer| room.clone().visit(stream, peer));
        test(server.local_addr().unwrap(), server).await;
    });
    served.unwrap();
}

#[test]
fn what_one_says_all_others_hear_in_order() {
    for kind in [SelectorKind::Select, SelectorKind::EpollLevel, SelectorKind::Epoll] {
        with_server(kind, async |address, server| {
            let mut ann = Client::enter(address, "ann", 0).await;
            let mut ben = Client::enter(address, "ben", 1).await;
            ann.hears("* ben is here").await;
            let mut cleo = Client::enter(address, "cleo", 2).await;
            ann.hears("* cleo is here").await;
            ben.hears("* cleo is here").await;
            for line in ["good morning", "is anybody awake?"] {
                ann.says(line);
                ben.hears(&format!("ann: {line}")).await;
                cleo.hears(&format!("ann: {line}")).await;
            }
            drop(ben);
            ann.hears("* ben has left").await;
            cleo.hears("* ben has left").await;
            cleo.says("bye");
            ann.hears("cleo: bye").await;
            let stopped = server.stop(Duration::from_millis(1)).await;
            assert_eq!(stopped.cancelled.len(), 2);
        });
    }
}

#[test]
fn somebody_who_does_not_read_keeps_nobody_waiting_and_is_shown_the_door() {
    with_server(SelectorKind::Epoll, async |address, server| {
        let _deaf = Client::enter(address, "deaf", 0).await;
        let talker = Client::enter(address, "talker", 1).await;
        let mut listener = Client::enter(address, "listener", 2).await;
        let text = "x".repeat(32 << 10);
        // Far more than the kernel and the room keep for one who does not read.
        let mut deaf_has_left = false;
        for number in 0..400 {
            talker.says(&format!("{number} {text}"));
            let mut heard = listener.line().await;
            if heard == "* deaf has left" {
                assert!(!std::mem::replace(&mut deaf_has_left, true));
                heard = listener.line().await;
            }
            assert_eq!(heard, format!("talker: {number} {text}"));
        }
        assert!(deaf_has_left);
        assert_eq!(server.stats().open, 2);
    });
}
