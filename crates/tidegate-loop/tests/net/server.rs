//! Servers stop in order.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::net::{Server, TcpStream};
use tidegate_loop::{catch_cancel, yield_now};

use super::support::{listener, run};

async fn echo(stream: TcpStream) {
    let mut buffer = [0; 64];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

async fn round_trip(stream: &TcpStream) {
    stream.write_all(b"hello").await.unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
}

const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn a_stop_waits_for_connections_that_end_and_accepts_no_more() {
    run(async {
        let server = Server::builder().serve(listener().await, |stream, _| echo(stream));
        let address = server.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        round_trip(&client).await;
        let stopping = tidegate_loop::spawn(server.stop(LONG));
        for _ in 0..20 {
            yield_now().await;
        }
        assert!(TcpStream::connect(address).await.is_err(), "it does not listen any more");
        round_trip(&client).await;
        assert!(!stopping.is_finished());
        drop(client);
        let stopped = stopping.await.unwrap();
        assert_eq!((stopped.accepted, stopped.cancelled), (1, vec![]));
    });
}

#[test]
fn when_patience_runs_out_connections_are_cancelled_and_named() {
    run(async {
        let cleaned = Rc::new(Cell::new(0));
        let counted = cleaned.clone();
        let server = Server::builder().serve(listener().await, move |stream, _| {
            let cleaned = counted.clone();
            async move {
                let _ = catch_cancel(echo(stream)).await;
                yield_now().await;
                cleaned.set(cleaned.get() + 1);
            }
        });
        let address = server.local_addr().unwrap();
        let (first, second) = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        round_trip(&first).await;
        round_trip(&second).await;
        let stopped = server.stop(SOON).await;
        assert_eq!(stopped.cancelled, [first.local_addr().unwrap(), second.local_addr().unwrap()]);
        assert_eq!(cleaned.get(), 2, "what they did to clean up was waited for");
        assert_eq!(first.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn over_the_limit_connections_wait_their_turn() {
    run(async {
        let server = Server::builder().connections_max(2).serve(listener().await, |stream, _| echo(stream));
        let address = server.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        round_trip(&clients[0]).await;
        round_trip(&clients[1]).await;
        clients[2].write_all(b"hello").await.unwrap();
        for _ in 0..50 {
            yield_now().await;
        }
        assert_eq!((server.stats().open, server.stats().accepted), (2, 2));
        drop(clients.remove(0));
        clients[1].read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!((server.stats().open, server.stats().open_max, server.stats().accepted), (2, 2, 3));
    });
}

#[test]
fn a_dropped_server_stops_at_once() {
    run(async {
        let server = Server::builder().serve(listener().await, |stream, _| echo(stream));
        let client = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
        round_trip(&client).await;
        drop(server);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn a_handler_that_panics_takes_nobody_with_it() {
    run(async {
        let handle = tidegate_loop::LoopHandle::current();
        let reports = Rc::new(Cell::new(0));
        let counted = reports.clone();
        handle.set_exception_handler(move |_| counted.set(counted.get() + 1));
        let first = Cell::new(true);
        let server = Server::builder().connections_max(1).serve(listener().await, move |stream, _| {
            let panics = first.replace(false);
            async move {
                if panics {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                echo(stream).await;
            }
        });
        let address = server.local_addr().unwrap();
        assert_eq!(TcpStream::connect(address).await.unwrap().read(&mut [0; 8]).await.unwrap(), 0);
        round_trip(&TcpStream::connect(address).await.unwrap()).await;
        assert_eq!(reports.get(), 1);
    });
}
