//! The contestants as servers. Each binds a free port of 127.0.0.1, announces it, and serves until it is killed: one task
//! a connection, one buffer a task, no delay.

mod monoio;
mod python;
mod tidegate;
mod tokio;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use rustix::process::{Signal, set_parent_process_death_signal};
use tidegate_loop::SelectorKind;

use super::process::{SERVE, Server};
use crate::harness::BASELINE;
use crate::python::Python;

pub(super) const TIDEGATE_URING: &str = "tidegate io_uring";
pub(super) const TOKIO: &str = "tokio";
pub(super) const TOKIO_LOCAL: &str = "tokio LocalRuntime";
pub(super) const MONOIO: &str = "monoio";
pub(super) const ASYNCIO: &str = "asyncio";
pub(super) const UVLOOP: &str = "uvloop";

/// Larger than any message: a read that fills it would have to be followed by another.
const BUFFER_BYTES: usize = 8 * 1024;
const HELLO: &str = "Hello, World!";

#[derive(Clone, Copy)]
pub(super) enum Served {
    Echo,
    Http,
}

impl Served {
    pub(super) fn from_word(word: &str) -> Option<Served> {
        [Served::Echo, Served::Http].into_iter().find(|served| served.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Served::Echo => "echo",
            Served::Http => "http",
        }
    }
}

/// An echo server that can be started any number of times.
pub(super) struct EchoServer {
    pub(super) name: &'static str,
    how: How,
}

enum How {
    Own,
    /// An interpreter, found or made when it is first needed; the lines share it.
    Python(Rc<OnceCell<Result<PathBuf, String>>>, Python),
}

impl EchoServer {
    pub(super) fn start(&self) -> Result<Server, String> {
        match &self.how {
            How::Own => Server::start(&mut command(Served::Echo, self.name)?),
            How::Python(interpreter, python) => {
                let find = || if self.name == UVLOOP { python.with_uvloop() } else { python.interpreter() };
                let interpreter = interpreter.get_or_init(find).as_ref()?;
                Server::start(Command::new(interpreter).args(["-c", python::SCRIPT, self.name]))
            }
        }
    }
}

/// All of them, tidegate first.
pub(super) fn echo(python: &Python) -> Vec<EchoServer> {
    let own = [BASELINE, TIDEGATE_URING, TOKIO, TOKIO_LOCAL, MONOIO];
    let own = own.into_iter().map(|name| EchoServer { name, how: How::Own });
    let scripts = [ASYNCIO, UVLOOP].into_iter();
    let scripts = scripts.map(|name| EchoServer { name, how: How::Python(Rc::default(), python.clone()) });
    own.chain(scripts).collect()
}

/// This binary again, as a server.
pub(super) fn command(served: Served, name: &str) -> Result<Command, String> {
    let executable = std::env::current_exe().map_err(|error| format!("this program's own file: {error}"))?;
    let mut command = Command::new(executable);
    command.args([SERVE, served.word(), name]);
    Ok(command)
}

/// What the child process does.
pub(super) fn serve(served: Served, name: &str) -> Result<(), String> {
    // Whatever ends the bench ends its servers.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    let done = match (served, name) {
        (Served::Echo, BASELINE) => tidegate::echo(SelectorKind::Epoll),
        (Served::Echo, TIDEGATE_URING) => tidegate::echo(SelectorKind::IoUring),
        (Served::Echo, TOKIO) => tokio::echo_current(),
        (Served::Echo, TOKIO_LOCAL) => tokio::echo_local(),
        (Served::Echo, MONOIO) => monoio::echo(),
        (Served::Http, BASELINE) => tidegate::http(),
        (Served::Http, TOKIO) => tokio::http(),
        _ => return Err(format!("there is no server {name}")),
    };
    done.map_err(|error| format!("{error:#}"))
}
