//! What is kept.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_batch::jsonl::{Batch, Input, Output};
use tidegate_batch::{Answer, Caller, Dialect, Finish, Kept, Key, Record, Store, Usage};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::{run, spawn, yield_now};

use crate::support::{Bench, Server, answer, write_pdf};

fn record(number: u64) -> Record {
    let usage = Usage { input_tokens: number, output_tokens: 1 };
    let answer = Answer { text: format!("Answer {number}."), usage, finish: Finish::Complete, model: None };
    Record { kept: Kept::Answered(answer), source: "a.pdf".into(), number, attempts: 1 }
}

fn key(number: u64) -> Key {
    Key::of([number.to_le_bytes().as_slice()])
}

#[test]
fn many_results_at_once_take_few_syncs_and_all_of_them_are_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.db");
    run({
        let path = path.clone();
        async move {
            let store = Store::open(&path).unwrap();
            let promises: Vec<_> = (0..1_000).map(|number| store.put(key(number), record(number))).collect();
            for promise in promises {
                promise.await.unwrap();
            }
            let stats = store.stats();
            assert_eq!((stats.results, stats.written), (1_000, 1_000));
            assert!(stats.commits < 200, "{} syncs for 1,000 results", stats.commits);
        }
    })
    .unwrap();
    run(async move {
        let store = Store::open(&path).unwrap();
        for number in 0..1_000 {
            assert!(store.has_answer(&key(number)));
            assert_eq!(store.get(key(number)).await.unwrap(), Some(record(number).kept));
        }
        assert!(!store.has(&key(1_000)));
    })
    .unwrap();
}

#[test]
fn a_result_is_read_as_it_was_last_written_though_nobody_waited_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.db");
    run({
        let path = path.clone();
        async move {
            let store = Store::open(&path).unwrap();
            drop(store.put(key(1), record(1)));
            drop(store.put(key(1), record(2)));
            assert_eq!(store.get(key(1)).await.unwrap(), Some(record(2).kept));
            drop(store.put(key(3), record(3)));
            // The store writes what it was given before it goes.
        }
    })
    .unwrap();
    assert!(Store::open(&path).unwrap().has_answer(&key(3)));
}

/// A kill costs what is in flight and what is answered but not on the disk: together no more than may be in flight.
#[test]
fn while_the_disk_is_slow_no_more_is_sent_than_may_be_in_flight() {
    static DISK_IS_BUSY: AtomicBool = AtomicBool::new(true);
    fn write(_: &[u8]) -> io::Result<()> {
        while DISK_IS_BUSY.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    }
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let requests = folder.path().join("requests.jsonl");
        let line = |id: u32| {
            format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{{"model":"m"}}}}"#)
        };
        std::fs::write(&requests, (0..60).map(|id| line(id) + "\n").collect::<String>()).unwrap();
        let server = Server::start(|_, _| answer("yes")).await;
        let gate = Gate::builder().limit(Limit::concurrency("global", 10)).build().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let batch = Batch::new(Input::File(requests), Output::Stdout).stdout(write);
        let running = spawn(async move { batch.run(&caller).await.unwrap() });
        while server.seen().len() < 10 {
            yield_now().await;
        }
        // More than it takes to send another ten.
        for _ in 0..20_000 {
            yield_now().await;
        }
        assert_eq!(server.seen().len(), 10, "ten are answered and none of them is on the disk");
        DISK_IS_BUSY.store(false, Ordering::Release);
        assert_eq!(running.await.unwrap().answered, 60);
    })
    .unwrap();
}

/// Nothing can be read back from a pipe, so a run that writes to one cannot be resumed.
#[test]
fn a_reader_that_leaves_ends_the_run_and_is_not_told_that_it_could_go_on() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let requests = folder.path().join("requests.jsonl");
        let line = r#"{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}"#;
        std::fs::write(&requests, line).unwrap();
        let server = Server::start(|_, _| answer("yes")).await;
        let gate = Gate::builder().limit(Limit::concurrency("global", 10)).build().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let batch = Batch::new(Input::File(requests), Output::Stdout).stdout(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let said = batch.run(&caller).await.unwrap_err().to_string();
        assert!(said.contains("broken pipe") && said.contains("asks for everything"), "{said}");
        assert!(!said.contains("goes on"), "{said}");
    })
    .unwrap();
}

/// A store that takes three results and no more, as on a disk with room for three.
fn make_small(path: &std::path::Path) {
    drop(Store::open(path).unwrap());
    let database = rusqlite::Connection::open(path).unwrap();
    database
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON results WHEN (SELECT count(*) FROM results) >= 3
             BEGIN SELECT RAISE(ABORT, 'there is no room'); END",
        )
        .unwrap();
}

#[test]
fn explain_counts_what_was_kept_and_stops_paying_when_the_disk_is_full() {
    run(async {
        let bench = Bench::new();
        let results = bench.out().join("results.db");
        make_small(&results);
        let mut options = bench.options(&[write_pdf(bench.folder.path(), "book.pdf", 40)]);
        options.page_concurrency = Some(5);
        let server = Server::start(|_, _| answer("fine")).await;
        let report = bench.run(options, &server).await;
        assert!(report.stopped.as_ref().unwrap().contains("results.db"), "{report:?}");
        let (totals, kept) = (report.totals, Store::open(&results).unwrap().stats().results);
        assert_eq!(kept, 3, "as many as there is room for, though they came together with others");
        assert_eq!((totals.done, totals.failed, totals.missing), (kept, 0, 40 - kept), "{totals:?}");
        assert_eq!(totals.unkept, totals.requests - kept, "{totals:?}");
        assert!(totals.requests < 20, "it went on paying: {totals:?}");
        assert!(!report.is_complete());
        let lost = format!("{} answer", totals.unkept);
        assert!(report.to_text().contains(&lost), "{}", report.to_text());
        let written = bench.read("book");
        assert_eq!(written.count(tidegate_batch::Status::Done) as u64, kept);
    })
    .unwrap();
}
