//! A server as a child process: started, asked for its CPU time, ended.
//!
//! A server prints one line when it listens: its port, or why it cannot serve here.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// The first argument of this binary when it is started as a server.
pub(super) const SERVE: &str = "serve-for-bench";

const UNAVAILABLE: &str = "unavailable: ";

/// A server that listens. Dropped, it is killed.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
}

impl Server {
    pub(super) fn start(command: &mut Command) -> Result<Server, String> {
        raise_descriptor_limit();
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        // Made before anything can fail: from here on it is killed when it is of no use.
        let mut server = Server { child, port: 0 };
        read.map_err(|error| format!("{name}: {error}"))?;
        match line.trim().parse() {
            Ok(port) => server.port = port,
            Err(_) => return Err(server.last_words(&line)),
        }
        Ok(server)
    }

    fn last_words(mut self, line: &str) -> String {
        if let Some(why) = line.trim().strip_prefix(UNAVAILABLE) {
            return why.to_owned();
        }
        let errors = self.end().unwrap_or_default();
        errors.trim().lines().last().unwrap_or("the server ended without a word").to_owned()
    }

    /// CPU time used so far, in user space and in the kernel, by all its threads, the kernel's workers for it included.
    /// Waits until it sleeps: the time of a thread that runs is only brought up to date now and then.
    pub(super) fn cpu(&self) -> Result<Duration, String> {
        thread::sleep(Duration::from_millis(2));
        cpu_of(self.child.id())
    }

    /// Asks it to end and returns what it wrote to its standard error.
    pub(super) fn end(&mut self) -> Result<String, String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).map_err(|error| format!("ending the server: {error}"))?;
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().ok_or("the server was ended twice")?;
        stderr.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// CPU time of all threads that a process has now, in user space and in the kernel.
pub(crate) fn cpu_of(pid: u32) -> Result<Duration, String> {
    let tasks = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?;
    let mut nanos = 0;
    for entry in entries.flatten() {
        // A thread that has ended meanwhile is not missed: the servers have one thread that works.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        let first = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        nanos += first.ok_or_else(|| format!("{tasks}: the kernel keeps no CPU time there"))?;
    }
    Ok(Duration::from_nanos(nanos))
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both are refused only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On the server's side: it listens there.
pub(super) fn announce(port: u16) {
    println!("{port}");
}

/// On the server's side: it cannot serve.
pub(super) fn announce_unavailable(why: &str) {
    println!("{UNAVAILABLE}{why}");
}

/// 1,000 connections are more than the usual limit of open descriptors. Children inherit it.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        // If it stays too low, connecting says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
