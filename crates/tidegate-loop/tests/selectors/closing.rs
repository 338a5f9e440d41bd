//! How connections end, and that a descriptor's next life knows nothing of its last.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::net::TcpStream;
use tidegate_loop::{LoopHandle, SelectorKind, spawn, yield_now};

use super::support::{Random, listener, on, pair, read_to_end};

pub(crate) fn after_half_a_close_the_other_half_goes_on(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let (reader, writer) = near.into_split();
        let answering = spawn(async move {
            let question = read_to_end(&far).await.unwrap();
            // The question has ended; the answer is still to come.
            for _ in 0..100 {
                yield_now().await;
            }
            far.write_all(&question).await.unwrap();
        });
        writer.write_all(b"question").await.unwrap();
        drop(writer);
        let mut answer = [0; 8];
        reader.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"question");
        assert_eq!(reader.read(&mut answer).await.unwrap(), 0);
        answering.await.unwrap();
    });
}

pub(crate) fn the_end_is_seen_with_the_last_bytes_and_without_any(kind: SelectorKind) {
    on(kind, async {
        let listener = listener().await;
        // A short read means drained, and must not hide an end that came with the data or after it.
        for turns_between in [0, 1, 5, 50] {
            for waits_first in [false, true] {
                let (near, far) = pair(&listener).await;
                let mut reader = None;
                if waits_first {
                    let far = spawn(async move { read_to_end(&far).await.unwrap() });
                    yield_now().await;
                    yield_now().await;
                    reader = Some((far, None));
                } else {
                    reader = Some((spawn(async { Vec::new() }), Some(far))).or(reader);
                }
                near.write_all(b"last").await.unwrap();
                for _ in 0..turns_between {
                    yield_now().await;
                }
                drop(near);
                let all = match reader.unwrap() {
                    (task, None) => task.await.unwrap(),
                    (_, Some(far)) => read_to_end(&far).await.unwrap(),
                };
                assert_eq!(all, b"last", "{turns_between} turns between");
            }
        }
        // The end stays the end.
        let (near, far) = pair(&listener).await;
        drop(near);
        for _ in 0..3 {
            assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
        }
    });
}

pub(crate) fn a_reset_fails_the_reader_and_the_writer(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let far = Rc::new(far);
        let reading = spawn({
            let far = far.clone();
            async move { far.read(&mut [0; 8]).await }
        });
        let writing = spawn({
            let far = far.clone();
            async move {
                loop {
                    if let Err(error) = far.write(&[0; 65536]).await {
                        return error.kind();
                    }
                }
            }
        });
        // Both wait, the writer for room: nothing reads.
        for _ in 0..1_000 {
            yield_now().await;
        }
        near.set_linger(Some(Duration::ZERO)).unwrap();
        drop(near);
        let read = reading.await.unwrap().map_err(|error| error.kind());
        let written = writing.await.unwrap();
        // The error is returned once, by the first operation; after that reading finds the end and writing a broken pipe.
        let expected =
            [(Err(io::ErrorKind::ConnectionReset), io::ErrorKind::BrokenPipe), (Ok(0), io::ErrorKind::ConnectionReset)];
        assert!(expected.contains(&(read, written)), "{read:?} {written:?}");
    });
}

pub(crate) fn ten_thousand_connections_come_and_go(kind: SelectorKind) {
    on(kind, async {
        let listener = listener().await;
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            for _ in 0..10_000 {
                drop(listener.accept().await.unwrap());
            }
        });
        for number in 0..10_000 {
            let stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                // Half of them reset, half of them end in order, which leaves the port taken for a while.
                stream.set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        server.await.unwrap();
    });
}

pub(crate) fn closing_fails_whoever_waits(kind: SelectorKind) {
    on(kind, async {
        let listener = Rc::new(listener().await);
        let (near, _far) = pair(&listener).await;
        let near = Rc::new(near);
        let reader = spawn({
            let near = near.clone();
            async move { near.read(&mut [0; 8]).await.map_err(|error| error.kind()) }
        });
        let writer = spawn({
            let near = near.clone();
            async move {
                loop {
                    if let Err(error) = near.write(&[0; 65536]).await {
                        return error.kind();
                    }
                }
            }
        });
        let accepting = spawn({
            let listener = listener.clone();
            async move { listener.accept().await.unwrap_err().kind() }
        });
        for _ in 0..1_000 {
            yield_now().await;
        }
        near.close();
        listener.close();
        assert_eq!(reader.await.unwrap(), Err(io::ErrorKind::NotConnected));
        assert_eq!(writer.await.unwrap(), io::ErrorKind::NotConnected);
        assert_eq!(accepting.await.unwrap(), io::ErrorKind::NotConnected);
        assert!(TcpStream::connect(listener.local_addr().unwrap()).await.is_err());
    });
}

