//! What a selector refuses, and how it says so.

use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use tidegate_loop::net::TcpStream;
use tidegate_loop::{EventLoop, SelectorKind};

use super::support::{alone, listener, on, pair};

#[test]
fn select_refuses_high_descriptors_and_says_what_to_choose() {
    alone(|| {
        on(SelectorKind::Select, async {
            let (near, _far) = pair(&listener().await).await;
            let high: OwnedFd = fcntl_dupfd_cloexec(&near, 1024).expect("the limit on descriptors is above 1,024");
            let stream = TcpStream::from_std(high.into()).unwrap();
            let error = stream.read(&mut [0; 8]).await.unwrap_err().to_string();
            assert!(error.contains("descriptor 1024") && error.contains("\"epoll\""), "{error}");
            // The highest that fits does.
            let fits: OwnedFd = fcntl_dupfd_cloexec(&near, 1023).unwrap();
            let fits = TcpStream::from_std(fits.into()).unwrap();
            let waiting = tidegate_loop::spawn(async move { fits.read(&mut [0; 8]).await });
            tidegate_loop::yield_now().await;
            assert!(!waiting.is_finished());
        });
    });
}

/// Set in the child processes of the test below.
const CHILD: &str = "TIDEGATE_TEST_PRINTS_SELECTOR";

/// Runs itself in child processes, because the environment is shared by all threads of a process.
#[test]
fn the_environment_chooses_the_selector_and_mistakes_are_named() {
    if std::env::var_os(CHILD).is_some() {
        match EventLoop::new() {
            Ok(event_loop) => println!("\nselector: {}", event_loop.selector()),
            Err(error) => println!("\nerror: {error}"),
        }
        return;
    }
    let build = |value: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let this = "limits::the_environment_chooses_the_selector_and_mistakes_are_named";
        child.args(["--exact", this, "--nocapture"]).env_remove("TIDEGATE_SELECTOR");
        if let Some(value) = value {
            child.env("TIDEGATE_SELECTOR", value);
        }
        let output = child.env(CHILD, "1").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    alone(|| {
        for (value, expected) in [
            (None, "selector: epoll\n"),
            (Some("auto"), "selector: epoll\n"),
            (Some("select"), "selector: select\n"),
            (Some("epoll-lt"), "selector: epoll-lt\n"),
            (
                Some("kqueue"),
                "error: the environment variable TIDEGATE_SELECTOR: there is no selector \"kqueue\"; \
                 choose select, epoll-lt, epoll, io_uring or auto\n",
            ),
        ] {
            let said = build(value);
            assert!(said.contains(expected), "{value:?}: {said}");
        }
    });
}
