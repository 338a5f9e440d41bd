//! Pages asked again while a run goes on, before it begins, and outside of it.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_batch::{
    Caller, Change, Control, Dialect, Explain, ItemId, ItemScope, ItemState, Outputs, PageAsk, Prompt, Remote, Store,
};
use tidegate_limit::Gate;
use tidegate_loop::{run, spawn, yield_now};
use tidegate_sync::Event as Signal;

use crate::support::{Act, Bench, Server, answer, error, gate, hasty, parameters, reader, write_pdf};

fn page(file: u32, page: u32) -> ItemId {
    ItemId::Page { file, page }
}

/// Waits until `is` holds for an event of the run that is kept.
async fn until(control: &Control, is: impl Fn(&Change) -> bool) {
    let mut seen = 0;
    loop {
        control.changed(seen).await;
        for event in control.events_after(seen).unwrap() {
            seen = event.seq;
            if is(&event.change) {
                return;
            }
        }
    }
}

fn provider(gate: &Gate, server: &Server) -> Remote {
    let caller = Caller::new(gate, Dialect::OpenAi, &server.base).unwrap().with_retries(hasty(2));
    Remote::new(caller, parameters())
}

#[test]
fn a_page_that_failed_is_asked_again_meanwhile_and_its_file_is_written_again() {
    run(async {
        let bench = Bench::new();
        let paths: Vec<PathBuf> = ["a.pdf", "b.pdf"].map(|name| write_pdf(bench.folder.path(), name, 2)).into();
        let go_on = Arc::new(Signal::new());
        let held = Arc::clone(&go_on);
        let refused = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let server = Server::start(move |_, seen| match (seen.text.contains("b.pdf"), seen.page()) {
            (true, _) => Act::Hold(Arc::clone(&held), "of the second file"),
            (_, 2) if !refused.swap(true, std::sync::atomic::Ordering::Relaxed) => error(400, "not this one", "bad"),
            (_, number) => answer(&format!("about page {number}")),
        })
        .await;
        let mut options = bench.options(&paths);
        options.prompt = Prompt::parse("PAGE<{page}> of {file}.").unwrap();
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let running = spawn(explain.run());
        until(&control, |change| matches!(change, Change::FileDone { file: 0, done: 1, .. })).await;
        assert_eq!(bench.read("a").explanations[1].error.as_ref().unwrap().code, "refused");
        let before = control.progress();
        assert_eq!((before.failed, before.files[0].failed), (1, 1));
        assert_eq!(control.retry(page(1, 1)).unwrap_err().to_string(), "the item is not settled yet: wait until it is");
        control.retry(page(0, 2)).unwrap();
        until(&control, |change| matches!(change, Change::FileDone { file: 0, done: 2, .. })).await;
        let entries = bench.read("a").explanations;
        assert_eq!(entries[1].explanation.as_deref(), Some("about page 2"));
        assert_eq!(entries[0].explanation.as_deref(), Some("about page 1"), "the other page is still there");
        go_on.set();
        let report = running.await.unwrap().unwrap();
        assert_eq!((report.totals.done, report.totals.failed, report.failures.len()), (4, 0, 0));
        assert!(report.is_complete());
        assert!(fs::read_to_string(bench.out().join("a.html")).unwrap().contains("about page 2"));
    })
    .unwrap();
}

#[test]
fn an_answer_stays_if_the_page_is_asked_again_and_fails() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "a.pdf", 2);
        let go_on = Arc::new(Signal::new());
        let held = Arc::clone(&go_on);
        let server = Server::start(move |number, seen| match (seen.page(), number) {
            (2, _) => Act::Hold(Arc::clone(&held), "about page 2"),
            (_, 0 | 1) => answer("the first answer"),
            _ => error(400, "not again", "bad"),
        })
        .await;
        let explain = bench.explain(bench.options(std::slice::from_ref(&path)), &server);
        let (control, results) = (explain.control(), explain.results());
        let told = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&told);
        control.on_event(move |event| {
            if let Change::RetryFailed { item, code, .. } = &event.change {
                noted.borrow_mut().push((*item, code.clone()));
            }
        });
        let running = spawn(explain.run());
        while control.item(page(0, 1)) != Some(ItemState::Done) {
            yield_now().await;
        }
        assert_eq!(results.page(0, 1).unwrap().explanation.as_deref(), Some("the first answer"));
        assert!(results.page(0, 2).is_none(), "not answered yet");
        control.retry(page(0, 1)).unwrap();
        assert_eq!(control.item(page(0, 1)), Some(ItemState::Waiting));
        while told.borrow().is_empty() {
            yield_now().await;
        }
        assert_eq!(*told.borrow(), [(page(0, 1), "refused".to_owned())]);
        assert_eq!(control.item(page(0, 1)), Some(ItemState::Done));
        go_on.set();
        assert!(running.await.unwrap().unwrap().is_complete());
        assert_eq!(bench.read("a").explanations[0].explanation.as_deref(), Some("the first answer"));

        // And so it is in the store.
        let asked = server.seen().len();
        assert_eq!(bench.run(bench.options(&[path]), &server).await.totals.kept, 2);
        assert_eq!(server.seen().len(), asked);
    })
    .unwrap();
}

