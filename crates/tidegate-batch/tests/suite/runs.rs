//! Runs, from PDFs to outputs.

use std::cell::{Cell, RefCell};
use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_batch::{
    Change, Explain, FileState, ItemId, ItemState, Local, Quotas, Rebuild, Selection, Status, Store, find_json,
};
use tidegate_loop::{run, spawn, timeout, yield_now};

use crate::support::{Act, Bench, Server, answer, data, error, gate, pdf, reader, sample, write_pdf};

#[test]
fn every_page_is_asked_about_once_with_its_neighbours_and_lands_in_every_output() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 5);
        let server = Server::start(|_, seen| answer(&format!("About page {}.", seen.page()))).await;
        let report = bench.run(bench.options(&[path]), &server).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.totals.done, report.totals.requests, report.totals.tokens.total()), (5, 5, 550));
        assert_eq!(server.pages().into_values().collect::<Vec<_>>(), [1; 5]);
        let third = server.seen().into_iter().find(|seen| seen.page() == 3).unwrap();
        for entry in ["number 2", "number 3", "number 4"] {
            assert!(third.text.contains(entry), "{}", third.text);
        }
        assert!(!third.text.contains("number 5"));

        let read = bench.read("book");
        assert_eq!(read.explanations[2].explanation.as_deref(), Some("About page 3."));
        assert_eq!((read.pages, read.model.as_str(), read.source.as_str()), (5, "test", "../book.pdf"));
        let markdown = fs::read_to_string(bench.out().join("book.md")).unwrap();
        assert!(markdown.contains("## Page 5\n\nAbout page 5."));
        let html = fs::read_to_string(bench.out().join("book.html")).unwrap();
        assert_eq!(html.matches("data:image/png;base64,iVBOR").count(), 5);
        assert!(html.contains("<p>About page 4.</p>"));
        let report_json: serde_json::Value =
            serde_json::from_slice(&fs::read(bench.out().join("report.json")).unwrap()).unwrap();
        assert_eq!(report_json["totals"]["done"], 5);
        assert_eq!(report_json["schema"], "tidegate.report/1");
        assert_eq!(report_json["confinement"]["seccomp"], "full");
        assert!(!report_json["confinement"]["landlock"].is_null());
    })
    .unwrap();
}

#[test]
fn what_is_kept_is_not_asked_for_again_and_gives_the_same_bytes() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 4);
        let server = Server::start(|_, seen| answer(&format!("About page {}.", seen.page()))).await;
        let options = || bench.options(std::slice::from_ref(&path));
        bench.run(options(), &server).await;
        let before = fs::read(bench.out().join("book.json")).unwrap();
        fs::remove_file(bench.out().join("book.json")).unwrap();
        let report = bench.run(options(), &server).await;
        assert_eq!((report.totals.done, report.totals.kept, report.totals.requests), (4, 4, 0));
        assert_eq!(report.limits.last().unwrap().amount, 50, "the page concurrency of a file of four pages");
        assert_eq!(server.seen().len(), 4);
        assert_eq!(fs::read(bench.out().join("book.json")).unwrap(), before);
        // Another question is another answer; --fresh asks anyway.
        let mut other = options();
        other.context_pages = 0;
        assert_eq!(bench.run(other, &server).await.totals.requests, 4);
        let mut fresh = options();
        fresh.fresh = true;
        assert_eq!(bench.run(fresh, &server).await.totals.requests, 4);
    })
    .unwrap();
}

