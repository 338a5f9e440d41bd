//! From the start of the command to the first call, of a book of 300 pages: pages stream, so nobody waits for the last.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_rehearsal::Server;

use crate::harness::{BASELINE, Goal, Line, Sample};

const PAGES: usize = 300;
const LINES: usize = 40;
const TOO_LONG: Duration = Duration::from_secs(20);

pub(super) fn line() -> Line {
    Line::new("explain, from the start to the first call", "ms")
        .contestant_if(BASELINE, first_call)
        .goal(Goal::Below { limit: 50.0, aim: 30.0 })
        .rounds_max(11)
        .note("a PDF of 300 pages and 1 MB, the command as a user starts it; a new store each time")
}

fn first_call() -> Sample {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = scratch.path().join("book.pdf");
    fs::write(&file, book()).map_err(|error| error.to_string())?;
    let server = Server::builder().start_in_thread().map_err(|error| error.to_string())?;
    let mut command = explain(&file, &server.base_url())?;
    command.current_dir(scratch.path());
    let began = Instant::now();
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let took = loop {
        let took = began.elapsed();
        if server.stats().arrived > 0 {
            break Ok(took);
        }
        if took > TOO_LONG {
            break Err(format!("no call within {} s", TOO_LONG.as_secs()));
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    let _ = child.kill();
    let _ = child.wait();
    Ok(took?.as_secs_f64() * 1e3)
}

fn explain(file: &Path, base: &str) -> Result<Command, String> {
    let mut command = Command::new(tidegate()?);
    command
        .args(["explain", "--provider", "openai", "--model", "m", "--progress", "none", "--base-url"])
        .arg(format!("{base}/v1"))
        .arg(file)
        .env("OPENAI_API_KEY", "rehearsal")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}

/// The command, which is built beside this program.
pub(crate) fn tidegate() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let command = own.with_file_name("tidegate");
    match command.exists() {
        true => Ok(command),
        false => Err("there is no release build of the command; cargo build --release".into()),
    }
}

/// A PDF as plain as they come: text in one of the fonts that every reader has.
pub(crate) fn book() -> Vec<u8> {
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        String::new(),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    let mut kids = String::new();
    for page in 1..=PAGES {
        let mut text = "BT /F1 11 Tf 14 TL 60 780 Td\n".to_owned();
        for line in 1..=LINES {
            let _ =
                writeln!(text, "(Page {page}, line {line}: the tide comes in twice a day, and the gate counts it.) '");
        }
        text.push_str("ET");
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> \
             /Contents {} 0 R >>",
            objects.len() + 2
        ));
        let _ = write!(kids, "{} 0 R ", objects.len());
        objects.push(format!("<< /Length {} >>\nstream\n{text}\nendstream", text.len()));
    }
    objects[1] = format!("<< /Type /Pages /Kids [{kids}] /Count {PAGES} >>");
    let mut file = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        let _ = write!(file, "{} 0 obj\n{object}\nendobj\n", number + 1);
    }
    let table = file.len();
    let _ = write!(file, "xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for offset in offsets {
        let _ = writeln!(file, "{offset:010} 00000 n ");
    }
    let _ = write!(file, "trailer << /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n", objects.len() + 1);
    file.into_bytes()
}
