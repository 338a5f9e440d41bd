//! Pages asked about by workers: what is paid, what is taken back, what is said.

use std::time::Duration;

use tidegate_rehearsal::{Handle, Latency, Limit, Server};

use crate::crew::{Crew, files};
use crate::machine::judge;
use crate::pdf::pdf;
use crate::strict::strict;
use crate::support::Place;

fn server(latency: Latency) -> Handle {
    Server::builder().latency(latency).start_in_thread().unwrap()
}

fn crew(place: &Place, server: &Handle) -> Crew {
    Crew {
        place: place.path("").into(),
        broker: vec![format!("sqlite:{}", place.path("queue.db"))],
        base_url: format!("{}/v1", server.base_url()),
        limits: vec!["--global-concurrency".into(), "40".into()],
    }
}

#[test]
fn an_asker_that_was_killed_asks_only_for_what_is_missing() {
    let place = Place::new("crew-killed");
    let server = server(Latency::Uniform(Duration::from_millis(20), Duration::from_millis(60)));
    let crew = crew(&place, &server);
    files(&crew.place, 3, 40, pdf);
    let worker = crew.worker("one", 8, &[]);
    let asker = crew.explain(&[]);
    server.wait_until(|stats| stats.answered >= 30);
    asker.kill();
    // Workers go on with what they have; meanwhile nobody listens.
    let (code, report, said) = crew.explain(&[]).ended();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((&report["totals"]["done"], &report["totals"]["pages"]), (&120.into(), &120.into()), "{report}");
    let stats = server.stats();
    assert_eq!((stats.answered, stats.repeated), (120, 0), "nothing was paid for twice: {stats}");
    let worked = worker.stop();
    assert_eq!(worked["settled"], serde_json::json!({"success": 120}), "{worked}");
    // Once more: everything is there, and nobody is asked.
    let (code, report, _) = crew.explain(&[]).ended();
    assert_eq!((code, &report["totals"]["kept"]), (Some(0), &120.into()));
    assert_eq!(server.stats().answered, 120);
}

#[test]
fn pages_that_a_killed_asker_has_queued_are_answered_once() {
    let place = Place::new("crew-killed-early");
    let server = server(Latency::Fixed(Duration::ZERO));
    let crew = crew(&place, &server);
    files(&crew.place, 1, 5, pdf);
    for _ in 0..2 {
        let asker = crew.explain(&[]);
        asker.hears("no worker takes from the queue; start some: tidegate worker");
        asker.kill();
    }
    let worker = crew.worker("late", 2, &[]);
    let (code, report, said) = crew.explain(&[]).ended();
    assert_eq!((code, &report["totals"]["done"]), (Some(0), &5.into()), "{said}");
    worker.stop();
    assert_eq!(server.stats().answered, 5);
}

#[test]
fn an_interrupted_asker_takes_back_what_no_worker_has_and_waits_for_the_rest() {
    let place = Place::new("crew-interrupted");
    let server = server(Latency::Fixed(Duration::from_millis(700)));
    let crew = crew(&place, &server);
    files(&crew.place, 1, 30, pdf);
    let asker = crew.explain(&["--page-concurrency", "20"]);
    // Nobody is there yet, and it says how to change that.
    asker.hears("no worker takes from the queue; start some: tidegate worker");
    let worker = crew.worker("late", 2, &["--prefetch", "2"]);
    server.wait_until(|stats| stats.in_flight >= 2);
    asker.signal("-INT");
    asker.hears("were taken back from the queue");
    let (code, report, said) = asker.ended();
    assert_eq!(code, Some(130), "{said}");
    let done = report["totals"]["done"].as_u64().unwrap();
    let answered = server.stats().answered;
    assert_eq!(done, answered, "what was paid for is kept: {said}");
    assert!((2..30).contains(&done) && report["stopped"] == "interrupted", "{report}");
    worker.stop();
    // What was taken back is asked about again, the rest is not.
    let worker = crew.worker("quick", 20, &[]);
    let (code, report, said) = crew.explain(&["--page-concurrency", "20"]).ended();
    assert_eq!((code, &report["totals"]["done"]), (Some(0), &30.into()), "{said}");
    let stats = server.stats();
    assert_eq!((stats.answered, stats.repeated), (30, 0), "{stats}");
    worker.stop();
}

#[test]
fn a_worker_for_another_server_does_not_show_it_its_key() {
    let place = Place::new("crew-elsewhere");
    let (ours, theirs) = (server(Latency::Fixed(Duration::ZERO)), server(Latency::Fixed(Duration::ZERO)));
    let crew = crew(&place, &ours);
    files(&crew.place, 1, 3, pdf);
    let elsewhere = Crew { base_url: format!("{}/v1", theirs.base_url()), ..crew.clone() };
    let worker = elsewhere.worker("stranger", 4, &[]);
    let (code, _, said) = crew.explain(&[]).ended();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("worker stranger asks openai at") && said.contains("the page is for openai at"), "{said}");
    assert_eq!((ours.stats().arrived, theirs.stats().arrived), (0, 0));
    worker.stop();
}

#[test]
fn workers_of_one_machine_share_the_limits_of_their_key() {
    judge(Duration::from_millis(50), two_workers);
}

fn two_workers() -> Result<(), String> {
    let place = Place::new("crew-counts");
    let server = Server::builder().rpm(Limit::new(10).per(Duration::from_secs(2))).start_in_thread().unwrap();
    let crew = crew(&place, &server);
    files(&crew.place, 1, 40, pdf);
    let workers = ["one", "two"].map(|name| crew.worker(name, 20, &["--rpm", "10/2s"]));
    let (code, report, said) = crew.explain(&[]).ended();
    assert_eq!((code, &report["totals"]["done"]), (Some(0), &40.into()), "{said}");
    for worker in workers {
        worker.stop();
    }
    let stats = server.stats();
    assert_eq!(stats.answered, 40);
    let files: Vec<_> = std::fs::read_dir(crew.place.join("data/tidegate/quotas")).unwrap().collect();
    let [file] = &files[..] else { panic!("one account, one file: {files:?}") };
    let counts = rusqlite::Connection::open(file.as_ref().unwrap().path()).unwrap();
    let sum = "SELECT sum(amount) FROM reservation WHERE limit_name = 'rpm'";
    let counted: i64 = counts.query_row(sum, [], |row| row.get(0)).unwrap();
    assert!(counted >= 40, "{counted}");
    strict(&stats)
}
