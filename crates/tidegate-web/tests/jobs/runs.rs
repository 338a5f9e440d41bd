//! Jobs that are sent: watched, paused, retried, blocked, asked again, and gone on with after a restart.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_batch::Quotas;
use tidegate_rehearsal::{Fault, Latency, Limit, Refused, Server};

use crate::support::{Up, local, mock, on_loop, sample, settings, unzip};

fn limits() -> Quotas {
    Quotas { rpm: Some(10_000), ..Quotas::default() }
}

#[test]
fn a_job_is_explained_read_and_downloaded() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![local(), mock(&server, limits())], settings()).await;
        let (tides, columns) = (sample("tides.pdf"), sample("columns.pdf"));
        let id = up.draft(&[("tides.pdf", &tides), ("columns.pdf", &columns)]).await;
        let plan = up.api("GET", &format!("/jobs/{id}/plan"), Value::Null).await.json();
        up.begin(id, "mock").await;
        let job = up.until_state(id, "done").await;
        let pages = &job["pages"];
        assert_eq!((&pages["done"], &pages["failed"]), (&plan["pages"], &json!(0)), "{job:#}");
        assert_eq!(server.stats().answered, pages["done"].as_u64().unwrap());
        let cost = &job["cost"];
        let (input, output) = (cost["tokens_in"].as_f64().unwrap(), cost["tokens_out"].as_f64().unwrap());
        let money = cost["money"].as_f64().unwrap();
        assert!(input > 0.0 && (money - (input + 2.0 * output) / 1e6).abs() < 1e-9, "{cost}");
        let page = up.api("GET", &format!("/jobs/{id}/files/1/pages/1"), Value::Null).await.json();
        let said = page["versions"][0]["explanation"].as_str().unwrap().to_owned();
        assert!(!said.is_empty());
        let names: Vec<String> = unzip(&up.get(&format!("/jobs/{id}/download/md.zip")).await.body)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["tides.md", "columns.md"]);
        up.stop().await;
    });
}

#[test]
fn pages_that_failed_are_retried_alone() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        // One page is answered; of each of the others, in whatever order, the first attempt and its only retry fail.
        let mut script = vec![Some(Fault::Internal); 7];
        script[0] = None;
        let server = Server::builder().script(script).start_in_thread().unwrap();
        let one_at_a_time = Quotas { global_concurrency: 1, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time)], settings()).await;
        let pdf = sample("tides.pdf");
        let id = up.draft(&[("tides.pdf", &pdf)]).await;
        up.begin(id, "mock").await;
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["failed"], &job["pages"]["done"]), (&json!(3), &json!(1)), "{job:#}");
        let failures = up.api("GET", &format!("/jobs/{id}/failures"), Value::Null).await.json();
        assert_eq!(failures["failures"][0]["code"], "unavailable", "{failures:#}");
        let served = server.stats().answered;
        let retried = up.api("POST", &format!("/jobs/{id}/retry"), json!({})).await.json();
        assert_eq!(retried["pages"], 3);
        let job = up.until(id, |job| job["state"] == "done" && job["pages"]["failed"] == 0).await;
        assert_eq!(job["pages"]["done"], job["pages"]["pages"]);
        assert_eq!(server.stats().answered, served + 3, "only the failed pages are asked about again");
        up.stop().await;
    });
}

#[test]
fn a_paused_job_sends_nothing_and_goes_on_where_it_was() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(50))).start_in_thread().unwrap();
        let one_at_a_time = Quotas { global_concurrency: 1, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time)], settings()).await;
        let pdf = sample("tides.pdf");
        let id = up.draft(&[("a.pdf", &pdf), ("b.pdf", &sample("columns.pdf"))]).await;
        up.begin(id, "mock").await;
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(1)).await;
        up.form(&format!("/jobs/{id}/pause"), "").await;
        let job = up.until(id, |job| job["state"] == "paused" && job["pages"]["in_flight"] == 0).await;
        let sent = server.stats().arrived;
        assert!(job["pages"]["waiting"].as_u64() > Some(0), "{job:#}");
        tidegate_loop::sleep(Duration::from_millis(300)).await;
        assert_eq!(server.stats().arrived, sent, "paused, and something was sent");
        up.form(&format!("/jobs/{id}/resume"), "").await;
        let job = up.until_state(id, "done").await;
        assert_eq!(server.stats().answered, job["pages"]["pages"].as_u64().unwrap(), "a page was asked about twice");
        up.stop().await;
    });
}

#[test]
fn a_job_goes_on_after_a_restart_and_pays_for_no_page_twice() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(50))).start_in_thread().unwrap();
        let one_at_a_time = || Quotas { global_concurrency: 1, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        let id = up.draft(&[("a.pdf", &sample("tides.pdf")), ("b.pdf", &sample("columns.pdf"))]).await;
        up.begin(id, "mock").await;
        up.until(id, |job| job["pages"]["done"].as_u64() >= Some(1)).await;
        up.stop().await;
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time())], settings()).await;
        let job = up.until_state(id, "done").await;
        assert_eq!(job["pages"]["done"], job["pages"]["pages"], "{job:#}");
        assert_eq!(server.stats().answered, job["pages"]["pages"].as_u64().unwrap(), "a page was paid for twice");
        up.stop().await;
    });
}

