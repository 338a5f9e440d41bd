//! Ten files of fifty pages, fifty of a file and two hundred in all at once, under strict limits, in virtual time: no request
//! is refused, and the caps are reached and kept, however busy the machine is. The same in real time, as processes:
//! `tidegate-cli/tests/rehearsal/explain.rs`. How much of the quota is used is measured by the bench (`batch`).

#[path = "common/clock.rs"]
mod clock;

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_batch::{Call, Caller, Dialect, Estimate};
use tidegate_limit::{Gate, Limit, Window};
use tidegate_loop::spawn;
use tidegate_rehearsal::{Handle, Latency, Limit as ServerLimit, Server, Stats};

use clock::{in_virtual_time, keep_time};

const FILES: usize = 10;
const PAGES: usize = 50;
const WINDOW: Duration = Duration::from_secs(5);

struct Setting {
    rpm: u64,
    tpm: u64,
    latency: Latency,
    /// By how many requests per window the client's limit is above the server's.
    above: u64,
}

struct Seen {
    /// By the server.
    stats: Stats,
    /// The most requests that the gate had admitted at once.
    peak: u64,
    /// Requests that had to be sent more than once.
    again: usize,
}

fn rehearse(setting: Setting) -> Seen {
    let Setting { rpm, tpm, latency, above } = setting;
    in_virtual_time(async move {
        let server = Server::builder()
            .rpm(ServerLimit::new(rpm).per(WINDOW))
            .tpm(ServerLimit::new(tpm).per(WINDOW))
            .latency(latency)
            .concurrency(200)
            .seed(5)
            .start()
            .await
            .unwrap();
        let strict = || Window::strict(WINDOW);
        let gate = Gate::builder()
            .limit(Limit::concurrency("global", 200))
            .limit(Limit::rpm(rpm + above).window(strict()))
            .limit(Limit::tpm(tpm).window(strict()))
            .build()
            .unwrap();
        let clock = keep_time(&gate, &server);
        let again = all_pages(&gate, &server).await;
        clock.cancel();
        Seen { stats: server.stats(), peak: gate.stats().peak, again }
    })
}

/// Returns how many pages had to be asked about more than once.
async fn all_pages(gate: &Gate, server: &Handle) -> usize {
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
    let mut again = 0;
    for one in asked {
        again += usize::from(one.await.unwrap().unwrap() > 1);
    }
    again
}

const QUICK: Latency = Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60));

fn holds(Seen { stats, again, .. }: &Seen) {
    assert_eq!((stats.answered, stats.refused.total(), *again), (500, 0, 0));
    for limit in &stats.limits {
        assert!(limit.worst_offered <= limit.amount, "{limit:?}");
    }
    assert!(stats.used_share().is_some(), "a limit bound");
}

#[test]
fn five_hundred_pages_under_strict_requests_a_minute() {
    holds(&rehearse(Setting { rpm: 200, tpm: 1_000_000, latency: QUICK, above: 0 }));
}

#[test]
fn five_hundred_pages_under_strict_tokens_a_minute() {
    holds(&rehearse(Setting { rpm: 1_000, tpm: 30_000, latency: QUICK, above: 0 }));
}

#[test]
fn one_request_too_many_in_a_window_is_refused() {
    let Seen { stats, again, .. } = rehearse(Setting { rpm: 200, tpm: 1_000_000, latency: QUICK, above: 1 });
    assert!(stats.refused.rpm > 0 && again > 0, "{stats}");
    let rpm = stats.limit("rpm").unwrap();
    assert_eq!(rpm.worst_window, 200);
    // It is sent again every 10 ms, ten times; then probes follow, 50 ms after the first refusal and each 1.5 times as late:
    // twelve of them within the window.
    assert!((201..=201 + 10 + 12).contains(&rpm.worst_offered), "{rpm:?}");
}

#[test]
fn the_global_cap_is_reached_and_never_exceeded() {
    let latency = Latency::Fixed(Duration::from_millis(300));
    let Seen { stats, peak, .. } = rehearse(Setting { rpm: 100_000, tpm: 100_000_000, latency, above: 0 });
    assert_eq!((stats.answered, stats.refused.total()), (500, 0));
    assert_eq!((stats.in_flight_peak, peak), (200, 200));
}
