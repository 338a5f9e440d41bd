//! Against a real redis-server; `./test --only redis` runs it. `peers [PART]…`: only the tests whose names contain a part.
//!
//! It is a harness of its own, because it starts itself as the machines that share a gate.

mod connection;
mod front;
mod gate;
mod loss;
mod machines;
mod namespaces;
mod server;
mod windows;
mod worker;

type Test = (&'static str, fn());

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == worker::FLAG) {
        return worker::run(&arguments[1..]);
    }
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let tests =
        [connection::TESTS, front::TESTS, gate::TESTS, loss::TESTS, machines::TESTS, namespaces::TESTS].concat();
    let chosen = tests.iter().filter(|(name, _)| parts.is_empty() || parts.iter().any(|part| name.contains(*part)));
    let mut count = 0;
    for (name, test) in chosen {
        println!("{name}");
        test();
        count += 1;
    }
    println!("{count} tests passed");
}

/// Runs on a loop of its own; what does not end within a minute is a failure.
fn on_loop<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    let limited = tidegate_loop::timeout(std::time::Duration::from_secs(60), test);
    tidegate_loop::run(limited).expect("the loop runs").expect("it ends within a minute")
}
