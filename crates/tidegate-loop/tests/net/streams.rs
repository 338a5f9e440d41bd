//! Streams with flow control.

use std::io::ErrorKind;

use tidegate_loop::net::UnixStream;
use tidegate_loop::pipe::pipe;
use tidegate_loop::stream::{ReadError, StreamReader, StreamWriter};
use tidegate_loop::{spawn, yield_now};

use super::support::{pair, run};

#[test]
fn lines_come_one_by_one_however_they_were_sent() {
    run(async {
        let (writer, reader) = pipe().unwrap();
        let mut reader = StreamReader::new(reader);
        let writing = spawn(async move {
            for piece in ["on", "e\ntwo\r", "\n\nthr", "ee\nlast"] {
                writer.write_all(piece.as_bytes()).await.unwrap();
                for _ in 0..5 {
                    yield_now().await;
                }
            }
        });
        let mut lines = Vec::new();
        while let Some(line) = reader.read_line().await.unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["one", "two", "", "three", "last"]);
        writing.await.unwrap();
    });
}

#[test]
fn a_line_over_the_limit_is_an_error_and_nothing_is_lost() {
    run(async {
        for ends in [false, true] {
            let (writer, reader) = pipe().unwrap();
            let mut reader = StreamReader::with_limit(reader, 10);
            writer.write_all(b"0123456789A").await.unwrap();
            if ends {
                writer.write_all(b"\n").await.unwrap();
            }
            for _ in 0..3 {
                let error = reader.read_line().await.unwrap_err();
                assert!(matches!(error, ReadError::TooLong { limit: 10 }), "{error}");
            }
            drop(writer);
            let all: &[u8] = if ends { b"0123456789A\n" } else { b"0123456789A" };
            assert_eq!(reader.read_to_end().await.unwrap(), all);
        }
        // With its delimiter it may be as long as the limit, and no longer.
        let (writer, reader) = pipe().unwrap();
        let mut reader = StreamReader::with_limit(reader, 10);
        writer.write_all(b"012345678\n0123456789\n").await.unwrap();
        assert_eq!(reader.read_until(b"\n").await.unwrap(), b"012345678\n");
        assert!(matches!(reader.read_until(b"\n").await, Err(ReadError::TooLong { .. })));
    });
}

#[test]
fn an_end_in_the_middle_hands_over_what_came() {
    run(async {
        let (writer, reader) = pipe().unwrap();
        let mut reader = StreamReader::new(reader);
        writer.write_all(b"half").await.unwrap();
        drop(writer);
        let Err(ReadError::Ended { partial }) = reader.read_exact(&mut [0; 8]).await else { panic!("it ended") };
        assert_eq!(partial, b"half");
        assert_eq!(reader.read_line().await.unwrap(), None);
    });
}

#[test]
fn a_delimiter_is_found_across_reads() {
    run(async {
        let (writer, reader) = pipe().unwrap();
        let mut reader = StreamReader::new(reader);
        let reading = spawn(async move { reader.read_until(b"\r\n\r\n").await.unwrap() });
        for byte in b"a\r\nb\r\r\n\r\n" {
            writer.write_all(&[*byte]).await.unwrap();
            for _ in 0..5 {
                yield_now().await;
            }
        }
        assert_eq!(reading.await.unwrap(), b"a\r\nb\r\r\n\r\n");
    });
}

#[test]
fn a_cancelled_read_loses_nothing() {
    run(async {
        let (near, far) = pair().await;
        let mut reader = StreamReader::new(near);
        for _ in 0..10 {
            far.write_all(b"part").await.unwrap();
            // Polled until it waits for the rest, and dropped.
            let given_up = tidegate_loop::timeout(std::time::Duration::from_millis(1), reader.read_until(b"!")).await;
            assert!(given_up.is_err());
        }
        far.write_all(b"!").await.unwrap();
        assert_eq!(reader.read_until(b"!").await.unwrap(), [b"part".repeat(10), b"!".to_vec()].concat());
    });
}

#[test]
fn draining_waits_above_the_high_mark_until_the_low_one() {
    run(async {
        let (near, far) = UnixStream::pair().unwrap();
        let writer = StreamWriter::with_marks(near, 1 << 20, 1 << 10);
        writer.write(&[1; 100]);
        writer.drain().await.unwrap();
        let chunk = vec![2; 4 << 20];
        writer.write(&chunk);
        let left = writer.buffered();
        assert!(left > 1 << 20);
        let draining = spawn(async move {
            let drained = writer.drain().await;
            (drained, writer)
        });
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(!draining.is_finished(), "nobody reads");
        // Reads a little: still above the low mark.
        let mut buffer = vec![0; 64 << 10];
        far.read_exact(&mut buffer).await.unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(!draining.is_finished(), "it is not down to the low mark");
        let reading = spawn(async move { StreamReader::new(far).read_to_end().await.unwrap().len() });
        let (drained, writer) = draining.await.unwrap();
        drained.unwrap();
        assert!(writer.buffered() <= 1 << 10);
        writer.closed().await.unwrap();
        assert_eq!(reading.await.unwrap(), 100 + (4 << 20) - (64 << 10));
        assert_eq!(writer.drain().await.unwrap_err().kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn a_peer_that_is_gone_fails_whoever_drains() {
    run(async {
        let (near, far) = UnixStream::pair().unwrap();
        let writer = StreamWriter::with_marks(near, 1 << 10, 0);
        writer.write(&vec![0; 8 << 20]);
        let draining = spawn(async move {
            let drained = writer.drain().await.map_err(|error| error.kind());
            (drained, writer.closed().await.map_err(|error| error.kind()), writer.buffered())
        });
        for _ in 0..50 {
            yield_now().await;
        }
        drop(far);
        let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        let (Err(drained), Err(closed), 0) = draining.await.unwrap() else { panic!("no peer is there") };
        assert!(gone.contains(&drained) && gone.contains(&closed), "{drained:?} {closed:?}");
    });
}
