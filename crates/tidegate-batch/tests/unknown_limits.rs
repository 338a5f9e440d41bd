//! Limits that were not stated, in virtual time: the real client, the real gate and the mock server, which refuses without a
//! date. Every request is answered, in little more than the ideal time, and few are refused.

#[path = "common/clock.rs"]
mod clock;

use std::time::Duration;

use serde_json::json;
use tidegate_batch::{Call, Caller, Dialect, Estimate, Quotas};
use tidegate_loop::{LoopHandle, spawn};
use tidegate_rehearsal::{Latency, Limit, Refusals, Server, Stats};

use clock::{in_virtual_time, keep_time};

struct Seen {
    stats: Stats,
    seconds: f64,
    found: String,
}

/// Sends `requests` with the default limits to a server with others.
fn send_all(server: tidegate_rehearsal::Builder, requests: usize) -> Seen {
    in_virtual_time(async move {
        let server = server.refusals(Refusals::Bare).seed(3).start().await.unwrap();
        let gate = Quotas::default().gate().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &format!("{}/v1", server.base_url())).unwrap();
        let clock = keep_time(&gate, &server);
        let began = LoopHandle::current().time();
        let asked: Vec<_> = (0..requests)
            .map(|number| {
                let (caller, gate) = (caller.clone(), gate.clone());
                spawn(async move {
                    let text = format!("Request {number}");
                    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
                    let estimate = Estimate { input_tokens: 10, output_tokens: 50 };
                    let call = Call::new("/chat/completions", body.to_string().into(), estimate);
                    caller.call_json(gate.unscoped(), &call).await.map(drop)
                })
            })
            .collect();
        for one in asked {
            one.await.unwrap().expect("no request fails because a limit refused it");
        }
        let seconds = (LoopHandle::current().time() - began).as_secs_f64();
        clock.cancel();
        Seen { stats: server.stats(), seconds, found: gate.stats().found.unwrap().to_string() }
    })
}

fn is_near_ideal(seen: &Seen, requests: u64, ideal: f64) {
    let Seen { stats, seconds, .. } = seen;
    assert_eq!(stats.answered, requests);
    // Some 25 to find the limit, and one of 50 to find out whether there is more.
    assert!(stats.refused.total() <= 25 + requests / 50, "{stats}");
    assert!(*seconds <= 1.3 * ideal, "{seconds} s instead of {ideal} s");
}

#[test]
fn ten_per_second() {
    let latency = Latency::Fixed(Duration::from_millis(50));
    let server = Server::builder().rpm(Limit::new(10).per(Duration::from_secs(1))).latency(latency);
    let seen = send_all(server, 300);
    is_near_ideal(&seen, 300, 29.05);
    assert_eq!(seen.found, "10 requests per second");
}

#[test]
fn twenty_in_flight() {
    let latency = Latency::Uniform(Duration::from_millis(300), Duration::from_millis(1_700));
    let seen = send_all(Server::builder().concurrency(20).latency(latency), 600);
    is_near_ideal(&seen, 600, 30.0);
    assert!(seen.found.contains("requests in flight"), "{}", seen.found);
}
