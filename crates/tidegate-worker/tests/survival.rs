//! Real processes and a real file: workers that are killed, workers that are stopped under load, memory that stays flat.
//!
//! Without a harness, because this program is also the worker that is killed: `TIDEGATE_TEST_ROLE` says what it is.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate_loop::{EventLoop, LoopHandle, sleep};
use tidegate_worker::codec::native;
use tidegate_worker::{
    Backoff, BlockingHandlers, Broker, Coroutines, Envelope, HandlerError, Handlers, Master, MemoryBroker, Mode,
    Policies, Policy, ProcessMode, ProcessOptions, Settings, Signals, SqliteBroker, Stop, Task, Threads, Watchdog,
    sqlite,
};

const QUEUE: &str = "default";
const ROLE: &str = "TIDEGATE_TEST_ROLE";
const PLACE: &str = "TIDEGATE_TEST_PLACE";
/// Seconds; one unless set.
const LEASE: &str = "TIDEGATE_TEST_LEASE";
const MODES: [&str; 3] = ["coroutine", "thread", "process"];

fn main() {
    match std::env::var(ROLE) {
        Ok(mode) => be_a_worker(&mode, Path::new(&std::env::var_os(PLACE).expect("set together"))),
        Err(_) => {
            let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
            let run = |name: &str, test: &dyn Fn()| {
                if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
                    test();
                    println!("test {name} ... ok");
                }
            };
            for mode in MODES {
                run(&format!("no_task_is_lost_whoever_is_killed::{mode}"), &|| killed_again_and_again(mode));
                run(&format!("a_warm_stop_under_load_leaves_nothing_half_settled::{mode}"), &|| {
                    stopped_under_load(mode);
                });
            }
            run("a_handler_that_holds_up_the_loop_does_not_hold_up_the_stop_for_ever", &stopped_by_the_watchdog);
            run("memory_stays_flat_over_many_tasks::memory", &|| memory_stays_flat(20_000, 100_000, None));
            let all = if is_soak() { 100_000 } else { 24_000 };
            run("memory_stays_flat_over_many_tasks::sqlite", &|| {
                let directory = tempfile::tempdir().unwrap();
                memory_stays_flat(8_000, all, Some(directory.path()));
            });
        }
    }
}

fn is_soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some()
}

fn run_on_loop<F: Future + 'static>(future: F) -> F::Output
where
    F::Output: 'static,
{
    EventLoop::new().unwrap().run_until_complete(future).unwrap()
}

/// The file, with leases short enough for a test to wait for unless it says otherwise.
async fn open(place: &Path) -> SqliteBroker {
    let mut options = sqlite::Options::new(place.join("queue.db"));
    let lease = std::env::var(LEASE).map_or(1, |seconds| seconds.parse().expect("seconds"));
    options.lease = Duration::from_secs(lease);
    // What is killed here are processes, not the machine.
    options.sync_publishes = false;
    SqliteBroker::open_with(options).await.unwrap()
}

/// One line per run, in one write, so that lines of several processes do not mix: the process and its parent.
fn note(mut log: &File, number: u64) {
    let own = std::process::id();
    log.write_all(format!("{number} {own} {own}\n").as_bytes()).unwrap();
}

fn log_of(place: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(place.join("runs.log")).unwrap()
}

/// A run: by which process, of which worker.
type Run = (u32, u32);

/// The runs of each number.
fn runs(place: &Path) -> HashMap<u64, Vec<Run>> {
    let mut all: HashMap<u64, Vec<Run>> = HashMap::new();
    for line in BufReader::new(File::open(place.join("runs.log")).unwrap()).lines() {
        let line = line.unwrap();
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        let (number, process, worker) = (next(), next() as u32, next() as u32);
        all.entry(number).or_default().push((process, worker));
    }
    all
}