pub(crate) fn a_cancelled_wait_leaves_the_next_one_its_data(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let far = Rc::new(far);
        for round in 0..50u8 {
            let given_up = spawn({
                let far = far.clone();
                async move { far.read(&mut [0; 8]).await }
            });
            yield_now().await;
            given_up.cancel();
            if round % 2 == 0 {
                // Data comes while the wait is being cancelled.
                near.write_all(&[round]).await.unwrap();
            }
            assert!(given_up.await.is_err());
            if round % 2 == 1 {
                near.write_all(&[round]).await.unwrap();
            }
            let mut byte = [0; 8];
            assert_eq!(far.read(&mut byte).await.unwrap(), 1);
            assert_eq!(byte[0], round);
        }
    });
}

pub(crate) fn a_reused_descriptor_hears_nothing_of_its_last_life(kind: SelectorKind) {
    on(kind, async {
        let listener = listener().await;
        let (near, far) = pair(&listener).await;
        let waiting = spawn(async move { far.read(&mut [0; 8]).await.map(|_| far) });
        yield_now().await;
        yield_now().await;
        near.write_all(b"x").await.unwrap();
        let far = waiting.await.unwrap().unwrap();
        // A copy keeps the connection open, and what happens to it would be told to a registration that was left behind.
        let (number, _copy) = (far.as_raw_fd(), far.as_fd().try_clone_to_owned().unwrap());
        drop(far);
        let (other, fresh) = pair(&listener).await;
        let (other, fresh) = if fresh.as_raw_fd() == number { (other, fresh) } else { (fresh, other) };
        assert_eq!(fresh.as_raw_fd(), number, "the lowest free number is taken");
        let reader = spawn(async move {
            let mut buffer = [0; 8];
            let count = fresh.read(&mut buffer).await.unwrap();
            buffer[..count].to_vec()
        });
        yield_now().await;
        yield_now().await;
        let steps = || LoopHandle::current().metrics().steps;
        let before = steps();
        for _ in 0..10 {
            near.write_all(b"stale").await.unwrap();
            yield_now().await;
        }
        assert!(!reader.is_finished());
        assert_eq!(steps() - before, 10, "the reader was woken by its descriptor's last life");
        other.write_all(b"fresh").await.unwrap();
        assert_eq!(reader.await.unwrap(), b"fresh");
    });
}

/// Connections are opened, greeted with a number of their own, read, dropped half-way and closed, in an order drawn
/// from a seed: every reader gets its own number and nothing else.
pub(crate) fn random_openings_and_closings_keep_streams_apart(kind: SelectorKind) {
    for seed in 0..if super::support::is_soak() { 100 } else { 5 } {
        on(kind, async move {
            let mut random = Random(seed);
            let listener = listener().await;
            let mut waiting = Vec::new();
            for number in 0..300u64 {
                let (near, far) = pair(&listener).await;
                let reader = spawn(async move {
                    let mut greeting = [0; 8];
                    near.read_exact(&mut greeting).await.map(|()| u64::from_be_bytes(greeting))
                });
                waiting.push((number, reader, far));
                if random.below(2) == 0 {
                    yield_now().await;
                }
                while waiting.len() > 20 || random.below(3) == 0 && !waiting.is_empty() {
                    let at = random.below(waiting.len() as u64) as usize;
                    let (number, reader, far) = waiting.swap_remove(at);
                    match random.below(4) {
                        0 => drop(reader.cancel()),
                        1 => {
                            drop(far);
                            assert!(
                                reader.await.unwrap().is_err(),
                                "seed {seed}: {number} got something without a sender"
                            );
                        }
                        _ => {
                            far.write_all(&number.to_be_bytes()).await.unwrap();
                            assert_eq!(reader.await.unwrap().unwrap(), number, "seed {seed}");
                        }
                    }
                }
            }
        });
    }
}

pub(crate) fn two_tasks_may_wait_for_one_stream(kind: SelectorKind) {
    on(kind, async {
        let (near, far) = pair(&listener().await).await;
        let far = Rc::new(far);
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let far = far.clone();
                spawn(async move {
                    let mut byte = [0];
                    far.read_exact(&mut byte).await.map(|()| byte[0])
                })
            })
            .collect();
        yield_now().await;
        yield_now().await;
        let mut got = Vec::new();
        near.write_all(&[1, 2]).await.unwrap();
        near.write_all(&[3, 4]).await.unwrap();
        for reader in readers {
            got.push(reader.await.unwrap().unwrap());
        }
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3, 4]);
        near.shutdown(Shutdown::Both).unwrap();
    });
}
