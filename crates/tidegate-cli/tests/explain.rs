//! `tidegate explain` and `tidegate rebuild` as people run them: exit codes, messages, Ctrl-C, `kill -9`, a full disk.

#[path = "common/data.rs"]
mod data;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::Value;
use tidegate_loop::net::TcpListener;
use tidegate_pdf::{Limits, Reader, Want};

use data::data_home;

/// The samples' pages with text, and all of them.
const TEXT_PAGES: usize = 13;
const PAGES: usize = 15;

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples")
}

/// A PDF that cannot be read.
fn broken() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate-pdf/tests/data/broken.pdf")
}

fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_DATA_HOME", data_home());
    // What the machine's user has set must not decide a test.
    for name in ["OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

fn run(args: &[&str]) -> Output {
    tidegate(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An OpenAI-compatible server on a thread of its own, until the test's process ends.
struct Server {
    base: String,
    /// Requests by what was asked.
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
    /// What happens, as it happens.
    signals: Receiver<Signal>,
    signal: Sender<Signal>,
}

#[derive(Debug, PartialEq, Eq)]
enum Signal {
    /// A request has come.
    Request,
    /// The process of that number has ended.
    Ended(u32),
}

#[derive(Clone)]
struct Shared {
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
    signal: Sender<Signal>,
    /// So many are answered; the others wait for ever.
    answered_max: usize,
}

impl Server {
    fn start(answered_max: usize) -> Server {
        let asked = Arc::new(Mutex::new(BTreeMap::new()));
        let (signal, signals) = channel();
        let (told, base) = channel();
        let shared = Shared { asked: Arc::clone(&asked), signal: signal.clone(), answered_max };
        thread::spawn(move || {
            tidegate_loop::run(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
                let router = Router::new().fallback(handle).with_state(shared);
                let _ = tidegate_http::serve(listener, router).run().await;
            })
            .unwrap();
        });
        Server { base: base.recv().unwrap(), asked, signals, signal }
    }

    /// Waits for so many requests; whether they came before `child` ended.
    fn await_requests(&self, count: usize, child: &mut Child) -> bool {
        let (mut out, id, signal) = (child.stdout.take().unwrap(), child.id(), self.signal.clone());
        thread::spawn(move || {
            let _ = out.read_to_end(&mut Vec::new());
            let _ = signal.send(Signal::Ended(id));
        });
        let mut left = count;
        while left > 0 {
            match self.signals.recv().unwrap() {
                Signal::Request => left -= 1,
                Signal::Ended(ended) if ended == id => return false,
                Signal::Ended(_) => {}
            }
        }
        true
    }

    fn requests(&self) -> usize {
        self.asked.lock().unwrap().values().sum()
    }
}

async fn handle(State(shared): State<Shared>, body: Bytes) -> String {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let asked = body["messages"][0]["content"].to_string();
    let number = {
        let mut all = shared.asked.lock().unwrap();
        *all.entry(asked).or_default() += 1;
        all.values().sum::<usize>()
    };
    let _ = shared.signal.send(Signal::Request);
    if number > shared.answered_max {
        return std::future::pending().await;
    }
    r#"{"model":"m","choices":[{"message":{"content":"Explained."},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":10,"completion_tokens":2}}"#
        .into()
}

/// The samples against `server`, one request at a time.
fn against(server: &Server, out: &Path) -> Vec<String> {
    let samples = samples();
    let fixed =
        ["explain", samples.to_str().unwrap(), "--out", out.to_str().unwrap(), "--provider", "openai", "--model", "m"];
    let more = ["--base-url", &server.base, "--text-only", "--picture-px", "0", "--file-concurrency", "1"];
    let one = ["--page-concurrency", "1", "--progress", "plain"];
    fixed.iter().chain(&more).chain(&one).map(|word| (*word).to_owned()).collect()
}

fn start(args: &[String]) -> Child {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    tidegate(&words).spawn().unwrap()
}

fn done_pages(out: &Path) -> usize {
    let mut done = 0;
    for entry in fs::read_dir(out).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "json") && path.file_name().unwrap() != "report.json" {
            let read: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            let entries = read["explanations"].as_array().unwrap();
            done += entries.iter().filter(|entry| entry["status"] == "done").count();
        }
    }
    done
}

