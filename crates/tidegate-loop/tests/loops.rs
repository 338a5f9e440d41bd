//! Several loops, one a thread: what comes of each, how they are stopped, and that they can share a port.

use std::collections::HashSet;
use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use tidegate_loop::net::TcpListener;
use tidegate_loop::{Duration, LoopError, run, run_loops, spawn, timeout, to_thread};

#[test]
fn each_loop_has_a_thread_of_its_own_and_results_stand_in_order() {
    let barrier = Arc::new(Barrier::new(4));
    let ends = run_loops(4, |index| {
        let barrier = barrier.clone();
        async move {
            // All four are there at one time, or this would hang.
            barrier.wait();
            (index, thread::current().name().map(str::to_owned), thread::current().id())
        }
    });
    let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
    assert!(ends.iter().enumerate().all(|(at, (index, name, _))| {
        at == *index && name.as_deref() == Some(format!("tidegate-loop-{at}").as_str())
    }));
    assert_eq!(ends.iter().map(|end| end.2).collect::<HashSet<_>>().len(), 4);
}

/// Counts what has been cleaned up.
struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_loop_that_panics_stops_the_others_in_order() {
    let cleaned = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(3));
    let ends = run_loops(3, |index| {
        let (main, task, barrier) = (Counts(cleaned.clone()), Counts(cleaned.clone()), barrier.clone());
        async move {
            let _main = main;
            drop(spawn(async move {
                let _task = task;
                pending::<()>().await;
            }));
            tidegate_loop::yield_now().await;
            barrier.wait();
            if index == 1 {
                panic!("out of paper");
            }
            pending::<()>().await;
        }
    });
    assert!(matches!(&ends[1], Err(LoopError::Panicked(panic)) if panic.to_string() == "out of paper"));
    assert!(matches!((&ends[0], &ends[2]), (Err(LoopError::Stopped), Err(LoopError::Stopped))), "{ends:?}");
    assert_eq!(cleaned.load(Ordering::SeqCst), 6);
}

#[test]
fn a_loop_that_begins_after_another_has_failed_is_stopped_too() {
    let (failed, fails) = mpsc::channel::<()>();
    let fails = std::sync::Mutex::new(Some(fails));
    let failed = std::sync::Mutex::new(Some(failed));
    let ends = run_loops(2, |index| {
        if index == 1 {
            // Until the other is past its main.
            let fails = fails.lock().unwrap().take().unwrap();
            let _ = fails.recv();
        }
        let failed = if index == 0 { failed.lock().unwrap().take() } else { None };
        async move {
            if index == 0 {
                let _failed = failed;
                panic!("at once");
            }
            pending::<()>().await;
        }
    });
    assert!(matches!((&ends[0], &ends[1]), (Err(LoopError::Panicked(_)), Err(LoopError::Stopped))), "{ends:?}");
}

#[test]
fn a_loop_that_returns_leaves_the_others_running() {
    let (sent, received) = mpsc::channel();
    let received = std::sync::Mutex::new(Some(received));
    let ends = run_loops(2, |index| {
        let sent = sent.clone();
        let received = if index == 1 { received.lock().unwrap().take() } else { None };
        async move {
            match received {
                None => sent.send(5).unwrap(),
                Some(received) => assert_eq!(to_thread(move || received.recv().unwrap()).await.unwrap(), 5),
            }
            index
        }
    });
    assert_eq!(ends.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1]);
}

#[test]
#[should_panic(expected = "run_loops would block the loop that runs here")]
fn inside_a_loop_it_is_refused() {
    run(async { drop(run_loops(1, |_| async {})) }).unwrap();
}

/// Sends its number to each client, and ends when it is stopped.
async fn serve(index: usize, address: SocketAddr, ready: mpsc::Sender<()>) -> usize {
    let listener = TcpListener::options().reuse_port(true).bind(address).await.unwrap();
    ready.send(()).unwrap();
    let mut served = 0;
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        served += 1;
        stream.write_all(&[index as u8]).await.unwrap();
        let mut order = [0];
        stream.read_exact(&mut order).await.unwrap();
        if order == *b"q" {
            return served;
        }
    }
}

#[test]
fn loops_that_share_a_port_all_get_connections() {
    const LOOPS: usize = 4;
    // Holds the port while the loops bind it; it does not listen, so it gets no connections.
    let holder = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseport(&holder, true).unwrap();
    rustix::net::bind(&holder, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address: SocketAddr = rustix::net::getsockname(&holder).unwrap().try_into().unwrap();

    let (ready, readies) = mpsc::channel();
    let client = thread::spawn(move || {
        (0..LOOPS).for_each(|_| readies.recv().unwrap());
        let (mut met, mut stopped) = (HashSet::new(), HashSet::new());
        while stopped.len() < LOOPS {
            let Ok(mut stream) = StdStream::connect(address) else { continue };
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut index = [0];
            // A loop that has just ended resets the connections in its backlog; the system sends the next one elsewhere.
            if stream.read_exact(&mut index).is_err() {
                continue;
            }
            // None is stopped before all have been met.
            let order = if met.len() == LOOPS { b"q" } else { b"c" };
            met.insert(index[0]);
            if order == b"q" {
                stopped.insert(index[0]);
            }
            stream.write_all(order).unwrap();
        }
    });
    let ends = run_loops(LOOPS, |index| {
        let ready = ready.clone();
        async move { timeout(Duration::from_secs(120), serve(index, address, ready)).await.unwrap() }
    });
    client.join().unwrap();
    assert!(ends.into_iter().map(Result::unwrap).all(|served| served >= 2));
}
