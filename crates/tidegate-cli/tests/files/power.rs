//! Power cuts: the program is killed at any of its writes, and of what it wrote only what was synced is sure to be there again.
//! `power_cut.c` is preloaded into it, notes what was synced, and ends it; here the machine starts again. What was not synced may
//! be there, or not, or in part, by the seed.
//!
//! `TIDEGATE_SEED` repeats a run, `TIDEGATE_SOAK` cuts at every write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use fastrand::Rng;
use serde_json::Value;
use tidegate_rehearsal::Server;

use crate::{samples, tidegate};

/// Cuts per test where not every write is tried.
const CUTS: usize = 8;

/// The smallest piece of a file that is written whole.
const SECTOR: usize = 512;

/// The library, compiled once.
fn shim() -> &'static Path {
    static SHIM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = SHIM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("power_cut.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/power_cut.c");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"];
        let cc =
            Command::new("cc").args(flags).arg(&library).arg(source).arg("-ldl").output().expect("cc is installed");
        assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
        (folder, library)
    });
    library
}

/// What a name in a directory stands for: see `power_cut.c`.
type Key = String;

fn key(path: &Path) -> Key {
    let about = fs::symlink_metadata(path).unwrap();
    let born =
        about.created().expect("this file system knows when a file was made").duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{}-{}", about.ino(), born.as_secs(), born.subsec_nanos())
}

/// A directory's names, each with its key and whether it is a directory.
type Names = BTreeMap<String, (Key, bool)>;

fn names(folder: &Path) -> Names {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let is_folder = entry.file_type().unwrap().is_dir();
            (entry.file_name().into_string().unwrap(), (key(&entry.path()), is_folder))
        })
        .collect()
}

/// How much of what was not synced is there again.
enum Luck<'r> {
    None,
    Random(&'r mut Rng),
}

impl Luck<'_> {
    fn below(&mut self, count: usize) -> usize {
        match self {
            Luck::None => 0,
            Luck::Random(rng) => rng.usize(..count),
        }
    }
}

/// A machine whose power can be cut.
struct Machine {
    _folder: tempfile::TempDir,
    root: PathBuf,
    disk: PathBuf,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        let (root, disk) = (place.join("root"), place.join("disk"));
        fs::create_dir(&root).unwrap();
        Machine { _folder: folder, root, disk }
    }

    /// Everything that is there now lasts, and calls are counted anew.
    fn settle(&self) {
        let _ = fs::remove_dir_all(&self.disk);
        fs::create_dir(&self.disk).unwrap();
        self.note(&self.root);
    }

    fn note(&self, folder: &Path) {
        let mut lines = String::new();
        for (name, (key, is_folder)) in names(folder) {
            lines += &format!("{key} {} {name}\n", u8::from(is_folder));
            if is_folder {
                self.note(&folder.join(&name));
            } else {
                fs::copy(folder.join(&name), self.disk.join(&key)).unwrap();
            }
        }
        fs::write(self.disk.join(key(folder) + ".names"), lines).unwrap();
    }

    /// Runs the program until its end, or until the power goes before that call.
    fn run(&self, words: &[&str], input: &str, cut: Option<u64>) -> Output {
        self.settle();
        let mut command = tidegate(&self.root, words);
        command.env("LD_PRELOAD", shim()).env("POWER_ROOT", &self.root).env("POWER_DISK", &self.disk);
        if let Some(cut) = cut {
            command.env("POWER_CUT", cut.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // It may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() || cut.is_some(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn calls(&self) -> u64 {
        fs::read_to_string(self.disk.join("calls")).map_or(0, |text| text.parse().unwrap())
    }

    /// The power was cut: what lasts, and of the rest what luck allows.
    fn restart(&self, mut luck: Luck<'_>) {
        let mut now = BTreeMap::new();
        index(&self.root, &mut now);
        let again = self.root.with_file_name("again");
        self.revive(&key(&self.root), &now, &again, &mut luck);
        fs::remove_dir_all(&self.root).unwrap();
        fs::rename(&again, &self.root).unwrap();
    }

    fn revive(&self, folder: &Key, now: &BTreeMap<Key, PathBuf>, to: &Path, luck: &mut Luck<'_>) {
        fs::create_dir(to).unwrap();
        let mut there = match fs::read_to_string(self.disk.join(format!("{folder}.names"))) {
            Ok(text) => parse(&text),
            Err(_) => Names::new(),
        };
        if let Some(current) = now.get(folder)
            && luck.below(2) == 1
        {
            there = names(current);
        }
        for (name, (key, is_folder)) in there {
            let to = to.join(name);
            if is_folder {
                self.revive(&key, now, &to, luck);
            } else {
                let lasts = fs::read(self.disk.join(&key)).unwrap_or_default();
                let current = now.get(&key).map_or_else(|| lasts.clone(), |path| fs::read(path).unwrap());
                fs::write(to, content(lasts, &current, luck)).unwrap();
            }
        }
    }
}

fn parse(text: &str) -> Names {
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (key, is_folder) = (parts.next()?.to_owned(), parts.next()? == "1");
        Some((parts.next()?.to_owned(), (key, is_folder)))
    };
    text.lines().filter_map(line).collect()
}

