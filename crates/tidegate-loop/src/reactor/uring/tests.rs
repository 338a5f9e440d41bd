//! The ring by itself; the loop above it is tested by the suite that all selectors share.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::*;
use crate::reactor::selector::Ready;

const TOKEN: Token = Token(7);

fn ring() -> Rc<Ring> {
    Ring::open().unwrap_or_else(|reason| panic!("{reason}"))
}

/// A stream on the ring and its peer; the latter does not block.
fn pair(ring: &Rc<Ring>) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (Stream::new(ring, Rc::new(OwnedFd::from(near)), TOKEN), far)
}

fn look(ring: &Rc<Ring>) -> Vec<Readiness> {
    let mut ready = Vec::new();
    ring.clone().wait(Some(Duration::ZERO), &mut ready).unwrap();
    // As the loop does.
    ring.drop_gone();
    ready
}

/// Waits for whatever comes next.
fn next(ring: &Rc<Ring>) -> Vec<Readiness> {
    let mut ready = Vec::new();
    while ready.is_empty() {
        ring.clone().wait(None, &mut ready).unwrap();
    }
    ready
}

fn told(ready: u8) -> Vec<Readiness> {
    vec![Readiness { token: TOKEN, ready: Ready(ready) }]
}

/// What the kernel knows of, and what is kept for it.
fn held(ring: &Rc<Ring>) -> (usize, usize) {
    let core = ring.core.borrow();
    (core.in_flight, core.slots.len())
}

fn numbered(index: usize) -> u8 {
    (index % 251) as u8
}

/// Writes numbered bytes until there is no room for them any more, with the ring at work; how many.
fn write_until_full(ring: &Rc<Ring>, mut write: impl FnMut(&[u8]) -> Option<usize>) -> usize {
    let (mut total, mut turned_away) = (0, 0);
    while turned_away < 3 {
        let chunk: Vec<u8> = (total..total + 8192).map(numbered).collect();
        match write(&chunk) {
            Some(count) => {
                total += count;
                turned_away = 0;
            }
            None => {
                turned_away += 1;
                look(ring);
            }
        }
    }
    total
}

fn fill(ring: &Rc<Ring>, stream: &Stream) -> usize {
    write_until_full(ring, |chunk| match stream.send(chunk) {
        Err(Errno::AGAIN) => None,
        other => Some(other.unwrap()),
    })
}

#[test]
fn what_arrives_is_told_and_read_in_parts() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    let mut buffer = [0; 3];
    assert_eq!(near.recv(&mut buffer), Err(Errno::AGAIN));
    far.write_all(b"hello").unwrap();
    assert_eq!(next(&ring), told(Ready::READ));
    assert_eq!((near.peek(&mut buffer), &buffer), (Ok(3), b"hel"));
    assert_eq!((near.recv(&mut buffer), &buffer), (Ok(3), b"hel"));
    assert_eq!((near.recv(&mut buffer), &buffer[..2]), (Ok(2), &b"lo"[..]));
    assert_eq!(near.recv(&mut buffer), Err(Errno::AGAIN));
    drop(far);
    assert_eq!(next(&ring), told(Ready::READ | Ready::READ_END));
    assert_eq!(near.recv(&mut buffer), Ok(0));
    assert_eq!(near.recv(&mut buffer), Ok(0));
}

#[test]
fn a_stream_dropped_while_it_receives_is_closed_at_once() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    assert_eq!(near.recv(&mut [0]), Err(Errno::AGAIN));
    assert_eq!(look(&ring), []);
    assert_eq!(held(&ring), (1, 1));
    // Something is parked, and its buffer comes back too.
    far.write_all(b"unread").unwrap();
    next(&ring);
    assert_eq!(ring.core.borrow_mut().buffers().unwrap().lent(), 1);
    drop(near);
    assert_eq!(held(&ring), (0, 0));
    assert_eq!(ring.core.borrow_mut().buffers().unwrap().lent(), 0);
    far.set_nonblocking(false).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_stream_dropped_before_its_receive_was_submitted_is_closed_at_once() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    assert_eq!(near.recv(&mut [0]), Err(Errno::AGAIN));
    assert_eq!(near.send(b"bye"), Ok(3));
    drop(near);
    assert_eq!(held(&ring), (0, 0));
    far.set_nonblocking(false).unwrap();
    let mut said = String::new();
    far.read_to_string(&mut said).unwrap();
    assert_eq!(said, "bye");
}

