//! Files of requests that mean harm, or are simply wrong: refused with the line before anything is sent, or shown as text.

use axum::Router;
use axum::routing::post;
use serde_json::{Value, json};
use tidegate_batch::Quotas;
use tidegate_loop::net::TcpListener;
use tidegate_loop::spawn;
use tidegate_rehearsal::Server;

use crate::support::{Up, local, mock, mock_at, on_loop, requests, sample, settings};

fn line(id: &str, url: &str) -> Vec<u8> {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Why?"}]});
    (json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n").into_bytes()
}

#[test]
fn bad_lines_are_shown_by_number_and_nothing_is_sent() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![mock(&server, Quotas::default())], settings()).await;
        let good = || line("good", "/v1/chat/completions");
        let long = line(&"x".repeat(9 << 20), "/v1/chat/completions");
        let gemini = b"{\"key\":\"g\",\"request\":{\"contents\":[]}}\n".to_vec();
        let cases: [(Vec<u8>, u64, &str); 9] = [
            (b"nonsense\n".to_vec(), 2, "it is not JSON"),
            (b"{\"custom_id\":7}\n".to_vec(), 2, "is not a text"),
            (good(), 2, "occurred before"),
            (gemini, 2, "Gemini's form"),
            (line("a", "/v1/messages"), 2, "requests may go to"),
            (line("a", "/v1/files"), 2, "requests may go to"),
            (line("a", "/v1/../../admin/v1/chat/completions"), 2, "segment . or .."),
            (line("a", "http://evil.example/v1/chat/completions"), 2, "must be a path"),
            (long, 2, "it is longer than 8 MB"),
        ];
        for (bad, number, reason) in cases {
            let id = up.draft(&[("a.jsonl", &[good(), bad].concat())]).await;
            let job = up.job(id).await;
            let first = &job["bad_lines"]["listed"][0];
            assert_eq!((&job["bad_lines"]["count"], &first["line"]), (&json!(1), &json!(number)), "{reason}: {job:#}");
            assert!(first["reason"].as_str().unwrap().contains(reason), "{reason}: {first}");
            let page = up.get(&format!("/jobs/{id}")).await.text();
            assert!(page.contains("Line 2") && page.contains("so nothing is"), "{page}");
            let started = up.api("POST", &format!("/jobs/{id}/start"), Value::Null).await;
            assert_eq!((started.status, started.error().contains("line 2")), (400, true), "{}", started.text());
            assert_eq!(up.job(id).await["state"], "draft", "{reason}");
        }
        let id = up.draft(&[("a.jsonl", &"?\n".repeat(100).into_bytes())]).await;
        let bad = &up.job(id).await["bad_lines"];
        assert_eq!((&bad["count"], bad["listed"].as_array().unwrap().len()), (&json!(100), 20));
        let id = up.draft(&[("empty.jsonl", b"\n\n")]).await;
        assert_eq!(up.job(id).await["bad_lines"]["listed"][0]["reason"], "the file has no requests");
        assert_eq!(server.stats().arrived, 0, "something was sent");
        up.stop().await;
    });
}

#[test]
fn html_in_ids_requests_and_answers_is_shown_as_text() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let evil = "<script>alert(1)</script><img src=x onerror=alert(2)>";
        let said = json!({"choices": [{"message": {"role": "assistant", "content": format!("**bold** {evil} [x](javascript:alert(3))")}, "finish_reason": "stop"}]});
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/chat/completions", post(move || async move { said.to_string() }));
        let server = spawn(tidegate_http::serve(listener, router).run());
        let up = Up::start(directory.path(), vec![mock_at(&base, Quotas::default())], settings()).await;
        let id = up.draft(&[("<b>a</b>.jsonl", &requests([(evil, evil), ("b", "x")]))]).await;
        up.begin_requests(id).await;
        up.until_state(id, "done").await;
        for path in ["", "/read/1/1", "/read/1/1?q=<script>", "/read/1/1?compare=1", "?file=1"] {
            let page = up.get(&format!("/jobs/{id}{}", path.replace('<', "%3C").replace('>', "%3E"))).await;
            let text = page.text();
            assert_eq!(page.status, 200, "{path}");
            assert!(
                !text.contains("<script>alert") && !text.contains("<img src=x") && !text.contains("<b>a</b>"),
                "{path}: {text}"
            );
            assert!(!text.contains("href=\"javascript:"), "{path}");
        }
        let page = up.get(&format!("/jobs/{id}/read/1/1")).await.text();
        assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("<strong>bold</strong>"), "{page}");
        let results = up.get(&format!("/jobs/{id}/download/results.jsonl")).await;
        assert_eq!(results.disposition.as_deref().map(|it| it.contains('<')), Some(false), "{:?}", results.disposition);
        up.stop().await;
        server.cancel();
    });
}

#[test]
fn a_file_of_requests_stands_alone_in_its_job() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![mock(&server, Quotas::default())], settings()).await;
        let (asked, pdf) = (requests([("a", "Why?")]), sample("tides.pdf"));
        for files in [[("a.jsonl", &asked), ("b.jsonl", &asked)], [("a.pdf", &pdf), ("b.jsonl", &asked)]] {
            let files = files.map(|(name, data)| (name, data.as_slice()));
            let refused = up.upload("/api/v1/jobs", &files).await;
            assert_eq!((refused.status, refused.error().contains("by itself")), (400, true), "{}", refused.text());
        }
        assert_eq!(up.api("GET", "/jobs", Value::Null).await.json()["jobs"], json!([]));
        let id = up.draft(&[("a.jsonl", &asked)]).await;
        let refused = up.upload(&format!("/api/v1/jobs/{id}/files"), &[("b.jsonl", &asked)]).await;
        assert_eq!((refused.status, refused.error().contains("has one file")), (400, true), "{}", refused.text());
        assert_eq!(up.job(id).await["files"].as_array().unwrap().len(), 1);
        up.stop().await;
    });
}

#[test]
fn a_server_without_an_upstream_for_requests_says_so() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let id = up.draft(&[("a.jsonl", &requests([("a", "Why?")]))]).await;
        let page = up.get(&format!("/jobs/{id}")).await.text();
        assert!(page.contains("No upstream of this server takes requests"), "{page}");
        let started = up.api("POST", &format!("/jobs/{id}/start"), Value::Null).await;
        assert_eq!(
            (started.status, started.error().contains("explains pages alone")),
            (400, true),
            "{}",
            started.text()
        );
        up.stop().await;
    });
}