/// Where each file and directory is now.
fn index(folder: &Path, all: &mut BTreeMap<Key, PathBuf>) {
    all.insert(key(folder), folder.to_owned());
    for (name, (key, is_folder)) in names(folder) {
        if is_folder {
            index(&folder.join(&name), all);
        } else {
            all.insert(key, folder.join(&name));
        }
    }
}

/// What was synced, what was written since, or some sectors of this and some of that.
fn content(lasts: Vec<u8>, current: &[u8], luck: &mut Luck<'_>) -> Vec<u8> {
    match luck.below(3) {
        0 => lasts,
        1 => current.to_vec(),
        _ => {
            let size = [lasts.len(), current.len()][luck.below(2)];
            let mut mixed = vec![0; size];
            for (at, sector) in mixed.chunks_mut(SECTOR).enumerate() {
                let from = if luck.below(2) == 0 { &lasts[..] } else { current };
                let found = from.get(at * SECTOR..).unwrap_or_default();
                let count = found.len().min(sector.len());
                sector[..count].copy_from_slice(&found[..count]);
            }
            mixed
        }
    }
}

/// Tries `round` with cuts at some calls of a run of `total`, or at each of them.
fn cuts(what: &str, total: u64, mut round: impl FnMut(u64, &mut Rng)) {
    assert!(total > 3, "{what}: only {total} calls were seen: is the shim loaded?");
    let given = std::env::var("TIDEGATE_SEED").ok().map(|seed| seed.parse().expect("a seed"));
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{what}: {total} calls; TIDEGATE_SEED={seed} repeats this");
    let mut rng = Rng::with_seed(seed);
    if std::env::var_os("TIDEGATE_SOAK").is_some() {
        (1..=total).for_each(|cut| round(cut, &mut rng));
    } else {
        (0..CUTS).for_each(|_| round(rng.u64(1..=total), &mut rng));
    }
}

