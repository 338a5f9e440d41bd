//! Servers that go away and come back, in virtual time: client, gate and server are on one loop, and its clock moves only
//! while every admitted request is at the server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tidegate_batch::jsonl::{Batch, EndedEarly, Input, Output, Summary};
use tidegate_batch::{Call, CallError, Caller, CallerStats, Dialect, Estimate, Retries};
use tidegate_limit::{Gate, Limit};
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, JoinHandle, LoopHandle, run, sleep, spawn, yield_now};

use crate::support::{Act, Bench, Server, answer, error, hasty, write_pdf};

/// How long the server takes for a request.
const LATENCY: Duration = Duration::from_millis(200);
/// The clock moves in steps of this length.
const STEP: Duration = Duration::from_millis(50);
/// Ticks between two steps: what a timer wakes is admitted before the clock moves on.
const TICKS: usize = 4;

const ANSWER: &str = r#"{"choices":[{"message":{"content":"yes"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;

/// What the server does at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Up,
    /// Its port is closed.
    Closed,
    /// It takes connections and ends them without an answer.
    Resetting,
    /// It answers with this status and an empty body.
    Saying(u16),
}

type Schedule = Rc<dyn Fn(Duration) -> Is>;

/// A server whose schedule says what it does at which time.
struct Harbour {
    address: SocketAddr,
    state: Rc<HarbourState>,
    clock: JoinHandle<()>,
}

struct HarbourState {
    now: Cell<Is>,
    in_flight: Cell<u64>,
    received: Cell<u64>,
    accepting: RefCell<Option<JoinHandle<()>>>,
}

impl Harbour {
    /// Listens, and moves the clock for `gate`.
    async fn open(gate: &Gate, schedule: Schedule) -> Harbour {
        // On an address of its own: a connection to a closed port of 127.0.0.1 may happen to be made with itself.
        let listener = TcpListener::bind("127.77.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Rc::new(HarbourState {
            now: Cell::new(Is::Closed),
            in_flight: Cell::new(0),
            received: Cell::new(0),
            accepting: RefCell::default(),
        });
        drop(listener);
        state.become_(schedule(Duration::ZERO), address).await;
        let clock = spawn({
            let (state, gate) = (Rc::clone(&state), gate.clone());
            async move {
                let began = LoopHandle::current().time();
                loop {
                    for _ in 0..TICKS {
                        yield_now().await;
                    }
                    if gate.stats().current == state.in_flight.get() {
                        LoopHandle::current().advance(STEP);
                        state.become_(schedule(LoopHandle::current().time() - began), address).await;
                    }
                }
            }
        });
        Harbour { address, state, clock }
    }

    fn base(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn received(&self) -> u64 {
        self.state.received.get()
    }
}

impl Drop for Harbour {
    fn drop(&mut self) {
        self.clock.cancel();
        if let Some(accepting) = self.state.accepting.take() {
            accepting.cancel();
        }
    }
}

impl HarbourState {
    async fn become_(self: &Rc<Self>, is: Is, address: SocketAddr) {
        if self.now.replace(is) == is {
            return;
        }
        let open = self.accepting.borrow().is_some();
        if is == Is::Closed && open {
            let accepting = self.accepting.take().expect("looked at above");
            accepting.cancel();
            let _ = accepting.await;
        } else if is != Is::Closed && !open {
            let listener = TcpListener::bind(address).await.unwrap();
            let state = Rc::clone(self);
            *self.accepting.borrow_mut() = Some(spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    drop(spawn(Rc::clone(&state).serve(stream)));
                }
            }));
        }
    }

    async fn serve(self: Rc<Self>, stream: TcpStream) {
        let mut request = Vec::new();
        while !is_whole(&request) {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(length) => request.extend_from_slice(&buffer[..length]),
            }
        }
        self.received.set(self.received.get() + 1);
        if self.now.get() == Is::Up {
            self.in_flight.set(self.in_flight.get() + 1);
            sleep(LATENCY).await;
            self.in_flight.set(self.in_flight.get() - 1);
        }
        let (status, body) = match self.now.get() {
            Is::Up => (200, ANSWER),
            Is::Saying(status) => (status, ""),
            Is::Closed | Is::Resetting => return,
        };
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let _ = stream.write_all((head + body).as_bytes()).await;
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(|text| text.trim().parse());
    body.len() >= length.map_or(0, Result::unwrap)
}

