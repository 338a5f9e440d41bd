//! Several processes at one gate.

use std::time::Duration;

use tidegate_limit::Cost;
use tidegate_loop::{LoopHandle, gather_all, spawn, yield_now};
use tidegate_redis::Client;

use crate::server::{Server, quick};
use crate::windows::{most_at_once, most_in_a_window, now_ns, read_log, share_used};
use crate::worker::Job;
use crate::{Test, on_loop};

pub(crate) const TESTS: &[Test] = &[
    ("three_processes_never_exceed_a_window_or_the_slots_together", together),
    ("a_killed_process_gives_its_slots_back", killed),
];

fn job(server: &Server) -> Job {
    Job {
        url: server.url(),
        gate: "machines".to_owned(),
        requests: 150,
        window: Duration::from_millis(500),
        slots: 12,
        lease: Duration::from_secs(2),
        request: Duration::from_millis(5),
        for_: Duration::from_secs(3),
        tasks: 40,
    }
}

fn together() {
    let server = Server::start(&[]);
    let logs = tempfile::tempdir().unwrap();
    let job = job(&server);
    let workers: Vec<_> = (0..3).map(|n| job.start(&logs.path().join(n.to_string()), &[])).collect();
    let logs: Vec<_> = workers.iter().map(|worker| worker.log.clone()).collect();
    workers.into_iter().for_each(crate::worker::Worker::finish);
    let each: Vec<_> = logs.iter().map(|log| read_log(log)).collect();
    let all = each.concat();
    let (window, slots) = (most_in_a_window(&all, job.window), most_at_once(&all, now_ns()));
    let used = share_used(&all, job.window, job.requests as usize);
    println!("    at most {window} in a window, {slots} at once; {:.1} % used", used * 100.0);
    assert!(window <= job.requests as usize, "{window} in a window");
    assert!(slots <= job.slots as i64, "{slots} at once");
    for (n, requests) in each.iter().enumerate() {
        let share = requests.len() as f64 / all.len() as f64;
        println!("    process {n}: {:.1} %", share * 100.0);
        assert!(share > 0.1, "process {n} starves");
    }
}

fn killed() {
    let server = Server::start(&[]);
    let logs = tempfile::tempdir().unwrap();
    // It takes all slots and never gives one back.
    let lease = Duration::from_millis(700);
    let job = Job { request: Duration::from_secs(60), lease, requests: 1_000, ..job(&server) };
    let log = logs.path().join("holder");
    let worker = job.start(&log, &[]);
    while std::fs::read_to_string(&log).map_or(0, |log| log.lines().count()) < 12 {
        std::thread::yield_now();
    }
    let address = server.address();
    on_loop(async move {
        let gate = job.gate(Client::open(address, quick()));
        let waiting: Vec<_> = (0..12).map(|_| spawn(gate.enter(Cost::nothing()))).collect();
        while gate.stats().denials == 0 {
            yield_now().await;
        }
        assert_eq!((gate.stats().granted, gate.stats().limit("slots").unwrap().used), (0, 12));
        let killed_at = LoopHandle::current().time();
        worker.kill();
        let leases = gather_all(waiting).await;
        let took = LoopHandle::current().time() - killed_at;
        println!("    all slots were back {took:?} after the kill");
        assert!(leases.iter().all(|lease| lease.as_ref().is_ok_and(Result::is_ok)));
        assert_eq!(gate.stats().current, 12);
    });
}
