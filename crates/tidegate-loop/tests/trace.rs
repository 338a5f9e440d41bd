//! The traces of the five examples, read in all their forms, and held against CPython's own order of events.
//!
//! `UPDATE_GOLDEN=1 cargo test -p tidegate-loop --test trace` writes the golden files anew.

mod python;

use std::path::Path;

use serde_json::Value;
use tidegate_loop::trace::examples::{self, Example, Setting};
use tidegate_loop::trace::{Actor, Recorder, Trace, What};
use tidegate_loop::{Duration, EventLoop, LoopHandle, Runner, catch_cancel, sleep, spawn, timeout, yield_now};

fn record(example: &Example) -> Trace {
    example.record(&Setting::default()).unwrap()
}

/// The lines of the library's own files move with every edit; where they are is not what is tested here.
fn without_line_numbers(text: &str) -> String {
    let mask = |line: &str| match line.find(".rs:") {
        Some(at) if line[..at].contains("tidegate-loop/src/") => {
            let (kept, rest) = line.split_at(at + ".rs:".len());
            format!("{kept}…{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit()))
        }
        _ => line.to_owned(),
    };
    text.lines().map(|line| mask(line) + "\n").collect()
}

#[test]
fn every_example_reads_as_its_golden_file() {
    for example in examples::ALL {
        let text = without_line_numbers(&record(example).to_text());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{}.txt", example.name));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{}: UPDATE_GOLDEN=1 writes the golden files anew", example.name);
    }
}

#[test]
fn text_fits_eighty_columns() {
    for example in examples::ALL {
        for line in record(example).to_text().lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", example.name);
        }
    }
}

/// What the loop does as both it and asyncio can say it.
fn neutral(trace: &Trace) -> Vec<String> {
    let mut lines = Vec::new();
    for record in trace.records() {
        let line = match &record.what {
            What::Tick { .. } => format!("tick {}", record.at.as_millis()),
            What::Created(task) => format!("create {task}"),
            What::Woken(task) => format!("wake {task}"),
            What::StepStarted(task) => format!("step {task}"),
            What::Suspended { task, .. } => format!("suspend {task}"),
            What::Finished { task, .. } => format!("finish {task}"),
            What::TimerFired { .. } => "timer".to_owned(),
            What::CallbackQueued(_) => "queue".to_owned(),
            What::CallbackStarted(_) => "callback".to_owned(),
            What::Note(text) => format!("print {text}"),
            What::RunEnded => break,
            _ => continue,
        };
        lines.push(line);
    }
    lines
}

#[test]
fn the_order_of_events_is_cpythons() {
    let Some(python) = python::find() else {
        println!("skipped: no python3.11 or later was found; TIDEGATE_PYTHON names one");
        return;
    };
    for example in examples::ALL {
        assert_eq!(neutral(&record(example)), python.events_of(example.name), "{} and {}", example.name, python.name());
    }
}

#[test]
fn the_introductory_example_takes_the_turns_of_its_timetable() {
    let trace = record(examples::find("timeline").unwrap());
    let turns: Vec<String> = trace.records().iter().filter_map(turn).collect();
    let expected = [
        "0 main runs",
        "0 main waits",
        "0 n1 runs",
        "0 n1 prints 1",
        "0 n1 waits",
        "0 n2 runs",
        "0 n2 prints 2",
        "0 n2 waits",
        "1 n1 runs",
        "1 n1 ends",
        "2 n2 runs",
        "2 n2 ends",
        "2 main runs",
        "2 main prints [result] 1",
        "2 main prints [result] 2",
        "2 main ends",
    ];
    assert_eq!(turns, expected);
}

fn turn(record: &tidegate_loop::trace::Record) -> Option<String> {
    let did = match &record.what {
        What::StepStarted(_) => "runs".to_owned(),
        What::Suspended { .. } => "waits".to_owned(),
        What::Finished { .. } => "ends".to_owned(),
        What::Note(text) => format!("prints {text}"),
        _ => return None,
    };
    Some(format!("{} {} {did}", record.at.as_secs(), record.by))
}