#[test]
fn a_page_that_fails_for_good_is_not_paid_for_again_unless_asked() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 3);
        let filtered =
            r#"{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}],"usage":{"prompt_tokens":9}}"#;
        let server = Server::start(move |_, seen| match seen.page() {
            1 => Act::Say(200, filtered.into()),
            2 => error(500, "oops", "server_error"),
            _ => answer("fine"),
        })
        .await;
        let options = || bench.options(std::slice::from_ref(&path));
        let report = bench.run(options(), &server).await;
        assert_eq!((report.totals.done, report.totals.failed), (1, 2));
        assert!(!report.is_complete());
        assert!(report.failures.iter().any(|group| group.pages == [1] && group.code == "declined"), "{report:?}");
        assert!(report.to_text().contains("page 2"), "{}", report.to_text());
        assert_eq!(server.pages(), [(1, 1), (2, 3), (3, 1)].into());

        let again = bench.run(options(), &server).await;
        assert_eq!((again.totals.done, again.totals.failed), (1, 2));
        assert_eq!(server.pages(), [(1, 1), (2, 6), (3, 1)].into(), "what passes is asked again, what lasts is not");
        assert!(bench.read("book").explanations[0].error.as_ref().unwrap().reason.contains("--retry-failed"));

        let mut retry = options();
        retry.retry_failed = true;
        bench.run(retry, &server).await;
        assert_eq!(server.pages(), [(1, 2), (2, 9), (3, 1)].into());
    })
    .unwrap();
}

#[test]
fn pages_are_counted_before_their_files_turn_and_a_stopped_run_counts_all_of_them() {
    run(async {
        let mut bench = Bench::new();
        // One request, then none for an hour.
        bench.quotas.rpm = Some(1);
        bench.quotas.minute = Duration::from_secs(3_600);
        let folder = bench.folder.path();
        let paths = [("a.pdf", 3), ("b.pdf", 4), ("c.pdf", 5)].map(|(name, pages)| write_pdf(folder, name, pages));
        let server = Server::start(|_, _| answer("fine")).await;
        let mut options = bench.options(&paths);
        options.file_concurrency = Some(1);
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let running = spawn(explain.run());
        let counted = async {
            while control.progress().more || control.progress().done == 0 {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), counted).await.expect("the pages of all files are counted");
        let progress = control.progress();
        assert_eq!((progress.total, progress.done, progress.per_minute), (12, 1, 1.0));
        assert_eq!(progress.files[2].state, FileState::Waiting);
        assert!(progress.remaining.is_some_and(|left| left > Duration::from_secs(10 * 3_600)), "{progress:?}");
        control.finish("enough");
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.totals.pages, report.totals.done, report.totals.missing), (12, 1, 11));
        assert_eq!(report.totals.files_uncounted, 0);
        assert!(report.to_text().starts_with("1 of 12 pages explained, 3 files,"), "{}", report.to_text());
    })
    .unwrap();
}

#[test]
fn one_bad_file_fails_alone_with_its_reason() {
    run(async {
        let bench = Bench::new();
        let folder = bench.folder.path();
        let good = write_pdf(folder, "good.pdf", 2);
        fs::write(folder.join("empty.pdf"), b"").unwrap();
        fs::write(folder.join("text.pdf"), b"This is no PDF at all.").unwrap();
        let inputs = [folder.join("empty.pdf"), data("broken.pdf"), folder.join("text.pdf"), good];
        let server = Server::start(|_, _| answer("fine")).await;
        let told = Rc::new(RefCell::new(Vec::new()));
        let explain = bench.explain(bench.options(&inputs), &server).on_event({
            let told = Rc::clone(&told);
            move |event| match &event.change {
                Change::FileFailed { name, .. } => told.borrow_mut().push(name.to_string()),
                Change::FileDone { name, .. } => told.borrow_mut().push(format!("{name} done")),
                _ => {}
            }
        });
        let control = explain.control();
        let report = explain.run().await.unwrap();
        assert_eq!((report.totals.files_failed, report.totals.done), (3, 2));
        assert_eq!(*told.borrow(), ["empty.pdf", "broken.pdf", "text.pdf", "good.pdf done"]);
        assert!(report.files[..3].iter().all(|file| file.error.is_some()));
        let states: Vec<FileState> = control.progress().files.iter().map(|file| file.state).collect();
        assert_eq!(states, [FileState::Failed, FileState::Failed, FileState::Failed, FileState::Done]);
    })
    .unwrap();
}

