//! The main job across machines: a strict server refuses nobody, its caps are never exceeded by all workers together, its
//! quota is used, and a worker that dies costs what it had in flight.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_rehearsal::{Handle, Latency, Limit, Server, Stats};

use crate::crew::{Crew, files};
use crate::machine::judge;
use crate::pdf::pdf;
use crate::redis::Redis;
use crate::strict::strict;

/// A minute, shortened; where there is time for the long versions, a real one.
static MINUTE: LazyLock<Duration> = LazyLock::new(|| match std::env::var_os("TIDEGATE_SOAK") {
    Some(_) => Duration::from_secs(60),
    None => Duration::from_secs(8),
});
const RPM: u64 = 120;
const AT_ONCE: u64 = 40;
/// Only the workers have it.
const KEY: &str = "sk-of-the-workers";

struct Setting {
    server: Handle,
    crew: Crew,
    _redis: Redis,
    _place: TempDir,
}

fn setting(broker: impl Fn(&Path) -> Vec<String>, file_count: usize, pages: usize) -> Setting {
    let place = tempfile::tempdir().unwrap();
    let redis = Redis::start(&[]);
    let server = Server::builder()
        .rpm(Limit::new(RPM).per(*MINUTE))
        .tpm(Limit::new(1_000_000).per(*MINUTE))
        .concurrency(AT_ONCE)
        .latency(Latency::Uniform(Duration::from_millis(50), Duration::from_millis(150)))
        .api_key(KEY)
        .start_in_thread()
        .unwrap();
    let (rpm, at_once, minute) = (RPM.to_string(), AT_ONCE.to_string(), format!("{}s", MINUTE.as_secs()));
    let url = redis.url();
    let words = ["--rpm", &rpm, "--tpm", "1000000", "--minute", &minute, "--global-concurrency", &at_once];
    let limits = words.into_iter().chain(["--limits", &url, "--limits-name", "proof"]).map(Into::into).collect();
    files(place.path(), file_count, pages, pdf);
    let base_url = format!("{}/v1", server.base_url());
    let crew = Crew { place: place.path().into(), broker: broker(place.path()), base_url, limits };
    Setting { server, crew, _redis: redis, _place: place }
}

fn key(crew: &Crew) -> String {
    let path = crew.place.join("key");
    std::fs::write(&path, KEY).unwrap();
    path.display().to_string()
}

/// What the gate allows for the way to the server: a hundredth of the window.
fn margin() -> Duration {
    *MINUTE / 100
}

/// The verdict on the strict limits. What does not depend on how promptly processes get a core is asserted.
fn holds(stats: &Stats, pages: u64) -> Result<(), String> {
    println!("    {stats}");
    assert_eq!((stats.refused.concurrency, stats.rejected), (0, 0), "{stats}");
    assert!(stats.answered >= pages, "{stats}");
    assert!(stats.in_flight_peak <= AT_ONCE, "{stats}");
    strict(stats)
}

/// Five minutes' worth of pages for two workers.
fn together(broker: impl Fn(&Path) -> Vec<String>) -> Result<(), String> {
    let setting = setting(broker, 10, 60);
    let crew = &setting.crew;
    let key = key(crew);
    let workers = ["one", "two"].map(|name| crew.worker(name, 40, &["--api-key-file", &key]));
    let words = ["--page-concurrency", "20", "--file-concurrency", "10", "--global-concurrency", "200"];
    let asker = Crew { limits: Vec::new(), ..crew.clone() };
    let (code, report, said) = asker.explain(&words).ended();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(report["totals"]["done"], 600, "{report}");
    let stats = setting.server.stats();
    assert_eq!((stats.answered, stats.repeated), (600, 0), "{stats}");
    let shares = workers.map(|worker| worker.stop()["settled"]["success"].as_u64().unwrap());
    println!("    the workers answered {shares:?}");
    holds(&stats, 600)?;
    let used = stats.used_share().expect("a limit bound");
    println!("    {:.1} % of the quota used", used * 100.0);
    if used < 0.95 {
        return Err(format!("{:.1} % of the quota", used * 100.0));
    }
    if shares.iter().any(|share| *share <= 100) {
        return Err(format!("a worker starved: {shares:?}"));
    }
    Ok(())
}

/// One of two workers is killed in the middle.
fn killed(broker: impl Fn(&Path) -> Vec<String>) -> Result<(), String> {
    let setting = setting(broker, 4, 75);
    let crew = &setting.crew;
    let key = key(crew);
    // No more held than can run: a page that was answered and that the broker has not been told of counts as in flight.
    let [one, two] = ["one", "two"].map(|name| crew.worker(name, 10, &["--prefetch", "10", "--api-key-file", &key]));
    // Who asks may state the limits as well, and then he has to mean the same.
    let asker = crew.explain(&["--page-concurrency", "25", "--file-concurrency", "4"]);
    setting.server.wait_until(|stats| stats.answered >= 100);
    one.kill();
    let (code, report, said) = asker.ended();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(report["totals"]["done"], 300, "{report}");
    let stats = setting.server.stats();
    let Stats { repeated, abandoned, .. } = stats;
    assert!(
        repeated <= 10,
        "it costs what was in flight, and no more: {repeated} twice, {abandoned} abandoned, {stats}; {said}"
    );
    two.stop();
    holds(&stats, 300)
}

fn sqlite(place: &Path) -> Vec<String> {
    vec![format!("sqlite:{}", place.join("queue.db").display())]
}

/// The broker that tests/rabbit/node.sh has started, and a queue that nobody else uses.
fn rabbit(place: &Path) -> Vec<String> {
    let host =
        std::env::var("TIDEGATE_RABBIT_PLAIN").expect("TIDEGATE_RABBIT_PLAIN is not set; run: ./test --only rabbitmq");
    let queue = format!("explain-{}", place.file_name().unwrap().to_string_lossy());
    vec![format!("amqp://{host}"), "--queue".into(), queue]
}

#[test]
fn two_workers_use_the_quota_and_never_exceed_it() {
    judge(margin(), || together(sqlite));
}

#[test]
fn a_killed_worker_costs_its_pages_in_flight() {
    judge(margin(), || killed(sqlite));
}

#[test]
fn two_workers_use_the_quota_and_never_exceed_it_through_rabbitmq() {
    judge(margin(), || together(rabbit));
}

#[test]
fn a_killed_worker_costs_its_pages_in_flight_through_rabbitmq() {
    judge(margin(), || killed(rabbit));
}
