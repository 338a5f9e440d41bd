//! In real time, with a minute of five seconds: ten files of fifty pages, fifty of a file and two hundred in all at once,
//! under strict limits. Nobody is refused, and the caps are reached and kept. How much of the quota is used is a matter of
//! time, and so of the bench (`batch`).

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tidegate_batch::{Call, Caller, Dialect, Estimate};
use tidegate_limit::{Gate, Limit, Window};
use tidegate_loop::{run, spawn};
use tidegate_rehearsal::{Handle, Latency, Limit as ServerLimit, Server, Stats};

const FILES: usize = 10;
const PAGES: usize = 50;

/// A fortieth of it is what the way to the server may differ by: more than an unoptimised server keeps a crowd waiting.
const WINDOW: Duration = Duration::from_secs(5);

/// In so short a minute a strict server hears of whatever else this machine has to do: one at a time, in a program of
/// their own.
static ALONE: Mutex<()> = Mutex::new(());

struct Setting {
    rpm: u64,
    tpm: u64,
    window: Duration,
    latency: Latency,
}

/// What the server saw, and the most that the gate let be under way at once.
fn rehearse(setting: Setting) -> (Stats, u64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Setting { rpm, tpm, window, latency } = setting;
    let server = Server::builder()
        .rpm(ServerLimit::new(rpm).per(window))
        .tpm(ServerLimit::new(tpm).per(window))
        .latency(latency)
        .concurrency(200)
        .seed(5)
        .start_in_thread()
        .unwrap();
    let watched = server.clone();
    let peak = run(async move {
        let strict = || Window::strict(window);
        let gate = Gate::builder()
            .limit(Limit::concurrency("global", 200))
            .limit(Limit::rpm(rpm).window(strict()))
            .limit(Limit::tpm(tpm).window(strict()))
            .build()
            .unwrap();
        all_pages(&gate, &server).await;
        gate.stats().peak
    })
    .unwrap();
    (watched.stats(), peak)
}

async fn all_pages(gate: &Gate, server: &Handle) {
    let caller = Caller::new(gate, Dialect::OpenAi, &format!("{}/v1", server.base_url())).unwrap();
    let mut asked = Vec::new();
    for file in 0..FILES {
        let scope = Rc::new(gate.scope(format!("file {file}"), 50));
        for page in 0..PAGES {
            let (caller, scope) = (caller.clone(), scope.clone());
            asked.push(spawn(async move {
                let text = format!("Page {page} of file {file}. {}", "The sea comes and goes twice a day. ".repeat(8));
                let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
                // As the server counts: four characters are a token, and the answer repeats forty words.
                let estimate = Estimate { input_tokens: text.len() as u64 / 4 + 1, output_tokens: 100 };
                let call = Call::new("/chat/completions", body.to_string().into(), estimate);
                caller.call_json(&scope, &call).await.map(|reply| reply.attempts)
            }));
        }
    }
    for one in asked {
        assert_eq!(one.await.unwrap().unwrap(), 1, "nobody had to be asked twice");
    }
}

fn holds(stats: &Stats) {
    assert_eq!((stats.answered, stats.refused.total()), (500, 0));
    for limit in &stats.limits {
        assert!(limit.worst_offered <= limit.amount, "{limit:?}");
    }
    assert!(stats.used_share().is_some(), "a limit bound");
}

#[test]
fn five_hundred_pages_under_strict_requests_a_minute() {
    let latency = Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60));
    let setting = Setting { rpm: 200, tpm: 1_000_000, window: WINDOW, latency };
    let (stats, _) = rehearse(setting);
    holds(&stats);
}

#[test]
fn five_hundred_pages_under_strict_tokens_a_minute() {
    let latency = Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60));
    let setting = Setting { rpm: 1_000, tpm: 30_000, window: WINDOW, latency };
    let (stats, _) = rehearse(setting);
    holds(&stats);
}

#[test]
fn the_global_cap_is_reached_and_never_exceeded() {
    let latency = Latency::Fixed(Duration::from_millis(300));
    let setting = Setting { rpm: 100_000, tpm: 100_000_000, window: WINDOW, latency };
    let (stats, peak) = rehearse(setting);
    assert_eq!((stats.answered, stats.refused.total()), (500, 0));
    assert_eq!((stats.in_flight_peak, peak), (200, 200));
}
