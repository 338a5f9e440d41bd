//! What becomes of sockets when the loop stops, stands still, or closes.

use std::cell::RefCell;
use std::io::Read;
use std::net::TcpStream as Blocking;
use std::rc::Rc;

use tidegate_loop::net::TcpStream;
use tidegate_loop::{SelectorKind, spawn, yield_now};

use super::support::{listener, loop_of, on, pair};

/// A stream of the loop's and its peer, which is none.
async fn connected() -> (TcpStream, Blocking) {
    let listener = listener().await;
    let far = Blocking::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().await.unwrap().0, far)
}

pub(crate) fn what_was_written_in_the_last_tick_arrives_though_the_loop_stops(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    let (near, mut far) = event_loop.run_until_complete(connected()).unwrap();
    let near =
        event_loop.run_until_complete(async move { near.write_all(b"last words").await.map(|()| near) }).unwrap();
    let mut said = [0; 10];
    far.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"last words");
    drop(near);
}

pub(crate) fn a_stream_dropped_in_the_last_tick_ends(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    let (near, mut far) = event_loop.run_until_complete(connected()).unwrap();
    let done = event_loop.run_until_complete(async move {
        let (reader, writer) = near.into_split();
        let reading = spawn(async move { reader.read(&mut [0]).await });
        yield_now().await;
        writer.write_all(b"bye").await.unwrap();
        reading.cancel();
        let _ = reading.await;
    });
    done.unwrap();
    let mut said = String::new();
    far.read_to_string(&mut said).unwrap();
    assert_eq!(said, "bye");
}

pub(crate) fn a_stream_dropped_while_the_loop_stands_still_ends(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    let (near, mut far) = event_loop.run_until_complete(connected()).unwrap();
    let near = event_loop.run_until_complete(async move {
        let near = Rc::new(near);
        let reader = near.clone();
        let reading = spawn(async move { reader.read(&mut [0]).await });
        yield_now().await;
        reading.cancel();
        let _ = reading.await;
        Rc::into_inner(near).unwrap()
    });
    drop(near.unwrap());
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
}

pub(crate) fn a_loop_closes_with_streams_in_every_state(kind: SelectorKind) {
    let event_loop = loop_of(kind);
    let far = event_loop.run_until_complete(async {
        let listener = listener().await;
        let mut far = Vec::new();
        for state in 0..30 {
            let (near, other) = pair(&listener).await;
            spawn(async move {
                match state % 3 {
                    // Waits for a byte, waits for room, does both at once.
                    0 => drop(near.read(&mut [0]).await),
                    1 => while near.write_all(&[1; 65536]).await.is_ok() {},
                    _ => {
                        let near = Rc::new(near);
                        let writer = near.clone();
                        spawn(async move { while writer.write_all(&[1; 65536]).await.is_ok() {} });
                        drop(near.read(&mut [0]).await);
                    }
                }
            });
            far.push(other);
        }
        spawn(async move { listener.accept().await.map(drop) });
        for _ in 0..100 {
            yield_now().await;
        }
        // Those that are full are not read; only their ends matter.
        far
    });
    let far = far.unwrap();
    event_loop.close().unwrap();
    drop(far);
}

pub(crate) fn a_stream_that_outlives_its_loop_fails_and_does_not_wait(kind: SelectorKind) {
    let kept = Rc::new(RefCell::new(None));
    let keep = kept.clone();
    let far = on(kind, async move {
        let (near, far) = connected().await;
        let near = Rc::new(near);
        *keep.borrow_mut() = Some(near.clone());
        spawn(async move { near.read(&mut [0]).await });
        yield_now().await;
        far
    });
    let near = kept.take().unwrap();
    on(kind, async move {
        near.read(&mut [0]).await.unwrap_err();
        near.write_all(b"x").await.unwrap_err();
    });
    assert_eq!((&far).read(&mut [0]).unwrap(), 0);
}

pub(crate) fn a_port_is_free_when_its_listener_is_gone(kind: SelectorKind) {
    on(kind, async {
        for _ in 0..20 {
            let listener = Rc::new(listener().await);
            let address = listener.local_addr().unwrap();
            let waits = listener.clone();
            let accepting = spawn(async move { waits.accept().await.map(drop) });
            yield_now().await;
            yield_now().await;
            accepting.cancel();
            let _ = accepting.await;
            drop(Rc::into_inner(listener).unwrap());
            std::net::TcpListener::bind(address).unwrap();
        }
    });
}
