use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A Redis of the test's own.
pub(crate) struct Redis {
    directory: TempDir,
    child: Child,
}

impl Redis {
    pub(crate) fn start(options: &[&str]) -> Redis {
        let directory = tempfile::Builder::new().prefix("tidegate-redis").tempdir().unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(directory.path().join("redis.sock"))
            .arg("--dir")
            .arg(directory.path())
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is missing; install the package redis-server");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().any(|line| line.unwrap().contains("eady to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        // A log nobody reads would hold it up.
        std::thread::spawn(move || lines.for_each(drop));
        Redis { directory, child }
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.directory.path().join("redis.sock").display())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