fn in_virtual_time<F: Future + 'static>(test: F) -> F::Output {
    EventLoop::builder().manual_clock().strict(true).build().unwrap().run_until_complete(test).unwrap()
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn gate() -> Gate {
    Gate::builder().limit(Limit::concurrency("global", 10)).build().unwrap()
}

fn call() -> Call {
    Call::new("/chat/completions", "{}".into(), Estimate { input_tokens: 50, output_tokens: 50 })
}

/// What became of requests that were sent to a server with that schedule.
struct Outcome {
    results: Vec<Result<u32, CallError>>,
    took: Duration,
    received: u64,
    stats: CallerStats,
}

impl Outcome {
    fn answered(&self) -> usize {
        self.results.iter().filter(|result| result.is_ok()).count()
    }
}

/// Sends `count` requests, ten at a time.
fn send(count: usize, retries: Retries, schedule: impl Fn(Duration) -> Is + 'static) -> Outcome {
    in_virtual_time(async move {
        let gate = gate();
        let harbour = Harbour::open(&gate, Rc::new(schedule)).await;
        let caller = Caller::new(&gate, Dialect::OpenAi, &harbour.base()).unwrap().with_retries(retries);
        let began = LoopHandle::current().time();
        let calls: Vec<_> = (0..count)
            .map(|_| {
                let caller = caller.clone();
                spawn(async move {
                    let reply = caller.call_json(caller.gate().unscoped(), &call()).await;
                    reply.map(|reply| reply.attempts)
                })
            })
            .collect();
        let mut results = Vec::new();
        for call in calls {
            results.push(call.await.unwrap());
        }
        let took = LoopHandle::current().time() - began;
        Outcome { results, took, received: harbour.received(), stats: caller.stats() }
    })
}

/// Up for 0.6 s, away for `length`, and up again.
fn away(length: Duration, how: Is) -> impl Fn(Duration) -> Is {
    let begin = Duration::from_millis(600);
    move |at| if at >= begin && at < begin + length { how } else { Is::Up }
}

#[test]
fn an_outage_of_any_kind_and_length_loses_no_request() {
    for how in [Is::Closed, Is::Resetting, Is::Saying(503), Is::Saying(502), Is::Saying(522)] {
        for length in [12, 60, 3600].map(secs) {
            let outcome = send(30, Retries::default(), away(length, how));
            let failed: Vec<_> = outcome.results.iter().filter_map(|result| result.as_ref().err()).collect();
            assert!(failed.is_empty(), "{how:?} for {length:?}: {} failed, {:?}", failed.len(), failed[0]);
            // Probed at least every 30 s; and the back-off of the first failures is at most 30 s.
            assert!(
                outcome.took >= length && outcome.took < length + secs(90),
                "{how:?} for {length:?}: {:?}",
                outcome.took
            );
            // While it lasts, one request at a time: every eighth of the outage so far, then every 30 s.
            let probes = 40 + length.as_secs() / 30;
            assert!(outcome.stats.failed < 20 + probes, "{how:?} for {length:?}: {} failures", outcome.stats.failed);
        }
    }
}

#[test]
fn a_server_that_is_reachable_one_second_in_ten_gets_everything_done() {
    for how in [Is::Closed, Is::Resetting, Is::Saying(503)] {
        let schedule = move |at: Duration| if at.as_secs().is_multiple_of(10) { Is::Up } else { how };
        let outcome = send(80, Retries::default(), schedule);
        assert_eq!(outcome.answered(), 80, "{how:?}: {:?}", outcome.results.iter().find(|result| result.is_err()));
    }
}

#[test]
fn an_outage_beyond_the_limit_ends_the_calls_with_one_reason() {
    let retries = Retries { outage_max: secs(600), ..Retries::default() };
    let outcome = send(120, retries, away(secs(100_000), Is::Closed));
    let errors = || outcome.results.iter().flat_map(|result| result.as_ref().err());
    assert!(errors().any(|error| error.to_string().contains("has not answered for 6")), "{:?}", errors().next());
    assert!(errors().all(|error| matches!(error, CallError::Shut { .. })));
}

#[test]
fn a_server_that_was_never_reached_is_not_waited_for() {
    let outcome = send(120, Retries::default(), |_| Is::Closed);
    for result in &outcome.results {
        let error = result.as_ref().unwrap_err();
        assert!(
            matches!(error, CallError::Shut { reason } if reason.contains("127.77.0.1") && reason.contains("6 attempts")),
            "{error}"
        );
    }
    assert!(outcome.took < secs(60), "{:?}", outcome.took);
}

