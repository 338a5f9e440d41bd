//! A run whose future is dropped leaves nothing running and nothing open.

use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_batch::jsonl::{Batch, Earlier, Input, Output};
use tidegate_batch::{Caller, Control, Dialect, Explain, Quotas, Remote, Store};
use tidegate_loop::{run, spawn, yield_now};

use crate::support::{Act, Bench, Server, answer, gate, hasty, parameters, reader, write_pdf};

/// Longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the loop until `is_so`.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        yield_now().await;
    }
}

#[test]
fn a_dropped_run_gives_up_its_pages_and_closes_its_store() {
    run(async {
        let bench = Bench { quotas: Quotas { global_concurrency: 2, ..Quotas::default() }, ..Bench::new() };
        let inputs = ["a.pdf", "b.pdf"].map(|name| write_pdf(bench.folder.path(), name, 6));
        let server = Server::start(|_, _| Act::Hang).await;
        let gate = gate(&bench.quotas);
        let caller = Caller::new(&gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(2));
        let provider = Rc::new(Remote::new(caller, parameters()));
        let store = Rc::new(Store::open(bench.out().join("results.db")).unwrap());
        let open = Rc::downgrade(&store);
        let explain = Explain::new(bench.options(&inputs), provider, "openai", &gate, store).with_reader(reader());
        let control = explain.control();
        // The future belongs to this task and is dropped with it.
        let running = spawn(async move { explain.run().await.map(drop) });
        until("both slots are taken", || server.seen().len() == 2).await;
        running.cancel();
        assert!(running.await.is_err());
        until("the store is closed", || open.upgrade().is_none()).await;
        until("nothing is in flight or in line", || (gate.stats().current, gate.stats().waiting) == (0, 0)).await;
        assert_eq!(server.seen().len(), 2, "nothing more is sent");
        ended(&control).await;
    })
    .unwrap();
}

#[test]
fn a_dropped_batch_gives_up_its_requests_and_closes_its_results() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (requests, results) = (folder.path().join("requests.jsonl"), folder.path().join("results.jsonl"));
        let line = |number: usize| {
            format!(
                "{{\"custom_id\":\"{number}\",\"url\":\"/v1/chat/completions\",\"body\":{{\"messages\":[{{\"role\":\"user\",\
                 \"content\":\"PAGE<{number}>.\"}}]}}}}\n"
            )
        };
        fs::write(&requests, (1..=6).map(line).collect::<String>()).unwrap();
        let server = Server::start(|number, _| if number == 0 { answer("one") } else { Act::Hang }).await;
        let gate = gate(&Quotas { global_concurrency: 2, ..Quotas::default() });
        let caller = Caller::new(&gate, Dialect::OpenAi, &format!("{}/v1", server.base)).unwrap().with_retries(hasty(0));
        let batch = || Batch::new(Input::File(requests.clone()), Output::File(results.clone()));
        let dropped = batch();
        let control = dropped.control();
        let running = spawn({
            let caller = caller.clone();
            async move { dropped.run(&caller).await.map(drop) }
        });
        until("one is answered and both slots are taken again", || server.seen().len() == 3).await;
        running.cancel();
        assert!(running.await.is_err());
        until("nothing is in flight or in line", || (gate.stats().current, gate.stats().waiting) == (0, 0)).await;
        ended(&control).await;
        // The lock of the results goes with the run.
        until("the results are closed", || fs::File::open(&results).unwrap().try_lock().is_ok()).await;
        assert_eq!(server.seen().len(), 3, "nothing more is sent");
        let again = Server::start(|_, _| answer("again")).await;
        let caller = Caller::new(&gate, Dialect::OpenAi, &format!("{}/v1", again.base)).unwrap().with_retries(hasty(0));
        let summary = batch().earlier(Earlier::Keep).run(&caller).await.unwrap();
        assert_eq!((summary.cached, summary.answered), (1, 5), "what was answered is kept");
    })
    .unwrap();
}

/// Readers of a run that was dropped do not wait for ever.
async fn ended(control: &Control) {
    until("the run has ended for its readers", || control.is_ended()).await;
    control.changed(control.seq()).await;
}
