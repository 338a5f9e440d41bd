//! Anthropic's way to count: tokens of prompts and of answers have limits of their own. In virtual time, against a server that
//! keeps both strictly.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_batch::{Call, Caller, Dialect, Estimate, Quotas};
use tidegate_limit::Dimension;
use tidegate_loop::spawn;
use tidegate_rehearsal::{Latency, Limit as ServerLimit, Server, Stats};

use crate::clock::{in_virtual_time, keep_time};

const PAGES: usize = 120;
const MAX_TOKENS: u64 = 100;
const WINDOW: Duration = Duration::from_secs(4);

fn server(itpm: u64, otpm: u64) -> tidegate_rehearsal::Builder {
    let latency = Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60));
    let builder = Server::builder().itpm(ServerLimit::new(itpm).per(WINDOW)).otpm(ServerLimit::new(otpm).per(WINDOW));
    builder.latency(latency).seed(5)
}

/// What the server saw, and how long each of the two limits was waited for.
fn rehearse(server: tidegate_rehearsal::Builder, quotas: Quotas) -> (Stats, [Duration; 2]) {
    in_virtual_time(async move {
        let server = server.start().await.unwrap();
        let gate = Quotas { minute: WINDOW, ..quotas }.gate().unwrap();
        let clock = keep_time(&gate, &server);
        let caller = Caller::new(&gate, Dialect::Anthropic, &server.base_url()).unwrap();
        let scope = Rc::new(gate.scope("pages", 50));
        let mut asked = Vec::new();
        for page in 0..PAGES {
            let (caller, scope) = (caller.clone(), Rc::clone(&scope));
            asked.push(spawn(async move {
                let text = format!("Page {page}. {}", "The sea comes and goes twice a day. ".repeat(8));
                let body = json!({
                    "model": "m", "max_tokens": MAX_TOKENS, "messages": [{"role": "user", "content": text}],
                });
                let estimate = Estimate { input_tokens: text.len() as u64 / 4 + 1, output_tokens: MAX_TOKENS };
                let call = Call::new("/v1/messages", body.to_string().into(), estimate);
                caller.call_json(&scope, &call).await.map(|reply| reply.attempts)
            }));
        }
        for one in asked {
            assert_eq!(one.await.unwrap().unwrap(), 1, "nobody had to be asked twice");
        }
        clock.cancel();
        let cost = caller.typical_cost();
        assert!((40..=70).contains(&cost.of(Dimension::OUTPUT_TOKENS)), "{cost:?}");
        assert_eq!(cost.of(Dimension::TOKENS), cost.of(Dimension::INPUT_TOKENS), "Anthropic counts what is asked");
        let stats = gate.stats();
        let waited = ["itpm", "otpm"].map(|name| stats.limit(name).map_or(Duration::ZERO, |limit| limit.blocked_for));
        (server.stats(), waited)
    })
}

fn holds(stats: &Stats) {
    assert_eq!((stats.answered, stats.refused.total()), (PAGES as u64, 0), "{stats}");
    for limit in &stats.limits {
        assert!(limit.worst_offered <= limit.amount, "{limit:?}");
    }
}

#[test]
fn a_strict_limit_of_answers_refuses_nobody_and_is_what_is_waited_for() {
    let quotas = Quotas { itpm: Some(1_000_000), otpm: Some(2_500), ..Quotas::default() };
    let (stats, [prompts, answers]) = rehearse(server(1_000_000, 2_500), quotas);
    holds(&stats);
    assert!(stats.limit("otpm").unwrap().used_share.is_some(), "it bound: {stats}");
    assert!(answers > Duration::ZERO && prompts == Duration::ZERO, "{answers:?}, {prompts:?}");
}

#[test]
fn a_strict_limit_of_prompts_refuses_nobody_and_is_what_is_waited_for() {
    let quotas = Quotas { itpm: Some(4_500), otpm: Some(1_000_000), ..Quotas::default() };
    let (stats, [prompts, answers]) = rehearse(server(4_500, 1_000_000), quotas);
    holds(&stats);
    assert!(stats.limit("itpm").unwrap().used_share.is_some(), "it bound: {stats}");
    assert!(prompts > Duration::ZERO && answers == Duration::ZERO, "{prompts:?}, {answers:?}");
}

/// Told a limit that is twice the server's, the gate goes by what the answers' headers say is left.
#[test]
fn what_the_server_says_is_left_of_answers_is_heeded() {
    let quotas = Quotas { otpm: Some(10_000), ..Quotas::default() };
    let server = server(1_000_000, 5_000);
    in_virtual_time(async move {
        let server = server.start().await.unwrap();
        let gate = Quotas { minute: WINDOW, ..quotas }.gate().unwrap();
        let clock = keep_time(&gate, &server);
        let caller = Caller::new(&gate, Dialect::Anthropic, &server.base_url()).unwrap();
        let body = json!({"model": "m", "max_tokens": MAX_TOKENS, "messages": [{"role": "user", "content": "Why?"}]});
        let estimate = Estimate { input_tokens: 8, output_tokens: MAX_TOKENS };
        let call = Call::new("/v1/messages", body.to_string().into(), estimate);
        caller.call_json(gate.unscoped(), &call).await.unwrap();
        clock.cancel();
        let left = gate.stats().limit("otpm").unwrap().remaining;
        assert!(left < 5_000, "{left} left of 5,000");
        assert_eq!(server.stats().refused.total(), 0);
    });
}