/// llama.cpp says so with a 500, OpenRouter with a 404: neither is tried again, and neither stops the pages that have text.
#[test]
fn a_model_without_eyes_fails_pages_without_text_and_no_others() {
    run(async {
        for status in [400, 404, 500] {
            let bench = Bench::new();
            let server = Server::start(move |_, seen| match seen.body["messages"][0]["content"].is_array() {
                true => error(status, "image input is not supported - hint: you may need to provide the mmproj", ""),
                false => answer("read"),
            })
            .await;
            let inputs = [sample("scan.pdf"), sample("tides.pdf")];
            let report = bench.run(bench.options(&inputs), &server).await;
            assert_eq!((report.totals.done, report.totals.failed, report.totals.requests), (4, 2, 6), "{report:?}");
            let failure = &report.failures[0];
            assert_eq!((failure.code.as_str(), failure.pages.len()), ("no_pictures", 2));
            assert!(failure.reason.starts_with("the model takes no pictures"), "{failure:?}");
            assert_eq!(report.stopped, None);
            bench.run(bench.options(&inputs), &server).await;
            assert_eq!(server.seen().len(), 8, "asked again by the next run: the server may have been given eyes");
        }
    })
    .unwrap();
}

#[test]
fn a_page_without_text_goes_as_a_picture_or_is_marked() {
    run(async {
        let bench = Bench::new();
        let server = Server::start(|_, seen| {
            let url = seen.body["messages"][0]["content"][1]["image_url"]["url"].as_str().unwrap_or_default();
            answer(if url.starts_with("data:image/png;base64,iVBOR") { "seen" } else { "read" })
        })
        .await;
        let report = bench.run(bench.options(&[sample("scan.pdf")]), &server).await;
        assert_eq!(report.totals.done, 2);
        let read = bench.read("scan");
        assert!(read.explanations.iter().all(|entry| entry.explanation.as_deref() == Some("seen")));
        assert!(read.explanations.iter().all(|entry| entry.text_quality.as_deref() == Some("missing")));

        let offline = Bench::new();
        let gate = gate(&Quotas::default());
        let store = Store::open(offline.out().join("results.db")).unwrap();
        let provider = Rc::new(Local::new(&gate));
        let options = offline.options(&[sample("scan.pdf"), sample("tides.pdf")]);
        let report = Explain::new(options, provider, "local", &gate, store).with_reader(reader()).run().await.unwrap();
        assert_eq!((report.totals.skipped, report.totals.done), (2, 4));
        assert!(report.is_complete(), "marked, and no failure");
        let entry = &offline.read("scan").explanations[0];
        assert_eq!(entry.status, Status::Skipped);
        assert!(entry.error.as_ref().unwrap().reason.contains("does not look at pictures"));
    })
    .unwrap();
}

