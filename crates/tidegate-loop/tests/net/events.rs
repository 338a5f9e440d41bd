//! The table in the documentation of `net`: which function waits for which event. With a level-triggered selector a
//! descriptor is registered for what is waited for and nothing else, and the kernel says what that is.

use std::cell::Cell;
use std::future::Future;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;

use tidegate_loop::net::TcpStream;
use tidegate_loop::{EventLoop, SelectorKind, spawn, yield_now};

use super::support::{Silent, listener, pair};

const IN: u32 = 0x1;
const OUT: u32 = 0x4;
const ERR_HUP: u32 = 0x18;
const RDHUP: u32 = 0x2000;

/// What some epoll of this process watches each descriptor for; other threads have theirs.
fn registered() -> Vec<(RawFd, u32)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        // Gone meanwhile: it was another test's.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if !target.to_string_lossy().contains("eventpoll") {
            continue;
        }
        let info = format!("/proc/self/fdinfo/{}", entry.file_name().to_string_lossy());
        let Ok(info) = std::fs::read_to_string(info) else { continue };
        for line in info.lines().filter(|line| line.starts_with("tfd:")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            all.push((words[1].parse().unwrap(), u32::from_str_radix(words[3], 16).unwrap()));
        }
    }
    all
}

fn watched_for(fd: RawFd) -> Option<u32> {
    // Errors and hang-ups are always told.
    registered().into_iter().find(|(known, _)| *known == fd).map(|(_, events)| events & !ERR_HUP)
}

fn level_triggered<F: Future + 'static>(future: F) -> F::Output {
    let event_loop = EventLoop::builder().selector(SelectorKind::EpollLevel).build().unwrap();
    event_loop.run_until_complete(future).unwrap()
}

async fn some_turns() {
    for _ in 0..5 {
        yield_now().await;
    }
}

#[test]
fn accept_waits_for_readable() {
    level_triggered(async {
        let listener = Rc::new(listener().await);
        let fd = listener.as_raw_fd();
        assert_eq!(watched_for(fd), None, "no task waits yet");
        let accepting = spawn({
            let listener = listener.clone();
            async move { listener.accept().await }
        });
        some_turns().await;
        assert_eq!(watched_for(fd), Some(IN | RDHUP));
        accepting.cancel();
    });
}

#[test]
fn connect_waits_for_writable() {
    level_triggered(async {
        let silent = Silent::new();
        let before = registered();
        let connecting = spawn(async move { TcpStream::connect(silent.address).await });
        some_turns().await;
        let new: Vec<u32> = registered()
            .into_iter()
            .filter(|known| !before.contains(known) && peer_less(known.0))
            .map(|(_, events)| events & !ERR_HUP)
            .collect();
        assert_eq!(new, [OUT]);
        connecting.cancel();
    });
}

/// Whether it is a socket that is not connected and does not listen: one that is connecting. Other tests have others.
fn peer_less(fd: RawFd) -> bool {
    // SAFETY: asks about a number; if it is closed meanwhile, or another's, the answer is an error or another's.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::net::getpeername(fd).is_err() && matches!(rustix::net::sockopt::socket_acceptconn(fd), Ok(false))
}

#[test]
fn read_waits_for_readable_or_the_end_of_the_peer() {
    level_triggered(async {
        // The accepted end: the other one has just waited to be connected.
        let (_near, far) = pair().await;
        let fd = far.as_raw_fd();
        let reading = spawn(async move { far.read(&mut [0; 8]).await });
        some_turns().await;
        assert_eq!(watched_for(fd), Some(IN | RDHUP));
        reading.cancel();
    });
}

#[test]
fn write_waits_for_writable() {
    level_triggered(async {
        let (near, _far) = pair().await;
        let (fd, written) = (near.as_raw_fd(), Rc::new(Cell::new(0)));
        let progress = written.clone();
        let writing = spawn(async move {
            loop {
                progress.set(progress.get() + near.write(&[0; 65536]).await.unwrap());
            }
        });
        let mut before = usize::MAX;
        while written.get() != before {
            before = written.get();
            for _ in 0..200 {
                yield_now().await;
            }
        }
        assert_eq!(watched_for(fd), Some(OUT));
        writing.cancel();
    });
}
