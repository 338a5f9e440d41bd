//! What was used, judged by what the machines did and when: one clock for all processes of this machine.

use std::path::Path;
use std::time::Duration;

/// Nanoseconds of the clock that all processes and namespaces here share.
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One request: from when it was sent to when its lease was about to be dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) sent: u64,
    /// `None`: its process was killed first.
    pub(crate) ended: Option<u64>,
}

/// A worker's log: `sent ended` a line, or `sent` alone.
pub(crate) fn read_log(path: &Path) -> Vec<Request> {
    let text = std::fs::read_to_string(path).expect("the worker's log");
    let mut open = std::collections::HashMap::new();
    let mut done = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (what, id, at) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let at: u64 = at.parse().expect("nanoseconds");
        match what {
            "sent" => drop(open.insert(id.to_owned(), at)),
            _ => done.push(Request { sent: open.remove(id).expect("sent first"), ended: Some(at) }),
        }
    }
    done.extend(open.into_values().map(|sent| Request { sent, ended: None }));
    done
}

/// The most that were sent in any window of this length, wherever it begins.
pub(crate) fn most_in_a_window(requests: &[Request], window: Duration) -> usize {
    let mut sent: Vec<u64> = requests.iter().map(|request| request.sent).collect();
    sent.sort_unstable();
    let mut from = 0;
    let mut most = 0;
    for (at, time) in sent.iter().enumerate() {
        while time - sent[from] >= window.as_nanos() as u64 {
            from += 1;
        }
        most = most.max(at - from + 1);
    }
    most
}

/// The most that ran at once. What its killed process did not end, `killed_at` did.
pub(crate) fn most_at_once(requests: &[Request], killed_at: u64) -> i64 {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for request in requests {
        edges.push((request.sent, 1));
        edges.push((request.ended.unwrap_or(killed_at), -1));
    }
    // Ends first, at the same instant.
    edges.sort_unstable();
    let mut running = 0;
    edges
        .iter()
        .map(|(_, by)| {
            running += by;
            running
        })
        .max()
        .unwrap_or(0)
}

/// What of the limit was used: how long as many requests took as whole windows allow, against how long they must take.
pub(crate) fn share_used(requests: &[Request], window: Duration, amount: usize) -> f64 {
    let mut sent: Vec<u64> = requests.iter().map(|request| request.sent).collect();
    sent.sort_unstable();
    let windows = (sent.len() - 1) / amount;
    assert!(windows >= 2, "too few to judge: {} requests", sent.len());
    let took = sent[windows * amount] - sent[0];
    windows as f64 * window.as_nanos() as f64 / took as f64
}
