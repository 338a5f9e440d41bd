use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate_batch::jsonl::{BadLines, BatchError, Earlier, EndedEarly, ResultsError};
use tidegate_batch::{ApiKey, Change, Dialect, ItemState};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::{run, spawn, timeout, yield_now};
use tidegate_rehearsal::{Faults, Latency, Refusals, Server};

use crate::support::{Place, caller, caller_at, line, questions};

#[test]
fn requests_are_counted_before_the_first_answer() {
    let place = Place::with(questions(7));
    let batch = place.batch().grace(Duration::ZERO);
    run(async move {
        let server = Server::builder().latency(Latency::Fixed(Duration::from_secs(3_600))).start().await.unwrap();
        let control = batch.control();
        let caller = caller(&server, []);
        let running = spawn(async move { batch.run(&caller).await });
        let waiting = async {
            while control.progress().more {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), waiting).await.expect("the requests are counted");
        assert_eq!(control.progress().total, 7);
        control.finish("enough");
        assert_eq!(running.await.unwrap().unwrap().answered, 0);
    })
    .unwrap();
}

#[test]
fn every_request_gets_its_own_answer_in_the_format_of_the_batch_api() {
    let place = Place::with(questions(300));
    let batch = place.batch();
    let seen = Rc::new(Cell::new(0));
    let watched = seen.clone();
    let (summary, stats) = run(async move {
        let server = Server::builder().start().await.unwrap();
        let batch = batch.on_event(move |event| {
            if let Change::Item { state: ItemState::Done, usage, .. } = event.change {
                assert!(usage.is_some());
                watched.set(watched.get() + 1);
            }
        });
        let summary = batch.run(&caller(&server, [])).await.unwrap();
        (summary, server.stats())
    })
    .unwrap();
    assert_eq!((summary.answered, summary.failed, summary.cached, seen.get()), (300, 0, 0, 300));
    assert_eq!(summary.ended_early, None);
    assert_eq!((stats.answered, stats.repeated), (300, 0));
    assert!(stats.in_flight_peak <= 50);
    let results = place.read();
    assert_eq!(results.len(), 300);
    for (id, result) in results {
        assert_eq!((&result["error"], &result["response"]["status_code"]), (&json!(null), &json!(200)));
        assert!(result["id"].as_str().unwrap().starts_with("batch_req_"));
        let said = result["response"]["body"]["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(said.contains(&format!("Question {}:", &id[1..])), "{id}: {said}");
    }
}

#[test]
fn what_has_a_result_is_not_asked_again_and_failures_only_if_told_to() {
    let new = (0..5).map(|n| line(&format!("n{n}"), "Why?").replace("\"m\"", "\"new\""));
    let place = Place::with(questions(15).chain(new));
    let batch = |earlier| place.batch().earlier(earlier);
    let runs = [Earlier::Keep, Earlier::Keep, Earlier::RetryFailed, Earlier::Discard].map(batch);
    let summaries = run(async move {
        let (old, new) = (Server::builder().models(["m"]).start().await, Server::builder().start().await);
        let (old, new) = (old.unwrap(), new.unwrap());
        let mut summaries = Vec::new();
        for (batch, server) in runs.into_iter().zip([&old, &old, &new, &new]) {
            let summary = batch.run(&caller(server, [])).await.unwrap();
            summaries.push((summary.answered, summary.failed, summary.cached, summary.cached_failed));
        }
        summaries
    })
    .unwrap();
    assert_eq!(summaries, [(15, 5, 0, 0), (0, 0, 20, 5), (5, 0, 15, 0), (20, 0, 0, 0)]);
    assert_eq!(place.read().len(), 20);
}

#[test]
fn a_failure_has_a_line_of_its_own_and_the_rest_goes_on() {
    let place = Place::with([line("good", "Why?"), line("unknown", "Why?").replace("\"m\"", "\"nobody\"")]);
    let batch = place.batch();
    let summary = run(async move {
        let server = Server::builder().models(["m"]).start().await.unwrap();
        batch.run(&caller(&server, [])).await.unwrap()
    })
    .unwrap();
    assert_eq!((summary.answered, summary.failed), (1, 1));
    let results = place.read();
    assert_eq!(results["unknown"]["response"], json!(null));
    assert_eq!(results["unknown"]["error"]["code"], "refused");
    assert!(results["unknown"]["error"]["message"].as_str().unwrap().contains("`nobody` does not exist"));
}

#[test]
fn another_model_can_be_asked_and_the_path_of_a_line_is_kept() {
    let embed =
        json!({"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"model": "x", "input": "tide"}});
    let place = Place::with([line("c", "Why?"), embed.to_string()]);
    let batch = place.batch().model(Some("other".to_owned()));
    run(async move {
        let server = Server::builder().models(["other"]).start().await.unwrap();
        let summary = batch.run(&caller(&server, [])).await.unwrap();
        assert_eq!((summary.answered, summary.failed), (2, 0));
    })
    .unwrap();
    let results = place.read();
    assert_eq!(results["e"]["response"]["body"]["model"], "other");
    assert_eq!(results["e"]["response"]["body"]["data"][0]["embedding"].as_array().unwrap().len(), 8);
}

#[test]
fn geminis_lines_need_a_model_and_come_back_in_geminis_format() {
    let ask = json!({"key": "g1", "request": {"contents": [{"role": "user", "parts": [{"text": "Why?"}]}]}});
    let place = Place::with([ask.to_string()]);
    let (without, with) = (place.batch(), place.batch().model(Some("gemini-x".to_owned())));
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let gate = || Gate::builder().limit(Limit::concurrency("global", 5)).build().unwrap();
        let error = without.run(&caller_at(&gate(), Dialect::Gemini, &server.base_url())).await.unwrap_err();
        assert!(error.to_string().contains("--model"), "{error}");
        let summary = with.run(&caller_at(&gate(), Dialect::Gemini, &server.base_url())).await.unwrap();
        assert_eq!(summary.answered, 1);
    })
    .unwrap();
    let results = place.read();
    let said = &results["g1"]["response"]["candidates"][0]["content"]["parts"][0]["text"];
    assert!(said.as_str().unwrap().ends_with(": Why?"));
}

#[test]
fn a_line_whose_model_cannot_be_part_of_the_address_fails_and_is_not_sent() {
    let place = Place::with([r#"{"key":"g1","request":{"contents":[{"parts":[{"text":"Why?"}]}]}}"#.to_owned()]);
    let batch = place.batch().model(Some("../../v1beta/cachedContents?x=".to_owned()));
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let gate = Gate::builder().limit(Limit::concurrency("global", 5)).build().unwrap();
        let summary = batch.run(&caller_at(&gate, Dialect::Gemini, &server.base_url())).await.unwrap();
        assert_eq!((summary.answered, summary.failed, server.stats().arrived), (0, 1, 0));
    })
    .unwrap();
    let results = place.read();
    assert_eq!(results["g1"]["error"]["code"], "bad_model");
}

#[test]
fn nothing_is_sent_while_a_line_makes_no_sense_unless_they_are_passed_over() {
    let place = Place::with([line("a", "1"), "nonsense".to_owned(), line("a", "2"), line("b", "3")]);
    let (strict, lenient) = (place.batch(), place.batch().bad_lines(BadLines::Skip));
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let error = strict.run(&caller(&server, [])).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains("line 2: it is not JSON") && message.contains("line 3: the id \"a\" occurred before"));
        assert!(message.contains("--skip-bad-lines"), "{message}");
        assert_eq!(server.stats().arrived, 0);

        let passed_over = Rc::new(RefCell::new(Vec::new()));
        let list = passed_over.clone();
        let lenient = lenient.on_event(move |event| {
            if let Change::LineSkipped { line, .. } = event.change {
                list.borrow_mut().push(line);
            }
        });
        let summary = lenient.run(&caller(&server, [])).await.unwrap();
        assert_eq!((summary.answered, summary.skipped), (2, 2));
        assert_eq!(*passed_over.borrow(), [2, 3]);
    })
    .unwrap();
}