const CHILD: &str = r#"
import json, os, socket
worker = os.getppid()
log = os.open(os.environ["TIDEGATE_TEST_PLACE"] + "/runs.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
f = socket.socket(fileno=int(os.environ["TIDEGATE_SOCKET"])).makefile("rwb")
def say(m):
    b = json.dumps(m).encode()
    f.write(len(b).to_bytes(4, "big") + b)
    f.flush()
say({"type": "ready", "version": 1, "handlers": ["note"]})
while header := f.read(4):
    order = json.loads(f.read(int.from_bytes(header, "big")))
    if order["type"] == "run":
        os.write(log, b"%d %d %d\n" % (order["args"][0], os.getpid(), worker))
        say({"type": "done", "run": order["run"], "value": None})
"#;

fn mode(name: &str, place: &Path) -> Rc<dyn Mode> {
    let log = Arc::new(log_of(place));
    match name {
        "coroutine" => Rc::new(
            Coroutines::new(Handlers::new().task("note", move |number: u64, micros: u64| {
                let log = Arc::clone(&log);
                async move {
                    sleep(Duration::from_micros(micros)).await;
                    note(&log, number);
                    Ok::<_, HandlerError>(())
                }
            }))
            .with_slots(50),
        ),
        // Never comes back to the loop.
        "stuck" => Rc::new(Coroutines::new(Handlers::new().task("note", move |number: u64, _micros: u64| {
            note(&log, number);
            loop {
                std::thread::park();
            }
            #[expect(unreachable_code, reason = "what it would return, for the compiler")]
            async {
                Ok::<(), HandlerError>(())
            }
        }))),
        "thread" => Rc::new(
            Threads::new(BlockingHandlers::new().task("note", move |number: u64, _micros: u64| {
                note(&log, number);
                Ok::<_, HandlerError>(())
            }))
            .with_slots(4),
        ),
        "process" => {
            let mut options = ProcessOptions::new(["python3", "-c", CHILD]);
            options.children = 2;
            options.inherited = options.inherited.and(PLACE);
            Rc::new(ProcessMode::new(options))
        }
        other => panic!("{other} is no mode"),
    }
}

const PREFETCH: usize = 60;

/// Runs until it is stopped or killed; says on standard output when it has started, and how it ended.
fn be_a_worker(name: &str, place: &Path) {
    let (name, place) = (name.to_owned(), place.to_owned());
    let _watchdog = (name == "stuck").then(|| Watchdog::start(Duration::from_millis(200)).unwrap());
    run_on_loop(async move {
        let mut signals = Signals::listen().unwrap();
        let mut settings = Settings::new([QUEUE]);
        settings.prefetch = Some(PREFETCH);
        settings.policies = Policies::new(Policy {
            crashes_max: u32::MAX,
            backoff: Backoff { min: Duration::from_millis(10), max: Duration::from_millis(100) },
            result_ttl: Duration::ZERO,
            ..Policy::default()
        });
        let limit = settings.stop_limit();
        let master = Master::new(Rc::new(open(&place).await), mode(&name, &place), settings);
        let worker = master.handle();
        let passing = tidegate_loop::spawn({
            let worker = worker.clone();
            async move { signals.pass_to(&worker).await }
        });
        println!("up");
        let report = master.run().await.unwrap();
        passing.cancel();
        println!(
            "{}",
            serde_json::json!({
                "unsettled": report.unsettled,
                "lost": report.lost,
                "cancelled": report.cancelled,
                "in_time": report.stop_took <= limit,
            })
        );
    });
}

struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(mode: &str, place: &Path) -> Worker {
        Worker::start_with_lease(mode, place, 1)
    }

    fn start_with_lease(mode: &str, place: &Path, seconds: u64) -> Worker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, mode)
            .env(PLACE, place)
            .env(LEASE, seconds.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Worker { child, out }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Stops it in order; what it reports.
    fn stop(mut self) -> Value {
        self.signal("-TERM");
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        serde_json::from_str(text.trim()).unwrap()
    }

    fn kill(mut self) -> u32 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child.id()
    }

    /// Its children, of all its threads.
    fn children(&self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let lists = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>()).collect()
    }
}

fn envelope(number: u64, micros: u64) -> Envelope {
    let task = Task::new("note").arg(number).arg(micros);
    Envelope::of(&task, QUEUE, native::encode(&task))
}

async fn publish(broker: &dyn Broker, numbers: Range<u64>, mut micros: impl FnMut() -> u64) {
    let numbers: Vec<u64> = numbers.collect();
    for batch in numbers.chunks(500) {
        broker.publish(batch.iter().map(|number| envelope(*number, micros())).collect()).await.unwrap();
    }
}