#[test]
fn what_was_written_before_a_drop_is_sent_from_memory_that_stays() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    let total = fill(&ring, &near);
    drop(near);
    let (in_flight, slots) = held(&ring);
    assert_eq!((in_flight, slots), (1, 1), "the send and its buffer outlive the stream");
    // Memory that was given back too early would be used, and changed, by these.
    let _noise: Vec<Vec<u8>> = (0..64).map(|n| vec![255; 1024 << (n % 7)]).collect();
    let (mut read, mut buffer) = (0, vec![0; 65536]);
    loop {
        match far.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                assert!(buffer[..count].iter().enumerate().all(|(n, byte)| *byte == numbered(read + n)));
                read += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => drop(look(&ring)),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((read, held(&ring)), (total, (0, 0)));
}

#[test]
fn a_ring_ends_what_is_in_flight_before_it_goes() {
    let ring = ring();
    ring.core.borrow_mut().linger = Duration::ZERO;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = Listener::new(&ring, Rc::new(OwnedFd::from(listener)), Token(1));
    assert_eq!(accepting.accept().unwrap_err(), Errno::AGAIN);
    let (receiving, _far) = pair(&ring);
    assert_eq!(receiving.recv(&mut [0]), Err(Errno::AGAIN));
    let (sending, _full) = pair(&ring);
    fill(&ring, &sending);
    // One orphan, and three with handles.
    let (orphan, _full) = pair(&ring);
    fill(&ring, &orphan);
    drop(orphan);
    assert_eq!(held(&ring), (4, 4));
    ring.close();
    assert_eq!(held(&ring), (0, 3));
    assert_eq!(receiving.recv(&mut [0]), Err(Errno::AGAIN));
    assert_eq!(sending.send(b"x"), Err(Errno::CANCELED), "what was not sent is not forgotten");
    assert_eq!(sending.send(b"x"), Err(Errno::PIPE));
    assert_eq!(accepting.accept().unwrap_err(), Errno::AGAIN);
    drop((accepting, receiving, sending));
    assert_eq!(held(&ring), (0, 0));
    TcpListener::bind(address).unwrap();
}

#[test]
fn closing_waits_for_what_was_written() {
    let ring = ring();
    // On a busy machine the reader may be late.
    ring.core.borrow_mut().linger = Duration::from_secs(60);
    let (near, mut far) = pair(&ring);
    let total = fill(&ring, &near);
    far.set_nonblocking(false).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        all.len()
    });
    drop(near);
    drop(ring);
    assert_eq!(reader.join().unwrap(), total);
}

#[test]
fn readers_that_lag_do_not_starve_the_others() {
    // Less than what makes a stream stop, and together more than there are buffers for.
    starve(&ring(), 100, 4096);
}

#[test]
fn readers_that_lag_do_not_starve_the_others_where_buffers_are_not_shared() {
    let ring = ring();
    ring.core.borrow_mut().use_single_buffers();
    // A buffer a byte, as long as the bytes come apart.
    starve(&ring, 40, 1);
}

