//! Input that means harm, or is simply wrong: a clear answer, and nothing left behind.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use serde_json::{Value, json};
use tidegate_loop::spawn;
use tidegate_web::jobs::{Jobs, UploadLimits};

use crate::support::{Up, local, multipart, on_loop, sample, settings};

/// All files below `path`, relative to it.
fn files(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.file_name().to_string_lossy().into_owned()),
        }
    }
    found
}

/// The bytes of all files below `path`.
fn size_below(path: &Path) -> u64 {
    let entries = fs::read_dir(path).unwrap().flatten();
    entries
        .map(|entry| match entry.metadata().unwrap() {
            about if about.is_dir() => size_below(&entry.path()),
            about => about.len(),
        })
        .sum()
}

#[test]
fn a_name_never_becomes_a_path_and_is_shown_as_text() {
    on_loop(|| async {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("serve");
        let up = Up::start(&directory, vec![local()], settings()).await;
        let pdf = sample("tides.pdf");
        let hostile = [
            "../../../evil.pdf",
            "/etc/cron.d/evil.pdf",
            "<img src=x onerror=alert(1)>.pdf",
            "a\u{202e}fdp.pdf",
            "C:\\evil.pdf",
        ];
        let uploads: Vec<(&str, &[u8])> = hostile.iter().map(|name| (*name, pdf.as_slice())).collect();
        let id = up.draft(&uploads).await;
        let job = up.job(id).await;
        let names: Vec<&str> =
            job["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["evil.pdf", "evil (2).pdf", "<img src=x onerror=alert(1)>.pdf", "afdp.pdf", "evil (3).pdf"]);
        let stored = files(outer.path());
        assert!(!stored.iter().any(|name| name.contains("evil") || name.contains("img")), "{stored:?}");
        let page = up.get(&format!("/jobs/{id}")).await.text();
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;.pdf") && !page.contains("<img src=x"), "{page}");
        up.stop().await;
    });
}

#[test]
fn what_is_too_large_or_too_much_is_refused_and_removed() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.uploads = UploadLimits { file_bytes_max: 100_000, files_max: 2, disk_bytes_max: 400_000 };
        let up = Up::start(directory.path(), vec![local()], settings).await;
        let refused = |answered: crate::support::Answered| (answered.status, answered.error());
        let large = vec![b'x'; 100_001];
        let (status, message) = refused(up.upload("/api/v1/jobs", &[("a.pdf", &large)]).await);
        assert_eq!((status, message.contains("larger than")), (413, true), "{message}");
        let (status, message) = refused(up.upload("/api/v1/jobs", &[("a", b"1"), ("b", b"2"), ("c", b"3")]).await);
        assert_eq!((status, message.contains("at most 2 files")), (413, true), "{message}");
        let (status, message) = refused(up.upload("/api/v1/jobs", &[("a.txt", b"no PDF")]).await);
        assert_eq!((status, message.as_str()), (400, "a.txt: it is neither a PDF nor JSON."));
        let (status, _) = refused(up.upload("/api/v1/jobs", &[]).await);
        assert_eq!(status, 400);
        let (kind, mut body) = multipart(&[("a.pdf", b"%PDF-1.4")]);
        body.truncate(body.len() - 8);
        let cut = up.send("POST", "/api/v1/jobs", kind, body).await;
        assert_eq!((cut.status, cut.error().contains("ended before")), (400, true), "{}", cut.text());
        assert_eq!(up.api("GET", "/jobs", Value::Null).await.json()["jobs"], json!([]));
        assert_eq!(fs::read_dir(directory.path().join("incoming")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(directory.path().join("jobs")).unwrap().count(), 0);
        up.stop().await;
    });
}

#[test]
fn when_the_space_is_used_up_an_upload_says_so() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings();
        // The empty database alone is larger.
        settings.uploads.disk_bytes_max = 1_000;
        let up = Up::start(directory.path(), vec![local()], settings).await;
        let answered = up.upload("/api/v1/jobs", &[("a.pdf", b"%PDF-1.4")]).await;
        assert_eq!((answered.status, answered.error().contains("--max-disk")), (507, true), "{}", answered.text());
        up.stop().await;
    });
}