#[test]
fn the_samples_are_explained_offline_and_rebuilt() {
    let out = tempfile::tempdir().unwrap();
    let samples = samples();
    let folder = out.path().join("explained");
    let args =
        ["explain", samples.to_str().unwrap(), "--out", folder.to_str().unwrap(), "--picture-px", "64", "--json"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["totals"]["done"], TEXT_PAGES);
    assert_eq!(report["totals"]["pages"], PAGES);
    assert_eq!(report["failures"], Value::Array(Vec::new()), "{report}");
    let html = fs::read_to_string(folder.join("tides.html")).unwrap();
    assert!(html.contains("<blockquote>") && html.contains("data:image/png;base64,"));

    // The samples are in another tree than their explanations.
    let args = ["rebuild", folder.to_str().unwrap(), "--pdf", samples.to_str().unwrap(), "--picture-px", "64"];
    fs::remove_file(folder.join("tides.html")).unwrap();
    let output = run(&args);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("tides.json: 4 pages, ") && said.contains("columns.json: 1 page, "), "{said}");
    assert_eq!(fs::read_to_string(folder.join("tides.html")).unwrap(), html);
}

/// JSON from elsewhere may name any file of the disk.
#[test]
fn rebuild_draws_only_pdfs_of_its_own_tree_or_of_a_folder_that_was_named() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    for folder in ["secret", "work/theirs", "work/docs"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for copy in ["secret/private.pdf", "work/docs/ours.pdf", "work/theirs/beside.pdf"] {
        fs::copy(samples().join("tides.pdf"), root.join(copy)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("secret/private.pdf"), root.join("work/theirs/link.pdf")).unwrap();
    let json = |name: &str, source: &str| {
        let text = serde_json::json!({"source": source, "pages": {"1": "text"}}).to_string();
        fs::write(root.join("work/theirs").join(name), text).unwrap();
    };
    json("absolute.json", root.join("secret/private.pdf").to_str().unwrap());
    json("relative.json", "../../secret/private.pdf");
    json("link.json", "");
    json("docs.json", "../docs/ours.pdf");
    json("beside.json", "");
    let drawn = |from: &str, home: &str, more: &[&str]| -> BTreeMap<String, bool> {
        let theirs = root.join("work/theirs");
        let mut command = tidegate(&["rebuild", theirs.to_str().unwrap(), "--picture-px", "64"]);
        let output = command.args(more).current_dir(root.join(from)).env("HOME", root.join(home)).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        for name in ["absolute", "relative", "link"].iter().filter(|_| more.is_empty()) {
            assert!(text(&output.stderr).contains(&format!("{name}.json: 1 page, ")), "{}", text(&output.stderr));
        }
        let names = ["absolute", "relative", "link", "docs", "beside"];
        let page = |name: &str| fs::read_to_string(theirs.join(format!("{name}.html"))).unwrap();
        names.iter().map(|name| ((*name).to_owned(), page(name).contains("data:image/png"))).collect()
    };
    let all = |drawn: &BTreeMap<String, bool>| -> Vec<String> {
        drawn.iter().filter(|(_, drawn)| **drawn).map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(all(&drawn("work", "secret", &[])), ["beside", "docs"], "from the folder that both are in");
    assert_eq!(all(&drawn("secret", "secret", &[])), ["beside"], "the home directory is not a tree of its own");
    let secret = root.join("secret");
    let named = all(&drawn("work", "work", &["--pdf", secret.to_str().unwrap()]));
    assert_eq!(named, ["absolute", "beside", "link", "relative"], "its folder was named");
}

/// The README's first command.
#[test]
fn the_last_line_says_what_to_open() {
    let out = tempfile::tempdir().unwrap();
    for (input, first, others) in [("", "index.html", "; it links all 6 documents"), ("marees.pdf", "marees.html", "")]
    {
        let (input, folder) = (samples().join(input), out.path().join(first));
        let words = ["explain", input.to_str().unwrap(), "--out", folder.to_str().unwrap(), "--picture-px", "0"];
        let output = run(&[&words[..], &["--progress", "plain"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let page = folder.join(first);
        assert_eq!(said.lines().last().unwrap(), format!("open {} in a browser{others}", page.display()));
        assert!(page.is_file(), "{said}");
    }
}

/// The README's second: the good file is explained, the report names the bad one.
#[test]
fn one_bad_file_fails_alone() {
    let out = tempfile::tempdir().unwrap();
    let (good, folder) = (samples().join("tides.pdf"), out.path().to_str().unwrap());
    let words = ["explain", good.to_str().unwrap(), broken().to_str().unwrap(), "--out", folder, "--picture-px", "0"]
        .map(str::to_owned);
    let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let (report, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(report.starts_with("4 of 4 pages explained, 2 files, "), "{report}");
    assert!(report.contains("\nfailed: broken.pdf: ") && report.contains("get it again"), "{report}");
    let page = out.path().join("tides.html");
    assert_eq!(said.lines().last().unwrap(), format!("open {} in a browser", page.display()));
}

#[test]
fn what_cannot_run_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    fs::write(folder.path().join("empty.pdf"), "").unwrap();
    fs::write(folder.path().join("key"), "two words").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (nothing, empty, key) = (at("nothing.pdf"), at("empty.pdf"), at("key"));
    fs::create_dir_all(folder.path().join("sub")).unwrap();
    let (sub, out) = (at("sub"), at("out"));
    let tides = samples().join("tides.pdf");
    let tides = tides.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[&nothing], "nothing.pdf"),
        (&[&sub], ".pdf"),
        (&[&empty], "empty"),
        (&[tides, "--provider", "openai", "--model", "m"], "OPENAI_API_KEY"),
        (&[tides, "--provider", "gemini", "--model", "m", "--api-key-file", &key], "cannot be a key"),
        (&[tides, "--provider", "openai", "--api-key-file", &key], "--model"),
        (&[tides, "--provider", "gemini", "--model", "../files?x="], "the model name \"../files?x=\""),
        (&[tides, "--provider", "gemini", "--model", "a//b", "--broker", "memory:"], "the model name \"a//b\""),
        (&[tides, "--provider", "openai", "--model", "m", "--base-url", "nonsense"], "nonsense"),
        (&[tides, "--prompt", "about {pgae}"], "{pgae}"),
        (&[tides, "--prompt", "@/nowhere/prompt.txt"], "/nowhere/prompt.txt"),
        (&[tides, "--pages", "5-3"], "5-3"),
        (&[tides, "--pages", "90-"], "which has 4"),
        (&[tides, "--page-concurrency", "0"], "auto"),
        (&[tides, "--day-zone", "Mars/Base", "--rpd", "5"], "Mars/Base"),
    ];
    for (args, expected) in cases {
        let words: Vec<&str> = ["explain", "--out", &out].iter().chain(args.iter()).copied().collect();
        let output = run(&words);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(expected), "{args:?}: {message}");
        assert!(!message.contains("two words"), "{message}");
    }
    let output = run(&["rebuild", &sub]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(".json"));
}

#[test]
fn killed_at_any_moment_it_goes_on_where_it_was() {
    let soak = std::env::var_os("TIDEGATE_SOAK").is_some();
    let seed =
        std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut kills = if soak { 100 } else { 5 };
    while kills > 0 {
        let server = Server::start(usize::MAX);
        let out = tempfile::tempdir().unwrap();
        let args = against(&server, out.path());
        let mut killed = 0;
        loop {
            let mut child = start(&args);
            // Killed when a certain request comes, give or take.
            let came = server.await_requests(random.usize(1..=4), &mut child);
            if came {
                (0..random.usize(0..400)).for_each(|_| thread::yield_now());
                child.kill().unwrap();
                (kills, killed) = (kills - 1, killed + 1);
            }
            let output = child.wait_with_output().unwrap();
            assert!(came || output.status.code() == Some(0), "seed {seed}: {}", text(&output.stderr));
            if !came || kills == 0 {
                break;
            }
        }
        // Whatever the kills left: one more run completes it, and pays only for what is missing.
        let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "seed {seed}: {}", text(&output.stderr));
        assert_eq!(done_pages(out.path()), TEXT_PAGES, "seed {seed}");
        let twice = server.requests() - TEXT_PAGES;
        assert!(twice <= 2 * killed, "seed {seed}: {twice} paid for twice with {killed} kills of two pages under way");
        let before = server.requests();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(server.requests(), before, "seed {seed}: everything is kept");
    }
}

#[test]
fn ctrl_c_ends_in_order_and_says_how_to_go_on() {
    let server = Server::start(3);
    let out = tempfile::tempdir().unwrap();
    let mut child = start(&against(&server, out.path()));
    assert!(server.await_requests(4, &mut child));
    let interrupt = |child: &Child| {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    interrupt(&child);
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("once more to drop it") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "it ended without a word");
    }
    // The fourth is never answered; whoever does not want to wait says so again.
    interrupt(&child);
    let status = child.wait().unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(status.code(), Some(130), "{rest}");
    assert!(rest.contains("3 of") && rest.contains("run the same command again"), "{rest}");
    assert_eq!(done_pages(out.path()), 3, "what is there is written");
}