#[test]
fn blank_pages_are_not_sent_and_are_counted() {
    run(async {
        let bench = Bench::new();
        let folder = bench.folder.path();
        let text = "The harbour keeps a book of ships, and this is the first entry in it.".to_owned();
        let (mixed, blank, none) = (folder.join("mixed.pdf"), folder.join("blank.pdf"), folder.join("none.pdf"));
        // A lone number is ink: its page goes as a picture.
        fs::write(&mixed, pdf(&[text, String::new(), "7".into()])).unwrap();
        fs::write(&blank, pdf(&[String::new(), "   ".into()])).unwrap();
        fs::write(&none, pdf(&[])).unwrap();
        let server = Server::start(|_, _| answer("fine")).await;
        let report = bench.run(bench.options(&[mixed, blank.clone(), none.clone()]), &server).await;
        assert_eq!(server.pages(), [(1, 1), (3, 1)].into());
        let totals = &report.totals;
        assert_eq!((totals.done, totals.skipped, totals.blank, totals.files_failed), (2, 3, 3, 1));
        assert_eq!(report.files.iter().map(|file| file.blank).collect::<Vec<_>>(), [1, 2, 0]);
        assert!(report.to_text().contains("3 pages are blank; nothing was sent for them"), "{}", report.to_text());
        assert!(!report.to_text().contains("no text that can be read"), "{}", report.to_text());
        assert!(report.files[2].error.as_ref().unwrap().ends_with("none.pdf has no pages"), "{report:?}");
        let entry = &bench.read("mixed").explanations[1];
        assert_eq!((entry.status, entry.error.as_ref().unwrap().code.as_str()), (Status::Skipped, "blank"));
        let markdown = fs::read_to_string(bench.out().join("blank.md")).unwrap();
        assert!(
            markdown.contains("2 blank") && markdown.contains("## Page 2\n\n> **This page is blank.**"),
            "{markdown}"
        );
        let html = fs::read_to_string(bench.out().join("blank.html")).unwrap();
        assert_eq!(html.matches("This page is blank.").count(), 2, "{html}");

        let alone = Bench::new();
        let report = alone.run(alone.options(&[blank]), &server).await;
        assert!(report.is_complete() && report.totals.requests == 0, "{report:?}");
        assert!(report.to_text().starts_with("0 of 2 pages explained"), "{}", report.to_text());

        let offline = Bench::new();
        let gate = gate(&Quotas::default());
        let store = Store::open(offline.out().join("results.db")).unwrap();
        let options = offline.options(&[folder.join("mixed.pdf")]);
        let provider = Rc::new(Local::new(&gate));
        let report = Explain::new(options, provider, "local", &gate, store).with_reader(reader()).run().await.unwrap();
        assert_eq!((report.totals.done, report.totals.skipped, report.totals.blank), (1, 2, 1));
    })
    .unwrap();
}

#[test]
fn fonts_that_do_not_name_their_characters_are_reported() {
    run(async {
        let bench = Bench::new();
        let path = bench.folder.path().join("odd.pdf");
        let text = "The harbour keeps a book of ships, and this is the first entry in it.".to_owned();
        let bytes = String::from_utf8(pdf(&[text.clone(), text])).unwrap();
        // Glyph names that stand for no character, for two letters of the text.
        let encoding = "/Encoding << /Type /Encoding /Differences [98 /g17 111 /g18] >> ";
        let bytes = bytes.replace("/Encoding /WinAnsiEncoding", encoding);
        fs::write(&path, bytes).unwrap();
        let server = Server::start(|_, _| answer("fine")).await;
        let report = bench.run(bench.options(&[path]), &server).await;
        let group = report.warnings.iter().find(|group| group.warning.contains("does not say which characters"));
        assert_eq!(group.map(|group| group.pages.as_slice()), Some(&[1, 2][..]), "{report:?}");
        assert!(report.to_text().contains("warning: odd.pdf, pages 1-2: a font"), "{}", report.to_text());
        let read = bench.read("odd");
        assert!(read.explanations.iter().all(|entry| !entry.warnings.is_empty()), "{read:?}");
    })
    .unwrap();
}

#[test]
fn a_wrong_key_or_model_ends_the_run_after_one_answer_and_says_so() {
    run(async {
        for (status, code) in [(401, "invalid_api_key"), (404, "model_not_found")] {
            let bench = Bench::new();
            let path = write_pdf(bench.folder.path(), "book.pdf", 30);
            let server = Server::start(move |_, _| error(status, "The model or the key is wrong", code)).await;
            let mut options = bench.options(&[path]);
            options.page_concurrency = Some(2);
            let report = bench.run(options, &server).await;
            assert_eq!(report.totals.done, 0);
            assert!(report.stopped.as_ref().unwrap().contains(&status.to_string()), "{report:?}");
            assert!(server.seen().len() <= 2, "those under way, and nobody else");
            assert_eq!(report.totals.missing, 30);
        }
    })
    .unwrap();
}

