//! A thousand browsers that watch a job: what they take of the server, and of the job.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_loop::net::TcpStream;
use tidegate_loop::{sleep, spawn};
use tidegate_rehearsal::{Latency, Server};

use super::served::Served;
use crate::batch::book;
use crate::harness::{BASELINE, Goal, Line};

const CLIENTS: u64 = 1_000;
/// Of 300 pages each.
const BOOKS: usize = 10;
/// Updates per second and client, below which the figures say nothing.
const UPDATES_MIN: f64 = 3.0;
const TOO_LONG: Duration = Duration::from_secs(300);

pub(super) fn lines() -> Vec<Line> {
    let kept: Rc<RefCell<Vec<Both>>> = Rc::default();
    let again = Rc::clone(&kept);
    vec![
        Line::new("1,000 browsers, 4 updates per second: CPU of the server", "% of a core")
            .contestant_if(BASELINE, move || {
                let both = both()?;
                let share = both.share();
                kept.borrow_mut().push(both);
                Ok(share * 100.0)
            })
            .goal(Goal::Below { limit: 10.0, aim: 5.0 })
            .rounds_max(3)
            .note("beyond what the same job takes without them: 3,000 pages, answers after 300 ms, 100 at once"),
        Line::new("1,000 browsers: time of the job they watch", "x")
            // The rounds of the line above, where it was measured.
            .contestant_if(BASELINE, move || {
                let known = again.borrow_mut().pop();
                let round = known.map_or_else(both, Ok)?;
                Ok(round.watched.took.as_secs_f64() / round.alone.took.as_secs_f64())
            })
            .goal(Goal::Below { limit: 1.02, aim: 1.01 })
            .rounds_max(3)
            .note("with them / without them"),
    ]
}

/// A job and what it took.
struct Ran {
    took: Duration,
    cpu: Duration,
}

/// The same job without and with browsers that watch it.
struct Both {
    alone: Ran,
    watched: Ran,
}

impl Both {
    /// What the browsers took of a core.
    fn share(&self) -> f64 {
        let own = self.alone.cpu.as_secs_f64();
        (self.watched.cpu.as_secs_f64() - own).max(0.0) / self.watched.took.as_secs_f64()
    }
}

fn both() -> Result<Both, String> {
    Ok(Both { alone: run(0)?, watched: run(CLIENTS)? })
}

fn run(clients: u64) -> Result<Ran, String> {
    let server = Server::builder().latency(Latency::Fixed(Duration::from_millis(300)));
    let mock = server.start_in_thread().map_err(|error| error.to_string())?;
    let base = format!("{}/v1", mock.base_url());
    let served =
        Served::start(&["--provider", "openai", "--base-url", &base, "--model", "m", "--global-concurrency", "100"])?;
    let book = book();
    for at in 0..BOOKS {
        match at {
            0 => served.upload("/jobs/new", "book 0.pdf", &book)?,
            _ => served.upload("/jobs/1/files", &format!("book {at}.pdf"), &book)?,
        }
    }
    let crowd = Crowd::gather(served.address(), clients)?;
    let (cpu, began) = (served.cpu()?, Instant::now());
    served.api("POST", "/jobs/1/start", "application/json", b"")?;
    let before = crowd.updates();
    while served.api("GET", "/jobs/1", "", b"")?["state"] != "done" {
        if began.elapsed() > TOO_LONG {
            return Err(format!("the job is not done after {} s", TOO_LONG.as_secs()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    let took = began.elapsed();
    let ran = Ran { took, cpu: served.cpu()? - cpu };
    let each = (crowd.updates() - before) as f64 / clients.max(1) as f64 / took.as_secs_f64();
    crowd.leave()?;
    match clients == 0 || each >= UPDATES_MIN {
        true => Ok(ran),
        false => Err(format!("only {each:.1} updates per second and browser")),
    }
}

/// Connections that read what comes, in a thread of this process.
struct Crowd {
    updates: Arc<AtomicU64>,
    leaves: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

impl Crowd {
    /// Returns once each client has received an event.
    fn gather(address: &str, clients: u64) -> Result<Crowd, String> {
        let (updates, leaves) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (there, address) = (Arc::new(AtomicU64::new(0)), address.to_owned());
        let thread = thread::spawn({
            let (updates, leaves, there) = (Arc::clone(&updates), Arc::clone(&leaves), Arc::clone(&there));
            move || {
                let listening = async move {
                    for _ in 0..clients {
                        spawn(listen(address.clone(), Arc::clone(&there), Arc::clone(&updates)));
                    }
                    while !leaves.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(50)).await;
                    }
                };
                tidegate_loop::run(listening).map_err(|error| error.to_string())
            }
        });
        let began = Instant::now();
        while there.load(Ordering::Relaxed) < clients {
            if thread.is_finished() || began.elapsed() > TOO_LONG {
                return Err(format!("only {} of {clients} browsers are connected", there.load(Ordering::Relaxed)));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Crowd { updates, leaves, thread })
    }

    fn updates(&self) -> u64 {
        self.updates.load(Ordering::Relaxed)
    }

    fn leave(self) -> Result<(), String> {
        self.leaves.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the browsers panicked".to_owned())?
    }
}

async fn listen(address: String, there: Arc<AtomicU64>, updates: Arc<AtomicU64>) -> Result<(), std::io::Error> {
    let stream = TcpStream::connect(address.as_str()).await?;
    let request = format!("GET /live?on=sys,job/1 HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = vec![0; 16 << 10];
    let mut is_first = true;
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        // An update of two topics comes in one piece or in two; what a page draws is one frame in both cases.
        let news = buffer[..read].windows(12).any(|part| part == b"event: patch");
        updates.fetch_add(u64::from(news), Ordering::Relaxed);
        if std::mem::take(&mut is_first) {
            there.fetch_add(1, Ordering::Relaxed);
        }
    }
}
