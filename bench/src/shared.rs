//! Group `shared`: admissions through Redis, from one process over one connection.
//!
//! Every contestant lets in the same number of entries with a thousand tasks at the gate, against a redis-server of its own
//! on a Unix socket, without persistence. The peers are what a gate through Redis usually is: a script an entry, pipelined
//! over the same connection or one after the other.

use std::cell::Cell;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command as Process, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_limit::{Cost, Limit};
use tidegate_loop::{gather_all, spawn};
use tidegate_redis::{Client, ClientOptions, Command, SharedGate};

use crate::harness::{BASELINE, Goal, Line, Sample};

const SCRIPT_EACH: &str = "a fixed-window script each, pipelined";
const SCRIPT_ALONE: &str = "a fixed-window script each, one by one";
const TASKS: u32 = 1_000;
const COUNT: u32 = 100_000;

pub(crate) fn lines() -> Vec<Line> {
    let admissions = Line::new("shared, admissions, 1,000 tasks, 4 limits", "µs")
        .note("an admission, from one process; the goals are 50,000 a second, hoped for 150,000; the peers keep one limit")
        .rounds_max(7)
        // 20 µs are 50,000 a second.
        .goal(Goal::Below { limit: 20.0, aim: 1e6 / 150_000.0 });
    let admissions = with(admissions, BASELINE, COUNT, |redis, count| async move { admit(redis, count).await });
    let admissions = with(admissions, SCRIPT_EACH, COUNT, |redis, count| script_each(redis, count, TASKS));
    let admissions = with(admissions, SCRIPT_ALONE, COUNT / 10, |redis, count| script_each(redis, count, 1));
    let commands = Line::new("shared, commands over the pipeline, 1,000 tasks", "µs").rounds_max(7);
    let commands = with(commands, BASELINE, COUNT, |redis, count| {
        share(count, TASKS, move || {
            let redis = redis.clone();
            async move { drop(redis.call(Command::new("INCR").arg("n")).await.expect("a number")) }
        })
    });
    vec![admissions, commands]
}

/// A contestant whose `batch` of so many entries is timed, in microseconds an entry.
fn with<F: Future<Output = ()> + 'static>(
    line: Line,
    name: &'static str,
    count: u32,
    batch: impl Fn(Client, u32) -> F + Copy + 'static,
) -> Line {
    line.contestant_if(name, move || {
        let server = Server::start()?;
        let address = server.url().parse().map_err(|error| format!("{error}"))?;
        let took = tidegate_loop::run(async move {
            let redis = Client::open(address, ClientOptions::default());
            redis.ready().await.map_err(|error| error.to_string())?;
            // Connected, the script loaded, the allocator warm.
            batch(redis.clone(), count / 10).await;
            let begun = Instant::now();
            batch(redis, count).await;
            Ok::<Duration, String>(begun.elapsed())
        });
        let took = took.map_err(|error| error.to_string())??;
        Sample::Ok(took.as_secs_f64() * 1e6 / f64::from(count))
    })
}

async fn admit(redis: Client, count: u32) {
    let gate = SharedGate::builder(redis, "bench")
        .limit(Limit::concurrency("slots", 2_000))
        .limit(Limit::rpm(1_000_000_000))
        .limit(Limit::tpm(1_000_000_000_000))
        .limit(Limit::rpd(1_000_000_000, "America/Los_Angeles"))
        .build()
        .expect("a gate");
    let entering = gate.clone();
    share(count, TASKS, move || {
        let gate = entering.clone();
        async move { gate.enter(Cost::tokens(1_000)).await.expect("room").sent() }
    })
    .await;
    assert!(gate.stats().granted >= u64::from(count));
}

async fn script_each(redis: Client, count: u32, tasks: u32) {
    const TEXT: &str = "local n = redis.call('INCR', KEYS[1]) \
                        if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end \
                        return n <= tonumber(ARGV[2]) and 1 or redis.call('PTTL', KEYS[1])";
    let loaded = redis.call(Command::new("SCRIPT").arg("LOAD").arg(TEXT)).await.expect("loaded");
    let digest: Rc<[u8]> = loaded.as_bytes().expect("a digest").into();
    share(count, tasks, move || {
        let (redis, digest) = (redis.clone(), digest.clone());
        async move {
            let command = Command::new("EVALSHA").arg(&digest).arg("1").arg("window").arg("60000").arg("1000000000");
            assert_eq!(redis.call(command).await.expect("decided").as_int(), Some(1));
        }
    })
    .await;
}

/// `count` times, by so many tasks.
async fn share<F: Future<Output = ()> + 'static>(count: u32, tasks: u32, one: impl Fn() -> F + Clone + 'static) {
    let left = Rc::new(Cell::new(count));
    let tasks = (0..tasks).map(|_| {
        let (left, one) = (left.clone(), one.clone());
        spawn(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                one().await;
            }
        })
    });
    for outcome in gather_all(tasks).await {
        outcome.expect("no entry fails");
    }
}

/// A redis-server of our own; it goes with its directory.
struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Server, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut child = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(directory.path().join("redis.sock"))
            .arg("--dir")
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("redis-server: {error}; install the package redis-server"))?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("eady to accept connections"));
        let server = Server { child, directory };
        if !ready {
            return Err("redis-server ended before it was ready".to_owned());
        }
        // A log nobody reads would hold it up.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }

    fn url(&self) -> String {
        format!("unix://{}", self.directory.path().join("redis.sock").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