#[test]
fn uploads_at_once_do_not_store_more_than_one_after_the_other() {
    on_loop(|| async {
        const MAX: u64 = 4_000_000;
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.uploads.disk_bytes_max = MAX;
        let up = Rc::new(Up::start(directory.path(), vec![local()], settings).await);
        let file = Rc::new([&b"%PDF-1.4 "[..], &vec![b'x'; 900_000]].concat());
        let sending: Vec<_> = (0..12)
            .map(|_| {
                let (up, file) = (Rc::clone(&up), Rc::clone(&file));
                spawn(async move { up.upload("/api/v1/jobs", &[("a.pdf", &file)]).await })
            })
            .collect();
        let mut stored = Vec::new();
        for answered in sending {
            let answered = answered.await.unwrap();
            match answered.status {
                200 => stored.push(answered.json()["id"].clone()),
                status => {
                    assert_eq!((status, answered.error().contains("--max-disk")), (507, true), "{}", answered.text());
                }
            }
        }
        let bytes = size_below(&directory.path().join("jobs"));
        assert!(bytes <= MAX && stored.len() >= 3, "{} files, {bytes} bytes", stored.len());
        // What was reserved is returned: after one is deleted there is room for one.
        let deleted = up.api("DELETE", &format!("/jobs/{}", stored[0]), Value::Null).await;
        assert_eq!(deleted.status, 200, "{}", deleted.text());
        let again = up.upload("/api/v1/jobs", &[("a.pdf", &file)]).await;
        assert_eq!(again.status, 200, "{}", again.text());
        Rc::into_inner(up).unwrap().stop().await;
    });
}

#[test]
fn a_file_that_is_no_pdf_inside_is_named_and_leaves_the_others_alone() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let pdf = sample("tides.pdf");
        let id = up.draft(&[("broken.pdf", b"%PDF-1.7 nothing more"), ("tides.pdf", &pdf)]).await;
        let job = up.job(id).await;
        assert_eq!((&job["files"][0]["status"], &job["files"][1]["status"]), (&json!("broken"), &json!("readable")));
        let reason = job["files"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("broken.pdf") && !reason.contains(&directory.path().display().to_string()), "{reason}");
        up.stop().await;
    });
}

#[test]
fn one_server_at_a_time_has_a_directory() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        let error = Jobs::open(directory.path(), vec![local()], settings()).await.unwrap_err().to_string();
        assert!(error.contains("another server has"), "{error}");
        up.stop().await;
    });
}

#[test]
fn what_is_not_there_is_not_found_and_wrong_options_are_explained() {
    on_loop(|| async {
        let directory = tempfile::tempdir().unwrap();
        let up = Up::start(directory.path(), vec![local()], settings()).await;
        for path in [
            "/jobs/99",
            "/jobs/x",
            "/jobs/99/read/1/1",
            "/jobs/99/download/all.zip",
            "/jobs/99/download/..%2f..%2fx.json",
        ] {
            assert_eq!(up.get(path).await.status, 404, "{path}");
        }
        let pdf = sample("tides.pdf");
        let id = up.draft(&[("tides.pdf", &pdf)]).await;
        for (fields, says) in [
            ("upstream=nowhere", "no upstream has that name"),
            ("upstream=local&prompt={pgae}", "{pgae}"),
            ("upstream=local&pages=9-3", "9-3"),
            ("upstream=local&page_concurrency=0", "above 0"),
            ("upstream=local&context_pages=many", "whole number"),
        ] {
            let answered = up.form(&format!("/jobs/{id}/start"), &fields.replace('{', "%7B").replace('}', "%7D")).await;
            assert!(answered.text().to_lowercase().contains(says), "{fields}: {}", answered.text());
            assert_eq!(up.job(id).await["state"], "draft", "{fields}");
        }
        assert_eq!(up.api("POST", &format!("/jobs/{id}/pause"), Value::Null).await.status, 409);
        up.stop().await;
    });
}
