//! Feedback at work on a gate, in virtual time, against models of servers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tidegate_limit::feedback::{Listener, Provider, Verdict};
use tidegate_limit::{Cost, Dimension, EnterError, Gate, Limit, LoopTimer};
use tidegate_loop::{EventLoop, LoopHandle, gather_all, sleep, spawn};

const NONE: [(&str, &str); 0] = [];

fn now() -> Instant {
    LoopHandle::current().time()
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn one_refusal_pauses_that_limit_for_all_requests_and_no_other() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let gate = Gate::builder().limit(Limit::rpm(1_000)).limit(Limit::tpm(100_000)).build().unwrap();
            let listener = Listener::new(&gate, Provider::OpenAi);
            let began = now();
            let tpm = r#"{"error":{"type":"tokens","message":"Rate limit reached on tokens per min (TPM): Limit 100000, Used 99000, Requested 2829. Please try again in 1.372s."}}"#;
            listener.on_answer(began, 429, &NONE, tpm.as_bytes());
            let stats = gate.stats();
            assert!(stats.limit("tpm").unwrap().held_until.is_some());
            assert!(stats.limit("rpm").unwrap().held_until.is_none());
            let tasks: Vec<_> = (0..20)
                .map(|_| {
                    let gate = gate.clone();
                    spawn(async move {
                        gate.enter(gate.unscoped(), Cost::tokens(10)).await.unwrap().sent();
                        now()
                    })
                })
                .collect();
            for task in gather_all(tasks).await {
                assert_eq!(task.unwrap() - began, Duration::from_millis(1_372));
            }
        })
        .unwrap();
}

#[test]
fn the_end_ends_every_wait() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let gate = Gate::builder().limit(Limit::rpm(1)).build().unwrap();
            let listener = Listener::new(&gate, Provider::OpenAi);
            gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let gate = gate.clone();
                    spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.unwrap_err() })
                })
                .collect();
            sleep(secs(1)).await;
            listener.on_answer(now(), 429, &NONE, br#"{"error":{"code":"insufficient_quota"}}"#);
            for error in gather_all(waiting).await {
                let EnterError::Shut { reason, .. } = error.unwrap() else { panic!() };
                assert!(reason.contains("no credit left"), "{reason}");
            }
        })
        .unwrap();
}

#[test]
fn the_end_ends_waits_for_a_scope_too() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let gate = Gate::builder().limit(Limit::rpm(60)).build().unwrap();
            let listener = Listener::new(&gate, Provider::OpenAi);
            let file = gate.scope("a.pdf", 1);
            let lease = gate.enter(&file, Cost::request()).await.unwrap();
            let waiting = {
                let (gate, file) = (gate.clone(), file.clone());
                spawn(async move { gate.enter(&file, Cost::request()).await.unwrap_err() })
            };
            sleep(secs(1)).await;
            listener.on_answer(now(), 429, &NONE, br#"{"error":{"code":"insufficient_quota"}}"#);
            assert!(matches!(waiting.await.unwrap(), EnterError::Shut { .. }));
            drop(lease);
        })
        .unwrap();
}

