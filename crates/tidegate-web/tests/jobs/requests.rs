//! Jobs of requests: answered, watched, paused, retried, asked again, and gone on with after a restart.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_batch::Quotas;
use tidegate_rehearsal::{Fault, Latency, Server};
use tidegate_web::jobs::JobId;

use crate::support::{Up, local, mock, on_loop, requests, sample, settings, unzip};

fn limits() -> Quotas {
    Quotas { rpm: Some(100_000), ..Quotas::default() }
}

fn one_at_a_time() -> Quotas {
    Quotas { global_concurrency: 1, ..limits() }
}

fn numbered(count: usize) -> Vec<u8> {
    let asked: Vec<(String, String)> =
        (1..=count).map(|number| (format!("r{number}"), format!("Question {number}: why do tides turn?"))).collect();
    requests(asked.iter().map(|(id, text)| (id.as_str(), text.as_str())))
}

/// Runs SQL on the jobs of a server that is not running.
fn sql(directory: &Path, statements: &str) {
    let script = "import sqlite3,sys\nc=sqlite3.connect(sys.argv[1])\nc.executescript(sys.argv[2])\nc.commit()";
    let path = directory.join("jobs.db");
    let ran = std::process::Command::new("python3").args(["-c", script]).arg(path).arg(statements).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

async fn download(up: &Up, id: JobId, name: &str) -> Vec<Value> {
    let answered = up.get(&format!("/jobs/{id}/download/{name}")).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    answered.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(results: &[Value]) -> BTreeSet<&str> {
    results.iter().map(|result| result["custom_id"].as_str().unwrap()).collect()
}

async fn request(up: &Up, id: JobId, line: u32) -> Value {
    up.api("GET", &format!("/jobs/{id}/files/1/pages/{line}"), Value::Null).await.json()
}

#[test]
fn requests_are_planned_answered_read_searched_and_downloaded() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![local(), mock(&server, limits())], settings()).await;
        let file =
            requests([("tide", "Why do tides turn?"), ("moon", "Who pulls the sea?"), ("gate", "What is a gate?")]);
        let id = up.draft(&[("questions.jsonl", &file)]).await;
        let job = up.job(id).await;
        assert_eq!((&job["kind"], &job["files"][0]["kind"]), (&json!("batch"), &json!("jsonl")), "{job:#}");
        assert_eq!((&job["upstream"], &job["model"]), (&json!("mock"), &json!("")), "the one that takes requests");
        let plan = up.api("GET", &format!("/jobs/{id}/plan"), Value::Null).await.json();
        assert_eq!((&plan["pages"], &plan["in_flight_peak"]), (&json!(3), &json!(3)), "{plan:#}");
        let draft = up.get(&format!("/jobs/{id}")).await.text();
        assert!(draft.contains("as each request says") && !draft.contains("name=\"prompt\""), "{draft}");
        assert_eq!(server.stats().arrived, 0, "a plan sends nothing");

        up.begin_requests(id).await;
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["done"], &job["pages"]["failed"]), (&json!(3), &json!(0)), "{job:#}");
        let log = server.stats();
        assert_eq!((log.answered, log.repeated), (3, 0));
        assert_eq!(job["cost"]["tokens_in"], json!(log.tokens_in));
        assert!(job["cost"]["money"].as_f64().unwrap() > 0.0);

        let moon = request(&up, id, 2).await;
        assert_eq!(moon["request"]["custom_id"], "moon");
        assert_eq!(moon["request"]["messages"], json!([{"role": "user", "text": "Who pulls the sea?"}]));
        let said = moon["versions"][0]["explanation"].as_str().unwrap().to_owned();
        let page = up.get(&format!("/jobs/{id}/read/1/2?q=SEA")).await.text();
        assert!(page.contains("pulls the <mark>sea</mark>?") && page.contains("rel=\"next\""), "{page}");
        assert!(page.contains(&said[..said.find(' ').unwrap()]), "{said} is not in {page}");
        let found = up.get(&format!("/jobs/{id}/read/1/1?q=moon")).await.text();
        assert!(found.contains(&format!("/jobs/{id}/read/1/2?q=moon")), "a hit in an id: {found}");

        let results = download(&up, id, "results.jsonl").await;
        assert_eq!(ids(&results), BTreeSet::from(["gate", "moon", "tide"]));
        assert_eq!(results[0]["response"]["status_code"], 200);
        assert!(download(&up, id, "errors.jsonl").await.is_empty());
        let archive = up.get(&format!("/jobs/{id}/download/all.zip")).await;
        let names: Vec<String> = unzip(&archive.body).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["questions-results.jsonl", "questions-errors.jsonl"]);
        for name in ["html.zip", "1.html", "1.json", "results.json"] {
            assert_eq!(up.get(&format!("/jobs/{id}/download/{name}")).await.status, 404, "{name}");
        }
        let list = up.get("/jobs").await.text();
        assert!(list.contains("3 requests"), "{list}");
        up.stop().await;
    });
}

