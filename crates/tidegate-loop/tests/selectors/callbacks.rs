//! `add_reader` and `add_writer` with asyncio's rules.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use tidegate_loop::{EventLoop, SelectorKind};

use super::support::{listener, loop_of, on};

fn strict(kind: SelectorKind) -> EventLoop {
    EventLoop::builder().selector(kind).strict(true).build().unwrap()
}

fn one_tick(event_loop: &EventLoop) {
    event_loop.stop();
    event_loop.run_forever().unwrap();
}

pub(crate) fn a_reader_removed_earlier_in_the_tick_does_not_run(kind: SelectorKind) {
    let event_loop = strict(kind);
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    let near = Rc::new(near);
    event_loop.add_reader(&*near, || panic!("it was removed")).unwrap();
    let (handle, descriptor, removed) = (event_loop.handle(), near.clone(), Rc::new(Cell::new(false)));
    let seen = removed.clone();
    event_loop.call_soon(move || seen.set(handle.remove_reader(&*descriptor)));
    one_tick(&event_loop);
    assert!(removed.get());
    assert_eq!(event_loop.metrics().steps, 2, "the reader had been ready in that tick");
    one_tick(&event_loop);
}

pub(crate) fn a_second_reader_replaces_the_first(kind: SelectorKind) {
    let event_loop = strict(kind);
    let (near, mut far) = UnixStream::pair().unwrap();
    let (near, said) = (Rc::new(near), Rc::new(RefCell::new(Vec::new())));
    for line in ["old", "new"] {
        let (said, descriptor) = (said.clone(), near.clone());
        let read = move || {
            (&*descriptor).read_exact(&mut [0]).unwrap();
            said.borrow_mut().push(line);
        };
        event_loop.add_reader(&*near, read).unwrap();
    }
    far.write_all(b"x").unwrap();
    one_tick(&event_loop);
    one_tick(&event_loop);
    assert_eq!(*said.borrow(), ["new"]);
    assert!(event_loop.remove_reader(&*near));
    assert!(!event_loop.remove_reader(&*near));
}

pub(crate) fn a_callback_runs_as_long_as_its_descriptor_is_ready(kind: SelectorKind) {
    let event_loop = strict(kind);
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"xyz").unwrap();
    let (near, runs) = (Rc::new(near), Rc::new(Cell::new(0)));
    let (descriptor, counted) = (near.clone(), runs.clone());
    // One byte a run: with an edge there would be one run.
    let read = move || {
        counted.set(counted.get() + 1);
        (&*descriptor).read_exact(&mut [0]).unwrap();
    };
    event_loop.add_reader(&*near, read).unwrap();
    for _ in 0..5 {
        one_tick(&event_loop);
    }
    assert_eq!(runs.get(), 3);
}

pub(crate) fn reader_and_writer_of_one_descriptor_are_apart(kind: SelectorKind) {
    let event_loop = strict(kind);
    let (near, mut far) = UnixStream::pair().unwrap();
    let said = Rc::new(RefCell::new(String::new()));
    let (reads, writes) = (said.clone(), said.clone());
    event_loop.add_reader(&near, move || reads.borrow_mut().push('r')).unwrap();
    event_loop.add_writer(&near, move || writes.borrow_mut().push('w')).unwrap();
    one_tick(&event_loop);
    far.write_all(b"x").unwrap();
    one_tick(&event_loop);
    assert!(event_loop.remove_writer(&near));
    one_tick(&event_loop);
    assert!(event_loop.remove_reader(&near));
    one_tick(&event_loop);
    // Reader before writer, as asyncio queues them.
    assert_eq!(*said.borrow(), "wrwr");
}

pub(crate) fn a_descriptor_of_a_socket_is_refused(kind: SelectorKind) {
    on(kind, async {
        let listener = Rc::new(listener().await);
        let handle = tidegate_loop::LoopHandle::current();
        let accepting = tidegate_loop::spawn({
            let listener = listener.clone();
            async move { listener.accept().await }
        });
        tidegate_loop::yield_now().await;
        let error = handle.add_reader(&*listener, || ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(&format!("descriptor {}", listener.as_raw_fd())), "{error}");
        accepting.cancel();
    });
}

/// With `select` one closed descriptor fails the whole call. What the closed one's callback finds out is its own affair;
/// the others go on.
pub(crate) fn a_descriptor_closed_behind_the_loops_back_does_not_stop_it(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    let (near, mut far) = UnixStream::pair().unwrap();
    let (doomed, _other) = UnixStream::pair().unwrap();
    event_loop.add_reader(&doomed, || ()).unwrap();
    let number = doomed.as_fd().as_raw_fd();
    // The number is free for others from here on; the loop was not told.
    drop(doomed);
    let handle = event_loop.handle();
    event_loop.add_reader(&near, move || handle.stop()).unwrap();
    far.write_all(b"x").unwrap();
    event_loop.run_forever().unwrap();
    assert!(event_loop.remove_reader(&near));
    // The number's next owner can be watched, whatever is left of the last one.
    let next = rustix::io::fcntl_dupfd_cloexec(&near, number).unwrap();
    assert_eq!(next.as_raw_fd(), number);
    let handle = event_loop.handle();
    event_loop.add_reader(&next, move || handle.stop()).unwrap();
    event_loop.run_forever().unwrap();
    assert!(event_loop.remove_reader(&next));
}
