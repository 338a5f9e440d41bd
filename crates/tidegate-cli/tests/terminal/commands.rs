//! Every command with everything hostile that can reach it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::support::{HOSTILE, NAME, Place, Running, http, server};

/// A command as it is typed, and how it is run.
pub(crate) fn cases() -> BTreeMap<&'static str, fn(&Place)> {
    BTreeMap::from([
        ("explain", explain as fn(&Place)),
        ("rebuild", rebuild),
        ("batch", batch),
        ("plan", plan),
        ("provider", provider),
        ("serve", serve),
        ("worker", worker),
        ("enqueue", enqueue),
        ("queue ls", queue_ls),
        ("queue peek", queue_peek),
        ("queue purge", queue_purge),
        ("queue check", queue_check),
        ("queue vacuum", queue_vacuum),
        ("queue upgrade", queue_upgrade),
        ("queue dead ls", dead_ls),
        ("queue dead retry", dead_retry),
        ("queue dead drop", dead_drop),
        ("result", result),
        ("revoke", revoke),
        ("trace", trace),
        ("completions", completions),
    ])
}

pub(crate) fn broken_pdf() -> Vec<u8> {
    format!("%PDF-1.4\n{HOSTILE}").into_bytes()
}

/// The error of a provider, as OpenAI writes it.
fn complaint() -> String {
    json!({"error": {"message": HOSTILE, "type": HOSTILE, "code": HOSTILE}}).to_string()
}

fn explain(place: &Place) {
    place.sample("tides.pdf", &format!("{HOSTILE}.pdf"));
    place.write(&format!("{HOSTILE}-broken.pdf"), broken_pdf());
    for progress in ["auto", "plain", "none"] {
        place.run(&["explain", ".", "--out", HOSTILE, "--picture-px", "0", "--fresh", "--progress", progress]);
    }
    let output = place.run(&["explain", ".", "--out", HOSTILE, "--picture-px", "0", "--json", "--progress", "json"]);
    place.is_json(&output.stdout);
    place.is_json(&output.stderr);
    place.run(&["explain", HOSTILE]);
    place.run(&["explain", &format!("{HOSTILE}-missing.pdf")]);
    place.run(&["explain", ".", "--prompt", &format!("@{HOSTILE}")]);
    for (status, body) in [
        ("400 Bad Request", complaint()),
        ("401 Unauthorized", complaint()),
        ("404 Not Found", complaint()),
        ("400 Bad Request", HOSTILE.to_owned()),
        ("200 OK", HOSTILE.to_owned()),
        ("200 OK", json!({"choices": [{"finish_reason": HOSTILE, "message": {"refusal": HOSTILE}}]}).to_string()),
    ] {
        let base = format!("--base-url={}", http(status, body));
        let words = ["explain", ".", "--out", "out", "--provider", "openai", "--model", "m", "--retries", "0", &base];
        place.run(&words);
        place.run(&[&words[..], &["--retry-failed", "--progress", "plain", "--json"]].concat());
    }
}

fn rebuild(place: &Place) {
    place.sample("tides.pdf", &format!("{HOSTILE}.pdf"));
    let object = json!({"1": HOSTILE}).to_string();
    place.write(&format!("{HOSTILE}.json"), object);
    place.write(&format!("{HOSTILE}-bad.json"), format!("[{HOSTILE}"));
    place.write("other.json", json!({"schema": HOSTILE, "source": HOSTILE, "pages": [{"page": HOSTILE}]}).to_string());
    place.run(&["rebuild", "."]);
    place.run(&["rebuild", ".", "--out", HOSTILE, "--picture-px", "0"]);
    place.json(&["rebuild", ".", "--json"]);
    place.run(&["rebuild", &format!("{HOSTILE}-missing.json")]);
}