#[test]
fn two_jobs_share_the_limits_of_their_upstream() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder()
            .concurrency(2)
            // Long enough for both files to be read.
            .latency(Latency::Fixed(Duration::from_secs(4)))
            .start_in_thread()
            .unwrap();
        let two = Quotas { global_concurrency: 2, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, two)], settings()).await;
        let pdf = sample("columns.pdf");
        let first = up.draft(&[("a.pdf", &pdf)]).await;
        let second = up.draft(&[("b.pdf", &pdf)]).await;
        up.begin(first, "mock").await;
        up.begin(second, "mock").await;
        up.until_state(first, "done").await;
        up.until_state(second, "done").await;
        let stats = server.stats();
        assert_eq!((stats.in_flight_peak, stats.refused), (2, Refused::default()), "{stats}");
        up.stop().await;
    });
}

#[test]
fn a_cancelled_job_keeps_its_answers_and_the_others_go_on() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(50))).start_in_thread().unwrap();
        let one_at_a_time = Quotas { global_concurrency: 1, ..limits() };
        let up = Up::start(directory.path(), vec![mock(&server, one_at_a_time)], settings()).await;
        let pdf = sample("columns.pdf");
        let first = up.draft(&[("a.pdf", &pdf), ("c.pdf", &sample("tides.pdf"))]).await;
        let second = up.draft(&[("b.pdf", &sample("marees.pdf"))]).await;
        up.begin(first, "mock").await;
        up.begin(second, "mock").await;
        up.until(first, |job| job["pages"]["done"].as_u64() >= Some(1)).await;
        let cancelled = up.form(&format!("/jobs/{first}/cancel"), "finish=1").await;
        assert_eq!(cancelled.status, 303);
        up.until_state(second, "done").await;
        let job = up.until(first, |job| job["state"] == "cancelled" && job["pages"]["in_flight"] == 0).await;
        assert!(job["pages"]["done"].as_u64() >= Some(1) && job["pages"]["waiting"].as_u64() >= Some(1), "{job:#}");
        // It can be deleted, with everything that belongs to it.
        assert_eq!(up.form(&format!("/jobs/{first}/delete"), "").await.status, 303);
        assert!(!directory.path().join(format!("jobs/{first}")).exists());
        up.stop().await;
    });
}

#[test]
fn a_job_that_waits_for_a_limit_says_which_and_until_when() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().rpm(Limit::new(1)).start_in_thread().unwrap();
        let up =
            Up::start(directory.path(), vec![mock(&server, Quotas { rpm: Some(1), ..Quotas::default() })], settings())
                .await;
        let id = up.draft(&[("a.pdf", &sample("tides.pdf")), ("b.pdf", &sample("columns.pdf"))]).await;
        up.begin(id, "mock").await;
        let job = up.until_state(id, "blocked").await;
        let blocked = &job["blocked_by"];
        assert_eq!((&blocked["limit"], &blocked["amount"]), (&json!("rpm"), &json!(1)), "{job:#}");
        assert!(blocked["until_ms"].as_u64().is_some(), "{blocked}");
        let page = up.get(&format!("/jobs/{id}")).await.text();
        assert!(page.contains("blocked by rpm") && page.contains("data-until"), "{page}");
        up.stop().await;
    });
}

#[test]
fn one_page_is_asked_again_compared_and_chosen() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::builder().start_in_thread().unwrap();
        let up = Up::start(directory.path(), vec![local(), mock(&server, limits())], settings()).await;
        let id = up.draft(&[("tides.pdf", &sample("tides.pdf"))]).await;
        up.begin(id, "mock").await;
        up.until_state(id, "done").await;
        let own = up.api("GET", &format!("/jobs/{id}/files/1/pages/1"), Value::Null).await.json();
        let base = format!("/jobs/{id}/read/1/1");
        let asked = up.form(&format!("{base}/ask"), "upstream=local&prompt=List+the+figures.").await;
        assert_eq!(asked.location, Some(format!("{base}?compare=1")));
        let path = format!("/jobs/{id}/files/1/pages/1");
        loop {
            let revision = up.jobs.revision();
            let page = up.api("GET", &path, Value::Null).await.json();
            if page["versions"].as_array().unwrap().len() == 2 {
                assert_eq!(page["versions"][1]["prompt"], "List the figures.");
                break;
            }
            up.jobs.changed(revision).await;
        }
        let both = up.get(&format!("{base}?compare=1")).await.text();
        assert!(both.contains("Use B for this page") && both.contains("List the figures."), "{both}");
        let before = up.get(&format!("/jobs/{id}/download/1.json")).await.json();
        assert_eq!(before["explanations"][0]["explanation"], own["versions"][0]["explanation"]);
        assert_eq!(up.form(&format!("{base}/choose"), "version=1").await.status, 303);
        let page = up.api("GET", &path, Value::Null).await.json();
        let after = up.get(&format!("/jobs/{id}/download/1.json")).await.json();
        assert_eq!(after["explanations"][0]["explanation"], page["versions"][1]["explanation"]);
        assert_ne!(after["explanations"][0]["explanation"], before["explanations"][0]["explanation"]);
        up.stop().await;
    });
}