#[test]
fn a_disk_that_takes_no_more_stops_the_run_and_loses_nothing() {
    let server = Server::start(usize::MAX);
    let out = tempfile::tempdir().unwrap();
    let args = against(&server, out.path());
    // No file may grow beyond so many blocks, which fails as a full disk does.
    let script = "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"";
    let full = Command::new("sh")
        .args(["-c", script, "48", env!("CARGO_BIN_EXE_tidegate")])
        .args(&args)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env("XDG_DATA_HOME", data_home())
        .output()
        .unwrap();
    let message = text(&full.stderr);
    assert!(matches!(full.status.code(), Some(1 | 2)), "{message}");
    assert!(message.contains("results.db"), "{message}");
    let paid = server.requests();
    assert!(paid < TEXT_PAGES, "it went on paying: {paid}");
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(done_pages(out.path()), TEXT_PAGES, "{}", text(&output.stderr));
    assert!(server.requests() <= TEXT_PAGES + 2, "{} requests", server.requests());
}

#[test]
fn a_second_run_in_the_same_folder_is_told_of_the_first() {
    let server = Server::start(0);
    let out = tempfile::tempdir().unwrap();
    let args = against(&server, out.path());
    let mut first = start(&args);
    assert!(server.await_requests(1, &mut first));
    let second = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("another tidegate"), "{}", text(&second.stderr));
}

#[test]
fn the_program_reads_pdfs_in_a_process_that_is_confined() {
    tidegate_loop::run(async {
        // A number by which the child is known.
        let limits = Limits { memory_bytes: 777 << 20, ..Limits::default() };
        let reader = Reader::new().limits(limits).program(env!("CARGO_BIN_EXE_tidegate"), [""; 0]);
        let document = reader.open(samples().join("tides.pdf")).await.unwrap();
        let memory = limits.memory_bytes.to_string();
        let child =
            fs::read_dir("/proc").unwrap().flatten().map(|process| process.path()).find(|process| {
                fs::read_to_string(process.join("limits")).is_ok_and(|limits| limits.contains(&memory))
            });
        let mut threads = 0;
        for thread in fs::read_dir(child.unwrap().join("task")).unwrap().flatten() {
            let status = fs::read_to_string(thread.path().join("status")).unwrap();
            for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
                assert!(status.lines().any(|it| it == line), "{line} is not in {status}");
            }
            threads += 1;
        }
        assert_eq!(threads, 2);
        let page = document.page(1, Want::text().and_picture(200)).await.unwrap();
        assert!(page.text.unwrap().text.contains("tide") && page.picture.unwrap().bytes.len() > 1_000);
    })
    .unwrap();
}
