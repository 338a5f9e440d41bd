//! A Redis of our own: in a directory that goes with it, without persistence unless asked for.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tidegate_limit::Backoff;
use tidegate_redis::{Address, Client, ClientOptions};

pub(crate) struct Server {
    directory: TempDir,
    options: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Server {
        let directory = tempfile::Builder::new().prefix("tidegate-redis").tempdir().expect("a directory");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Server { directory, options, child: None };
        server.start_again();
        server
    }

    /// Returns when it takes connections.
    pub(crate) fn start_again(&mut self) {
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is missing; install the package redis-server");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.by_ref().any(|line| line.expect("its log").contains("eady to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        // A pipe that is not read would block the server.
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    /// At once, as `kill -9`: its memory is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub(crate) fn address(&self) -> Address {
        self.url().parse().expect("an address")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// A client that comes back fast.
    pub(crate) fn client(&self) -> Client {
        Client::open(self.address(), quick())
    }
}

pub(crate) fn quick() -> ClientOptions {
    use std::time::Duration;
    let mut options = ClientOptions::default();
    options.backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(50)).with_retries(u32::MAX);
    options
}

/// A port that is free now.
pub(crate) fn free_port(on: IpAddr) -> u16 {
    std::net::TcpListener::bind((on, 0)).and_then(|listener| listener.local_addr()).expect("a port").port()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
