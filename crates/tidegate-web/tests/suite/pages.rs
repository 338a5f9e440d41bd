//! The pages about limits and the loop, and their API.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_limit::{Cost, Gate, Limit};
use tidegate_loop::{LoopHandle, spawn, yield_now};
use tidegate_web::{EventLoop, Limits, Options, Site, Steer, Upstream};

use crate::support::{Running, ask, loopback, on_loop, serve};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");

/// Sets the gate's limits, and takes a minute per hundred requests per minute.
struct Steering(Gate, Rc<RefCell<Vec<String>>>);

impl Steer for Steering {
    fn time_left(&self, amounts: &[(&str, u64)]) -> Option<Duration> {
        let rpm = amounts.iter().find(|(name, _)| *name == "rpm").map_or(100, |(_, amount)| *amount);
        Some(Duration::from_secs(60_000 / rpm))
    }

    fn set(&self, limit: &str, amount: u64) -> Result<(), String> {
        self.1.borrow_mut().push(format!("{limit}={amount}"));
        self.0.set(limit, amount).map_err(|error| error.to_string())
    }
}

struct Fixture {
    site: Running,
    gate: Gate,
    set: Rc<RefCell<Vec<String>>>,
}

async fn fixture(options: Options) -> Fixture {
    let gate = Gate::builder().limit(Limit::concurrency("global", 20)).limit(Limit::rpm(2)).build().unwrap();
    let set = Rc::new(RefCell::new(Vec::new()));
    let steer: Rc<dyn Steer> = Rc::new(Steering(gate.clone(), Rc::clone(&set)));
    let other = Gate::builder().limit(Limit::rpm(7)).build().unwrap();
    let limits = Limits::new(vec![
        Upstream { name: "ge&mini".into(), admission: (&gate).into(), steer: Some(steer) },
        Upstream { name: "other".into(), admission: (&other).into(), steer: None },
    ]);
    let mut site = Site::new();
    limits.mount(&mut site);
    EventLoop::new("the test").mount(&mut site);
    Fixture { site: serve(site, options).await, gate, set }
}

#[test]
fn the_limits_page_says_which_limit_binds_and_until_when() {
    on_loop(async {
        let Fixture { site, gate, .. } = fixture(loopback()).await;
        let page = ask(site.address, "GET /limits", &[], "").await;
        assert!(page.body.contains("No limit binds."), "{}", page.body);
        let scope = gate.scope("<b>.pdf", 5);
        for _ in 0..2 {
            gate.try_enter(&scope, Cost::request()).unwrap().sent();
        }
        let waiting = gate.clone();
        let _third = spawn(async move { waiting.enter(waiting.unscoped(), Cost::request()).await.map(drop) });
        yield_now().await;
        let next = tidegate_loop::timeout(Duration::from_secs(1), async {
            loop {
                let page = ask(site.address, "GET /limits", &[], "").await;
                if page.body.contains("rpm binds.") {
                    return page;
                }
            }
        });
        let page = next.await.expect("the page shows it");
        assert!(
            page.body.contains("<strong>rpm binds. </strong>1 request waits for it; the next is admitted at"),
            "{}",
            page.body
        );
        assert!(page.body.contains("&lt;b&gt;.pdf") && !page.body.contains("<b>.pdf"), "{}", page.body);
        assert!(page.body.contains("2 <small>of 2</small>"), "{}", page.body);
        assert!(!page.body.contains("style="), "the policy forbids inline style");
        let json = ask(site.address, "GET /api/v1/limits", &[], "").await;
        let json: serde_json::Value = serde_json::from_str(&json.body).unwrap();
        let upstream = &json["upstreams"][0];
        assert_eq!((&upstream["bound_by"], &upstream["blocked"]), (&"rpm".into(), &1.into()));
        assert!(upstream["next_admission"].is_string());
        let rpm = &upstream["limits"][1];
        assert_eq!(
            (&rpm["used"], &rpm["peak"], &rpm["total"], &rpm["blocked"]),
            (&2.into(), &2.into(), &2.into(), &1.into())
        );
        assert_eq!(ask(site.address, "GET /limits?u=none", &[], "").await.status, 404);
        let other = ask(site.address, "GET /limits?u=other", &[], "").await;
        assert!(!other.body.contains("What if"), "nothing changes the limits of this one");
    });
}

