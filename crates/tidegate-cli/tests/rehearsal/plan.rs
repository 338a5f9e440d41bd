use serde_json::Value;

use crate::support::{Place, questions, text, tidegate};

fn plan(args: &[&str]) -> (i32, String, String) {
    let done = tidegate(&["plan"]).args(args).output().unwrap();
    (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn a_number_of_requests_is_planned_and_drawn() {
    let args = ["--requests", "600", "--tokens-per-request", "900", "--answer-tokens", "100", "--latency", "1s"];
    let limits = ["--rpm", "60", "--price-in", "2", "--price-out", "8"];
    let (code, shown, _) = plan(&[&args[..], &limits].concat());
    assert_eq!(code, 0);
    for part in [
        "duration          9 min 1 s",
        "tokens in         540,000",
        "cost              1.56",
        "rpm",
        "requests a minute",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let (_, json, _) = plan(&[&args[..], &limits, &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["duration_s"], &json["answered"]), (&541.0.into(), &600.into()));
    assert_eq!(json["bound"][0]["limit"], "rpm");
}

#[test]
fn answers_that_are_limited_apart_are_waited_for() {
    let args =
        ["--requests", "60", "--tokens-per-request", "900", "--answer-tokens", "100", "--latency", "1s", "--json"];
    let planned = |limits: &[&str]| -> Value {
        let (code, json, said) = plan(&[&args[..], limits].concat());
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&json).unwrap()
    };
    // Twenty answers of a hundred tokens fit into a minute, or fifteen prompts of nine hundred.
    let json = planned(&["--itpm", "900000", "--otpm", "2000"]);
    assert_eq!((&json["duration_s"], &json["bound"][0]["limit"]), (&121.0.into(), &"otpm".into()));
    let json = planned(&["--itpm", "13500", "--otpm", "2000"]);
    assert_eq!((&json["duration_s"], &json["bound"][0]["limit"]), (&181.0.into(), &"itpm".into()));
}

#[test]
fn a_request_file_is_planned_by_what_it_says() {
    let place = Place::new("plan");
    let requests = place.write("requests.jsonl", &questions(30));
    let (code, json, said) = plan(&[&requests, "--rpm", "10", "--latency", "1s", "--json"]);
    assert_eq!(code, 0, "{said}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["duration_s"], &json["answered"]), (&121.0.into(), &30.into()));
    assert_eq!(json["tokens_out"], 30 * 1_024);
}

#[test]
fn requests_that_can_never_be_sent_are_told() {
    let (code, shown, _) = plan(&["--requests", "3", "--tokens-per-request", "5000", "--tpm", "1000"]);
    assert_eq!(code, 1);
    assert!(shown.contains("3 requests can never be sent: tpm lets 1,000 through at most"), "{shown}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (args, expected) in [
        (&["--requests", "0"][..], "0 is not in"),
        (&["--requests", "5", "--price-in", "1"], "--price-out"),
        (&["missing.pdf"], "missing.pdf"),
        (&[], "<PDF|DIR|JSONL>"),
    ] {
        let (code, _, said) = plan(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}

#[test]
fn a_plan_has_the_concurrency_that_fills_the_quota() {
    let args = ["--requests", "30000", "--rpm", "3000", "--latency", "6s", "--json"];
    let planned = |more: &[&str]| -> Value {
        let (code, json, said) = plan(&[&args[..], more].concat());
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&json).unwrap()
    };
    // Nine minutes pass until the tenth window of 3,000 opens.
    let json = planned(&[]);
    assert!(json["duration_s"].as_f64().unwrap() <= 600.0 / 0.95, "{}", json["duration_s"]);
    assert_eq!(json["in_flight_peak"], 450);
    assert_eq!(planned(&["--global-concurrency", "40"])["in_flight_peak"], 40, "stated");
}

#[test]
fn a_limit_has_the_window_that_is_stated_with_it() {
    let planned = |limits: &[&str]| -> Value {
        let (code, json, said) = plan(&[&["--requests", "60", "--latency", "1s", "--json"], limits].concat());
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&json).unwrap()
    };
    // The sixth ten after five seconds, and a second for its answers.
    assert_eq!(planned(&["--rpm", "10/1s"])["duration_s"], 6.0);
    assert_eq!(planned(&["--rpm", "20/6s", "--tpm", "60000000"])["duration_s"], 13.0);
    let (code, _, said) = plan(&["--requests", "60", "--rpm", "10/2h"]);
    assert!(code == 2 && said.contains("--rpd"), "{said}");
}
