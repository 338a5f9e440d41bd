use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_rehearsal::{Handle, Latency, Refusals, Server};

use crate::data::data_home;
use crate::machine::judge;
use crate::support::{Place, questions, text, tidegate};

fn batch(server: &Handle, args: &[&str]) -> Output {
    let base = format!("{}/v1", server.base_url());
    tidegate(&["batch", "--base-url", &base, "--progress", "none"]).args(args).output().unwrap()
}

/// The ids that have a success; no id twice, no line that is none.
fn succeeded(results: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for line in results.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["error"].is_null(), "{line}");
        assert!(ids.insert(line["custom_id"].as_str().unwrap().to_owned()), "twice: {line}");
    }
    ids
}

#[test]
fn results_go_to_the_file_and_the_summary_to_the_terminal() {
    let place = Place::new("straight");
    let requests = place.write("requests.jsonl", &questions(40));
    let server = Server::builder().start_in_thread().unwrap();
    let done = batch(&server, &[&requests, "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let summary: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&summary["answered"], &summary["failed"]), (&40.into(), &0.into()));
    assert_eq!(succeeded(&place.read("requests.results.jsonl")).len(), 40);

    let again = batch(&server, &[&requests, "--json"]);
    let summary: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&summary["answered"], &summary["cached"]), (&0.into(), &40.into()));
    assert_eq!(server.stats().accepted, 40);
}

/// What a run has sent within the minute is on the disk for the next one.
#[test]
fn the_counts_of_a_minute_are_kept_for_the_account() {
    let place = Place::new("minute-counts");
    let requests = place.write("requests.jsonl", &questions(5));
    let server = Server::builder().start_in_thread().unwrap();
    let done = batch(&server, &[&requests, "--rpm", "100"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let mut files = std::fs::read_dir(data_home().join("tidegate/quotas")).unwrap();
    let counts = rusqlite::Connection::open(files.next().unwrap().unwrap().path()).unwrap();
    let sum = "SELECT sum(amount) FROM reservation WHERE limit_name = 'rpm'";
    assert_eq!(counts.query_row(sum, [], |row| row.get::<_, i64>(0)), Ok(5));
}

/// Runs `batch` with 200 requests in flight under a limit of open files, as `ulimit` sets it.
fn batch_under(ulimit: &str, place: &Place, server: &Handle) -> Output {
    let script = format!("ulimit {ulimit}; exec \"$0\" \"$@\"");
    let (requests, base) = (place.write("requests.jsonl", &questions(300)), format!("{}/v1", server.base_url()));
    let arguments = ["batch", &requests, "--base-url", &base, "--max-in-flight", "200", "--progress", "none"];
    let mut command = std::process::Command::new("sh");
    command.env("XDG_DATA_HOME", data_home());
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]).args(arguments).output().unwrap()
}

#[test]
fn a_low_soft_limit_of_open_files_is_raised() {
    let (place, server) = (Place::new("soft-limit"), Server::builder().start_in_thread().unwrap());
    let done = batch_under("-Sn 100", &place, &server);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(!text(&done.stderr).contains("may open"), "{}", text(&done.stderr));
    assert_eq!(succeeded(&place.read("requests.results.jsonl")).len(), 300);
}

#[test]
fn a_low_hard_limit_of_open_files_lowers_the_concurrency_and_fails_nothing() {
    let (place, server) = (Place::new("hard-limit"), Server::builder().start_in_thread().unwrap());
    let done = batch_under("-n 100", &place, &server);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("at most 36 requests in flight instead of 200"), "{}", text(&done.stderr));
    assert_eq!(succeeded(&place.read("requests.results.jsonl")).len(), 300);
    assert!(server.stats().in_flight_peak <= 36);
}

#[test]
fn standard_input_and_output_make_a_filter() {
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", "-", "--base-url", &base, "--max-in-flight", "3"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(questions(25).as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(succeeded(&text(&done.stdout)).len(), 25);
    assert!(text(&done.stderr).contains("25 answered, 0 failed"), "{}", text(&done.stderr));
    assert!(server.stats().in_flight_peak <= 3);
}

/// A pipe can be read once, so it is not checked beforehand; and its writer may take its time.
#[test]
fn a_pipe_is_read_like_standard_input_and_each_request_is_sent_as_it_comes() {
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", "/dev/stdin", "--base-url", &base]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    for (written, line) in questions(3).lines().enumerate() {
        writeln!(pipe, "{line}").unwrap();
        server.wait_until(|stats| stats.answered > written as u64);
    }
    drop(pipe);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(succeeded(&text(&done.stdout)).len(), 3);
}

