//! Pages as a browser loads them: their files, the list of a thousand jobs, a grid of ten thousand pages, and an idle server.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use super::served::{Served, explanations};
use crate::harness::{BASELINE, Goal, Line, Sample};

const JOBS: u32 = 1_000;
const CELLS: u32 = 10_000;
/// How long an idle server is watched.
const IDLE: Duration = Duration::from_secs(10);

pub(super) fn lines() -> Vec<Line> {
    let list: Rc<RefCell<Option<Served>>> = Rc::default();
    vec![
        Line::new("files of the page that needs most, compressed", "KB")
            .contestant_if(BASELINE, largest_assets)
            .goal(Goal::Below { limit: 60.0, aim: 30.0 })
            .rounds_max(1)
            .note("style sheet, scripts with what they import, icon; KB = 1,000 bytes, gzip"),
        Line::new("Jobs with 1,000 jobs: server time", "ms")
            .contestant_if(BASELINE, move || jobs_page(&mut list.borrow_mut()))
            .goal(Goal::Below { limit: 50.0, aim: 10.0 })
            .note("from the connection to the last byte, compressed, over loopback"),
        Line::new("grid of 10,000 pages, 150 changes: script per frame in Chromium", "ms")
            .contestant_if(BASELINE, grid)
            .goal(Goal::Below { limit: 8.0, aim: 1.0 })
            .rounds_max(1)
            .note("the 95th of 100 frames; style and paint not included"),
        Line::new("idle server, no browser: wake-ups of all its threads", "/s")
            .contestant_if(BASELINE, wake_ups)
            .goal(Goal::Below { limit: 0.5, aim: 0.05 })
            .rounds_max(1)
            .note(format!("over {} s, a finished job in its list", IDLE.as_secs())),
    ]
}

/// The pages that have a script or a style of their own, of a server with a job that is done.
fn largest_assets() -> Sample {
    let served = with_job(3)?;
    let mut largest = 0;
    for page in ["/jobs", "/jobs/new", "/jobs/1", "/jobs/1/read/1/1", "/limits", "/loop"] {
        let files = assets(&served, page)?;
        if files.is_empty() {
            return Err(format!("{page} names no files"));
        }
        let sizes: Result<Vec<usize>, String> =
            files.iter().map(|file| served.get(file).map(|body| body.len())).collect();
        largest = largest.max(sizes?.iter().sum());
    }
    Ok(largest as f64 / 1e3)
}

/// Starts a server with a job of `pages` pages that is done.
fn with_job(pages: u32) -> Result<Served, String> {
    let served = Served::start(&[])?;
    served.upload("/jobs/new", "book.json", &explanations(pages))?;
    served.api("POST", "/jobs/1/start", "application/json", b"")?;
    Ok(served)
}

/// What a page loads: its own files, and what its scripts import.
fn assets(served: &Served, page: &str) -> Result<BTreeSet<String>, String> {
    let html = text(served, page)?;
    let mut files: BTreeSet<String> =
        html.split('"').filter(|value| value.starts_with("/assets/")).map(str::to_owned).collect();
    let scripts: Vec<String> = files.iter().filter(|file| file.ends_with(".js")).cloned().collect();
    for script in scripts {
        let folder = script.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let code = text(served, &script)?;
        let imports = code.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
        files.extend(imports.map(|name| format!("{folder}/{name}")));
    }
    Ok(files)
}

/// A text without compression.
fn text(served: &Served, path: &str) -> Result<String, String> {
    let body = served.get(path)?;
    let mut child = Command::new("gzip")
        .args(["-dcf"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("gzip: {error}"))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let writer = thread::spawn(move || std::io::Write::write_all(&mut stdin, &body));
    let output = child.wait_with_output().map_err(|error| format!("gzip: {error}"))?;
    writer.join().map_err(|_| "gzip: the writer panicked")?.map_err(|error| format!("gzip: {error}"))?;
    String::from_utf8(output.stdout).map_err(|error| format!("{path}: {error}"))
}

/// The list of jobs; the server of the first round stays for the others.
fn jobs_page(kept: &mut Option<Served>) -> Sample {
    if kept.is_none() {
        let served = Served::start(&[])?;
        for at in 0..JOBS {
            served.upload("/jobs/new", &format!("book {at}.json"), &explanations(20))?;
        }
        *kept = Some(served);
    }
    let served = kept.as_ref().expect("it is there");
    let began = Instant::now();
    let page = served.get("/jobs")?;
    let took = began.elapsed();
    match page.len() {
        0..1_000 => Err(format!("a list of {} bytes", page.len())),
        _ => Ok(took.as_secs_f64() * 1e3),
    }
}

/// A real browser; it prints the milliseconds.
fn grid() -> Sample {
    let served = with_job(CELLS)?;
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/grid.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(scratch.path())
        .arg(format!("http://{}/jobs/1", served.address()))
        .arg(CELLS.to_string())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.trim().parse().map_err(|_| format!("Chromium: {}", printed.trim()))
}

fn wake_ups() -> Sample {
    let served = with_job(20)?;
    // What the start and the job leave behind ends first: the server's caches and threads that wait a little before they go.
    thread::sleep(IDLE);
    let before = served.switches()?;
    thread::sleep(IDLE);
    Ok((served.switches()? - before) as f64 / IDLE.as_secs_f64())
}