#[test]
fn awaiting_a_coroutine_switches_no_more_than_awaiting_its_task() {
    let task = neutral(&record(examples::find("await-task").unwrap()));
    let coroutine = neutral(&record(examples::find("await-coro").unwrap()));
    assert_eq!(task, coroutine);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let timeline = examples::find("timeline").unwrap();
    let render = |seed| {
        let trace = timeline.record(&Setting { seed: Some(seed), strict: true }).unwrap();
        [trace.to_text(), trace.to_chrome_json(), trace.to_html()]
    };
    assert_eq!(render(3), render(3));
    let orders: std::collections::HashSet<String> =
        (0..16).map(|seed| render(seed)[0].lines().skip(2).collect()).collect();
    assert_eq!(orders.len(), 2, "n1 and n2 are ready together once; both orders come up");
}

#[test]
fn no_form_names_a_place_on_this_machine() {
    for example in examples::ALL {
        let trace = record(example);
        for form in [trace.to_text(), trace.to_chrome_json(), trace.to_html()] {
            assert!(!form.contains(env!("CARGO_MANIFEST_DIR")));
        }
    }
}

#[test]
fn a_relaxed_loop_polls_only_before_it_waits() {
    let setting = Setting { strict: false, seed: None };
    let trace = examples::find("sleep").unwrap().record(&setting).unwrap();
    let polls = trace.records().iter().filter(|record| matches!(record.what, What::Polled { .. })).count();
    assert_eq!(polls, 1);
}

/// Panics without a word on standard error.
fn fail() {
    std::panic::resume_unwind(Box::new("on purpose"));
}

/// Everything a trace can contain: eager starts, time-outs, cancellation, failures, callbacks, odd names.
fn lively() -> Trace {
    let recorder = Recorder::new();
    let runner = Runner::new(EventLoop::builder().virtual_time().strict(true).build().unwrap());
    let handle = runner.event_loop().handle();
    handle.set_observer(recorder.clone());
    handle.set_exception_handler(|_| ());
    let work = async {
        let handle = LoopHandle::current();
        handle.task().name("eager </script> \"é\"").eager().spawn(async {
            LoopHandle::current().note("first\nsecond <b>");
            yield_now().await;
        });
        let late = timeout(Duration::from_millis(250), std::future::pending::<()>()).await;
        assert!(late.is_err());
        handle.call_later(0.5, || LoopHandle::current().note("half a second on"));
        let stubborn = spawn(async { catch_cancel(sleep(Duration::from_secs(9))).await.is_err() });
        let broken = handle.task().name("broken").spawn(async { fail() });
        yield_now().await;
        stubborn.cancel();
        assert!(stubborn.await.unwrap());
        assert!(broken.await.is_err());
        sleep(Duration::from_secs(1)).await;
        handle.task().name("left over").spawn(std::future::pending::<()>());
        yield_now().await;
    };
    runner.run(work).unwrap();
    drop(runner);
    recorder.trace().titled("lively & <odd>")
}