#[test]
fn a_change_is_foretold_then_applied_and_only_then() {
    on_loop(async {
        let Fixture { site, gate, set } = fixture(loopback()).await;
        let page = ask(site.address, "GET /limits?u=ge%26mini&to-rpm=1%2C000&to-global=20", &[], "").await;
        assert!(page.body.contains("9 min 00 s earlier"), "{}", page.body);
        assert!(page.body.contains("Apply 1 change"), "{}", page.body);
        assert!(set.borrow().is_empty(), "looking changes nothing");
        let bad = ask(site.address, "GET /limits?to-rpm=none", &[], "").await;
        assert!(bad.body.contains("rpm needs a number above 0."), "{}", bad.body);
        let applied = ask(site.address, "POST /limits", &[FORM], "u=0&to-rpm=1000").await;
        assert_eq!((applied.status, applied.header("location")), (303, Some("/limits?u=ge%26mini")));
        assert_eq!(
            (set.borrow().as_slice(), gate.stats().limit("rpm").unwrap().amount),
            (&["rpm=1000".to_owned()][..], 1_000)
        );
        assert_eq!(ask(site.address, "POST /limits", &[FORM], "u=1&to-rpm=9").await.status, 409);
        assert_eq!(ask(site.address, "POST /limits", &[FORM], "u=9&to-rpm=9").await.status, 404);
        assert_eq!(ask(site.address, "POST /limits", &[FORM], "u=0&to-rpm=0").await.status, 400);
        let dry = r#"{"upstream": "ge&mini", "allowed": {"rpm": 500}, "dry_run": true}"#;
        let reply = ask(site.address, "POST /api/v1/limits", &[JSON], dry).await;
        let effect: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((&effect["applied"], &effect["seconds_left"]), (&false.into(), &120.0.into()));
        assert_eq!(set.borrow().len(), 1);
        let unknown = r#"{"upstream": "ge&mini", "allowed": {"tpm": 500}}"#;
        assert_eq!(ask(site.address, "POST /api/v1/limits", &[JSON], unknown).await.status, 404);
        assert_eq!(ask(site.address, "POST /api/v1/limits", &[JSON], "{}").await.status, 400);
        assert_eq!(ask(site.address, "POST /api/v1/limits", &[FORM], dry).await.status, 415);
    });
}

#[test]
fn a_read_only_dashboard_has_no_form_for_limits_or_traces() {
    on_loop(async {
        let Fixture { site, .. } = fixture(Options { read_only: true, ..loopback() }).await;
        assert!(!ask(site.address, "GET /limits", &[], "").await.body.contains("What if"));
        assert!(!ask(site.address, "GET /loop", &[], "").await.body.contains("Record a trace"));
        assert_eq!(ask(site.address, "POST /limits", &[FORM], "u=0&to-rpm=9").await.status, 403);
        assert_eq!(ask(site.address, "POST /loop/traces", &[FORM], "ticks=100").await.status, 403);
    });
}

#[test]
fn the_loop_page_names_slow_steps_and_groups_tasks() {
    on_loop(async {
        let Fixture { site, .. } = fixture(loopback()).await;
        let blocking = LoopHandle::current().task().name("parse_manifest").spawn(async {
            let until = std::time::Instant::now() + Duration::from_millis(30);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
        });
        blocking.await.unwrap();
        let _many: Vec<_> = (0..40).map(|_| spawn(tidegate_loop::sleep(Duration::from_secs(600)))).collect();
        let page = ask(site.address, "GET /loop", &[], "").await;
        assert!(page.body.contains("parse_manifest"), "{}", page.body);
        assert!(page.body.contains("a timer") && !page.body.contains("style="), "{}", page.body);
        let json = ask(site.address, "GET /api/v1/loop", &[], "").await;
        let json: serde_json::Value = serde_json::from_str(&json.body).unwrap();
        assert_eq!(json["slow_steps"][0]["name"], "parse_manifest");
        assert!(json["groups"].as_array().unwrap().iter().any(|group| group["count"] == 40), "{json}");
    });
}

#[test]
fn a_trace_is_recorded_shown_with_files_and_downloaded_whole() {
    on_loop(async {
        let Fixture { site, .. } = fixture(loopback()).await;
        assert_eq!(ask(site.address, "POST /loop/traces", &[FORM], "ticks=7").await.status, 400);
        let reply = ask(site.address, "POST /loop/traces", &[FORM], "ticks=100").await;
        assert_eq!(reply.status, 303);
        assert_eq!(ask(site.address, "POST /loop/traces", &[FORM], "ticks=100").await.status, 409, "one at a time");
        let mut page = ask(site.address, "GET /loop/traces/1", &[], "").await;
        while page.status == 404 {
            page = ask(site.address, "GET /loop/traces/1", &[], "").await;
        }
        assert!(
            page.body.contains("/timeline.js\"></script>") && !page.body.contains("<style"),
            "{}",
            &page.body[..900]
        );
        assert!(!page.body.contains(" style="), "the policy forbids inline style");
        let whole = ask(site.address, "GET /loop/traces/1/timeline.html", &[], "").await;
        assert!(whole.body.contains("<style>") && !whole.body.contains("/assets/"));
        assert!(whole.header("content-disposition").unwrap().contains("tidegate-trace-1.html"));
        let perfetto = ask(site.address, "GET /loop/traces/1/perfetto.json", &[], "").await;
        assert!(serde_json::from_str::<serde_json::Value>(&perfetto.body).unwrap()["traceEvents"].is_array());
        assert_eq!(ask(site.address, "GET /loop/traces/1/none", &[], "").await.status, 404);
        assert_eq!(ask(site.address, "GET /loop/traces/2", &[], "").await.status, 404);
    });
}

#[test]
fn the_document_of_the_api_names_every_route_and_type() {
    on_loop(async {
        let Fixture { site, .. } = fixture(loopback()).await;
        let reply = ask(site.address, "GET /api/v1/openapi.json", &[], "").await;
        let document: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        for (path, method) in [("/api/v1/limits", "get"), ("/api/v1/limits", "post"), ("/api/v1/loop", "get")] {
            assert!(document["paths"][path][method]["summary"].is_string(), "{method} {path}");
        }
        // Every reference leads to a schema of the document.
        let text = reply.body.as_str();
        let references: Vec<&str> =
            text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(references.contains(&"LimitView"), "{references:?}");
        for name in references {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    });
}
