//! Data gets through: all of it, once, in order, and no faster than it is taken.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::rc::Rc;

use rustix::net::{SendFlags, send};
use tidegate_loop::net::TcpStream;
use tidegate_loop::{SelectorKind, spawn, yield_now};

use super::support::{connections, listener, on, pair, read_to_end};

async fn echo(stream: TcpStream) {
    let mut buffer = vec![0; 8192];
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => return,
            count => stream.write_all(&buffer[..count]).await.unwrap(),
        }
    }
}

/// A message that is no other: of this connection, this round, with every byte depending on its place.
fn message(connection: usize, round: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (connection * 31 + round * 7 + at * (at / 251 + 1)) as u8).collect()
}

async fn talk(stream: Rc<TcpStream>, connection: usize, rounds: usize, size: usize) {
    // Writer and reader at once: messages of several rounds are on their way at the same time.
    let writer = stream.clone();
    let writing = spawn(async move {
        for round in 0..rounds {
            writer.write_all(&message(connection, round, size)).await.unwrap();
        }
    });
    let mut reply = vec![0; size];
    for round in 0..rounds {
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, message(connection, round, size), "connection {connection}, round {round}");
    }
    writing.await.unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut reply).await.unwrap(), 0, "more came back than was sent");
}

fn a_thousand_connections_echo(kind: SelectorKind, rounds: usize, size: usize) {
    on(kind, async move {
        let count = connections(kind, 1_000);
        let listener = listener().await;
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            for _ in 0..count {
                let (stream, _) = listener.accept().await.unwrap();
                spawn(echo(stream));
            }
        });
        let mut clients = Vec::new();
        for connection in 0..count {
            let stream = Rc::new(TcpStream::connect(address).await.unwrap());
            clients.push(spawn(talk(stream, connection, rounds, size)));
        }
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
    });
}

pub(crate) fn a_thousand_connections_echo_64_bytes_in_order(kind: SelectorKind) {
    a_thousand_connections_echo(kind, 10, 64);
}

pub(crate) fn a_thousand_connections_echo_4_kib_in_order(kind: SelectorKind) {
    a_thousand_connections_echo(kind, 5, 4096);
}

pub(crate) fn a_slow_reader_holds_its_writer_up_and_loses_nothing(kind: SelectorKind) {
    on(kind, async {
        const ALL: usize = 32 << 20;
        let (near, far) = pair(&listener().await).await;
        let written = Rc::new(Cell::new(0));
        let progress = written.clone();
        let writer = spawn(async move {
            let chunk: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
            while progress.get() < ALL {
                let at = progress.get() % 256;
                let count = near.write(&chunk[at..]).await.unwrap();
                progress.set(progress.get() + count);
            }
        });
        // Until the buffers are full: then it makes no progress, turn after turn.
        let mut before = usize::MAX;
        while written.get() != before {
            before = written.get();
            for _ in 0..1_000 {
                yield_now().await;
            }
        }
        assert!(before > 0 && before < ALL, "written without a reader: {before}");
        let all = read_to_end(&far).await.unwrap();
        assert!(all.len() >= ALL);
        assert!(all.iter().enumerate().all(|(at, &byte)| byte == at as u8));
        writer.await.unwrap();
    });
}

pub(crate) fn vectored_reads_and_writes_keep_their_order(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let (head, body) = (vec![1; 100], vec![2; 70_000]);
        let writer = spawn(async move {
            let mut slices = [IoSlice::new(&head), IoSlice::new(&body)];
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let count = near.write_vectored(left).await.unwrap();
                IoSlice::advance_slices(&mut left, count);
            }
        });
        let (mut head, mut body) = (vec![0; 100], vec![0; 80_000]);
        let mut filled = 0;
        loop {
            let (done, head) = head.split_at_mut(filled.min(100));
            let body = &mut body[filled - done.len()..];
            match far.read_vectored(&mut [IoSliceMut::new(head), IoSliceMut::new(body)]).await.unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        writer.await.unwrap();
        assert_eq!(filled, 70_100);
        assert!(head.iter().all(|&byte| byte == 1) && body[..70_000].iter().all(|&byte| byte == 2));
    });
}

/// A read stops short of urgent data with more behind it: taken for drained, the rest would wait for ever.
pub(crate) fn urgent_data_does_not_stop_a_reader(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let reader = spawn(async move { read_to_end(&far).await.unwrap() });
        yield_now().await;
        near.write_all(b"before").await.unwrap();
        assert_eq!(send(&near, b"!", SendFlags::OOB), Ok(1));
        near.write_all(b"after").await.unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        // The urgent byte itself is out of band.
        assert_eq!(reader.await.unwrap(), b"beforeafter");
    });
}

/// Nothing but the room it makes tells of this peer, and it is outside of the loop.
pub(crate) fn a_large_body_reaches_a_peer_that_says_nothing(kind: SelectorKind) {
    const SIZE: usize = 20_000_000;
    let (listener, body) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), (0..SIZE).map(|n| (n % 251) as u8));
    let address = listener.local_addr().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut all).unwrap();
        all
    });
    let sent: Vec<u8> = body.collect();
    let sending = sent.clone();
    on(kind, async move {
        let stream = TcpStream::connect(address).await.unwrap();
        // In pieces of an odd size.
        for piece in sending.chunks(123_457) {
            stream.write_all(piece).await.unwrap();
        }
    });
    assert!(reader.join().unwrap() == sent);
}

pub(crate) fn a_receive_mark_keeps_drops_back_and_lets_a_flood_and_the_end_through(kind: SelectorKind) {
    const MARK: usize = 1_000;
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let far = Rc::new(far);
        // Of a task that waits before anything comes: a read that is tried takes what there is.
        let read = || {
            let far = Rc::clone(&far);
            spawn(async move {
                let mut buffer = [0; 2 * MARK];
                far.read(&mut buffer).await.unwrap()
            })
        };
        let reader = read();
        pass_turns().await;
        far.set_receive_mark(MARK as u32).unwrap();
        near.write_all(&[1; 10]).await.unwrap();
        pass_turns().await;
        assert!(!reader.is_finished(), "woken by a drop");
        near.write_all(&[1; MARK - 10]).await.unwrap();
        assert_eq!(reader.await.unwrap(), MARK);

        let reader = read();
        pass_turns().await;
        near.write_all(&[1; 10]).await.unwrap();
        pass_turns().await;
        assert!(!reader.is_finished(), "woken by a drop");
        far.set_receive_mark(1).unwrap();
        assert_eq!(reader.await.unwrap(), 10, "what was kept back is there once the mark is low");

        let reader = read();
        pass_turns().await;
        far.set_receive_mark(MARK as u32).unwrap();
        near.write_all(&[1; 5]).await.unwrap();
        drop(near);
        assert_eq!(reader.await.unwrap(), 5);
        assert_eq!(read().await.unwrap(), 0, "the end");
    });
}

/// Enough for the selector to be asked several times.
async fn pass_turns() {
    for _ in 0..1_000 {
        yield_now().await;
    }
}