fn events(output: &Output) -> Vec<Value> {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

const BROKER: [&str; 2] = ["--broker", "sqlite:queue.db"];

fn waiting(machine: &Machine) -> BTreeSet<String> {
    let output = machine.run(&[&["queue", "peek", "--json", "--limit", "100"], &BROKER[..]].concat(), "", None);
    events(&output).iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
}

fn enqueue(machine: &Machine, id: &str, cut: Option<u64>) -> bool {
    let output = machine.run(&[&["enqueue", "add", "--id", id], &BROKER[..]].concat(), "", cut);
    String::from_utf8_lossy(&output.stdout).contains(id)
}

#[test]
fn a_task_that_was_accepted_is_in_the_queue_after_a_power_cut() {
    let machine = Machine::new();
    enqueue(&machine, "first", None);
    cuts("enqueue", machine.calls(), |cut, rng| {
        let machine = Machine::new();
        let mut accepted = BTreeSet::new();
        for id in ["first", "second"] {
            if enqueue(&machine, id, Some(cut)) {
                accepted.insert(id.to_owned());
            }
            machine.restart(Luck::Random(rng));
        }
        assert!(enqueue(&machine, "third", None), "the queue can be used again");
        accepted.insert("third".to_owned());
        machine.restart(Luck::None);
        machine.run(&[&["queue", "check"], &BROKER[..]].concat(), "", None);
        let there = waiting(&machine);
        assert!(accepted.is_subset(&there), "cut before call {cut}: {accepted:?} are not all in {there:?}");
    });
}

/// Claims and settlements may be undone; then the task is there again.
#[test]
fn no_task_is_lost_when_the_power_of_a_worker_is_cut() {
    let tasks: BTreeSet<String> = (0..5).map(|n| format!("task-{n}")).collect();
    cuts("worker", 40, |cut, rng| {
        let machine = Machine::new();
        tasks.iter().for_each(|id| assert!(enqueue(&machine, id, None)));
        let words = ["worker", "--handler", "add=exec:true", "--concurrency", "2", "--log", "error"];
        let output = machine.run(&[&words, &BROKER[..]].concat(), "", Some(cut));
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        machine.restart(Luck::Random(rng));
        machine.run(&[&["queue", "check"], &BROKER[..]].concat(), "", None);
        let database = rusqlite::Connection::open(machine.root.join("queue.db")).unwrap();
        let mut known =
            database.prepare("SELECT id FROM task UNION SELECT id FROM result WHERE state = 'succeeded'").unwrap();
        let known: BTreeSet<String> = known.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(known, tasks, "cut before call {cut}");
    });
}

fn requests(count: usize) -> String {
    let line = |n| {
        let body =
            serde_json::json!({"model": "m", "messages": [{"role": "user", "content": format!("question {n}")}]});
        serde_json::json!({"custom_id": format!("r{n}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
    };
    (0..count).map(|n| format!("{}\n", line(n))).collect()
}

fn answered(machine: &Machine) -> BTreeSet<String> {
    let text = fs::read_to_string(machine.root.join("results.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["custom_id"].as_str().unwrap().to_owned()).collect()
}

/// What the file says was used today.
fn counted(machine: &Machine) -> u64 {
    let folder = fs::read_dir(machine.root.join("data/tidegate/quotas")).into_iter().flatten();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let Some(path) = files.find(|path| path.extension().is_some_and(|ending| ending == "db")) else { return 0 };
    let database = rusqlite::Connection::open(path).unwrap();
    let sum = "SELECT coalesce(sum(amount), 0) FROM reservation";
    database.query_row(sum, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs()
}

#[test]
fn results_that_were_told_are_in_the_file_and_requests_that_were_sent_are_counted() {
    const REQUESTS: usize = 6;
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let words =
        ["batch", "in.jsonl", "-o", "results.jsonl", "--rpd", "1000", "--progress", "json", "--base-url", &base];
    let begin = || {
        let machine = Machine::new();
        fs::write(machine.root.join("in.jsonl"), requests(REQUESTS)).unwrap();
        machine
    };
    let machine = begin();
    machine.run(&words, "", None);
    cuts("batch", machine.calls(), |cut, rng| {
        let machine = begin();
        let before = server.stats().accepted;
        let output = machine.run(&words, "", Some(cut));
        let told: BTreeSet<String> = events(&output)
            .iter()
            .filter(|event| event["event"] == "answered")
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect();
        machine.restart(Luck::Random(rng));
        let there = answered(&machine);
        assert!(told.is_subset(&there), "cut before call {cut}: {told:?} are not all in {there:?}");
        let sent = server.stats().accepted - before;
        assert!(
            counted(&machine) >= sent,
            "cut before call {cut}: {} of {sent} requests are counted",
            counted(&machine)
        );
        machine.run(&words, "", None);
        machine.restart(Luck::None);
        assert_eq!(answered(&machine).len(), REQUESTS, "cut before call {cut}");
        assert!(counted(&machine) >= REQUESTS as u64);
    });
}

/// The outputs of `tides.pdf`: all that are there must be whole. Which pages are in the JSON.
fn outputs(machine: &Machine) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(machine.root.join("out").join(name)).ok();
    if let Some(page) = read("tides.html") {
        assert!(page.trim_end().ends_with("</html>"), "tides.html is cut off");
    }
    if let Some(text) = read("tides.md") {
        assert!(text.ends_with("-->\n"), "tides.md is cut off");
    }
    let json = read("tides.json")?;
    let json: Value = serde_json::from_str(&json).expect("tides.json is whole");
    Some(json["explanations"].as_array().unwrap().len())
}

#[test]
fn answers_that_were_told_are_kept_and_outputs_are_whole() {
    let words =
        |pages| ["explain", "tides.pdf", "--out", "out", "--picture-px", "0", "--progress", "json", "--pages", pages];
    let begin = || {
        let machine = Machine::new();
        fs::copy(samples().join("tides.pdf"), machine.root.join("tides.pdf")).unwrap();
        machine.run(&words("1"), "", None);
        machine.restart(Luck::None);
        assert_eq!(outputs(&machine), Some(1), "a run that has ended well has left its outputs");
        machine
    };
    let machine = begin();
    machine.run(&words("1-3"), "", None);
    cuts("explain", machine.calls(), |cut, rng| {
        let machine = begin();
        let output = machine.run(&words("1-3"), "", Some(cut));
        let events = events(&output);
        let told = events.iter().filter(|event| event["event"] == "page" && event["status"] == "done").count() as u64;
        let written = events.iter().any(|event| event["event"] == "file_done");
        machine.restart(Luck::Random(rng));
        let pages = outputs(&machine).unwrap_or_else(|| panic!("cut before call {cut}: the old output is gone"));
        assert!(pages == 3 || pages == 1 && !written, "cut before call {cut}: {pages} pages");
        machine.run(&words("1-3"), "", None);
        let report: Value = serde_json::from_slice(&fs::read(machine.root.join("out/report.json")).unwrap()).unwrap();
        let kept = report["totals"]["kept"].as_u64().unwrap();
        assert!(kept >= told.max(1), "cut before call {cut}: {told} were told, {kept} are kept");
        let left: Vec<String> =
            names(&machine.root.join("out")).into_keys().filter(|name| name.ends_with(".tmp")).collect();
        assert!(left.is_empty(), "drafts are left: {left:?}");
        machine.restart(Luck::None);
        assert_eq!(outputs(&machine), Some(3));
    });
}

/// Pages of a document that is split into parts.
const LARGE: usize = 201;

/// Which text all pages of `book.html` have. Everything that it refers to must be whole, and of one time.
fn text_of_the_parts(machine: &Machine) -> String {
    let contents = fs::read_to_string(machine.root.join("book.html")).expect("it was there before");
    assert!(contents.ends_with("</html>\n"), "book.html is cut off");
    let mut texts = BTreeSet::new();
    let (mut pages, links) = (0, contents.split("<li><a href=\"").skip(1));
    for link in links.map(|rest| machine.root.join(rest.split(['"', '#']).next().unwrap())) {
        let part = fs::read_to_string(&link).unwrap_or_else(|error| panic!("{}: {error}", link.display()));
        assert!(part.ends_with("</html>\n"), "{} is cut off", link.display());
        texts.extend(part.split("text: ").skip(1).map(|rest| rest.split('.').next().unwrap().to_owned()));
        for picture in part.split(" src=\"").skip(1).map(|rest| link.with_file_name(rest.split('"').next().unwrap())) {
            let bytes = fs::read(&picture).unwrap_or_else(|error| panic!("{}: {error}", picture.display()));
            assert!(bytes.ends_with(b"IEND\xaeB`\x82"), "{} is cut off", picture.display());
            pages += 1;
        }
    }
    assert_eq!(pages, LARGE, "each page has a picture");
    assert_eq!(texts.len(), 1, "pages of two times: {texts:?}");
    texts.pop_first().unwrap()
}

#[test]
fn the_parts_of_a_large_document_are_the_old_ones_or_the_new_ones() {
    let words = ["rebuild", "book.json", "--picture-px", "16"];
    let write_json = |machine: &Machine, text: &str| {
        let pages: BTreeMap<String, String> =
            (1..=LARGE).map(|page| (page.to_string(), format!("text: {text}."))).collect();
        fs::write(machine.root.join("book.json"), serde_json::to_string(&pages).unwrap()).unwrap();
    };
    let begin = || {
        let machine = Machine::new();
        fs::write(machine.root.join("book.pdf"), crate::pdf::pdf("book", LARGE)).unwrap();
        write_json(&machine, "old");
        machine.run(&words, "", None);
        machine.restart(Luck::None);
        assert_eq!(text_of_the_parts(&machine), "old", "what has ended well lasts");
        write_json(&machine, "new");
        machine
    };
    let machine = begin();
    machine.run(&words, "", None);
    cuts("rebuild", machine.calls(), |cut, rng| {
        let machine = begin();
        machine.run(&words, "", Some(cut));
        machine.restart(Luck::Random(rng));
        let text = text_of_the_parts(&machine);
        assert!(["old", "new"].contains(&text.as_str()), "cut before call {cut}: {text}");
        machine.run(&words, "", None);
        let sets = names(&machine.root.join("book-pages"));
        assert_eq!(sets.values().filter(|(_, is_folder)| *is_folder).count(), 1, "{sets:?}");
        machine.restart(Luck::None);
        assert_eq!(text_of_the_parts(&machine), "new", "cut before call {cut}");
    });
}