#[test]
fn a_url_that_is_no_plain_path_is_refused_by_its_line_before_anything_is_sent() {
    let bad = ["/v1/a b", "/v1/x\u{1}", "/v1/x#y", "//host/v1", "/v1/../files", "/v1\\files", "/v1/%2e%2e/files"];
    let hostile = |(at, url): (usize, &&str)| {
        json!({"custom_id": format!("bad{at}"), "method": "POST", "url": url, "body": {"model": "m"}}).to_string()
    };
    let lines: Vec<String> = [line("a", "1")].into_iter().chain(bad.iter().enumerate().map(hostile)).collect();
    let place = Place::with(lines);
    let (strict, lenient) = (place.batch(), place.batch().bad_lines(BadLines::Skip));
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let message = strict.run(&caller(&server, [])).await.unwrap_err().to_string();
        for (number, url) in (2..).zip(bad) {
            assert!(message.contains(&format!("line {number}: its \"url\" is {url:?}: ")), "{message}");
        }
        assert_eq!(server.stats().arrived, 0);
        let summary = lenient.run(&caller(&server, [])).await.unwrap();
        assert_eq!((summary.answered, summary.failed, summary.skipped), (1, 0, bad.len() as u64));
        assert_eq!(server.stats().arrived, 1);
    })
    .unwrap();
}

