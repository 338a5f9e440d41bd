//! Against a real redis-server; `./test --only redis` runs it. `peers [PART]…`: only the tests whose names contain a part.
//!
//! It is a harness of its own, because it starts itself as the machines that share a gate.

mod connection;
mod front;
mod gate;
mod loss;
#[path = "../../../tidegate-cli/tests/common/machine.rs"]
mod machine;
mod machines;
mod namespaces;
mod server;
mod windows;
mod worker;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

type Test = (&'static str, fn());

/// Tests at a time: they mostly wait, and each has a Redis of its own.
const AT_ONCE: usize = 4;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == worker::FLAG) {
        return worker::run(&arguments[1..]);
    }
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    // The longest first.
    let tests =
        [namespaces::TESTS, machines::TESTS, loss::TESTS, gate::TESTS, front::TESTS, connection::TESTS].concat();
    let chosen = tests.iter().filter(|(name, _)| parts.is_empty() || parts.iter().any(|part| name.contains(*part)));
    let chosen: Vec<&Test> = chosen.collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let thread = std::thread::Builder::new().name((*name).to_owned()).spawn(*test).expect("a thread");
                    match thread.join() {
                        Ok(()) => println!("{name}: ok"),
                        Err(_) => failed.lock().expect("no panic").push(*name),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "failed: {failed:?}");
    println!("{} tests passed", chosen.len());
}

/// Runs on a loop of its own; what does not end within a minute is a failure.
fn on_loop<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    let limited = tidegate_loop::timeout(std::time::Duration::from_secs(60), test);
    tidegate_loop::run(limited).expect("the loop runs").expect("it ends within a minute")
}
