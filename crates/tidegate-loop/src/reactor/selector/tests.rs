//! What every selector does, by itself; the loop above it has a suite of its own.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::*;

const READ: Interest = Interest { readable: true, writable: false, edge: false };
const WRITE: Interest = Interest { readable: false, writable: true, edge: false };

fn every_kind(check: impl Fn(&mut dyn Selector)) {
    for kind in [SelectorKind::Select, SelectorKind::EpollLevel, SelectorKind::Epoll, SelectorKind::IoUring] {
        check(&mut *open(kind).unwrap().selector);
    }
}

fn looked(selector: &mut dyn Selector) -> Vec<Readiness> {
    let mut ready = Vec::new();
    selector.wait(Some(Duration::ZERO), &mut ready).unwrap();
    ready
}

#[test]
fn it_waits_for_what_it_was_asked() {
    every_kind(|selector| {
        let (near, mut far) = UnixStream::pair().unwrap();
        selector.register(near.as_fd(), Token(7), READ).unwrap();
        let mut ready = Vec::new();

        // As the loop does: early returns are allowed, rounding up is not (and not tested: that would be a matter of time).
        let deadline = Instant::now() + Duration::from_micros(3_300);
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            selector.wait(Some(left), &mut ready).unwrap();
        }
        assert_eq!(ready, []);

        far.write_all(b"x").unwrap();
        selector.wait(Some(Duration::from_secs(60)), &mut ready).unwrap();
        assert_eq!(ready, [Readiness { token: Token(7), ready: Ready(Ready::READ) }]);

        ready.clear();
        selector.modify(near.as_fd(), Token(8), WRITE).unwrap();
        selector.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [Readiness { token: Token(8), ready: Ready(Ready::WRITE) }]);

        selector.deregister(near.as_fd()).unwrap();
        assert_eq!(looked(selector), []);
    });
}

#[test]
fn a_descriptor_ready_for_both_is_told_of_once() {
    every_kind(|selector| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (idle, _other) = UnixStream::pair().unwrap();
        far.write_all(b"x").unwrap();
        selector.register(idle.as_fd(), Token(1), WRITE).unwrap();
        selector.register(near.as_fd(), Token(2), Interest { writable: true, ..READ }).unwrap();
        let mut ready = looked(selector);
        ready.sort_by_key(|readiness| readiness.token.0);
        let expected = [(1, Ready::WRITE), (2, Ready::READ | Ready::WRITE)]
            .map(|(n, bits)| Readiness { token: Token(n), ready: Ready(bits) });
        assert_eq!(ready, expected);
    });
}

#[test]
fn registering_twice_and_changing_what_is_not_registered_are_errors() {
    every_kind(|selector| {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(selector.modify(near.as_fd(), Token(1), READ).unwrap_err().kind(), io::ErrorKind::NotFound);
        selector.register(near.as_fd(), Token(1), READ).unwrap();
        assert_eq!(selector.register(near.as_fd(), Token(1), READ).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        selector.deregister(near.as_fd()).unwrap();
        assert_eq!(selector.deregister(near.as_fd()).unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn the_end_of_the_peer_is_told_by_epoll_and_readable_for_select() {
    every_kind(|selector| {
        let (near, far) = UnixStream::pair().unwrap();
        selector.register(near.as_fd(), Token(1), READ).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        let ready = looked(selector);
        assert!(ready[0].ready.has(Ready::READ));
        drop(far);
        assert!(looked(selector)[0].ready.has(Ready::READ));
    });
}