#[test]
fn a_429_for_hours_is_waited_out_with_a_few_probes() {
    let outcome = send(120, Retries::default(), away(secs(4 * 3600), Is::Saying(429)));
    assert_eq!(outcome.answered(), 120);
    assert!(outcome.received < 120 + 4 * 60 + 60, "{} requests", outcome.received);
}

#[test]
fn an_answer_of_nothing_is_no_outage() {
    let outcome = send(3, Retries::default(), |_| Is::Saying(200));
    for result in &outcome.results {
        assert!(matches!(result, Err(CallError::Garbled { attempts: 3, .. })), "{result:?}");
    }
    assert_eq!(outcome.received, 9);
}

/// A request that the server cannot bear must not look like an outage.
#[test]
fn a_request_that_fails_alone_uses_up_its_attempts() {
    for how in [Is::Resetting, Is::Saying(504)] {
        let failed = in_virtual_time(async move {
            let gate = gate();
            let harbour = Harbour::open(&gate, Rc::new(away(secs(100_000), how))).await;
            let caller = Caller::new(&gate, Dialect::OpenAi, &harbour.base()).unwrap();
            caller.call_json(gate.unscoped(), &call()).await.unwrap();
            sleep(secs(2)).await;
            caller.call_json(gate.unscoped(), &call()).await.unwrap_err()
        });
        assert!(matches!(failed, CallError::Unavailable { attempts: 6, .. }), "{how:?}: {failed}");
    }
}

async fn batch(folder: &Path, retries: Retries, base: &str) -> (Summary, String) {
    batch_of(16, folder, retries, base).await
}

/// Runs `count` requests from a file against `base`, and returns the summary and the output.
async fn batch_of(count: u32, folder: &Path, retries: Retries, base: &str) -> (Summary, String) {
    let (requests, results) = (folder.join("requests.jsonl"), folder.join("results.jsonl"));
    let line = |id: u32| {
        format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{{"model":"m"}}}}"#)
    };
    std::fs::write(&requests, (0..count).map(|id| line(id) + "\n").collect::<String>()).unwrap();
    let caller = Caller::new(gate(), Dialect::OpenAi, base).unwrap().with_retries(retries);
    let batch = Batch::new(Input::File(requests), Output::File(results.clone()));
    let summary = batch.run(&caller).await.unwrap();
    (summary, std::fs::read_to_string(results).unwrap())
}

/// A server that answers eight requests, then says 503 until request `number`.
async fn away_until(number: usize) -> Server {
    Server::start(move |at, _| if at >= 8 && at < number { Act::Say(503, String::new()) } else { answer("yes") }).await
}

#[test]
fn a_batch_waits_out_an_outage() {
    run(async {
        let (folder, server) = (tempfile::tempdir().unwrap(), away_until(24).await);
        let (summary, _) = batch(folder.path(), hasty(2), &server.base).await;
        assert_eq!((summary.answered, summary.failed, summary.ended_early), (16, 0, None));
    })
    .unwrap();
}

#[test]
fn the_same_batch_again_takes_up_what_an_outage_left() {
    run(async {
        let (folder, server) = (tempfile::tempdir().unwrap(), away_until(usize::MAX).await);
        let retries = Retries { outage_max: Duration::from_millis(700), ..hasty(2) };
        let (first, text) = batch(folder.path(), retries, &server.base).await;
        let Some(EndedEarly::Shut(reason)) = &first.ended_early else { panic!("{first:?}") };
        assert!(reason.contains(&server.base) && reason.contains("longest outage"), "{reason}");
        assert!(
            first.failed == 0 && text.lines().count() as u64 == first.answered,
            "none is written as failed: {text}"
        );
        let server = Server::start(|_, _| answer("yes")).await;
        let (second, text) = batch(folder.path(), retries, &server.base).await;
        assert_eq!((first.answered + second.answered, second.cached), (16, first.answered));
        assert_eq!(text.lines().count(), 16);
    })
    .unwrap();
}

#[test]
fn a_wrong_address_ends_a_batch_with_one_error_that_names_it() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap().port();
        let (summary, text) = batch(folder.path(), hasty(3), &format!("http://127.77.0.1:{port}/v1")).await;
        let Some(EndedEarly::Shut(reason)) = &summary.ended_early else { panic!("{summary:?}") };
        assert!(reason.contains(&format!("no answer from http://127.77.0.1:{port}/v1 after 4 attempts")), "{reason}");
        assert_eq!((summary.failed, text.as_str()), (0, ""));
    })
    .unwrap();
}