#[test]
fn requests_that_failed_are_retried_alone_and_have_one_result_each() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        // One is answered; of each of the others the first attempt and its only retry fail, also when it is retried once.
        let mut script = vec![Some(Fault::Internal); 7];
        script[0] = None;
        let server = Server::builder().script(script).start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        let id = up.draft(&[("a.jsonl", &numbered(4))]).await;
        up.begin_requests(id).await;
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["failed"], &job["pages"]["done"]), (&json!(3), &json!(1)), "{job:#}");
        let failures = up.api("GET", &format!("/jobs/{id}/failures"), Value::Null).await.json();
        assert_eq!(failures["failures"][0]["pages"].as_array().unwrap().len(), 3, "{failures:#}");
        assert_eq!(download(&up, id, "errors.jsonl").await.len(), 3);
        let page = up.get(&format!("/jobs/{id}")).await.text();
        assert!(page.contains("Retry 3 requests") && page.contains("Failed requests, by reason"), "{page}");

        let answered = server.stats().answered;
        let retried = up.api("POST", &format!("/jobs/{id}/retry"), json!({})).await.json();
        assert_eq!(retried["pages"], 3);
        let job = up.until(id, |job| job["state"] == "done" && job["pages"]["failed"] == 0).await;
        assert_eq!(job["pages"]["done"], 4, "{job:#}");
        assert_eq!(server.stats().answered, answered + 3, "only what failed is asked again");
        assert_eq!(ids(&download(&up, id, "results.jsonl").await), BTreeSet::from(["r1", "r2", "r3", "r4"]));
        assert!(download(&up, id, "errors.jsonl").await.is_empty());
        let stored = std::fs::read_to_string(directory.path().join(format!("jobs/{id}/results.jsonl"))).unwrap();
        assert_eq!(stored.lines().count(), 4, "{stored}");
        up.stop().await;
    });
}

#[test]
fn a_paused_job_of_requests_sends_nothing_and_a_cancelled_one_goes_on_when_it_is_resumed() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(30))).start_in_thread().unwrap();
        let upstream = mock(&server, one_at_a_time());
        let gate = upstream.gate().clone();
        let up = Up::start(directory.path(), vec![upstream], settings()).await;
        let id = up.draft(&[("a.jsonl", &numbered(8))]).await;
        up.begin_requests(id).await;
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(1)).await;
        up.form(&format!("/jobs/{id}/pause"), "").await;
        // What the gate has admitted is finished, and nothing stands in its line.
        let job = up
            .until(id, |job| {
                let pages = &job["pages"];
                let is_still = pages["in_flight"] == 0 && pages["blocked"] == 0;
                job["state"] == "paused" && is_still && (gate.stats().current, gate.stats().waiting) == (0, 0)
            })
            .await;
        assert!(job["pages"]["waiting"].as_u64() > Some(0), "{job:#}");
        assert_eq!(server.stats().arrived, job["pages"]["done"].as_u64().unwrap(), "{job:#}");
        up.form(&format!("/jobs/{id}/resume"), "").await;
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(3)).await;
        up.form(&format!("/jobs/{id}/cancel"), "finish=1").await;
        let job = up.until_state(id, "cancelled").await;
        assert!(job["pages"]["waiting"].as_u64() > Some(0), "{job:#}");
        up.form(&format!("/jobs/{id}/resume"), "").await;
        let job = up.until_state(id, "done").await;
        assert_eq!(job["pages"]["done"], 8, "{job:#}");
        assert_eq!((server.stats().answered, server.stats().repeated), (8, 0), "none was paid for twice");
        up.stop().await;
    });
}