#[test]
fn an_eager_start_is_a_step_within_a_step() {
    let trace = lively();
    let steps: Vec<String> = trace.records().iter().filter_map(turn).take(6).collect();
    let eager = "eager </script> \"é\"";
    let expected = [
        "0 Task-1 runs".to_owned(),
        format!("0 {eager} runs"),
        format!("0 {eager} prints first\nsecond <b>"),
        format!("0 {eager} waits"),
        "0 Task-1 waits".to_owned(),
        format!("0 {eager} runs"),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn whoever_wakes_is_named() {
    let trace = lively();
    let woken_by = |name: &str| {
        let wakes =
            trace.records().iter().filter(|record| matches!(&record.what, What::Woken(task) if &*task.name() == name));
        wakes.map(|record| record.by.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(woken_by("broken"), ["Task-1"]);
    assert!(woken_by("Task-1").contains(&"timer".to_owned()));
    assert!(trace.records().iter().any(|record| matches!(record.by, Actor::Callback(_))));
}

#[test]
fn a_lively_trace_reads_as_text() {
    let text = lively().to_text();
    for phrase in [
        "asks Task-3 to end (cancel)",
        "panicked",
        "fires",
        "arms a timer, due at 750 ms: tidegate-loop/tests/trace.rs:",
        "says: half a second on",
        "asks for another turn",
        "asks left over to end (cancel)",
        "the loop is closed",
    ] {
        assert!(text.contains(phrase), "{phrase:?} is missing in\n{text}");
    }
}

#[test]
fn chrome_json_is_well_formed() {
    let traces = examples::ALL.iter().map(record).chain([lively(), Recorder::new().trace()]);
    for trace in traces {
        let json: Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        check_slices_nest(events);
        check_flows_start_and_end_in_slices(events);
    }
}

fn number(event: &Value, field: &str) -> f64 {
    event[field].as_f64().unwrap()
}

fn slices<'a>(events: &'a [Value], lane: &'a Value) -> impl Iterator<Item = (f64, f64)> + 'a {
    let on_lane = move |event: &&Value| event["ph"] == "X" && event["tid"] == *lane;
    events.iter().filter(on_lane).map(|event| (number(event, "ts"), number(event, "ts") + number(event, "dur")))
}

/// Perfetto drops slices of one track that overlap without one lying within the other.
fn check_slices_nest(events: &[Value]) {
    for lane in events.iter().filter(|event| event["name"] == "thread_name").map(|event| &event["tid"]) {
        let slices: Vec<(f64, f64)> = slices(events, lane).collect();
        for &(start, end) in &slices {
            let crossing = slices.iter().find(|other| start < other.0 && other.0 < end && end < other.1);
            assert!(crossing.is_none(), "{start}..{end} crosses {crossing:?} on {lane}");
        }
    }
}

fn check_flows_start_and_end_in_slices(events: &[Value]) {
    for flow in events.iter().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        let at = number(flow, "ts");
        let within = slices(events, &flow["tid"]).any(|(start, end)| start <= at && at <= end);
        assert!(within, "{flow}");
    }
}

/// The data inside of an HTML page.
fn data_of(html: &str) -> Value {
    let (_, data) = html.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn html_is_one_page_with_its_data_inside() {
    let trace = lively();
    let html = trace.to_html();
    let data = data_of(&html);
    assert_eq!(data["records"].as_array().unwrap().len(), trace.records().len());
    assert!(html.contains("<title>lively &amp; &lt;odd&gt;</title>"));
    assert!(!html.contains("{{") && !html.contains("src="), "it needs nothing else");
    assert!(!html.replace("http-equiv", "").contains("http"), "it needs nothing else");
}

#[test]
fn a_trace_of_thousands_of_events_is_drawn_too() {
    let trace = hundred_tasks();
    assert!(trace.records().len() > 5_000, "{}", trace.records().len());
    let html = trace.to_html();
    assert_eq!(data_of(&html)["lanes"].as_array().unwrap().len(), 102);
    assert!(html.len() < 2_000_000, "{}", html.len());
    // To look at.
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("hundred-tasks.html"), html).unwrap();
}

fn hundred_tasks() -> Trace {
    let recorder = Recorder::new();
    let runner = Runner::new(EventLoop::builder().simulated(1).strict(true).build().unwrap());
    runner.event_loop().set_observer(recorder.clone());
    let worker = |number: u64| async move {
        for round in 0..6 {
            sleep(Duration::from_millis(5 + (number * 37 + round * 53) % 90)).await;
            if (number + round).is_multiple_of(7) {
                LoopHandle::current().note(&format!("{number} is in round {round}"));
                yield_now().await;
            }
        }
        if number % 40 == 13 {
            fail();
        }
    };
    let main = async move {
        let handle = LoopHandle::current();
        let workers: Vec<_> =
            (0..100).map(|number| handle.task().name(format!("worker-{number}")).spawn(worker(number))).collect();
        workers[50].cancel();
        for worker in workers {
            let _ = worker.await;
        }
    };
    runner.run(main).unwrap();
    drop(runner);
    recorder.trace().titled("a hundred workers")
}

#[test]
fn a_limit_keeps_the_latest_records() {
    let recorder = Recorder::with_limit(50);
    let event_loop = EventLoop::simulated(1);
    event_loop.set_observer(recorder.clone());
    let busy = async {
        for _ in 0..1_000 {
            yield_now().await;
        }
    };
    event_loop.run_until_complete(busy).unwrap();
    let trace = recorder.trace();
    assert_eq!(trace.records().len(), 50);
    assert!(matches!(trace.records().last().unwrap().what, What::RunEnded));
    assert!(trace.to_text().contains("older records were dropped"));
    data_of(&trace.to_html());
    serde_json::from_str::<Value>(&trace.to_chrome_json()).unwrap();
}