#[test]
fn a_file_that_is_missing_foreign_or_in_use_is_told_apart() {
    let place = Place::new();
    let missing = place.batch();
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let error = missing.run(&caller(&server, [])).await.unwrap_err();
        assert!(matches!(&error, BatchError::Input { .. }) && error.to_string().contains("requests.jsonl"), "{error}");
    })
    .unwrap();
    place.write(questions(1));
    std::fs::write(place.results(), "my notes\n").unwrap();
    let foreign = place.batch();
    run(async move {
        let server = Server::builder().start().await.unwrap();
        let error = foreign.run(&caller(&server, [])).await.unwrap_err();
        assert!(matches!(&error, BatchError::Output { error: ResultsError::Foreign { line: 1, .. }, .. }), "{error}");
        assert_eq!(server.stats().arrived, 0);
    })
    .unwrap();
    assert_eq!(std::fs::read_to_string(place.results()).unwrap(), "my notes\n");
}

#[test]
fn a_disk_that_is_full_ends_the_run_with_what_to_do() {
    let place = Place::with(questions(50));
    std::os::unix::fs::symlink("/dev/full", place.results()).unwrap();
    let batch = place.batch();
    let error = run(async move {
        let server = Server::builder().start().await.unwrap();
        let batch = batch.on_event(|event| {
            let done = matches!(event.change, Change::Item { state: ItemState::Done, .. });
            assert!(!done, "nothing was kept");
        });
        batch.run(&caller(&server, [])).await.unwrap_err()
    })
    .unwrap();
    let message = error.to_string();
    assert!(message.contains("No space left") && message.contains("the same command goes on"), "{message}");
}

#[test]
fn a_wrong_key_or_no_credit_ends_the_run_and_is_no_lines_fault() {
    let place = Place::with(questions(30));
    let (wrong, broke, right) = (place.batch(), place.batch(), place.batch());
    run(async move {
        let server = Server::builder().api_key("right").start().await.unwrap();
        let key = |text: &str| Some(ApiKey::new(text, "a test").unwrap());
        let summary = wrong.run(&caller(&server, []).with_key(key("wrong"))).await.unwrap();
        assert_eq!((summary.answered, summary.failed), (0, 0));
        let Some(EndedEarly::Shut(reason)) = summary.ended_early else { panic!("{summary:?}") };
        assert!(reason.contains("does not accept the key from a test") && !reason.contains("wrong"), "{reason}");

        let poor = Server::builder().rpm(tidegate_rehearsal::Limit::new(3)).refusals(Refusals::InsufficientQuota);
        let poor = poor.start().await.unwrap();
        let summary = broke.run(&caller(&poor, [])).await.unwrap();
        assert_eq!((summary.answered, summary.failed), (3, 0));
        assert!(matches!(summary.ended_early, Some(EndedEarly::Shut(_))));

        let summary = right.run(&caller(&server, []).with_key(key("right"))).await.unwrap();
        assert_eq!((summary.answered, summary.cached), (27, 3));
    })
    .unwrap();
    assert_eq!(place.read().len(), 30);
}

#[test]
fn told_to_stop_it_keeps_what_is_on_its_way_and_goes_on_later() {
    let place = Place::with(questions(200));
    let (first, second) = (place.batch(), place.batch());
    run(async move {
        let latency = Latency::Fixed(Duration::from_millis(20));
        let server = Server::builder().latency(latency).start().await.unwrap();
        let control = first.control();
        let first = first.on_event(move |event| {
            if matches!(event.change, Change::Item { state: ItemState::Done, .. }) && control.progress().done >= 40 {
                control.finish("enough");
            }
        });
        let summary = first.run(&caller(&server, [])).await.unwrap();
        assert_eq!(summary.ended_early, Some(EndedEarly::Stopped));
        assert!((40..200).contains(&summary.answered), "{summary:?}");
        assert_eq!(server.stats().answered, summary.answered, "what was sent was kept");
        let rest = second.run(&caller(&server, [])).await.unwrap();
        assert_eq!((rest.cached, rest.answered), (summary.answered, 200 - summary.answered));
        assert_eq!(server.stats().repeated, 0);
    })
    .unwrap();
    assert_eq!(place.read().len(), 200);
}

#[test]
fn a_server_that_fails_in_every_way_costs_time_but_no_result() {
    let place = Place::with(questions(300));
    let batch = place.batch();
    let faults: Faults = "500=0.05,503=0.05,529=0.05,garbage=0.03,drop=0.05".parse().unwrap();
    let summary = run(async move {
        let server = Server::builder().faults(faults).seed(11).start().await.unwrap();
        let backoff = tidegate_limit::Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).with_retries(20);
        let retries = tidegate_batch::Retries { backoff, garbled_max: 20, ..Default::default() };
        batch.run(&caller(&server, []).with_retries(retries)).await.unwrap()
    })
    .unwrap();
    assert_eq!((summary.answered, summary.failed), (300, 0));
    assert_eq!(place.read().len(), 300);
}
