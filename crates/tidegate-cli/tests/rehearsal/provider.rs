use crate::support::{Provider, text, tidegate};

const QUESTION: &str = r#"{"model":"any","messages":[{"role":"user","content":"Why do tides turn?"}]}"#;

#[test]
fn it_serves_refuses_and_ends_in_order_when_interrupted() {
    let provider = Provider::start(&["--rpm", "1", "--refusals", "bare"]);
    let ask = || provider.exchange("POST", "/v1/chat/completions", QUESTION);
    let (status, body) = ask();
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(body.contains("Why do tides turn?"), "{body}");
    assert_eq!(ask().0, "HTTP/1.1 429 Too Many Requests");
    let (_, stats) = provider.exchange("GET", "/rehearsal/stats", "");
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!((&stats["answered"], &stats["refused"]["rpm"]), (&1.into(), &1.into()));

    let (said, ended) = provider.interrupt();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert!(said.contains("curl -s http://127.0.0.1:"), "{said}");
    assert!(said.ends_with("1 answered, 1 refused (rpm 1), 0 failed, in flight 0 (peak 1), rpm 1/1\n"), "{said}");
    assert_eq!(text(&ended.stderr), "");
}

#[test]
fn settings_that_make_no_sense_are_refused_with_the_way_out() {
    let refusals = [
        (vec!["--rpm", "many"], "write an amount such as 500"),
        (vec!["--latency", "slow"], "write 200ms, 100ms..400ms or lognormal:800ms,0.5"),
        (vec!["--window", "fortnight"], "write strict, bucket"),
        (vec!["--fail", "500=2"], "write 500, 503, 529"),
        (vec!["--rpd", "5", "--day-zone", "Mars/Olympus"], "there is no time zone \"Mars/Olympus\""),
        (vec!["--listen", "203.0.113.1:80"], "cannot listen on 203.0.113.1:80"),
    ];
    for (args, expected) in refusals {
        let output = tidegate(&["provider"]).args(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}
