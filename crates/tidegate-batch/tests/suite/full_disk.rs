//! Disks that fill while answers are in flight: what is paid for is saved, and nothing more is paid for.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tidegate_batch::jsonl::{Batch, EndedEarly, Input, Output, Summary};
use tidegate_batch::{Caller, Dialect, Explain, ExplainError, Report, Store, StoreError};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::{run, spawn, yield_now};
use tidegate_sync::Event;

use crate::support::{Act, Bench, Server, answer, write_pdf};

/// A disk of its own, taken away with the test. Only root can have one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, megabytes: u32) -> Option<SmallDisk> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tidegate-test"])
            .arg(at)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("no disk could be mounted: only root can try one that is full");
        }
        mounted.then(|| SmallDisk(at.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills what is free.
    fn fill(&self) {
        let mut filler = File::options().append(true).create(true).open(self.filler()).unwrap();
        for size in [1 << 20, 4 << 10, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Requests beside a disk with their results.
struct Place {
    disk: SmallDisk,
    folder: tempfile::TempDir,
}

impl Place {
    fn new(megabytes: u32, requests: usize) -> Option<Place> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("disk")).unwrap();
        let disk = SmallDisk::mount(&folder.path().join("disk"), megabytes)?;
        let line = |id: usize| {
            format!(
                "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{{\"model\":\"m\"}}}}\n"
            )
        };
        fs::write(folder.path().join("requests.jsonl"), (0..requests).map(line).collect::<String>()).unwrap();
        Some(Place { disk, folder })
    }

    fn results(&self) -> PathBuf {
        self.disk.0.join("results.jsonl")
    }

    async fn run(&self, server: &Server, in_flight: u64) -> Summary {
        let gate = Gate::builder().limit(Limit::concurrency("global", in_flight)).build().unwrap();
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap();
        let input = Input::File(self.folder.path().join("requests.jsonl"));
        Batch::new(input, Output::File(self.results())).run(&caller).await.unwrap()
    }

    /// The number of results; no request has two, and every line is whole.
    fn saved(&self) -> u64 {
        let text = fs::read_to_string(self.results()).unwrap();
        let ids: BTreeSet<String> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids.len(), text.lines().count());
        ids.len() as u64
    }
}

fn is_full(summary: &Summary) -> bool {
    matches!(summary.ended_early, Some(EndedEarly::Full(_)))
}

#[test]
fn a_disk_that_fills_costs_nothing_of_what_is_in_flight() {
    let Some(place) = Place::new(16, 1_000) else { return };
    run(async move {
        let may_answer = Arc::new(Event::new());
        let held = Arc::clone(&may_answer);
        let text: &'static str = "tide ".repeat(2_000).leak();
        let server = Server::start(move |_, _| Act::Hold(Arc::clone(&held), text)).await;
        let (place, server) = (Rc::new(place), Rc::new(server));
        let running = {
            let (place, server) = (Rc::clone(&place), Rc::clone(&server));
            spawn(async move { place.run(&server, 200).await })
        };
        while server.seen().len() < 200 {
            yield_now().await;
        }
        place.disk.fill();
        may_answer.set();
        let summary = running.await.unwrap();
        assert!(is_full(&summary), "{summary:?}");
        assert_eq!((summary.answered, summary.unkept, summary.failed), (200, 0, 0), "{summary:?}");
        assert_eq!((place.saved(), server.seen().len()), (200, 200), "all that was paid for, and nothing more");

        let again = place.run(&server, 200).await;
        assert!(is_full(&again) && (again.answered, again.cached) == (0, 200), "{again:?}");
        place.disk.fill();
        let again = place.run(&server, 200).await;
        assert!(is_full(&again) && (again.answered, again.cached) == (0, 200), "{again:?}");
        assert_eq!(server.seen().len(), 200, "nothing is paid for on a disk that is full");

        place.disk.make_room();
        let rest = place.run(&server, 200).await;
        assert_eq!((rest.ended_early, rest.answered, rest.cached), (None, 800, 200));
        assert_eq!((place.saved(), server.seen().len()), (1_000, 1_000));
        place.disk.fill();
        let nothing = place.run(&server, 200).await;
        assert_eq!((nothing.ended_early, nothing.cached), (None, 1_000), "what is done needs no space");
    })
    .unwrap();
}

#[test]
fn a_disk_that_is_too_small_is_used_up_and_no_answer_lost() {
    let Some(place) = Place::new(2, 20_000) else { return };
    run(async move {
        let server = Server::start(|_, _| answer("yes")).await;
        let first = place.run(&server, 100).await;
        assert!(is_full(&first) && first.unkept == 0, "{first:?}");
        assert_eq!((first.answered, server.seen().len() as u64), (place.saved(), place.saved()));
        let used = fs::metadata(place.results()).unwrap().len();
        assert!(used > 1_500_000, "{used} bytes of 2 MB were used");
        let second = place.run(&server, 100).await;
        assert!(is_full(&second) && second.answered == 0, "{second:?}");
        assert_eq!(server.seen().len() as u64, place.saved());
    })
    .unwrap();
}

/// Answers that are far larger than any before: what is reserved is not enough for them.
#[test]
fn answers_that_find_no_space_are_counted_and_those_that_fit_are_saved() {
    let Some(place) = Place::new(1, 400) else { return };
    run(async move {
        let may_answer = Arc::new(Event::new());
        let held = Arc::clone(&may_answer);
        let large: &'static str = "t".repeat(100_000).leak();
        let script = move |number, _: &_| Act::Hold(Arc::clone(&held), if number % 2 == 0 { large } else { "yes" });
        let (place, server) = (Rc::new(place), Rc::new(Server::start(script).await));
        let running = {
            let (place, server) = (Rc::clone(&place), Rc::clone(&server));
            spawn(async move { place.run(&server, 40).await })
        };
        while server.seen().len() < 40 {
            yield_now().await;
        }
        may_answer.set();
        let summary = running.await.unwrap();
        assert!(is_full(&summary), "{summary:?}");
        assert_eq!((summary.answered + summary.unkept, place.saved()), (40, summary.answered), "{summary:?}");
        assert!((8..=12).contains(&summary.unkept), "10 of 20 large ones and all small ones fit: {summary:?}");
        assert_eq!(server.seen().len(), 40);
    })
    .unwrap();
}

/// The report of a run, though there may be no space for it either.
async fn explained(explain: Explain) -> Report {
    match explain.run().await {
        Ok(report) => report,
        Err(ExplainError::Report { report, .. }) => *report,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn explain_loses_nothing_of_what_is_in_flight_when_the_disk_fills() {
    let bench = Rc::new(Bench::new());
    let Some(disk) = SmallDisk::mount(&bench.out(), 12) else { return };
    run(async move {
        let may_answer = Arc::new(Event::new());
        let held = Arc::clone(&may_answer);
        let text: &'static str = "tide ".repeat(2_000).leak();
        let server = Rc::new(Server::start(move |_, _| Act::Hold(Arc::clone(&held), text)).await);
        let mut options = bench.options(&[write_pdf(bench.folder.path(), "book.pdf", 400)]);
        options.page_concurrency = Some(60);
        let explain = bench.explain(options.clone(), &server);
        let running = spawn(explained(explain));
        while server.seen().len() < 60 {
            yield_now().await;
        }
        disk.fill();
        may_answer.set();
        let Report { totals, stopped, .. } = running.await.unwrap();
        assert!(stopped.is_some_and(|reason| reason.starts_with("the disk is full")));
        let paid = server.seen().len() as u64;
        assert!((60..400).contains(&paid), "{totals:?}");
        assert_eq!((totals.done, totals.unkept, totals.requests), (paid, 0, paid), "{totals:?}");

        disk.fill();
        let results = bench.out().join("results.db");
        match Store::open(&results) {
            Err(error) => assert_eq!(error, StoreError::Full { path: results.clone() }),
            Ok(store) => {
                drop(store);
                explained(bench.explain(options.clone(), &server)).await;
            }
        }
        assert_eq!(server.seen().len() as u64, paid, "nothing is paid for on a disk that is full");

        disk.make_room();
        assert_eq!(Store::open(&results).unwrap().stats().results, paid);
    })
    .unwrap();
}