#[test]
fn a_pipe_without_a_writer_can_be_left() {
    let (place, server) = (Place::new("fifo"), Server::builder().start_in_thread().unwrap());
    let (fifo, base) = (place.path("requests.fifo"), format!("{}/v1", server.base_url()));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = tidegate(&["batch", &fifo, "-o", &place.path("out.jsonl"), "--base-url", &base]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The output is opened before the input.
    while place.file_count() < 2 {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    assert!(std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(143), "{}", text(&done.stderr));
}

#[test]
fn lines_in_another_providers_form_are_refused_before_anything_is_sent() {
    let place = Place::new("forms");
    let server = Server::builder().start_in_thread().unwrap();
    let openai = place.write("openai.jsonl", &questions(2));
    let gemini = place.write("gemini.jsonl", "{\"key\":\"a\",\"request\":{\"contents\":[]}}\n");
    for (file, provider) in [(&openai, "gemini"), (&openai, "anthropic"), (&gemini, "openai"), (&gemini, "anthropic")] {
        let done = batch(&server, &[file, "--provider", provider, "--model", "m"]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{file} {provider}: {said}");
        assert!(said.contains("line 1: it is ") && said.contains(&format!("the provider is {provider}")), "{said}");
    }
    assert_eq!(server.stats().arrived, 0);
}

#[test]
fn what_cannot_run_says_why_and_what_to_do() {
    let place = Place::new("refused");
    let server = Server::builder().api_key("right").start_in_thread().unwrap();
    let good = place.write("good.jsonl", &questions(2));
    let bad = place.write("bad.jsonl", "{\"custom_id\":\"a\"}\n{}\n");
    let missing = place.path("missing.jsonl");
    let (hard, soft, copy) = (place.path("hard.jsonl"), place.path("soft.jsonl"), place.path("copy.jsonl"));
    std::fs::hard_link(&good, &hard).unwrap();
    std::os::unix::fs::symlink(&good, &soft).unwrap();
    std::fs::copy(&good, &copy).unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&[&missing], 2, "missing.jsonl"),
        (&[&bad], 2, "line 1: it has no \"url\""),
        (&[&good, "-o", &good], 2, "would overwrite the requests"),
        (&[&good, "-o", &hard], 2, "would overwrite the requests"),
        (&[&good, "-o", &soft], 2, "would overwrite the requests"),
        (&[&good, "-o", &copy], 2, "line 1: it has neither a \"response\" nor an \"error\""),
        (&[&good, "-o", &copy, "--retry-failed"], 2, "not a file of results"),
        (&[&good, "--provider", "local"], 2, "answers no requests"),
        (&[&good], 2, "wants a key (401)"),
    ];
    for (args, code, expected) in cases {
        let done = batch(&server, args);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains(expected), "{args:?}: {}", text(&done.stderr));
    }
    assert_eq!(server.stats().accepted, 0);
    assert_eq!((place.read("good.jsonl"), place.read("copy.jsonl")), (questions(2), questions(2)));
}

#[test]
fn an_input_without_requests_is_an_error_that_says_so() {
    let place = Place::new("nothing");
    let server = Server::builder().start_in_thread().unwrap();
    let (empty, blank) = (place.write("empty.jsonl", ""), place.write("blank.jsonl", "\n\n"));
    let cases =
        [(&*empty, "empty.jsonl is empty (0 bytes)"), (&*blank, "has no requests"), ("-", "input has no requests")];
    for (input, expected) in cases {
        // Its standard input is empty.
        let done = batch(&server, &[input, "-o", &place.path("out.jsonl")]);
        assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
        assert!(text(&done.stderr).trim_end().ends_with(expected), "{}", text(&done.stderr));
    }
}

