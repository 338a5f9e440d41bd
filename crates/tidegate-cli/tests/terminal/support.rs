//! A directory to run the program in, and what it wrote there.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Sets the title, clears the screen, turns red by C1, turns the text around, and hides.
pub(crate) const HOSTILE: &str = "evil\x1b]0;pwned\x07\x1b[2J\u{9b}31m\r\u{202e}\u{2066}\u{200b}\u{e0041}\x7f!";

/// As much of it as a queue's name and a task's id may have, where control characters are refused.
pub(crate) const NAME: &str = "evil\u{202e}\u{2066}\u{200b}\u{e0041}!";

/// Whether a character changes the terminal or the order of the text, or cannot be seen.
pub(crate) fn hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// The commands without commands below them, as the program's help lists them: `queue dead ls`.
pub(crate) fn commands_of_the_program() -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![String::new()]);
    while let Some(command) = open.pop() {
        let output = Command::new(TIDEGATE).args(command.split_whitespace()).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let below: Vec<String> = help
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .map(|name| format!("{command} {name}").trim().to_owned())
            .collect();
        if below.is_empty() {
            found.push(command);
        }
        open.extend(below);
    }
    found
}

pub(crate) struct Place {
    command: String,
    folder: TempDir,
    runs: Cell<usize>,
    faults: RefCell<Vec<String>>,
}

impl Place {
    pub(crate) fn new(command: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        Place { command: command.to_owned(), folder, runs: Cell::new(0), faults: RefCell::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Copies one of the samples.
    pub(crate) fn sample(&self, name: &str, to: &str) {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples");
        self.write(to, fs::read(samples.join(name)).unwrap());
    }

    pub(crate) fn program<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(TIDEGATE);
        command.args(words).current_dir(self.path()).stdin(Stdio::null());
        for (name, value) in [("XDG_CONFIG_HOME", "none"), ("XDG_DATA_HOME", "data"), ("RUST_BACKTRACE", "0")] {
            command.env(
                name,
                if name.starts_with("XDG") { self.path().join(value).into() } else { OsStr::new(value).to_owned() },
            );
        }
        command.env("OPENAI_API_KEY", "none");
        command
    }

    /// Runs it, and looks at what it wrote.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Output {
        let output = self.program(words).output().unwrap();
        self.look(words, &output);
        output
    }

    /// The same, with text for standard input.
    pub(crate) fn feed<S: AsRef<OsStr>>(&self, words: &[S], input: &str) -> Output {
        let mut command = self.program(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that has refused its words does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        self.look(words, &output);
        output
    }

    /// The same for a command whose standard output is JSON: one object per line, or one in all.
    pub(crate) fn json<S: AsRef<OsStr>>(&self, words: &[S]) {
        let output = self.run(words);
        self.is_json(&output.stdout);
    }

    pub(crate) fn is_json(&self, bytes: &[u8]) {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(!text.is_empty(), "`{}` has printed nothing", self.command);
        let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
        if let Err(error) = values {
            self.faults.borrow_mut().push(format!("`{}`: not JSON: {error}: {text:?}", self.command));
        }
    }

    pub(crate) fn look<S: AsRef<OsStr>>(&self, words: &[S], output: &Output) {
        self.runs.set(self.runs.get() + 1);
        for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let text = String::from_utf8_lossy(bytes);
            if let Some(line) = text.lines().find(|line| line.chars().any(hidden)) {
                let words: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
                self.faults.borrow_mut().push(format!("`{}`, {stream} of {words:?}: {line:?}", self.command));
            }
        }
        let all = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(!String::from_utf8_lossy(&all).contains("panicked"), "{output:?}");
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.get()
    }

    pub(crate) fn faults(self) -> Vec<String> {
        self.faults.into_inner()
    }

    /// Runs it in a terminal of `script`'s, and returns what came out of it.
    pub(crate) fn in_terminal(&self, words: &[&str]) -> String {
        let words: Vec<String> =
            std::iter::once(TIDEGATE).chain(words.iter().copied()).map(|it| format!("'{it}'")).collect();
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
        command.current_dir(self.path()).env("XDG_CONFIG_HOME", self.path().join("none")).env_remove("NO_COLOR");
        let output = command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A program that runs until it is interrupted.
pub(crate) struct Running {
    words: Vec<String>,
    child: Child,
}

impl Running {
    pub(crate) fn start(place: &Place, words: &[&str]) -> Running {
        let mut command = place.program(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { words: words.iter().map(|&word| word.to_owned()).collect(), child }
    }

    /// Its first line on standard output.
    pub(crate) fn first_line(&mut self) -> String {
        let mut line = Vec::new();
        let out = self.child.stdout.as_mut().unwrap();
        for byte in BufReader::with_capacity(1, out).bytes() {
            match byte.unwrap() {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        String::from_utf8(line).unwrap()
    }

    /// Interrupts it, and looks at what it wrote.
    pub(crate) fn interrupt(self, place: &Place) -> Output {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let output = self.child.wait_with_output().unwrap();
        place.look(&self.words, &output);
        output
    }
}

/// A server that gives every connection the same answer, for as long as the test runs.
pub(crate) fn server(answer: impl Fn(&mut TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| answer(&mut stream)));
    port
}

/// An HTTP server that answers every request with this status and body.
pub(crate) fn http(status: &'static str, body: String) -> String {
    let port = server(move |stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut request = vec![0; length];
        let _ = reader.read_exact(&mut request);
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
    });
    format!("http://127.0.0.1:{port}/v1")
}