fn starve(ring: &Rc<Ring>, streams: usize, size: usize) {
    let mut pairs: Vec<_> = (0..streams).map(|_| pair(ring)).collect();
    for (near, far) in &pairs {
        assert_eq!(near.recv(&mut [0]), Err(Errno::AGAIN));
        far.set_nodelay(true).unwrap();
        far.set_nonblocking(false).unwrap();
    }
    look(ring);
    let mut total = 0;
    while ring.core.borrow().counts.starvations == 0 {
        let bytes: Vec<u8> = (total..total + size).map(numbered).collect();
        for (_, far) in &mut pairs {
            far.write_all(&bytes).unwrap();
        }
        look(ring);
        total += size;
        assert!(total < 256 * size, "the buffers do not run out");
    }
    for (near, _) in &pairs {
        let (mut read, mut buffer) = (0, vec![0; 10_000]);
        while read < total {
            match near.recv(&mut buffer) {
                Ok(count) => {
                    assert!(buffer[..count].iter().enumerate().all(|(n, byte)| *byte == numbered(read + n)));
                    read += count;
                }
                Err(Errno::AGAIN) => drop(next(ring)),
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(ring.core.borrow_mut().buffers().unwrap().lent(), 0);
}

#[test]
fn a_reader_that_lags_holds_its_peer_up_and_loses_nothing() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    assert_eq!(near.recv(&mut [0]), Err(Errno::AGAIN));
    let total = write_until_full(&ring, |chunk| match far.write(chunk) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        other => Some(other.unwrap()),
    });
    let parked = ring.core.borrow_mut().parked(near.key);
    assert!(parked > 64 * 1024 && parked < total, "{parked} bytes of {total} are parked");
    assert!(!is_receiving(&ring, &near));
    let (mut read, mut buffer) = (0, vec![0; 10_000]);
    while read < total {
        match near.recv(&mut buffer) {
            Ok(count) => {
                assert!(buffer[..count].iter().enumerate().all(|(n, byte)| *byte == numbered(read + n)));
                read += count;
            }
            Err(Errno::AGAIN) => drop(next(&ring)),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(is_receiving(&ring, &near));
}

fn is_receiving(ring: &Rc<Ring>, stream: &Stream) -> bool {
    ring.core.borrow_mut().stream_and_buffers(stream.key).unwrap().0.receiving.armed
}

#[test]
fn completions_that_overflow_are_not_lost() {
    let ring = ring();
    let (quick, slow) = (eventfd(0, EventfdFlags::empty()).unwrap(), eventfd(0, EventfdFlags::empty()).unwrap());
    let interest = Interest { readable: true, writable: false, edge: true };
    ring.clone().register(quick.as_fd(), Token(1), interest).unwrap();
    ring.clone().register(slow.as_fd(), Token(2), interest).unwrap();
    let one = 1u64.to_ne_bytes();
    for _ in 0..=2 * setup::COMPLETIONS {
        rustix::io::write(&quick, &one).unwrap();
        ring.core.borrow_mut().enter(Some(Duration::ZERO)).unwrap();
    }
    rustix::io::write(&slow, &one).unwrap();
    let mut ready = Vec::new();
    while !ready.iter().any(|readiness: &Readiness| readiness.token == Token(2)) {
        ring.clone().wait(None, &mut ready).unwrap();
    }
    // And both still tell.
    while !look(&ring).is_empty() {}
    for (fd, token) in [(&quick, Token(1)), (&slow, Token(2))] {
        rustix::io::write(fd, &one).unwrap();
        assert_eq!(next(&ring), [Readiness { token, ready: Ready(Ready::READ) }]);
    }
}

#[test]
fn the_sends_of_a_tick_are_one_call_and_no_news() {
    let ring = ring();
    let mut pairs: Vec<_> = (0..100).map(|_| pair(&ring)).collect();
    for (near, _) in &pairs {
        assert_eq!(near.send(b"a"), Ok(1));
        assert_eq!(near.send(b"b"), Ok(1));
    }
    let before = ring.core.borrow().counts.enters;
    assert_eq!(look(&ring), []);
    assert_eq!((ring.core.borrow().counts.enters, held(&ring).0), (before + 1, 0));
    // With nothing queued and no completion to read, looking costs no call at all.
    assert_eq!(look(&ring), []);
    assert_eq!(ring.core.borrow().counts.enters, before + 1);
    let mut buffer = [0; 8];
    for (_, far) in &mut pairs {
        assert_eq!(far.read(&mut buffer).unwrap(), 2);
        assert_eq!(&buffer[..2], b"ab");
    }
}

#[test]
fn a_writer_without_room_is_told_when_there_is_some_though_nothing_else_happens() {
    let ring = ring();
    let (near, _far) = pair(&ring);
    let taken = near.send(&[1; 100_000]).unwrap();
    assert!(taken < 100_000);
    assert_eq!(near.send(&[1; 10]), Err(Errno::AGAIN));
    let mut ready = Vec::new();
    ring.clone().wait(Some(Duration::from_secs(60)), &mut ready).unwrap();
    assert_eq!(ready, told(Ready::WRITE));
    assert_eq!(near.send(&[1; 10]), Ok(10));
}

#[test]
fn what_is_left_of_a_send_goes_out_though_nothing_else_happens() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    let total = fill(&ring, &near);
    let reader = std::thread::spawn(move || {
        far.set_nonblocking(false).unwrap();
        far.read_exact(&mut vec![0; total]).unwrap();
        far
    });
    // The stream is reported writable once; the rest of what it wrote needs no report.
    next(&ring);
    while !reader.is_finished() {
        ring.clone().wait(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
    }
    reader.join().unwrap();
    assert_eq!(held(&ring).0, 0);
}

#[test]
fn a_failed_send_is_told_to_the_next_writer_and_the_end_comes_behind_what_was_written() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    assert_eq!(near.send(b"last"), Ok(4));
    near.shutdown(rustix::net::Shutdown::Write).unwrap();
    assert_eq!(near.send(b"x"), Err(Errno::PIPE));
    far.set_nonblocking(false).unwrap();
    let mut said = String::new();
    far.read_to_string(&mut said).unwrap();
    assert_eq!(said, "last");

    let (near, far) = pair(&ring);
    drop(far);
    let error = loop {
        if let Err(error) = near.send(b"x") {
            break error;
        }
        look(&ring);
    };
    assert!(matches!(error, Errno::PIPE | Errno::CONNRESET), "{error}");
}

#[test]
fn the_end_waits_for_a_full_peer() {
    let ring = ring();
    let (near, mut far) = pair(&ring);
    let total = fill(&ring, &near);
    near.shutdown(rustix::net::Shutdown::Write).unwrap();
    let (mut read, mut buffer) = (0, vec![0; 65536]);
    loop {
        match far.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => drop(look(&ring)),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(read, total);
}

#[test]
fn a_port_is_free_when_its_listener_is_gone_and_so_is_what_it_accepted() {
    let ring = ring();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Listener::new(&ring, Rc::new(OwnedFd::from(listener)), TOKEN);
    assert_eq!(listener.accept().unwrap_err(), Errno::AGAIN);
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    next(&ring);
    let first = listener.accept().unwrap();
    let peer = rustix::net::getpeername(&first).unwrap().unwrap();
    assert_eq!(std::net::SocketAddr::try_from(peer).unwrap(), clients[0].local_addr().unwrap());
    drop(listener);
    assert_eq!(held(&ring), (0, 0));
    for mut client in clients.into_iter().skip(1) {
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    }
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_registration_that_is_gone_tells_nothing_and_keeps_nothing_open() {
    let ring = ring();
    let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    let interest = Interest { readable: true, writable: false, edge: true };
    ring.clone().register(near.as_fd(), TOKEN, interest).unwrap();
    far.write_all(b"x").unwrap();
    ring.clone().deregister(near.as_fd()).unwrap();
    drop(near);
    assert_eq!(far.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe, "the kernel still holds the other end");
    assert_eq!(look(&ring), []);
    assert_eq!(held(&ring), (0, 0));
}

#[test]
fn files_cannot_be_watched_and_neither_can_a_socket_of_the_rings() {
    let ring = ring();
    let interest = Interest { readable: true, writable: false, edge: false };
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(ring.clone().register(file.as_fd(), TOKEN, interest).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let (socket, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    let owner = Rc::new(OwnedFd::from(socket));
    let stream = Stream::new(&ring, owner.clone(), TOKEN);
    assert_eq!(ring.clone().register(owner.as_fd(), TOKEN, interest).unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(stream);
    ring.clone().register(owner.as_fd(), TOKEN, interest).unwrap();
}

/// What has arrived at a peer that does not block.
fn arrived(far: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let error = far.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    bytes
}

#[test]
fn a_send_that_ends_while_others_are_queued_on_a_full_ring_goes_on() {
    let ring = ring();
    let ((first, mut first_far), (second, mut second_far)) = (pair(&ring), pair(&ring));
    assert_eq!(first.send(b"one "), Ok(4));
    {
        // Sent, and its completion not yet seen.
        let mut core = ring.core.borrow_mut();
        assert!(core.queue_sends());
        core.enter(Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(first.send(b"two"), Ok(3));
    assert_eq!(second.send(b"three"), Ok(5));
    ring.core.borrow_mut().busy_once = true;
    for _ in 0..3 {
        look(&ring);
    }
    assert!(!ring.core.borrow().busy_once);
    assert_eq!(arrived(&mut second_far), b"three");
    assert_eq!(arrived(&mut first_far), b"one two");
}

#[test]
fn a_poll_that_tells_while_others_are_armed_on_a_full_ring_tells_again() {
    let ring = ring();
    let level = Interest { readable: true, writable: false, edge: false };
    let bells: Vec<OwnedFd> = (0..2).map(|_| eventfd(1, EventfdFlags::NONBLOCK).unwrap()).collect();
    ring.clone().register(bells[0].as_fd(), Token(1), level).unwrap();
    // The first has told and is to be armed again; the second has told, and its completion is not yet seen.
    assert_eq!(next(&ring).len(), 1);
    ring.clone().register(bells[1].as_fd(), Token(2), level).unwrap();
    ring.core.borrow_mut().enter(Some(Duration::ZERO)).unwrap();
    ring.core.borrow_mut().busy_once = true;
    for _ in 0..3 {
        let mut told: Vec<u64> = look(&ring).iter().map(|ready| ready.token.0).collect();
        told.sort_unstable();
        assert_eq!(told, [1, 2]);
    }
}