/// Waits until there are `count` runs; `false` if there are no more to come.
fn wait_for_runs(place: &Path, count: usize) -> bool {
    let path = place.join("runs.log");
    for _ in 0..60_000 {
        if std::fs::read(&path).is_ok_and(|log| log.iter().filter(|byte| **byte == b'\n').count() >= count) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The processes that were killed.
#[derive(Default)]
struct Killed {
    workers: HashSet<u32>,
    children: HashSet<u32>,
}

impl Killed {
    /// One of the workers, or, where they have some, one of their children.
    fn somebody(&mut self, mode: &str, place: &Path, workers: &mut Vec<Worker>, random: &mut fastrand::Rng) {
        let victim = random.usize(..workers.len());
        let children = workers[victim].children();
        if !children.is_empty() && random.bool() {
            let child = *random.choice(&children).expect("there are some");
            let pid = rustix::process::Pid::from_raw(child as i32).unwrap();
            // It may have ended by itself since.
            if rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok() {
                self.children.insert(child);
            }
            return;
        }
        self.workers.insert(workers.swap_remove(victim).kill());
        workers.push(Worker::start(mode, place));
    }

    fn explains(&self, (process, worker): Run) -> bool {
        self.workers.contains(&worker) || self.children.contains(&process)
    }
}

/// A flow of tasks through two workers at a time. In every round some are published and a process is killed
/// at a random point.
fn killed_again_and_again(mode: &'static str) {
    let (rounds, tasks): (u64, u64) = if is_soak() { (200, 10_000) } else { (6, 600) };
    let directory = tempfile::tempdir().unwrap();
    let place: PathBuf = directory.path().to_owned();
    let seed =
        std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("{mode}: seed {seed}, {rounds} rounds, {tasks} tasks");
    let mut random = fastrand::Rng::with_seed(seed);
    log_of(&place);
    let mut workers = vec![Worker::start(mode, &place), Worker::start(mode, &place)];
    let mut killed = Killed::default();
    let each = tasks / rounds;
    for round in 0..rounds {
        let numbers = round * each..if round + 1 == rounds { tasks } else { (round + 1) * each };
        run_on_loop({
            let (place, mut random) = (place.clone(), random.fork());
            async move {
                let broker = open(&place).await;
                publish(&broker, numbers, || random.u64(0..20_000)).await;
                broker.close().await.unwrap();
            }
        });
        // Each was run at least once, so this number will be reached.
        let further = round * each + random.u64(..each);
        assert!(wait_for_runs(&place, further as usize), "{mode}: nothing is run any more, seed {seed}");
        killed.somebody(mode, &place, &mut workers, &mut random);
    }
    let problems = run_on_loop({
        let place = place.clone();
        async move {
            let broker = open(&place).await;
            let (mut left, mut since) = (u64::MAX, LoopHandle::current().time());
            loop {
                let now = LoopHandle::current().time();
                match waiting(&broker).await {
                    0 => break,
                    fewer if fewer < left => (left, since) = (fewer, now),
                    same => assert!(now - since < Duration::from_secs(120), "{same} tasks never end"),
                }
                sleep(Duration::from_millis(10)).await;
            }
            let dead = broker.dead(None, 10).await.unwrap();
            assert!(dead.is_empty(), "{dead:?}");
            broker.check().await.unwrap()
        }
    });
    assert_eq!(problems, Vec::<String>::new());
    let reports: Vec<Value> = workers.into_iter().map(Worker::stop).collect();
    assert!(reports.iter().all(|report| report["unsettled"] == 0), "{reports:?}");
    let runs = runs(&place);
    let lost: Vec<u64> = (0..tasks).filter(|number| !runs.contains_key(number)).collect();
    assert!(lost.is_empty(), "{mode}: lost {lost:?}, seed {seed}");
    // Of several runs of a task all but one were in a process that was killed, or in one whose lease expired because the
    // machine did not run it in time, which it reports.
    let late: u64 = reports.iter().filter_map(|report| report["lost"].as_u64()).sum();
    let unexplained: u64 = runs
        .values()
        .map(|runs| runs.iter().filter(|run| !killed.explains(**run)).count().saturating_sub(1) as u64)
        .sum();
    assert!(unexplained <= late, "{mode}: {unexplained} runs too many, {late} leases lost, seed {seed}");
    let repeated: usize = runs.values().map(|runs| runs.len() - 1).sum();
    println!(
        "{mode}: {tasks} tasks, {} workers and {} children killed, none lost, {repeated} runs repeated, {unexplained} of them \
         by a living worker",
        killed.workers.len(),
        killed.children.len()
    );
}

/// Everything that has not ended, wherever it is.
async fn waiting(broker: &SqliteBroker) -> u64 {
    broker.inspect().await.unwrap().iter().map(|queue| queue.ready + queue.delayed + queue.running).sum()
}

fn stopped_under_load(mode: &str) {
    let directory = tempfile::tempdir().unwrap();
    let place: PathBuf = directory.path().to_owned();
    log_of(&place);
    let tasks = 2_000;
    run_on_loop({
        let place = place.clone();
        async move {
            let broker = open(&place).await;
            publish(&broker, 0..tasks, || 30_000).await;
            broker.close().await.unwrap();
        }
    });
    // Longer than any machine is busy. No worker is killed here, so no lease has to expire.
    let worker = Worker::start_with_lease(mode, &place, 60);
    assert!(wait_for_runs(&place, 100), "nothing is run");
    let report = worker.stop();
    let expected = serde_json::json!({"unsettled": 0, "lost": 0, "cancelled": false, "in_time": true});
    assert_eq!(report, expected);
    let runs = runs(&place);
    assert!(runs.values().all(|runs| runs.len() == 1), "a task was run twice without any fault");
    run_on_loop(async move {
        let broker = open(&place).await;
        let queue = &broker.inspect().await.unwrap()[0];
        assert_eq!((queue.running, queue.delayed, queue.dead), (0, 0, 0));
        assert_eq!(queue.ready + runs.len() as u64, tasks, "what ran has left the queue, what did not is there");
        let waiting = broker.peek(QUEUE, tasks as usize).await.unwrap();
        let numbers = waiting.iter().map(|envelope| native::decode(envelope, 0).unwrap().args[0].as_u64().unwrap());
        assert!(numbers.into_iter().all(|number| !runs.contains_key(&number)));
        assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
    });
}

fn stopped_by_the_watchdog() {
    let directory = tempfile::tempdir().unwrap();
    let place: PathBuf = directory.path().to_owned();
    log_of(&place);
    run_on_loop({
        let place = place.clone();
        async move {
            let broker = open(&place).await;
            publish(&broker, 0..1, || 0).await;
            broker.close().await.unwrap();
        }
    });
    let mut stuck = Worker::start("stuck", &place);
    assert!(wait_for_runs(&place, 1), "nothing is run");
    stuck.signal("-TERM");
    assert_eq!(stuck.child.wait().unwrap().code(), Some(137));
    // The task it had is not lost.
    let next = Worker::start("coroutine", &place);
    assert!(wait_for_runs(&place, 2), "the task did not come back");
    assert_eq!(next.stop()["unsettled"], 0);
}

/// Resident, in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// On the queue in a file, if there is a place for one; otherwise in memory.
fn memory_stays_flat(warm_up: u64, all: u64, place: Option<&Path>) {
    const BATCH: u64 = 1_000;
    let place = place.map(Path::to_owned);
    let grown = run_on_loop(async move {
        let (client, broker): (Rc<dyn Broker>, Rc<dyn Broker>) = match &place {
            Some(place) => (Rc::new(open(place).await), Rc::new(open(place).await)),
            None => {
                let broker = MemoryBroker::new();
                (Rc::new(broker.connect()), Rc::new(broker))
            }
        };
        let handlers = Handlers::new().task("note", |_number: u64, _micros: u64| async { Ok::<_, HandlerError>(()) });
        let mut settings = Settings::new([QUEUE]);
        settings.policies = Policies::new(Policy { result_ttl: Duration::ZERO, ..Policy::default() });
        let master = Master::new(broker, Rc::new(Coroutines::new(handlers)), settings);
        let worker = master.handle();
        let running = tidegate_loop::spawn(master.run());
        let mut before = 0;
        for published in (0..all).step_by(BATCH as usize) {
            if published == warm_up {
                before = memory_kib();
            }
            client.publish((0..BATCH).map(|number| envelope(number, 0)).collect()).await.unwrap();
            while worker.stats().settled < published + BATCH {
                sleep(Duration::from_micros(100)).await;
            }
        }
        let grown = memory_kib().saturating_sub(before);
        worker.stop(Stop::Warm);
        running.await.unwrap().unwrap();
        grown
    });
    println!("memory grew by {grown} KiB over {} tasks", all - warm_up);
    assert!(grown < 4 * 1024, "{grown} KiB more after {} tasks", all - warm_up);
}
