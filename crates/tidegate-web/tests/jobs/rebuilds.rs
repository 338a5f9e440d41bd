//! Pairs of a PDF and JSON: shown and downloaded without a request.

use serde_json::{Value, json};

use crate::support::{Up, local, on_loop, sample, settings, unzip};

fn explanations() -> Vec<u8> {
    json!({
        "schema": "tidegate.explanations/1",
        "file": "../../etc/passwd",
        "source": "/etc/passwd",
        "explanations": [
            {"page": 1, "status": "done", "explanation": "# The **tides**\n\n<script>alert(1)</script> turn <b>twice</b> a day."},
            {"page": 9999, "status": "done", "explanation": "a page that the PDF does not have"},
        ],
    })
    .to_string()
    .into_bytes()
}

#[test]
fn a_pair_is_shown_searched_and_downloaded_and_its_source_is_not_read() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let pdf = sample("tides.pdf");
        let id = up.draft(&[("tides.pdf", &pdf), ("tides.json", &explanations())]).await;
        assert_eq!(up.job(id).await["kind"], "rebuild");
        let started = up.form(&format!("/jobs/{id}/start"), "do=start&name=Tides").await;
        assert_eq!((started.status, started.location), (303, Some(format!("/jobs/{id}"))));
        let job = up.until_state(id, "done").await;
        assert_eq!((&job["pages"]["pages"], &job["pages"]["cached"]), (&json!(1), &json!(1)), "{job:#}");

        let page = up.get(&format!("/jobs/{id}/read/1/1?q=TIDES")).await.text();
        assert!(page.contains("<strong><mark>tides</mark></strong>"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script>alert"), "{page}");
        assert!(!page.contains("passwd"), "{page}");
        let picture = up.get(&format!("/jobs/{id}/picture/1/1?px=300")).await;
        assert!(picture.body.starts_with(b"\x89PNG") || picture.body.starts_with(b"RIFF"));

        let archive = up.get(&format!("/jobs/{id}/download/all.zip")).await;
        assert_eq!(
            archive.disposition.as_deref(),
            Some("attachment; filename=\"tides.zip\"; filename*=UTF-8''tides%2Ezip")
        );
        let entries = unzip(&archive.body);
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["tides.html", "tides.md", "tides.json"]);
        let html = String::from_utf8_lossy(&entries[0].1).into_owned();
        assert!(
            html.contains("<img alt=") && html.contains("data:image/") && !html.contains("<script>alert"),
            "no picture, or a script"
        );
        let json: Value = serde_json::from_slice(&entries[2].1).unwrap();
        assert_eq!((&json["file"], &json["explanations"][1]), (&json!("tides.pdf"), &Value::Null));
        up.stop().await;
    });
}

#[test]
fn a_job_is_the_same_after_a_restart() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let id = up.draft(&[("a.json", &explanations())]).await;
        up.form(&format!("/jobs/{id}/start"), "do=start").await;
        let before = up.until_state(id, "done").await;
        up.stop().await;
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        assert_eq!(up.job(id).await, before);
        assert!(up.get(&format!("/jobs/{id}/read/1/9999")).await.text().contains("does not have"));
        up.stop().await;
    });
}