#[test]
fn a_job_of_requests_goes_on_after_a_restart_also_if_its_results_were_not_recorded() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder()
            .latency(Latency::Fixed(Duration::from_millis(30)))
            .models(["m"])
            .start_in_thread()
            .unwrap();
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        // The server does not know the model of line 3.
        let file = String::from_utf8(numbered(8)).unwrap().replacen("\"model\":\"m\"", "\"model\":\"?\"", 3);
        let file = file.replacen("\"model\":\"?\"", "\"model\":\"m\"", 2);
        let id = up.draft(&[("a.jsonl", file.as_bytes())]).await;
        up.begin_requests(id).await;
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(2)).await;
        up.stop().await;
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["done"], &job["pages"]["failed"]), (&json!(7), &json!(1)), "{job:#}");
        assert_eq!((server.stats().answered, server.stats().repeated), (7, 0), "none was paid for twice");
        let (cost, before) = (job["cost"].clone(), [request(&up, id, 3).await, request(&up, id, 5).await]);
        assert_eq!(before[0]["versions"][0]["error_code"], "refused", "{:#}", before[0]);
        up.stop().await;

        // As if the server had been killed after the engine stored everything and before it was recorded here.
        sql(directory.path(), "DELETE FROM pages; UPDATE jobs SET state = 'running', tokens_in = 0, tokens_out = 0;");
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        let job = up.until_state(id, "done").await;
        assert_eq!(
            (&job["pages"]["done"], &job["pages"]["failed"], &job["cost"]),
            (&json!(7), &json!(1), &cost),
            "{job:#}"
        );
        for (line, before) in [(3, &before[0]), (5, &before[1])] {
            let after = request(&up, id, line).await;
            let what = |it: &Value| {
                (it["state"].clone(), it["versions"][0]["explanation"].clone(), it["versions"][0]["error"].clone())
            };
            assert_eq!(what(&after), what(before), "line {line}");
        }
        assert_eq!(server.stats().answered, 7);
        up.stop().await;
    });
}

