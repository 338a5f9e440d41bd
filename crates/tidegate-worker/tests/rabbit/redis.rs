//! A Redis of the test's own.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub(crate) struct Redis {
    server: Option<Child>,
    port: u16,
    directory: TempDir,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut redis = Redis { server: None, port, directory: tempfile::tempdir().unwrap() };
        redis.up();
        redis
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Returns once it takes connections; what it knew before is gone.
    pub(crate) fn up(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--dir"]);
        command.arg(self.directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = command.spawn().expect("redis-server is missing; install the package redis-server");
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().any(|line| line.unwrap().contains("eady to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        // A log nobody reads would hold it up.
        std::thread::spawn(move || lines.for_each(drop));
        self.server = Some(server);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