#[test]
fn a_page_of_a_run_that_has_ended_is_asked_again_by_the_next_and_the_rest_is_cached() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "a.pdf", 5);
        let server = Server::start(|number, _| answer(&format!("answer {number}"))).await;
        bench.run(bench.options(std::slice::from_ref(&path)), &server).await;
        let explain = bench.explain(bench.options(&[path]), &server);
        let control = explain.control();
        control.retry(page(0, 3)).unwrap();
        assert!(control.retry(page(7, 3)).is_err(), "there is no such file");
        let report = explain.run().await.unwrap();
        assert_eq!((report.totals.done, report.totals.kept), (5, 4));
        assert_eq!(server.pages()[&3], 2);
        assert_eq!(server.seen().len(), 6);
        assert_eq!(bench.read("a").explanations[2].explanation.as_deref(), Some("answer 5"));
        assert_eq!(control.item(page(0, 3)), Some(ItemState::Done));
        assert_eq!(control.item(page(0, 2)), Some(ItemState::Cached));
    })
    .unwrap();
}

#[test]
fn one_page_is_asked_with_another_prompt_and_its_answer_is_taken_over_only_if_that_is_wanted() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "a.pdf", 2);
        let go_on = Arc::new(Signal::new());
        let held = Arc::clone(&go_on);
        let server = Server::start(move |_, seen| match seen.page() {
            2 => Act::Hold(Arc::clone(&held), "about page 2"),
            1 => answer("as it was asked first"),
            _ => answer("in other words"),
        })
        .await;
        let options = bench.options(std::slice::from_ref(&path));
        let gate = gate(&bench.quotas);
        let (own, scope) = (Rc::new(provider(&gate, &server)), ItemScope::from(gate.unscoped()));
        let store = Rc::new(Store::open(bench.out().join("results.db")).unwrap());
        let explain = Explain::new(options.clone(), own.clone(), "openai", &gate, Rc::clone(&store));
        let explain = explain.with_reader(reader());
        let control = explain.control();
        let running = spawn(explain.run());
        while control.item(page(0, 1)) != Some(ItemState::Done) {
            yield_now().await;
        }

        let ask = PageAsk::new(&options, 0, 1).reader(reader()).prompt("Say it in other words.").unwrap();
        let said = ask.ask(&*own, &scope).await.unwrap();
        assert_eq!((said.answer.text.as_str(), said.attempts), ("in other words", 1));
        assert!(server.seen().last().unwrap().text.contains("Say it in other words."));
        let none = PageAsk::new(&options, 0, 9).reader(reader()).ask(&*own, &scope).await.unwrap_err();
        assert!(none.to_string().contains("a.pdf has 2 pages"), "{none}");

        assert_eq!(store.stats().results, 1, "nothing was stored for the comparison");
        ask.replace(&said, &*own, &store).await.unwrap();
        assert_eq!(control.item(page(0, 1)), Some(ItemState::Done), "the run goes on with what it has");
        go_on.set();
        assert!(running.await.unwrap().unwrap().is_complete());
        drop(store);

        // The next run finds the answer that was chosen.
        let asked = server.seen().len();
        bench.run(options, &server).await;
        assert_eq!(server.seen().len(), asked);
        assert_eq!(bench.read("a").explanations[0].explanation.as_deref(), Some("in other words"));
    })
    .unwrap();
}

#[test]
fn a_run_that_goes_on_takes_over_an_answer_that_was_replaced() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "a.pdf", 2);
        let go_on = Arc::new(Signal::new());
        let held = Arc::clone(&go_on);
        let server = Server::start(move |number, seen| match seen.page() {
            2 => Act::Hold(Arc::clone(&held), "about page 2"),
            _ => answer(&format!("answer {number}")),
        })
        .await;
        let options = bench.options(&[path]);
        let store = Rc::new(Store::open(bench.out().join("results.db")).unwrap());
        let gate = gate(&bench.quotas);
        let own = Rc::new(provider(&gate, &server));
        let explain = Explain::new(options.clone(), own.clone(), "openai", &gate, Rc::clone(&store));
        let explain = explain.with_reader(reader());
        let control = explain.control();
        let running = spawn(explain.run());
        while control.item(page(0, 1)) != Some(ItemState::Done) {
            yield_now().await;
        }
        let ask = PageAsk::new(&options, 0, 1).reader(reader());
        let said = ask.ask(&*own, &gate.unscoped().into()).await.unwrap();
        ask.replace(&said, &*own, &store).await.unwrap();
        control.reload(page(0, 1)).unwrap();
        while control.item(page(0, 1)) != Some(ItemState::Cached) {
            yield_now().await;
        }
        go_on.set();
        running.await.unwrap().unwrap();
        assert_eq!(bench.read("a").explanations[0].explanation.as_ref(), Some(&said.answer.text));
    })
    .unwrap();
}

#[test]
fn a_run_whose_reader_makes_the_rest_itself_writes_only_json() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "a.pdf", 2);
        let server = Server::start(|_, _| answer("fine")).await;
        let mut options = bench.options(&[path]);
        options.outputs = Outputs::Json;
        let report = bench.run(options, &server).await;
        assert!(report.is_complete());
        let written = |ending: &str| bench.out().join(format!("a.{ending}")).exists();
        assert_eq!(["json", "md", "html"].map(written), [true, false, false]);
        assert_eq!(report.files[0].outputs.len(), 1);
        assert_eq!(bench.read("a").explanations.len(), 2);
    })
    .unwrap();
}
