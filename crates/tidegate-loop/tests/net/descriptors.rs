//! Out of descriptors: accepting pauses and recovers, and nothing spins.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, LoopHandle, SelectorKind, sleep, spawn, yield_now};

/// Names the selector in the child processes of the test below.
const CHILD: &str = "TIDEGATE_TEST_STARVED";

/// Runs itself in child processes, whose limit on descriptors is low.
#[test]
fn without_descriptors_accepting_pauses_and_recovers() {
    if let Ok(kind) = std::env::var(CHILD) {
        let kind: SelectorKind = kind.parse().unwrap();
        let event_loop = EventLoop::builder().selector(kind).build().unwrap();
        event_loop.run_until_complete(starve()).unwrap();
        println!("recovered twice");
        return;
    }
    for kind in ["select", "epoll-lt", "epoll"] {
        let this = "descriptors::without_descriptors_accepting_pauses_and_recovers";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture", "--test-threads=1"])
            .env(CHILD, kind)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("recovered twice"), "{kind}: {output:?}");
    }
}

async fn starve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (kept, _) = (TcpStream::connect(address).await.unwrap(), listener.accept().await.unwrap());
    let clients = [std::net::TcpStream::connect(address).unwrap(), std::net::TcpStream::connect(address).unwrap()];
    let hoard = take_every_descriptor();

    let accepting = spawn(async move {
        let first = listener.accept().await.unwrap();
        let second = listener.accept().await.unwrap();
        (first, second)
    });
    let polls = || LoopHandle::current().metrics().polls;
    yield_now().await;
    let before = polls();
    sleep(Duration::from_millis(30)).await;
    assert!(polls() - before <= 6, "{} wake-ups while out of descriptors", polls() - before);
    assert!(!accepting.is_finished());

    // One of the loop's own is closed: it goes on without waiting for the time to pass, and takes the first. The second
    // finds none again, until others are closed that the loop knows nothing of.
    drop(kept);
    for _ in 0..10 {
        yield_now().await;
    }
    assert!(!accepting.is_finished());
    drop(hoard);
    let ((first, _), (second, _)) = accepting.await.unwrap();
    for (stream, mut client) in [first, second].into_iter().zip(clients) {
        stream.write_all(b"hello").await.unwrap();
        let mut greeting = [0; 5];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello");
    }
}

fn take_every_descriptor() -> Vec<File> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let mut hoard = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
                return hoard;
            }
        }
    }
}