#[test]
fn explain_waits_out_an_outage() {
    run(async {
        let (bench, server) = (Bench::new(), away_until(24).await);
        let input = write_pdf(bench.folder.path(), "a.pdf", 16);
        let report = bench.run(bench.options(&[input]), &server).await;
        assert_eq!((report.totals.done, report.totals.failed, report.stopped), (16, 0, None));
    })
    .unwrap();
}

/// Faults of the pages' own, which the server is not away for.
#[test]
fn explain_still_stops_when_page_after_page_fails() {
    run(async {
        let bench = Bench::new();
        let input = write_pdf(bench.folder.path(), "a.pdf", 40);
        let server = Server::start(|_, _| error(500, "no pictures", "server_error")).await;
        let report = bench.run(bench.options(&[input]), &server).await;
        assert!(report.stopped.unwrap().contains("8 pages in a row"));
    })
    .unwrap();
}

#[test]
fn an_unknown_model_ends_a_batch_before_anything_is_written() {
    run(async {
        for status in [403, 404] {
            let server =
                Server::start(move |_, _| error(status, "the model m does not exist", "model_not_found")).await;
            let folder = tempfile::tempdir().unwrap();
            let (summary, text) = batch_of(100, folder.path(), hasty(2), &server.base).await;
            let Some(EndedEarly::Shut(reason)) = &summary.ended_early else { panic!("{summary:?}") };
            assert!(reason.contains("the model m does not exist"), "{reason}");
            assert_eq!((summary.failed, text.as_str()), (0, ""), "the next run asks again");
            assert!(server.seen().len() <= 20, "eight, and what was in flight: {}", server.seen().len());
        }
    })
    .unwrap();
}

#[test]
fn a_batch_of_one_line_ends_too() {
    run(async {
        let server = Server::start(|_, _| error(404, "the model m does not exist", "model_not_found")).await;
        let folder = tempfile::tempdir().unwrap();
        let (summary, text) = batch_of(1, folder.path(), hasty(2), &server.base).await;
        assert!(matches!(&summary.ended_early, Some(EndedEarly::Shut(_))), "{summary:?}");
        assert_eq!((summary.failed, text.as_str()), (0, ""));
    })
    .unwrap();
}

#[test]
fn an_unknown_model_of_some_lines_fails_those_lines() {
    run(async {
        let server = Server::start(|number, _| match number {
            0..8 => answer("yes"),
            _ => error(404, "the model m does not exist", "model_not_found"),
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let (summary, _) = batch(folder.path(), hasty(2), &server.base).await;
        assert_eq!((summary.answered, summary.failed, summary.ended_early), (8, 8, None));
    })
    .unwrap();
}

#[test]
fn a_batch_ends_after_eight_requests_without_a_usable_answer() {
    run(async {
        for (status, body) in [(200, ""), (200, r#"{"error":{"message":"away"}}"#), (500, ""), (400, "bad")] {
            let server = Server::start(move |_, _| Act::Say(status, body.into())).await;
            let folder = tempfile::tempdir().unwrap();
            let (summary, text) = batch_of(100, folder.path(), hasty(2), &server.base).await;
            let Some(EndedEarly::Shut(reason)) = &summary.ended_early else { panic!("{status}: {summary:?}") };
            assert!(reason.contains("8 requests in a row"), "{reason}");
            // Those in flight end as well.
            assert!((8..30).contains(&summary.failed), "{summary:?}");
            assert_eq!(text.lines().count() as u64, summary.failed);
        }
    })
    .unwrap();
}

#[test]
fn a_parameter_that_the_model_refuses_stops_explain_and_is_not_kept_as_a_failure() {
    run(async {
        let bench = Bench::new();
        let input = write_pdf(bench.folder.path(), "a.pdf", 20);
        let refusal = "Unsupported value: 'temperature' does not support 0.2 with this model.";
        let server = Server::start(move |_, _| error(400, refusal, "unsupported_value")).await;
        let report = bench.run(bench.options(std::slice::from_ref(&input)), &server).await;
        assert!(report.stopped.unwrap().contains("does not take the parameter temperature"));
        assert_eq!(report.totals.failed, 0);
        let server = Server::start(|_, _| answer("yes")).await;
        assert_eq!(bench.run(bench.options(&[input]), &server).await.totals.done, 20, "the same run again asks");
    })
    .unwrap();
}
