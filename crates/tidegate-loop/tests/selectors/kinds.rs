//! The other kinds of descriptors: datagrams, Unix sockets, pipes.

use std::cell::Cell;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tidegate_loop::net::{UdpSocket, UnixDatagram, UnixListener, UnixStream};
use tidegate_loop::pipe::pipe;
use tidegate_loop::{SelectorKind, spawn, yield_now};

use super::support::on;

pub(crate) fn datagrams_arrive_whole_from_whom_they_were_sent(kind: SelectorKind) {
    on(kind, async {
        let server = Rc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = server.local_addr().unwrap();
        let echoing = spawn({
            let server = server.clone();
            async move {
                let mut buffer = [0; 2048];
                loop {
                    let (count, from) = server.recv_from(&mut buffer).await.unwrap();
                    server.send_to(&buffer[..count], from).await.unwrap();
                }
            }
        });
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(address).await.unwrap();
        assert_eq!(client.peer_addr().unwrap(), address);
        let mut buffer = [0; 2048];
        for size in [0, 1, 64, 1400] {
            let message = vec![size as u8; size];
            assert_eq!(client.send(&message).await.unwrap(), size);
            assert_eq!(client.recv(&mut buffer).await.unwrap(), size);
            assert_eq!(buffer[..size], message);
        }
        echoing.cancel();
    });
}

pub(crate) fn a_datagram_to_nobody_is_told_and_the_socket_goes_on(kind: SelectorKind) {
    on(kind, async {
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(nobody).await.unwrap();
        for _ in 0..3 {
            socket.send(b"anybody?").await.unwrap();
            let error = socket.recv(&mut [0; 8]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        let friend = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(friend.local_addr().unwrap()).await.unwrap();
        let address = socket.local_addr().unwrap();
        let receiving = spawn(async move { socket.recv(&mut [0; 8]).await.unwrap() });
        yield_now().await;
        yield_now().await;
        friend.send_to(b"here", address).await.unwrap();
        assert_eq!(receiving.await.unwrap(), 4);
    });
}

pub(crate) fn unix_sockets_carry_streams_and_datagrams(kind: SelectorKind) {
    on(kind, async move {
        let path = std::env::temp_dir().join(format!("tidegate-{}-{kind}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let serving = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            while let count @ 1.. = stream.read(&mut buffer).await.unwrap() {
                stream.write_all(&buffer[..count]).await.unwrap();
            }
        });
        let client = UnixStream::connect(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let (message, mut reply) = (vec![7; 300_000], vec![0; 300_000]);
        let client = Rc::new(client);
        let writing = spawn({
            let client = client.clone();
            async move {
                client.write_all(&message).await.unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            }
        });
        client.read_exact(&mut reply).await.unwrap();
        assert!(reply.iter().all(|&byte| byte == 7));
        assert_eq!(client.read(&mut reply).await.unwrap(), 0);
        writing.await.unwrap();
        serving.await.unwrap();

        // A receiver that is slow holds its sender up; nothing is lost and nothing is torn.
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let sent = Rc::new(Cell::new(0u32));
        let counted = sent.clone();
        let sending = spawn(async move {
            for number in 0..2_000u32 {
                sender.send(&number.to_be_bytes()).await.unwrap();
                counted.set(number + 1);
            }
        });
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(sent.get() < 2_000, "the receiver's queue is finite");
        for number in 0..2_000u32 {
            let mut buffer = [0; 64];
            assert_eq!(receiver.recv(&mut buffer).await.unwrap(), 4);
            assert_eq!(buffer[..4], number.to_be_bytes());
        }
        sending.await.unwrap();
    });
}

/// A read stops where a descriptor was sent along, with more behind it: taken for drained, the rest would wait for ever.
pub(crate) fn a_descriptor_sent_along_does_not_stop_a_reader(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = UnixStream::pair().unwrap();
        let reading = spawn(async move {
            let mut all = [0; 10];
            far.read_exact(&mut all).await.unwrap();
            all
        });
        yield_now().await;
        yield_now().await;
        let stdin = std::io::stdin();
        let descriptors = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let data = [std::io::IoSlice::new(b"first")];
        assert_eq!(sendmsg(&near, &data, &mut control, SendFlags::empty()), Ok(5));
        near.write_all(b"after").await.unwrap();
        assert_eq!(&reading.await.unwrap(), b"firstafter");
    });
}

pub(crate) fn a_pipe_carries_everything_to_its_end(kind: SelectorKind) {
    on(kind, async {
        let (writer, reader) = pipe().unwrap();
        let writing = spawn(async move {
            for round in 0..100u8 {
                writer.write_all(&vec![round; 5_000]).await.unwrap();
            }
        });
        let mut piece = vec![0; 5_000];
        for round in 0..100u8 {
            reader.read_exact(&mut piece).await.unwrap();
            assert!(piece.iter().all(|&byte| byte == round));
        }
        assert_eq!(reader.read(&mut piece).await.unwrap(), 0);
        writing.await.unwrap();

        let (writer, reader) = pipe().unwrap();
        let writing = spawn(async move {
            loop {
                if let Err(error) = writer.write(&[0; 4096]).await {
                    return error.kind();
                }
            }
        });
        for _ in 0..50 {
            yield_now().await;
        }
        drop(reader);
        assert_eq!(writing.await.unwrap(), ErrorKind::BrokenPipe);
    });
}