#[test]
fn one_request_is_asked_again_and_the_answer_that_is_chosen_is_in_the_results() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().models(["m", "other"]).start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![local(), mock(&server, limits())], settings()).await;
        let parts = json!({"custom_id": "parts", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}]}});
        let file = [requests([("a", "Why?"), ("b", "Who?")]), format!("{parts}\n").into_bytes()].concat();
        let id = up.draft(&[("a.jsonl", &file)]).await;
        up.begin_requests(id).await;
        up.until_state(id, "done").await;
        let path = format!("/jobs/{id}/files/1/pages/2");
        let how = json!({"prompt": "Who, in one word?", "model": "other"});
        let asked = up.api("POST", &format!("{path}/ask"), how).await;
        assert_eq!(asked.status, 200, "{}", asked.text());
        up.until(id, |_| server.stats().answered == 4).await;
        let mut view = request(&up, id, 2).await;
        while view["asking"] == true {
            view = request(&up, id, 2).await;
        }
        let version = &view["versions"][1];
        assert_eq!(
            (&version["model"], &version["shown"], &version["state"]),
            (&json!("other"), &json!(false), &json!("done")),
            "{view:#}"
        );
        let compared = up.get(&format!("/jobs/{id}/read/1/2?compare=1")).await.text();
        assert!(compared.contains("Use B for this request") && compared.contains("Who, in one word?"), "{compared}");
        let before = download(&up, id, "results.jsonl").await;
        up.api("POST", &format!("{path}/choose"), json!({"version": 1})).await;
        let after = download(&up, id, "results.jsonl").await;
        let model = |results: &[Value], id: &str| {
            results.iter().find(|it| it["custom_id"] == id).unwrap()["response"]["body"]["model"].clone()
        };
        assert_eq!((model(&before, "b"), model(&after, "b")), (json!("m"), json!("other")));
        assert_eq!((model(&after, "a"), after.len()), (json!("m"), 3));

        let refused = up.api("POST", &format!("/jobs/{id}/files/1/pages/3/ask"), json!({"prompt": "Else?"})).await;
        assert_eq!(
            (refused.status, refused.error().contains("does not end with one text")),
            (400, true),
            "{}",
            refused.text()
        );
        let page = up.get(&format!("/jobs/{id}/read/1/3")).await.text();
        assert!(page.contains("cannot be replaced here") && page.contains("Ask again with another model"), "{page}");
        let refused = up.api("POST", &format!("{path}/ask"), json!({"upstream": "local"})).await;
        assert_eq!((refused.status, refused.error().contains("takes no requests")), (400, true), "{}", refused.text());
        up.stop().await;
    });
}

#[test]
fn jobs_of_both_kinds_share_the_limits_of_their_upstream() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder()
            .concurrency(2)
            .latency(Latency::Fixed(Duration::from_millis(100)))
            .start_in_thread()
            .unwrap();
        let two = Quotas { global_concurrency: 2, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, two)], settings()).await;
        let first = up.draft(&[("a.jsonl", &numbered(6))]).await;
        let second = up.draft(&[("b.jsonl", &numbered(6))]).await;
        let third = up.draft(&[("tides.pdf", &sample("tides.pdf"))]).await;
        up.begin_requests(first).await;
        up.begin_requests(second).await;
        up.begin(third, "mock").await;
        let waiting =
            up.until(second, |job| job["blocked_by"]["limit"] == "concurrency" || job["state"] == "done").await;
        assert_ne!(waiting["state"], "done", "{waiting:#}");
        for id in [first, second, third] {
            up.until_state(id, "done").await;
        }
        let stats = server.stats();
        assert_eq!((stats.in_flight_peak, stats.refused.total()), (2, 0), "{stats:?}");
        up.stop().await;
    });
}

#[test]
fn ten_thousand_requests_are_answered_and_shown_in_pages_of_bounded_size() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().answer_words(3).start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![mock(&server, limits())], settings()).await;
        let id = up.draft(&[("many.jsonl", &numbered(10_000))]).await;
        up.begin_requests(id).await;
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["done"], &job["pages"]["failed"]), (&json!(10_000), &json!(0)), "{:#}", job["pages"]);
        assert_eq!((server.stats().answered, server.stats().repeated), (10_000, 0));
        let page = up.get(&format!("/jobs/{id}?file=1&from=9500")).await.text();
        assert_eq!(
            page.matches("<i class=\"c d").count(),
            10_000 + 500 + 3,
            "cells, rows; the legend, the job, the file"
        );
        assert!(page.contains(&format!("/jobs/{id}/read/1/10000")) && page.len() < 600_000, "{} bytes", page.len());
        assert_eq!(download(&up, id, "results.jsonl").await.len(), 10_000);
        let found = up.get(&format!("/jobs/{id}/read/1/1?q=r9999")).await.text();
        assert!(found.contains(&format!("/jobs/{id}/read/1/9999?q=r9999")), "{found}");
        up.stop().await;
    });
}