#[test]
fn failures_end_with_1_and_are_asked_again_when_told_to() {
    let place = Place::new("failures");
    let (all, results) = (questions(10), place.path("out.jsonl"));
    let strange = Server::builder().models(["other"]).start_in_thread().unwrap();
    let wrong = place.write("wrong.jsonl", &all);
    let done = batch(&strange, &[&wrong, "-o", &results]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("does not exist"), "{}", text(&done.stderr));
    assert_eq!(place.read("out.jsonl"), "", "no request is at fault if all are refused alike");
    let known = |(at, line): (usize, &str)| if at < 5 { line.replace("\"m\"", "\"other\"") } else { line.to_owned() };
    let mixed: Vec<String> = all.lines().enumerate().map(known).collect();
    let requests = place.write("requests.jsonl", &mixed.join("\n"));
    let done = batch(&strange, &[&requests, "-o", &results]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert_eq!(place.read("out.jsonl").matches("\"code\":\"refused\"").count(), 5);
    let right = Server::builder().start_in_thread().unwrap();
    assert_eq!(batch(&right, &[&requests, "-o", &results]).status.code(), Some(1), "failures are results");
    assert_eq!(right.stats().arrived, 0);
    assert_eq!(batch(&right, &[&requests, "-o", &results, "--retry-failed"]).status.code(), Some(0));
    assert_eq!(succeeded(&place.read("out.jsonl")).len(), 10);
}

/// Killed again and again, at whatever moment it happens to be in: in the end everything has its result, and nothing was
/// asked twice but what was on its way.
#[test]
fn killed_at_any_moment_nothing_is_lost_and_only_what_was_in_flight_is_asked_again() {
    const IN_FLIGHT: u64 = 8;
    let rounds: u64 = if std::env::var_os("TIDEGATE_SOAK").is_some() { 100 } else { 12 };
    let place = Place::new("killed");
    let count = 60 * usize::try_from(rounds).unwrap();
    let requests = place.write("requests.jsonl", &questions(count));
    let results = place.path("out.jsonl");
    let latency = Latency::Uniform(Duration::ZERO, Duration::from_millis(4));
    let server = Server::builder().latency(latency).seed(3).start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let in_flight = IN_FLIGHT.to_string();
    for round in 0..rounds {
        let mut command =
            tidegate(&["batch", &requests, "-o", &results, "--base-url", &base, "--max-in-flight", &in_flight]);
        let mut child = command.args(["--progress", "none"]).stdout(Stdio::null()).spawn().unwrap();
        // The server's count is the clock: wherever the client is when so many have come.
        let enough = server.stats().accepted + 20 + round % 7;
        while server.stats().accepted < enough && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let done = batch(&server, &[&requests, "-o", &results, "--max-in-flight", &in_flight]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(succeeded(&place.read("out.jsonl")).len(), count);
    let repeated = server.stats().repeated;
    // What was on its way and what was being written, together.
    assert!(repeated <= rounds * IN_FLIGHT, "{repeated} asked again in {rounds} rounds");
}

/// Twenty a minute, seventy-five to do: what is said about the time left is what the limit allows, and after Ctrl-C that it
/// is stopping.
#[test]
fn programs_are_told_how_long_the_limits_take_and_that_it_is_stopping() {
    let place = Place::new("time left");
    let requests = place.write("requests.jsonl", &questions(75));
    let server = Server::builder().start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", &requests, "--base-url", &base, "--rpm", "20", "--progress", "json"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut progress = || {
        lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line.unwrap()).expect("every line is JSON");
            (line["event"] == "progress").then_some(line)
        })
    };
    let told = std::iter::from_fn(&mut progress).find(|line| line["answered"] == 20).unwrap();
    let left = told["remaining"]["secs"].as_u64().unwrap();
    assert!((120..=181).contains(&left), "the next at 60 s, 120 s and 180 s: {told}");
    assert_eq!((&told["stopping"], &told["waiting_for"]), (&false.into(), &"rpm".into()), "{told}");

    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let last = std::iter::from_fn(&mut progress).last().unwrap();
    assert_eq!((&last["stopping"], &last["remaining"]["secs"]), (&true.into(), &0.into()), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn interrupted_it_waits_for_what_is_on_its_way_and_says_how_to_go_on() {
    let place = Place::new("interrupted");
    let requests = place.write("requests.jsonl", &questions(500));
    let results = place.path("out.jsonl");
    let latency = Latency::Fixed(Duration::from_millis(100));
    let server = Server::builder().latency(latency).start_in_thread().unwrap();
    let base = format!("{}/v1", server.base_url());
    let mut command = tidegate(&["batch", &requests, "-o", &results, "--base-url", &base, "--max-in-flight", "10"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    server.wait_until(|stats| stats.answered >= 20);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("run the same command again for the rest"), "{said}");
    let stats = server.stats();
    assert_eq!((stats.abandoned, stats.in_flight), (0, 0));
    assert_eq!(succeeded(&place.read("out.jsonl")).len() as u64, stats.answered, "what was answered was kept");
}

#[test]
fn as_many_requests_are_in_flight_as_the_quota_needs() {
    let place = Place::new("quota");
    let requests = place.write("requests.jsonl", &questions(900));
    let server = Server::builder().latency(Latency::Fixed(Duration::from_secs(4))).start_in_thread().unwrap();
    // 100 per second that take four seconds each.
    let done = batch(&server, &[&requests, "--rpm", "6000"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let stats = server.stats();
    assert_eq!(stats.answered, 900);
    assert!((300..=700).contains(&stats.in_flight_peak), "{stats}");
}

#[test]
fn limits_that_were_found_are_kept_for_the_next_run() {
    // Late answers of a busy machine look like other limits.
    judge(Duration::from_millis(25), found_limits_are_kept);
}

fn found_limits_are_kept() -> Result<(), String> {
    let place = Place::new("remembered");
    let requests = place.write("requests.jsonl", &questions(300));
    let server = Server::builder()
        .concurrency(5)
        .refusals(Refusals::Bare)
        .latency(Latency::Fixed(Duration::from_millis(50)))
        .start_in_thread()
        .unwrap();
    let base = format!("{}/v1", server.base_url());
    let run = |output: &str, model: &str| {
        let output = place.path(output);
        let done = tidegate(&["batch", &requests, "-o", &output, "--base-url", &base, "--model", model])
            .args(["--progress", "json"])
            .env("XDG_DATA_HOME", place.path("data"))
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let remembered = |said: &str| said.contains(r#""remembered":true"#);
    assert!(!remembered(&run("first.jsonl", "m")), "nothing is known yet");
    let kept: Value = serde_json::from_str(&place.read("data/tidegate/found-limits.json")).unwrap();
    let entry = &kept["servers"][0];
    assert_eq!(
        (&entry["provider"], &entry["base_url"], &entry["model"]),
        (&"openai".into(), &base.as_str().into(), &"m".into())
    );
    if !entry["in_flight"].as_u64().is_some_and(|found| (4..=7).contains(&found)) {
        return Err(format!("found {kept}"));
    }
    assert!(remembered(&run("second.jsonl", "m")));
    assert!(!remembered(&run("third.jsonl", "other")), "another model has limits of its own");
    place.write("data/tidegate/found-limits.json", "{");
    assert!(!remembered(&run("fourth.jsonl", "m")), "an unreadable file is passed over");
    Ok(())
}

/// A disk of this size, taken away with the test. Only root can have one.
struct SmallDisk(Place);

impl SmallDisk {
    fn mount(size: &str) -> Option<SmallDisk> {
        let place = Place::new("disk");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tidegate-test", &place.path("")]);
        let mounted = command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| SmallDisk(place))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path("")).status();
    }
}

#[test]
fn a_full_disk_is_named_and_every_answer_that_was_paid_for_is_counted_once() {
    let Some(disk) = SmallDisk::mount("2m") else {
        eprintln!("no disk could be mounted: only root can try one that is full");
        return;
    };
    let place = Place::new("full");
    let requests = place.write("requests.jsonl", &questions(20_000));
    let results = disk.0.path("results.jsonl");
    let server = Server::builder().start_in_thread().unwrap();
    let args = [&requests, "-o", &results, "--max-in-flight", "40", "--json"];
    let summary = |done: &Output| serde_json::from_slice::<Value>(&done.stdout).unwrap();
    let first = batch(&server, &args);
    let said = text(&first.stderr);
    let saved = succeeded(&disk.0.read("results.jsonl")).len() as u64;
    assert_eq!(first.status.code(), Some(1), "{said}");
    assert_eq!(server.stats().accepted, saved, "{said}");
    assert_eq!((&summary(&first)["answered"], &summary(&first)["unkept"]), (&saved.into(), &0.into()));
    let full = format!("{results} has no space for more answers: No space left on device (os error 28); free at least");
    assert!(said.contains(&full) && said.ends_with("every answer that was paid for is saved\n"), "{said}");
    let again = batch(&server, &args);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert_eq!((&summary(&again)["answered"], &summary(&again)["cached"]), (&0.into(), &saved.into()));
    assert_eq!(server.stats().accepted, saved, "nothing is sent on a disk that is full");
}

/// No space can be reserved against this bound, so answers are lost; but they are counted.
#[test]
fn answers_that_could_not_be_saved_are_counted() {
    let place = Place::new("bound");
    let requests = place.write("requests.jsonl", &questions(400));
    let results = place.path("results.jsonl");
    let server = Server::builder().start_in_thread().unwrap();
    let script = "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "48", env!("CARGO_BIN_EXE_tidegate"), "batch", &requests, "-o", &results])
        .args(["--base-url", &format!("{}/v1", server.base_url()), "--max-in-flight", "20", "--json"])
        .env("XDG_DATA_HOME", place.path("data"))
        .output()
        .unwrap();
    let saved = succeeded(&place.read("results.jsonl")).len() as u64;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["answered"], saved, "{summary}");
    assert_eq!(summary["unkept"], server.stats().accepted - saved, "{summary}");
    assert!(said.contains("File too large"), "{said}");
}