fn batch(place: &Place) {
    let line = |id: &str| {
        let body = json!({"model": "m", "messages": []});
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    let requests = format!("{HOSTILE}.jsonl");
    place.write(&requests, line(HOSTILE) + &line("two"));
    place.write("bad.jsonl", format!("{HOSTILE}\n") + &json!({HOSTILE: 1}).to_string() + "\n");
    let answers = [
        ("200 OK", json!({"choices": [{"message": {"content": HOSTILE}}], "model": HOSTILE}).to_string()),
        ("400 Bad Request", complaint()),
        ("401 Unauthorized", complaint()),
        ("200 OK", HOSTILE.to_owned()),
    ];
    for (status, body) in answers {
        let base = format!("--base-url={}", http(status, body));
        let output = place.run(&["batch", &requests, "-o", "-", "--retries", "0", &base]);
        if status == "200 OK" {
            place.is_json(&output.stdout);
        }
        place.run(&["batch", &requests, "-o", HOSTILE, "--fresh", "--retries", "0", "--progress", "plain", &base]);
        place.run(&[
            "batch",
            &requests,
            "-o",
            HOSTILE,
            "--fresh",
            "--retries",
            "0",
            "--progress",
            "json",
            "--json",
            &base,
        ]);
        place.run(&["batch", "bad.jsonl", &base]);
        place.run(&["batch", "bad.jsonl", "--skip-bad-lines", &base]);
    }
    place.run(&["batch", HOSTILE]);
    place.run(&["batch", &requests, "--base-url", HOSTILE]);
    place.run(&["batch", &requests, "--api-key-env", HOSTILE]);
    let redis = server(|stream| {
        let mut chunk = [0; 4096];
        while stream.read(&mut chunk).is_ok_and(|read| read > 0) {
            let _ = stream.write_all(format!("-ERR {}\r\n", HOSTILE.replace('\r', " ")).as_bytes());
        }
    });
    place.run(&["batch", &requests, "--rpm", "9", "--limits", &format!("redis://127.0.0.1:{redis}")]);
}

fn plan(place: &Place) {
    place.write(&format!("{HOSTILE}.pdf"), broken_pdf());
    place.sample("tides.pdf", "tides.pdf");
    place.write(&format!("{HOSTILE}.jsonl"), format!("{HOSTILE}\n"));
    place.run(&["plan", ".", "--rpm", "9"]);
    place.json(&["plan", ".", "--rpm", "9", "--json"]);
    place.run(&["plan", &format!("{HOSTILE}.jsonl"), "--rpm", "9"]);
    place.run(&["plan", &format!("{HOSTILE}-missing.jsonl"), "--rpm", "9"]);
}

fn provider(place: &Place) {
    place.run(&["provider", "--listen", "127.0.0.1:0", "--rpd", "9", "--day-zone", HOSTILE]);
    let mut running = Running::start(place, &["provider", "--listen", "127.0.0.1:0", "--known-model", HOSTILE]);
    let line = running.first_line();
    let base = line.split_whitespace().next().unwrap();
    place.write("requests.jsonl", {
        let body = json!({"model": HOSTILE, "messages": [{"role": "user", "content": HOSTILE}]});
        json!({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
    });
    place.run(&["batch", "requests.jsonl", "--base-url", base]);
    running.interrupt(place);
}

/// Uploads a file with a hostile name, starts its job with a hostile prompt, and asks for what is not there.
fn serve(place: &Place) {
    place.run(&["serve", "--dir", "serve", "--listen", "127.0.0.1:0", "--upstream", HOSTILE]);
    let mut running = Running::start(place, &["serve", "--dir", NAME, "--listen", "127.0.0.1:0"]);
    let line = running.first_line();
    let host = line.trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let send = |method: &str, path: &str, kind: &str, body: &[u8]| {
        let mut stream = std::net::TcpStream::connect(&host).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\ncontent-type: {kind}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let name = HOSTILE.replace(['"', '\r', '\n'], "_");
    let head = format!("--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}.pdf\"\r\n\r\n");
    let body = [head.as_bytes(), &broken_pdf(), b"\r\n--b--\r\n"].concat();
    let answer = send("POST", "/api/v1/jobs", "multipart/form-data; boundary=b", &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let prompt = json!({"prompt": HOSTILE, "model": HOSTILE, "name": HOSTILE}).to_string();
    for path in ["/api/v1/jobs/1/options", "/api/v1/jobs/1/start", "/api/v1/jobs/%1b%5b2J", "/%1b%5b2J"] {
        send("POST", path, "application/json", prompt.as_bytes());
        send("GET", path, "application/json", b"");
    }
    running.interrupt(place);
}

/// Runs two tasks that fail with hostile words, one of them in a Python child; they are dead letters then.
fn dead_letters(place: &Place, words: &[&str]) {
    place.write("hostile.txt", format!("{HOSTILE}\nsecond {HOSTILE}\n"));
    let handlers = [
        format!("--handler={HOSTILE}=exec:cat hostile.txt >&2; cat hostile.txt; exit 3"),
        format!("--handler=ok=exec:printf '%s' '{}'", json!({HOSTILE: HOSTILE})),
    ];
    let name = format!("--name={HOSTILE}");
    let queue = format!("--queue={NAME}");
    let mut line = vec!["worker", &name, &queue, "--retries=0", "--log=debug"];
    line.extend(handlers.iter().map(String::as_str));
    line.extend(words);
    let running = Running::start(place, &line);
    for (id, task) in [("a", HOSTILE), ("b", "ok"), ("c", "unknown\x1b[2J\u{202e}")] {
        place.run(&["enqueue", task, "--queue", NAME, "--id", &format!("{id}{NAME}"), "--wait"]);
    }
    let body = json!({"task": HOSTILE, "args": HOSTILE}).to_string();
    place.feed(&["enqueue", "-", "--queue", NAME], &body);
    running.interrupt(place);
}

fn worker(place: &Place) {
    dead_letters(place, &[]);
    let output = place.run(&["worker", "--handler", HOSTILE]);
    assert_eq!(output.status.code(), Some(2));
    place.run(&["worker", "--cron", HOSTILE]);
    place.run(&["worker", "--log", &format!("a={HOSTILE}"), "--handler", "a=exec:cat"]);
    place.run(&["worker", "--task", HOSTILE, "--handler", "a=exec:cat"]);
    place.run(&["worker", "--limit", HOSTILE, "--handler", "a=exec:cat"]);
    place.run(&["worker", "--broker", HOSTILE, "--handler", "a=exec:cat"]);
    fs::remove_dir_all(place.path().join("data")).unwrap();
    dead_letters(place, &["--log-format=json", "--json"]);
}

fn enqueue(place: &Place) {
    place.run(&["enqueue", "a", "--queue", HOSTILE]);
    place.run(&["enqueue", "a", "--id", HOSTILE]);
    place.run(&["enqueue", HOSTILE, "--id", NAME, "--unique", HOSTILE, "--queue", NAME]);
    place.run(&["enqueue", HOSTILE, "--id", NAME, "--queue", NAME]);
    place.json(&["enqueue", HOSTILE, "--id", NAME, "--queue", NAME, "--json"]);
    place.run(&["enqueue", "a", "--id", NAME, "--wait", "--timeout", "1ms"]);
    place.run(&["enqueue", "a", "--args", HOSTILE]);
    place.run(&["enqueue", "a", "--args", &json!({HOSTILE: HOSTILE}).to_string()]);
    place.run(&["enqueue", "a", "--kwargs", &json!([HOSTILE]).to_string()]);
    place.run(&["enqueue", "a", "--args", &format!("@{HOSTILE}")]);
    place.run(&["enqueue", "a", "--broker", &format!("sqlite:{HOSTILE}/{HOSTILE}")]);
    let lines = [json!({"task": HOSTILE, "id": NAME}), json!({HOSTILE: 1}), json!(HOSTILE)];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).chain([format!("{HOSTILE}\n")]).collect();
    place.feed(&["enqueue", "-"], &lines);
    let output = place.feed(&["enqueue", "-", "--json"], &lines);
    place.is_json(&output.stdout);
}

/// Two tasks in a queue, everything about them hostile.
fn waiting(place: &Place) {
    let args = json!([HOSTILE]).to_string();
    let kwargs = json!({HOSTILE: HOSTILE}).to_string();
    let words = ["enqueue", HOSTILE, "--queue", NAME, "--id", NAME, "--args", &args, "--kwargs", &kwargs];
    assert!(place.program(&words).output().unwrap().status.success());
    let words = ["enqueue", HOSTILE, "--queue", NAME, "--codec", "celery", "--args", &args];
    assert!(place.program(&words).output().unwrap().status.success());
}

fn queue_ls(place: &Place) {
    place.run(&["queue", "ls"]);
    place.run(&["queue", "ls", "--broker", &format!("sqlite:{HOSTILE}")]);
    waiting(place);
    let output = place.run(&["queue", "ls"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("evil"), "{table}");
    place.json(&["queue", "ls", "--json"]);
}

fn queue_peek(place: &Place) {
    waiting(place);
    let output = place.run(&["queue", "peek", NAME]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2, "a name has made a line of its own");
    place.json(&["queue", "peek", NAME, "--json"]);
}

fn queue_purge(place: &Place) {
    waiting(place);
    place.run(&["queue", "purge", "none", "--yes"]);
    place.run(&["queue", "purge", NAME]);
    let output = place.run(&["queue", "purge", NAME, "--yes"]);
    assert!(output.status.success());
}

fn queue_check(place: &Place) {
    let broker = format!("sqlite:{HOSTILE}.db");
    let words = ["enqueue", HOSTILE, "--broker", &broker];
    assert!(place.program(&words).output().unwrap().status.success());
    assert!(place.run(&["queue", "check", "--broker", &broker]).status.success());
    place.write(&format!("{HOSTILE}.txt"), HOSTILE.repeat(400));
    place.run(&["queue", "check", "--broker", &format!("sqlite:{HOSTILE}.txt")]);
}

fn queue_vacuum(place: &Place) {
    waiting(place);
    assert!(place.run(&["queue", "vacuum"]).status.success());
    place.run(&["queue", "vacuum", "--broker", &format!("sqlite:{HOSTILE}")]);
}

/// For RabbitMQ alone; here it is refused, by a file and by a server that speaks something else.
fn queue_upgrade(place: &Place) {
    waiting(place);
    place.run(&["queue", "upgrade", NAME]);
    place.run(&["queue", "upgrade", NAME, "--broker", &format!("sqlite:{HOSTILE}")]);
    let other = server(|stream| {
        let _ = stream.write_all(HOSTILE.as_bytes());
    });
    place.run(&["queue", "upgrade", NAME, "--broker", &format!("amqp://127.0.0.1:{other}")]);
}

fn dead_ls(place: &Place) {
    dead_letters(place, &[]);
    let output = place.run(&["queue", "dead", "ls", "--traceback"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("evil"), "{output:?}");
    place.json(&["queue", "dead", "ls", "--json"]);
    place.run(&["queue", "dead", "ls", HOSTILE]);
}

fn dead_retry(place: &Place) {
    dead_letters(place, &[]);
    place.run(&["queue", "dead", "retry", NAME]);
    assert!(place.run(&["queue", "dead", "retry", "--of", NAME]).status.success());
}

fn dead_drop(place: &Place) {
    dead_letters(place, &[]);
    place.run(&["queue", "dead", "drop", HOSTILE]);
    place.run(&["queue", "dead", "drop", "--of", NAME]);
    assert!(place.run(&["queue", "dead", "drop", "--of", NAME, "--yes"]).status.success());
}

fn result(place: &Place) {
    dead_letters(place, &[]);
    place.run(&["result", HOSTILE]);
    for id in ["a", "b", "c"] {
        let id = format!("{id}{NAME}");
        let output = place.run(&["result", &id]);
        assert!(output.status.code() < Some(2), "{output:?}");
        place.json(&["result", &id, "--json"]);
    }
    let output = place.run(&["result", &format!("b{NAME}")]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[HOSTILE], HOSTILE, "a value is the same after it was printed");
    place.run(&["result", HOSTILE, "--wait", "--timeout", "1ms"]);
}

fn revoke(place: &Place) {
    waiting(place);
    place.run(&["revoke", HOSTILE]);
    place.run(&["revoke", HOSTILE, "--broker", HOSTILE]);
}

fn trace(place: &Place) {
    place.run(&["trace", "timeline", "--out", HOSTILE]);
    place.run(&["trace", "timeline", "--out", &format!("{HOSTILE}/{HOSTILE}")]);
    place.run(&["trace", HOSTILE]);
    place.run(&["trace", "--list"]);
    for format in ["text", "chrome", "html"] {
        place.run(&["trace", "timeline", "--format", format]);
    }
}

fn completions(place: &Place) {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.run(&["completions", shell]).status.success());
    }
    place.run(&["completions", HOSTILE]);
}
