//! Two workers in two network namespaces, each with nothing but a wire to Redis.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Test;
use crate::machine::judge;
use crate::server::Server;
use crate::windows::{most_at_once, most_in_a_window, now_ns, read_log, share_used};
use crate::worker::{Job, MARGIN, Worker};

pub(crate) const TESTS: &[Test] = &[
    ("two_workers_in_two_namespaces_share_rpm_600_and_20_slots", shared),
    ("one_of_two_namespaces_killed_gives_its_slots_back", one_killed),
];

/// A namespace with an address of its own and a wire to ours; both go with it.
struct Namespace {
    name: String,
    host: String,
}

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).stderr(std::process::Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Namespace {
    /// `None`, with a message, where we may not make one.
    fn make() -> Option<Namespace> {
        // Its wire outlives a namespace for a while: the next one's has another name.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id() % 100_000, MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("tidegate-{id}-{n}");
        // The network for benchmarks (RFC 2544), used by nothing else. The third number keeps runs apart that are made at once.
        let net = format!("198.18.{}", (id * 4 + n) % 256);
        let host = format!("{net}.1");
        if !ip(&format!("netns add {name}")) {
            println!("    skipped: network namespaces need root and the package iproute2");
            return None;
        }
        let namespace = Namespace { name: name.clone(), host: host.clone() };
        let wire = format!("tg{id}{n}");
        let steps = [
            format!("link add {wire}a type veth peer name {wire}b netns {name}"),
            format!("addr add {host}/24 dev {wire}a"),
            format!("link set {wire}a up"),
            format!("-n {name} addr add {net}.2/24 dev {wire}b"),
            format!("-n {name} link set {wire}b up"),
        ];
        for step in steps {
            if !ip(&step) {
                println!("    skipped: this machine refuses `ip {step}`");
                return None;
            }
        }
        Some(namespace)
    }

    fn start(&self, job: &Job, port: u16, log: &std::path::Path) -> Worker {
        let job = Job { url: format!("redis://{}:{port}", self.host), ..job.clone() };
        job.start(log, &["ip", "netns", "exec", &self.name])
    }
}

impl Drop for Namespace {
    /// The wire goes with its end.
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
    }
}

struct Setup {
    namespaces: [Namespace; 2],
    port: u16,
    server: Server,
    logs: tempfile::TempDir,
}

fn set_up() -> Option<Setup> {
    let namespaces = [Namespace::make()?, Namespace::make()?];
    let port = crate::server::free_port([0, 0, 0, 0].into());
    let port_text = port.to_string();
    let bind: Vec<&str> = namespaces.iter().map(|namespace| namespace.host.as_str()).collect();
    let options = ["--port", &port_text, "--protected-mode", "no", "--bind", bind[0], bind[1]];
    let server = Server::start(&options);
    Some(Setup { namespaces, port, server, logs: tempfile::tempdir().unwrap() })
}

/// RPM 600, with minutes of three seconds.
fn job(server: &Server) -> Job {
    Job {
        url: server.url(),
        gate: "namespaces".to_owned(),
        requests: 600,
        window: Duration::from_secs(3),
        slots: 20,
        lease: Duration::from_secs(2),
        request: Duration::from_millis(10),
        for_: Duration::from_secs(10),
        tasks: 40,
    }
}

fn shared() {
    // What strict windows lose to the way to Redis and back.
    judge(MARGIN, || set_up().map_or(Ok(()), |setup| two_workers(&setup)));
}

/// How much was used, and by which of them, is a matter of time. That it was never too much is not.
fn two_workers(setup: &Setup) -> Result<(), String> {
    let job = job(&setup.server);
    let workers: Vec<Worker> =
        (0..2).map(|n| setup.namespaces[n].start(&job, setup.port, &setup.logs.path().join(n.to_string()))).collect();
    let logs: Vec<_> = workers.iter().map(|worker| worker.log.clone()).collect();
    workers.into_iter().for_each(Worker::finish);
    let each: Vec<_> = logs.iter().map(|log| read_log(log)).collect();
    let all = each.concat();
    let (window, slots) = (most_in_a_window(&all, job.window), most_at_once(&all, now_ns()));
    let used = share_used(&all, job.window, job.requests as usize);
    let shares = each.iter().map(|requests| 100.0 * requests.len() as f64 / all.len() as f64).collect::<Vec<_>>();
    println!("    at most {window} in a window, {slots} at once, {:.1} % used; shares {shares:.1?} %", used * 100.0);
    assert!(window <= 600, "{window} in a window");
    assert!(slots <= 20, "{slots} at once");
    if used < 0.95 {
        return Err(format!("{used} of the limit"));
    }
    if shares.iter().any(|share| *share <= 25.0) {
        return Err(format!("one of them starves: {shares:?}"));
    }
    Ok(())
}

fn one_killed() {
    let Some(setup) = set_up() else { return };
    let job = Job { requests: 100_000, slots: 20, lease: Duration::from_secs(1), ..job(&setup.server) };
    let long = Job { request: Duration::from_secs(60), tasks: 10, ..job.clone() };
    let short = Job { for_: Duration::from_secs(5), request: Duration::from_millis(20), ..job.clone() };
    let path = |n: &str| setup.logs.path().join(n);
    // Ten slots are held for good.
    let holder = setup.namespaces[0].start(&long, setup.port, &path("holder"));
    let held = || std::fs::read_to_string(path("holder")).map_or(0, |log| log.lines().count());
    while held() < 10 {
        std::thread::yield_now();
    }
    let other = setup.namespaces[1].start(&short, setup.port, &path("other"));
    while std::fs::read_to_string(path("other")).map_or(0, |log| log.lines().count()) < 200 {
        std::thread::yield_now();
    }
    let killed_at = holder.kill();
    other.finish();
    let others = read_log(&path("other"));
    let (before, after): (Vec<_>, Vec<_>) = others.iter().partition(|request| request.sent < killed_at);
    let (before, after) = (most_at_once(&before, now_ns()), most_at_once(&after, now_ns()));
    let together = most_at_once(&[read_log(&path("holder")), others].concat(), killed_at);
    println!("    the other had at most {before} slots before the kill, {after} after; {together} together at most");
    assert_eq!((before, after), (10, 20));
    assert!(together <= 20);
}