#[test]
fn a_server_that_is_down_is_given_up_before_every_page_has_tried() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 60);
        let server = Server::start(|_, _| error(500, "down", "server_error")).await;
        let mut options = bench.options(&[path]);
        options.page_concurrency = Some(2);
        let report = bench.run(options, &server).await;
        assert!(report.stopped.as_ref().unwrap().contains("in a row"), "{report:?}");
        assert!(server.pages().len() < 20, "{:?}", server.pages());
    })
    .unwrap();
}

#[test]
fn a_page_above_the_limit_fails_alone() {
    run(async {
        let mut bench = Bench::new();
        bench.quotas.tpm = Some(2_000);
        let path = bench.folder.path().join("book.pdf");
        let long = "A very long line of text about harbours and ships and tides. ".repeat(200);
        fs::write(&path, crate::support::pdf(&["A short page about ships and tides.".to_owned(), long])).unwrap();
        let server = Server::start(|_, _| answer("fine")).await;
        let mut options = bench.options(&[path]);
        options.context_pages = 0;
        let report = bench.run(options, &server).await;
        assert_eq!((report.totals.done, report.totals.failed), (1, 1));
        let entry = &bench.read("book").explanations[1];
        let note = entry.error.as_ref().unwrap();
        assert!(note.code == "too_large" && note.reason.contains("tpm, which is 2000"), "{note:?}");
    })
    .unwrap();
}

#[test]
fn a_run_that_is_stopped_finishes_what_was_sent_keeps_it_and_can_be_taken_up_again() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 12);
        let server = Server::start(|_, seen| answer(&format!("About page {}.", seen.page()))).await;
        let mut options = bench.options(std::slice::from_ref(&path));
        options.page_concurrency = Some(2);
        let explain = bench.explain(options.clone(), &server);
        let (control, done) = (explain.control(), Cell::new(0));
        let explain = explain.on_event(move |event| {
            if let Change::Item { state: ItemState::Done, .. } = event.change {
                done.set(done.get() + 1);
                if done.get() == 3 {
                    control.finish("enough");
                }
            }
        });
        let report = explain.run().await.unwrap();
        assert_eq!(report.stopped.as_deref(), Some("enough"));
        assert!(report.totals.done >= 3 && report.totals.missing > 0, "{report:?}");
        assert_eq!(report.totals.done, server.seen().len() as u64, "what was sent was waited for");
        let partial = bench.read("book");
        assert_eq!(partial.count(Status::Missing) as u64, report.totals.missing);
        assert!(fs::read_to_string(bench.out().join("book.html")).unwrap().contains("Not explained yet"));

        let report = bench.run(options, &server).await;
        assert!(report.is_complete());
        assert_eq!(server.seen().len(), 12, "each page was paid for once");
        assert_eq!(bench.read("book").count(Status::Done), 12);
    })
    .unwrap();
}

#[test]
fn calls_that_are_dropped_leave_their_pages_for_the_next_run() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 6);
        let server = Server::start(|number, _| if number < 2 { answer("fine") } else { Act::Hang }).await;
        let mut options = bench.options(&[path]);
        options.page_concurrency = Some(1);
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let explain = explain.on_event(move |event| {
            if let Change::Item { item: ItemId::Page { page: 2, .. }, state: ItemState::Done, .. } = event.change {
                control.drop_calls("at once");
            }
        });
        let report = explain.run().await.unwrap();
        assert_eq!((report.totals.done, report.totals.missing), (2, 4));
        let store = Store::open(bench.out().join("results.db")).unwrap();
        assert_eq!(store.stats().results, 2);
    })
    .unwrap();
}

