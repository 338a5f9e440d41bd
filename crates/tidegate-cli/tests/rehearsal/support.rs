use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::data::data_home;

pub(crate) fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env("XDG_DATA_HOME", data_home());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `tidegate provider`, running.
pub(crate) struct Provider {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Host and port.
    pub(crate) address: String,
}

impl Provider {
    pub(crate) fn start(args: &[&str]) -> Provider {
        let mut command = tidegate(&["provider", "--listen", "127.0.0.1:0"]);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap().to_owned();
        Provider { child, out, address }
    }

    /// The status line and the body of an exchange.
    pub(crate) fn exchange(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    /// Interrupts it; what it printed meanwhile, and how it ended.
    pub(crate) fn interrupt(mut self) -> (String, Output) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let mut said = String::new();
        self.out.read_to_string(&mut said).unwrap();
        (said, self.child.wait_with_output().unwrap())
    }
}

/// A directory of its own, gone with the test.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        let prefix = format!("rehearsal-{name}-");
        Place(tempfile::Builder::new().prefix(&prefix).tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// The number of files in it.
    pub(crate) fn file_count(&self) -> usize {
        std::fs::read_dir(self.0.path()).unwrap().count()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

pub(crate) fn questions(count: usize) -> String {
    (0..count)
        .map(|n| {
            let body = format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"Question {n}: why do tides turn?"}}]}}"#
            );
            format!("{{\"custom_id\":\"r{n}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{body}}}\n")
        })
        .collect()
}