/// Gemini's answer to the first request beyond the day's quota.
const PER_DAY: &str = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Please retry in 36.43s.","details":[
    {"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel"}]},
    {"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}"#;

/// Works through `jobs` from `start` on, against a server whose quota is used up until `back`. How many requests were
/// sent in vain, and when the first was served.
fn against_a_used_up_day(start: &'static str, back: &'static str, jobs: usize) -> (usize, SystemTime) {
    EventLoop::simulated(1)
        .run_until_complete(async move {
            let wall = |text: &str| SystemTime::from(text.parse::<Timestamp>().unwrap());
            let (start, back) = (wall(start), wall(back));
            let gate = Gate::builder()
                .limit(Limit::rpm(150))
                .limit(Limit::rpd(10_000, "America/Los_Angeles"))
                .timer(LoopTimer::new().virtual_start(start))
                .build()
                .unwrap();
            let listener = Rc::new(Listener::new(&gate, Provider::Gemini));
            let began = now();
            let (vain, first) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
            let tasks: Vec<_> = (0..jobs)
                .map(|_| {
                    let (gate, listener) = (gate.clone(), Rc::clone(&listener));
                    let (vain, first) = (Rc::clone(&vain), Rc::clone(&first));
                    spawn(async move {
                        loop {
                            let mut lease = gate.enter(gate.unscoped(), Cost::request()).await.unwrap();
                            let sent = listener.now();
                            lease.sent();
                            sleep(secs(2)).await;
                            let wall = start + (now() - began);
                            let (status, body) = if wall < back { (429, PER_DAY) } else { (200, "") };
                            let feedback = listener.on_answer(sent, status, &NONE, body.as_bytes());
                            if feedback.verdict == Verdict::Proceed {
                                first.borrow_mut().get_or_insert(wall);
                                return;
                            }
                            vain.set(vain.get() + 1);
                        }
                    })
                })
                .collect();
            gather_all(tasks).await;
            (vain.get(), first.take().unwrap())
        })
        .unwrap()
}

#[test]
fn a_used_up_day_is_sat_out_with_a_probe_now_and_then() {
    // Noon in Los Angeles on the day after which summer time ends: twelve hours to go.
    let (vain, first) = against_a_used_up_day("2026-10-31T19:00:00Z", "2026-11-01T07:00:00Z", 20);
    // The twenty that were in flight, and 17 probes: after 1, 2, 4, … 32 minutes, then every hour.
    assert!((20 + 15..=20 + 18).contains(&vain), "{vain} in vain");
    let midnight: Timestamp = "2026-11-01T07:00:02Z".parse().unwrap();
    assert_eq!(first, SystemTime::from(midnight), "and at midnight it goes on at once");
}

#[test]
fn a_quota_that_comes_back_early_is_found_by_a_probe() {
    // The quota was raised at three in the afternoon.
    let (vain, first) = against_a_used_up_day("2026-10-31T19:00:00Z", "2026-10-31T22:00:00Z", 20);
    assert!(vain <= 20 + 9, "{vain} in vain");
    let late = first.duration_since("2026-10-31T22:00:00Z".parse::<Timestamp>().unwrap().into()).unwrap();
    assert!(late <= secs(3_602), "{late:?} late");
}

#[test]
fn a_refusal_right_after_midnight_costs_a_minute_not_a_day() {
    // The server's day turns 30 s late. Its answer parks until the next midnight; the first probe comes after a minute.
    let (_, first) = against_a_used_up_day("2026-11-01T06:59:50Z", "2026-11-01T07:00:30Z", 5);
    let late = first.duration_since("2026-11-01T07:00:30Z".parse::<Timestamp>().unwrap().into()).unwrap();
    assert!(late <= secs(122), "{late:?} late");
}

#[test]
fn what_anthropic_says_of_answers_holds_up_answers() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let limits = [Limit::rpm(50), Limit::itpm(30_000), Limit::otpm(8_000)];
            let gate = Gate::builder().limits(limits).build().unwrap();
            let listener = Listener::new(&gate, Provider::Anthropic);
            let left = |name: &str| gate.stats().limit(name).unwrap().remaining;
            let wall = gate.stats().at;
            let reset = |after: Duration| Timestamp::try_from(wall + after).unwrap().to_string();
            let headers = [
                ("anthropic-ratelimit-output-tokens-limit", "8000".to_owned()),
                ("anthropic-ratelimit-output-tokens-remaining", "900".to_owned()),
                ("anthropic-ratelimit-output-tokens-reset", reset(secs(20))),
            ];
            listener.on_answer(now(), 200, &headers, b"");
            assert_eq!((left("otpm"), left("itpm"), left("rpm")), (900, 30_000, 50));
            let began = now();
            let cost = Cost::request().and(Dimension::INPUT_TOKENS, 2_000).and(Dimension::OUTPUT_TOKENS, 1_024);
            gate.enter(gate.unscoped(), cost.clone()).await.unwrap().sent();
            let waited = now() - began;
            assert!((secs(18)..=secs(21)).contains(&waited), "{waited:?}");

            // The refusal names the limit of answers: no request with an answer passes it.
            let body = br#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 8,000 output tokens per minute."}}"#;
            listener.on_answer(now(), 429, &[("retry-after", "7")], body);
            let (began, questions) = (now(), Cost::request().and(Dimension::INPUT_TOKENS, 10));
            gate.enter(gate.unscoped(), questions).await.unwrap().sent();
            assert_eq!(now() - began, secs(0), "no answer is expected, so none is waited for");
            gate.enter(gate.unscoped(), cost).await.unwrap().sent();
            assert_eq!(now() - began, secs(7));
        })
        .unwrap();
}

#[test]
fn late_answers_with_old_counters_do_not_throw_quota_away() {
    EventLoop::simulated(1)
        .run_until_complete(async {
            let gate = Gate::builder().limit(Limit::rpm(100)).build().unwrap();
            let listener = Listener::new(&gate, Provider::OpenAi);
            let sent = now();
            for _ in 0..100 {
                gate.enter(gate.unscoped(), Cost::request()).await.unwrap().sent();
            }
            // The model has thought for longer than the window lasts; what the counter says is a minute old.
            sleep(secs(61)).await;
            let headers = [
                ("x-ratelimit-limit-requests", "100"),
                ("x-ratelimit-remaining-requests", "0"),
                ("x-ratelimit-reset-requests", "60s"),
            ];
            listener.on_answer(sent, 200, &headers, b"");
            assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 100);
            // A fresh one tightens.
            let headers = [
                ("x-ratelimit-limit-requests", "100"),
                ("x-ratelimit-remaining-requests", "7"),
                ("x-ratelimit-reset-requests", "30s"),
            ];
            listener.on_answer(now(), 200, &headers, b"");
            assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 7);
            sleep(secs(30)).await;
            assert_eq!(gate.stats().limit("rpm").unwrap().remaining, 100);
        })
        .unwrap();
}