#[test]
fn only_the_pages_asked_for_are_explained() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", 9);
        let server = Server::start(|_, _| answer("fine")).await;
        let mut options = bench.options(std::slice::from_ref(&path));
        options.selection = "2-3,8-".parse().unwrap();
        let report = bench.run(options, &server).await;
        assert_eq!(server.pages().into_keys().collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert_eq!(report.totals.pages, 4);
        let mut none = bench.options(&[path]);
        none.selection = "20-30".parse::<Selection>().unwrap();
        let report = bench.run(none, &server).await;
        assert!(report.files[0].error.as_ref().unwrap().contains("which has 9"), "{report:?}");
    })
    .unwrap();
}

#[test]
fn as_many_requests_are_under_way_as_allowed_and_no_more() {
    run(async {
        let mut bench = Bench::new();
        bench.quotas.global_concurrency = 5;
        let files: Vec<_> = (0..4).map(|n| write_pdf(bench.folder.path(), &format!("b{n}.pdf"), 8)).collect();
        // Nobody is answered before five are under way, which takes two files at least.
        let five = Arc::new(tidegate_sync::Event::new());
        let server = Server::start(move |number, _| {
            if number == 4 {
                five.set();
            }
            if number < 5 { Act::Hold(Arc::clone(&five), "fine") } else { answer("fine") }
        })
        .await;
        let mut options = bench.options(&files);
        options.page_concurrency = Some(3);
        options.html_px = None;
        let report = bench.run(options, &server).await;
        assert_eq!((report.totals.done, report.peak_in_flight), (32, 5));
    })
    .unwrap();
}

#[test]
fn outputs_are_made_again_from_json_also_from_elsewhere() {
    run(async {
        let bench = Bench::new();
        let folder = bench.folder.path();
        write_pdf(folder, "ours.pdf", 2);
        let server = Server::start(|_, seen| answer(&format!("About *page* {}.", seen.page()))).await;
        bench.run(bench.options(&[folder.join("ours.pdf")]), &server).await;
        let html = fs::read(bench.out().join("ours.html")).unwrap();
        fs::remove_file(bench.out().join("ours.html")).unwrap();
        fs::remove_file(bench.out().join("ours.md")).unwrap();

        let foreign = folder.join("foreign");
        fs::create_dir_all(&foreign).unwrap();
        write_pdf(&foreign, "theirs.pdf", 3);
        let pairs = r#"[{"page_number": 1, "content": "First."}, {"page_number": 3, "content": "Third."}]"#;
        fs::write(foreign.join("theirs.json"), pairs).unwrap();
        fs::write(foreign.join("alone.json"), r#"{"1": "No PDF."}"#).unwrap();
        fs::write(foreign.join("wrong.json"), r#"{"hello": "world"}"#).unwrap();

        let calls = server.seen().len();
        let inputs = find_json(&[bench.out(), foreign.clone()]).unwrap();
        assert_eq!(inputs.len(), 4, "the report is none");
        let rebuild =
            Rebuild { html_px: Some(64), reader: reader(), trees: vec![folder.to_owned()], ..Rebuild::default() };
        let done = rebuild.run(inputs, |_| ()).await;
        assert_eq!(server.seen().len(), calls, "nobody was asked");
        assert_eq!(fs::read(bench.out().join("ours.html")).unwrap(), html, "the same page again");
        let theirs = fs::read_to_string(foreign.join("theirs.html")).unwrap();
        assert_eq!(theirs.matches("data:image/png").count(), 2);
        assert!(theirs.contains("Third.") && theirs.contains("2 of 3 pages"));
        assert!(fs::read_to_string(foreign.join("alone.md")).unwrap().contains("No PDF."));
        let failed: Vec<_> = done.iter().filter(|one| one.outcome.is_err()).collect();
        assert!(failed.len() == 1 && failed[0].json.ends_with("wrong.json"), "{failed:?}");
        assert_eq!(fs::read_to_string(foreign.join("theirs.json")).unwrap(), pairs, "others' files are left alone");
    })
    .unwrap();
}
