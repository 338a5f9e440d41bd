//! Nothing is lost, whichever process dies, and every worker gets tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use tidegate_worker::SqliteBroker;

use crate::children::{Process, options};

/// What the processes said, put together.
#[derive(Default)]
struct Seen {
    /// How many of each producer's tasks are known to be kept.
    stored: BTreeMap<String, usize>,
    /// How often each task was handed out: without and with a crash before.
    fresh: BTreeMap<String, u32>,
    again: BTreeMap<String, u32>,
    by_worker: BTreeMap<String, u32>,
}

impl Seen {
    fn hear(&mut self, who: &str, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["stored", count] => drop(self.stored.insert(who.to_owned(), count.parse().unwrap())),
            ["got", id, crashes] => {
                let count = if crashes == "0" { &mut self.fresh } else { &mut self.again };
                *count.entry(id.to_owned()).or_default() += 1;
                *self.by_worker.entry(who.to_owned()).or_default() += 1;
            }
            ["ready"] => {}
            _ => panic!("{who} said {line:?}"),
        }
    }

    fn missing(&self) -> Vec<String> {
        let known = |id: &String| self.fresh.contains_key(id) || self.again.contains_key(id);
        let stored = self.stored.iter().flat_map(|(name, count)| (0..*count).map(move |n| format!("{name}-{n}")));
        stored.filter(|id| !known(id)).collect()
    }
}

/// Who said something, and what; `None`: that was all.
type Said = (String, Option<String>);

/// Reads all of them at once, each on a thread.
fn listen(processes: Vec<Process>) -> (Vec<thread::JoinHandle<Process>>, Receiver<Said>) {
    let (sender, lines) = channel();
    let threads = processes
        .into_iter()
        .map(|mut process| {
            let sender = sender.clone();
            thread::spawn(move || {
                while let Some(line) = process.line() {
                    let _ = sender.send((process.name.clone(), Some(line)));
                }
                let _ = sender.send((process.name.clone(), None));
                process
            })
        })
        .collect();
    (threads, lines)
}

fn check(file: &Path) {
    let options = options(file);
    tidegate_loop::run(async move {
        let broker = SqliteBroker::open_with(options).await.unwrap();
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
    })
    .unwrap();
}

/// Two producers and two workers at once: all is done once, and each had its part.
pub(crate) fn four_processes_share_one_file() {
    const EACH: usize = 4_000;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    let mut workers: Vec<Process> = ["w1", "w2"].iter().map(|name| Process::start("live=100", &file, name)).collect();
    for worker in &mut workers {
        assert_eq!(worker.line().as_deref(), Some("ready"));
    }
    let mut processes = workers;
    processes.extend(["p1", "p2"].iter().map(|name| Process::start(&format!("produce={EACH}"), &file, name)));
    let workers: Vec<rustix::process::Pid> = processes[..2].iter().map(Process::pid).collect();
    let mut seen = Seen::default();
    let (_threads, lines) = listen(processes);
    while seen.fresh.len() < 2 * EACH {
        let (who, line) = lines.recv().unwrap();
        match line {
            Some(line) => seen.hear(&who, &line),
            None => assert!(who.starts_with('p'), "worker {who} ended"),
        }
    }
    for pid in workers {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    assert!(seen.fresh.values().all(|&count| count == 1) && seen.again.is_empty(), "a task ran twice");
    assert_eq!(seen.by_worker.len(), 2, "one worker got nothing: {:?}", seen.by_worker);
    check(&file);
}

/// Rounds of two producers and two workers, all killed in the middle; then everything that was promised is found.
pub(crate) fn killed_at_any_moment_no_task_is_lost() {
    let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 200 } else { 8 };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue.db");
    let mut rng = fastrand::Rng::with_seed(rounds);
    let mut seen = Seen::default();
    for round in 0..rounds {
        let start = |role: &str, name: String| Process::start(role, &file, &name);
        let processes = vec![
            start("produce=1000000", format!("p{round}a")),
            start("produce=1000000", format!("p{round}b")),
            start("work=20", format!("w{round}a")),
            start("work=200", format!("w{round}b")),
        ];
        kill_somewhere(processes, rng.usize(1..600), &mut rng, &mut seen);
        if round % 4 == 0 {
            check(&file);
        }
    }
    drain(&file, &mut seen);
    check(&file);
    assert_eq!(seen.missing(), Vec::<String>::new());
    let twice = seen.fresh.iter().filter(|(_, count)| **count > 1).count();
    assert_eq!(twice, 0, "only a crash explains a second run");
    println!(
        "queue_file: {rounds} rounds, {} tasks stored, {} runs repeated after a kill",
        seen.stored.values().sum::<usize>(),
        seen.again.values().sum::<u32>(),
    );
}

fn kill_somewhere(processes: Vec<Process>, after_lines: usize, rng: &mut fastrand::Rng, seen: &mut Seen) {
    let mut pids: Vec<rustix::process::Pid> = processes.iter().map(Process::pid).collect();
    let (threads, lines) = listen(processes);
    let mut heard = 0;
    let mut ended = 0;
    while ended < threads.len() {
        let (who, line) = lines.recv().unwrap();
        let died = line.is_none();
        match line {
            Some(line) => seen.hear(&who, &line),
            None => ended += 1,
        }
        heard += 1;
        // One after the other, some lines apart: the others see a colleague die.
        if heard >= after_lines && !pids.is_empty() && (died || heard == after_lines || rng.u8(..) == 0) {
            let pid = pids.swap_remove(rng.usize(..pids.len()));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

/// A last worker that lives until nothing is left.
fn drain(file: &Path, seen: &mut Seen) {
    let worker = Process::start("work=1000", file, "last");
    let pid = worker.pid();
    let (_threads, lines) = listen(vec![worker]);
    let mut missing: BTreeSet<String> = seen.missing().into_iter().collect();
    while !missing.is_empty() {
        match lines.recv().unwrap() {
            (who, Some(line)) => {
                seen.hear(&who, &line);
                line.split(' ').nth(1).map(|id| missing.remove(id));
            }
            (_, None) => panic!("the last worker ended; missing: {missing:?}"),
        }
    }
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
