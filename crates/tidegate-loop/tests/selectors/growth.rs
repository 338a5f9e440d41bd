//! Connections leave nothing behind.

use std::time::Duration;

use tidegate_loop::net::TcpStream;
use tidegate_loop::{SelectorKind, spawn};

use super::support::{is_soak, listener, live_bytes, on, open_descriptors};

pub(crate) fn connections_leave_neither_descriptors_nor_memory_behind(kind: SelectorKind) {
    on(kind, async {
        let count = if is_soak() { 100_000 } else { 4_000 };
        let listener = listener().await;
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        stream.write_all(&buffer[..count]).await.unwrap();
                    }
                });
            }
        });
        let batch = async |size: usize| {
            let clients: Vec<_> = (0..size).map(|_| spawn(client(address))).collect();
            for client in clients {
                client.await.unwrap();
            }
        };
        // Tables and caches grow to what is needed at one time, and then no more.
        batch(50).await;
        batch(50).await;
        let (bytes, descriptors) = (live_bytes(), open_descriptors());
        for _ in 0..count / 50 {
            batch(50).await;
        }
        assert!(open_descriptors() <= descriptors, "{} descriptors, before {descriptors}", open_descriptors());
        let grown = live_bytes() - bytes;
        assert!(grown < 4096, "{count} connections left {grown} bytes behind");
        server.cancel();
    });
}

async fn client(address: std::net::SocketAddr) {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    let mut reply = [0; 5];
    stream.write_all(b"hello").await.unwrap();
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"hello");
}
