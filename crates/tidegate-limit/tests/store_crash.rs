//! `kill -9` at any moment: what a restart counts is never below what was granted, and above it by a batch at most.
//!
//! A program of its own: it starts itself as the child that is killed. With `TIDEGATE_SOAK` many more rounds.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_limit::store::{Durability, Store};
use tidegate_limit::{Cost, Gate, Limit, Window};
use tidegate_loop::timeout;

const BATCH: u64 = 7;

/// The quota that several processes share.
const SHARED: u64 = 500;

fn main() {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("--child-grants"), Some(file)) => {
            child_grants(Path::new(&file), arguments.next().as_deref() == Some("inline"));
        }
        (Some("--child-shares"), Some(file)) => child_shares(Path::new(&file)),
        (Some("--child-opens"), Some(file)) => child_opens(Path::new(&file)),
        _ => {
            let scratch = Scratch::new();
            what_is_restored_is_never_below_what_was_granted(&scratch);
            several_processes_share_a_quota(&scratch);
            a_directory_that_cannot_be_written_to_is_named(&scratch);
            println!("store_crash: ok");
        }
    }
}

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("tidegate-store-crash-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Enters for ever. A `+` on standard output for each grant, once it is there; a `-` before one is given back.
fn child_grants(file: &Path, inline: bool) {
    let (file, mut random) = (file.to_owned(), Random(u64::from(std::process::id())));
    tidegate_loop::run(async move {
        let store = Store::open_with(file, Durability::Crash).unwrap();
        let store = if inline { store.inline() } else { store };
        let limit = Limit::rpd(1_000_000_000, "UTC").journaled(BATCH);
        let gate = Gate::builder().limit(limit).store(&store).unwrap().build().unwrap();
        let mut out = std::io::stdout().lock();
        loop {
            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
            out.write_all(b"+").and_then(|()| out.flush()).unwrap();
            if random.below(4) == 0 {
                out.write_all(b"-").and_then(|()| out.flush()).unwrap();
                drop(lease);
            } else {
                lease.sent();
            }
        }
    })
    .unwrap();
}

/// Enters until the quota of the day is used up, with a `+` for each grant.
fn child_shares(file: &Path) {
    let file = file.to_owned();
    tidegate_loop::run(async move {
        let store = Store::open_with(file, Durability::Crash).unwrap();
        // A period that does not end while the test runs.
        let limit = Limit::rpm(SHARED).window(Window::strict(Duration::from_secs(10 * 86_400))).journaled(BATCH);
        let gate = Gate::builder().limit(limit).store(&store).unwrap().build().unwrap();
        let mut out = std::io::stdout().lock();
        while gate.stats().limit("rpm").unwrap().remaining > 0 {
            let Ok(entered) = timeout(Duration::from_secs(2), gate.enter(gate.unscoped(), Cost::request())).await
            else {
                break;
            };
            entered.unwrap().sent();
            out.write_all(b"+").and_then(|()| out.flush()).unwrap();
        }
        gate.close();
        store.close();
    })
    .unwrap();
}

/// Opens the file, tells how that went, and stays until its standard input is closed.
fn child_opens(file: &Path) {
    let store = Store::open(file);
    match &store {
        Ok(_) => println!("open"),
        Err(error) => println!("{error}"),
    }
    let _ = std::io::stdin().read(&mut [0]);
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads `count` bytes, kills the child, reads what it had written until then.
fn kill_after(mut child: Child, count: u64) -> String {
    let mut out = child.stdout.take().unwrap();
    let mut seen = vec![0; count as usize];
    out.read_exact(&mut seen).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    out.read_to_end(&mut seen).unwrap();
    String::from_utf8(seen).unwrap()
}

fn restored(file: &Path) -> u64 {
    let store = Store::open_existing(file).unwrap();
    // A round may begin on one day and end on the next; what counts is that nothing is forgotten.
    store.restored().unwrap().iter().map(tidegate_limit::journal::Restored::amount).sum()
}

fn what_is_restored_is_never_below_what_was_granted(scratch: &Scratch) {
    let file = scratch.0.join("crash.db");
    let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 1_000 } else { 16 };
    let mut random = Random(7);
    let (mut granted, mut before) = (0, 0);
    for round in 0..rounds {
        let inline = ["thread", "inline"][round % 2];
        let exe = std::env::current_exe().unwrap();
        let child = start(Command::new(exe).arg("--child-grants").arg(&file).arg(inline));
        // Also right at the start, when the first reservation is being written.
        let seen = kill_after(child, if random.below(4) == 0 { 0 } else { 1 + random.below(300) });
        let (plus, minus) = (seen.matches('+').count() as u64, seen.matches('-').count() as u64);
        granted += plus - minus;
        if !file.exists() {
            assert_eq!(seen, "", "round {round}: granted without a file");
            continue;
        }
        let now = restored(&file);
        assert!(now >= granted, "round {round} ({inline}): {granted} were granted, {now} are counted");
        // What was reserved and not used; two are open while one is being written.
        let over = now - before - (plus - minus);
        assert!(over <= 2 * BATCH + minus, "round {round} ({inline}): {over} too many are counted");
        // From here on only what this round adds is looked at.
        granted = now;
        before = now;
    }
}

/// Two processes enter at once, one of them is killed in between: together they are granted what one alone would be.
fn several_processes_share_a_quota(scratch: &Scratch) {
    let file = scratch.0.join("shared.db");
    let exe = std::env::current_exe().unwrap();
    let start = || start(Command::new(&exe).arg("--child-shares").arg(&file));
    let (killed, others) = (start(), [start(), start()]);
    let mut granted = kill_after(killed, 5);
    for mut child in others.into_iter().chain([start()]) {
        let mut seen = String::new();
        child.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
        assert!(child.wait().unwrap().success());
        granted += &seen;
    }
    let granted = granted.matches('+').count() as u64;
    // The one that was killed may have had a reservation that it did not use, and another on its way.
    assert!((SHARED - 2 * BATCH..=SHARED).contains(&granted), "{granted} of {SHARED} were granted");
}

fn a_directory_that_cannot_be_written_to_is_named(scratch: &Scratch) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let directory = scratch.0.join("readonly");
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("limits.db");
    drop(Store::open(&file).unwrap());
    // Permissions do not restrict root, so another user tries, who must be able to run this program.
    let program = scratch.0.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    mode(&program, 0o755);
    mode(&scratch.0, 0o755);
    let attempt = || {
        let mut command = Command::new(&program);
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(65_534);
        }
        let output = command.arg("--child-opens").arg(&file).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    mode(&file, 0o444);
    mode(&directory, 0o555);
    let said = attempt();
    assert!(said.contains("limits.db cannot be written"), "{said}");
    mode(&file, 0o000);
    let said = attempt();
    assert!(said.contains("limits.db cannot be written"), "{said}");
    mode(&file, 0o666);
    let said = attempt();
    assert!(said.contains("limits.db cannot be written"), "the directory is still read-only: {said}");
    mode(&directory, 0o755);
}
