//! An asker and a worker in one process: what is paid for, what is returned, what is revoked.

use std::rc::Rc;
use std::time::Duration;

use tidegate_batch::{CallError, Caller, Dialect, Local, Parameters, Provider, Question, Remote, Retries};
use tidegate_crew::{Allowed, Asks, Crew, PageHandler, TASK};
use tidegate_limit::{Backoff, Gate, Limit};
use tidegate_loop::{EventLoop, JoinHandle, run, spawn, timeout, yield_now};
use tidegate_rehearsal::{Handle, Latency, Server};
use tidegate_worker::codec::native;
use tidegate_worker::faulty::{Faulty, Plan};
use tidegate_worker::{
    Broker, Coroutines, Envelope, Handlers, Master, MasterError, MasterHandle, MemoryBroker, Report, Settings, Stop,
    Task,
};

const QUEUE: &str = "pages";

struct Worker {
    handle: MasterHandle,
    running: JoinHandle<Result<Report, MasterError>>,
}

impl Worker {
    async fn stop(self) -> Report {
        self.handle.stop(Stop::Warm);
        self.running.await.unwrap().unwrap()
    }
}

fn gate() -> Gate {
    Gate::builder().limit(Limit::concurrency("global", 100)).build().unwrap()
}

fn caller(server: &Handle) -> Caller {
    let retries = Retries { backoff: Backoff::default().with_retries(0), ..Retries::default() };
    Caller::new(gate(), Dialect::OpenAi, &format!("{}/v1", server.base_url())).unwrap().with_retries(retries)
}

fn worker(broker: &Rc<dyn Broker>, server: &Handle, slots: usize) -> Worker {
    let handler = PageHandler::new(Asks::Server(caller(server)), "w");
    let handlers = Handlers::new().handler(TASK, Rc::new(handler));
    let mut settings = Settings::new([QUEUE]);
    settings.prefetch = Some(slots);
    let master = Master::new(Rc::clone(broker), Rc::new(Coroutines::new(handlers).with_slots(slots)), settings);
    let handle = master.handle();
    Worker { handle, running: spawn(master.run()) }
}

fn crew(broker: &Rc<dyn Broker>, server: &Handle, gate: &Gate) -> Crew {
    let parameters = Parameters { model: "m".into(), max_tokens: Some(50), temperature: None };
    let alone = Remote::new(caller(server), parameters.clone());
    let asks = Asks::Server(caller(server)).server();
    Crew::new(Rc::clone(broker), QUEUE, asks, Rc::new(alone), Some(parameters), gate)
}

fn question(page: u32) -> Question {
    let text = format!("Page {page} is about the tides, which turn twice a day.");
    Question { prompt: "Explain.".into(), file: "a.pdf".into(), page, pages: 99, text, ..Question::default() }
}

fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    run(async { timeout(Duration::from_secs(60), test).await.expect("it ends within a minute") }).unwrap()
}

fn memory() -> Rc<dyn Broker> {
    Rc::new(MemoryBroker::new())
}

fn server(latency: Duration) -> Handle {
    Server::builder().latency(Latency::Fixed(latency)).start_in_thread().unwrap()
}

#[test]
fn a_page_is_paid_for_once_whoever_asks_again() {
    on_loop(async {
        let (broker, server, gate) = (memory(), server(Duration::ZERO), gate());
        let worker = worker(&broker, &server, 4);
        let first = crew(&broker, &server, &gate);
        let asked = first.ask(&gate.unscoped().into(), &question(1)).await.unwrap();
        assert!(asked.answer.usage.total() > 0 && asked.attempts == 1);
        let traffic = first.traffic();
        assert_eq!((traffic.sent, traffic.answered, traffic.usage), (1, 1, asked.answer.usage));
        // A second run, as after a run that was killed before it received the answer.
        let second = crew(&broker, &server, &gate);
        assert_eq!(second.ask(&gate.unscoped().into(), &question(1)).await.unwrap(), asked);
        assert_eq!((server.stats().answered, second.traffic().sent), (1, 0));
        // Unless it is meant to be asked again.
        let fresh = crew(&broker, &server, &gate).with_fresh(true);
        fresh.ask(&gate.unscoped().into(), &question(1)).await.unwrap();
        assert_eq!(server.stats().answered, 2);
        worker.stop().await;
    });
}

#[test]
fn what_a_server_refuses_comes_back_in_its_words_and_is_asked_again_by_the_next() {
    on_loop(async {
        let (broker, gate) = (memory(), gate());
        let server = Server::builder().models(["another"]).start_in_thread().unwrap();
        let worker = worker(&broker, &server, 4);
        for run in 1..=2 {
            let crew = crew(&broker, &server, &gate);
            let error = crew.ask(&gate.unscoped().into(), &question(1)).await.unwrap_err();
            assert!(matches!(&error, CallError::Refused { status: 404, .. }), "{error:?}");
            assert_eq!(server.stats().rejected, run);
        }
        let report = worker.stop().await;
        assert_eq!(report.settled.len(), 1, "to the worker it is a success: {report:?}");
    });
}

#[test]
fn a_wrong_key_names_the_worker_that_has_it() {
    on_loop(async {
        let (broker, gate) = (memory(), gate());
        let server = Server::builder().api_key("another").start_in_thread().unwrap();
        let worker = worker(&broker, &server, 4);
        let error = crew(&broker, &server, &gate).ask(&gate.unscoped().into(), &question(1)).await.unwrap_err();
        let CallError::Shut { reason } = error else { panic!("{error:?}") };
        assert!(reason.starts_with("worker w: ") && reason.contains("wants a key"), "{reason}");
        worker.stop().await;
    });
}

#[test]
fn what_no_worker_has_is_taken_back_and_can_be_asked_again() {
    on_loop(async {
        // Long enough that three requests are seen in flight and seven are taken back meanwhile, also on a busy machine.
        let (broker, server, gate) = (memory(), server(Duration::from_secs(1)), gate());
        let ask_all = |crew: &Crew| -> Vec<_> {
            let ask = |page: u32| {
                let (crew, gate) = (crew.clone(), gate.clone());
                spawn(async move { crew.ask(&gate.unscoped().into(), &question(page)).await })
            };
            (1..=10).map(ask).collect()
        };
        let first = crew(&broker, &server, &gate);
        let asking = ask_all(&first);
        let worker = worker(&broker, &server, 3);
        while server.stats().in_flight < 3 || first.outstanding() < 10 {
            yield_now().await;
        }
        let withdrawn = first.withdraw().await.unwrap();
        assert_eq!((withdrawn.revoked, withdrawn.left), (7, 3));
        let mut answered = 0;
        for asked in asking {
            match asked.await.unwrap() {
                Ok(_) => answered += 1,
                Err(error) => assert_eq!(error, CallError::Closed),
            }
        }
        assert_eq!((answered, first.outstanding()), (3, 0));
        let closed = first.ask(&gate.unscoped().into(), &question(11)).await.unwrap_err();
        assert_eq!(closed, CallError::Closed);

        // What was revoked has to be asked about under another name; the rest is not paid for twice.
        let second = crew(&broker, &server, &gate);
        for asked in ask_all(&second) {
            asked.await.unwrap().unwrap();
        }
        let stats = server.stats();
        assert_eq!((stats.answered, stats.repeated), (10, 0), "{stats}");
        worker.stop().await;
    });
}

#[test]
fn a_revoke_by_somebody_else_does_not_lose_the_page() {
    on_loop(async {
        let (broker, server, gate) = (memory(), server(Duration::ZERO), gate());
        let crew = crew(&broker, &server, &gate);
        let asking = spawn({
            let (crew, gate) = (crew.clone(), gate.clone());
            async move { crew.ask(&gate.unscoped().into(), &question(1)).await }
        });
        let waiting = loop {
            let waiting = broker.peek(QUEUE, 9).await.unwrap();
            if !waiting.is_empty() {
                break waiting;
            }
            yield_now().await;
        };
        broker.revoke(&waiting[0].id).await.unwrap();
        let worker = worker(&broker, &server, 4);
        asking.await.unwrap().unwrap();
        assert_eq!(server.stats().answered, 1);
        worker.stop().await;
    });
}

#[test]
fn tasks_that_are_no_pages_or_for_others_are_refused() {
    on_loop(async {
        let (broker, server, gate) = (memory(), server(Duration::ZERO), gate());
        let stranger = self::server(Duration::ZERO);
        let worker = worker(&broker, &stranger, 4);
        let error = crew(&broker, &server, &gate).ask(&gate.unscoped().into(), &question(1)).await.unwrap_err();
        let CallError::Shut { reason } = error else { panic!("{error:?}") };
        assert!(reason.contains("worker w asks openai at"), "{reason}");
        let task = Task::new(TASK).kwarg("page", "two");
        broker.publish(vec![Envelope::of(&task, QUEUE, native::encode(&task))]).await.unwrap();
        let result = broker.wait_result(&task.id).await.unwrap();
        assert!(result.error.unwrap().message.contains("this is no page to explain"));
        assert_eq!((server.stats().arrived, stranger.stats().arrived), (0, 0));
        worker.stop().await;
    });
}

#[test]
fn the_model_of_a_queued_page_cannot_choose_the_path_that_a_key_is_sent_to() {
    on_loop(async {
        let (broker, server, gate) = (memory(), server(Duration::ZERO), gate());
        let gemini = || Caller::new(self::gate(), Dialect::Gemini, &server.base_url()).unwrap();
        let handler = PageHandler::new(Asks::Server(gemini()), "w");
        let handlers = Handlers::new().handler(TASK, Rc::new(handler));
        let master =
            Master::new(Rc::clone(&broker), Rc::new(Coroutines::new(handlers).with_slots(4)), Settings::new([QUEUE]));
        let worker = Worker { handle: master.handle(), running: spawn(master.run()) };
        let ask = |model: &str| {
            let parameters = Parameters { model: model.into(), max_tokens: Some(50), temperature: None };
            let alone = Rc::new(Remote::new(gemini(), parameters.clone()));
            let asks = Asks::Server(gemini()).server();
            let crew = Crew::new(Rc::clone(&broker), QUEUE, asks, alone, Some(parameters), &gate);
            let gate = gate.clone();
            async move { crew.ask(&gate.unscoped().into(), &question(1)).await }
        };
        let error = ask("../../v1beta/cachedContents?x=").await.unwrap_err();
        assert!(matches!(&error, CallError::BadModel { reason } if reason.contains("cachedContents")), "{error:?}");
        assert_eq!(server.stats().arrived, 0);
        ask("models/gemini-2.0-flash").await.unwrap();
        assert_eq!(server.stats().arrived, 1);
        worker.stop().await;
    });
}

#[test]
fn a_worker_answers_only_for_the_models_it_allows_and_up_to_its_token_limit() {
    on_loop(async {
        let (broker, server, gate) = (memory(), server(Duration::ZERO), gate());
        let allowed = Allowed::default().with_models(["small"]).with_max_tokens(7);
        let handler = PageHandler::with_allowed(Asks::Server(caller(&server)), "w", allowed);
        let handlers = Handlers::new().handler(TASK, Rc::new(handler));
        let master = Master::new(Rc::clone(&broker), Rc::new(Coroutines::new(handlers)), Settings::new([QUEUE]));
        let worker = Worker { handle: master.handle(), running: spawn(master.run()) };
        let ask = |model: &str, max_tokens: Option<u32>| {
            let parameters = Parameters { model: model.into(), max_tokens, temperature: None };
            let alone = Rc::new(Remote::new(caller(&server), parameters.clone()));
            let asks = Asks::Server(caller(&server)).server();
            let crew = Crew::new(Rc::clone(&broker), QUEUE, asks, alone, Some(parameters), &gate);
            let gate = gate.clone();
            async move { crew.ask(&gate.unscoped().into(), &question(1)).await }
        };
        let error = ask("large", None).await.unwrap_err();
        assert!(matches!(&error, CallError::Shut { reason } if reason.contains("answers only for small")), "{error:?}");
        assert_eq!(server.stats().arrived, 0);
        // The server answers with as many tokens as it may.
        for (asked, used) in [(None, 7), (Some(50), 7), (Some(3), 3)] {
            assert_eq!(ask("small", asked).await.unwrap().answer.usage.output_tokens, used, "{asked:?}");
        }
        worker.stop().await;
    });
}

/// In virtual time, with the offline provider.
#[test]
fn a_broker_that_stumbles_loses_no_page() {
    for seed in 0..20 {
        let done = EventLoop::simulated(seed).run_until_complete(async move {
            let (steady, gate) = (memory(), gate());
            let handler = Rc::new(PageHandler::new(Asks::Local((&gate).into()), "w"));
            let handlers = Handlers::new().handler(TASK, handler.clone());
            let mode = Rc::new(Coroutines::new(handlers));
            let master = Master::new(Rc::clone(&steady), mode, Settings::new([QUEUE]));
            let worker = Worker { handle: master.handle(), running: spawn(master.run()) };
            let mut plan = Plan::quiet(seed);
            (plan.fails_before, plan.fails_after) = (0.3, 0.3);
            let broker = Rc::new(Faulty::new(steady, plan, || ()));
            let alone = Rc::new(Local::new(&gate));
            let crew = Crew::new(broker, QUEUE, handler.server().clone(), alone, None, &gate);
            let asking: Vec<_> = (1..=20)
                .map(|page| {
                    let (crew, gate) = (crew.clone(), gate.clone());
                    spawn(async move { crew.ask(&gate.unscoped().into(), &question(page)).await.map(drop) })
                })
                .collect();
            for asked in asking {
                asked.await.unwrap().unwrap();
            }
            worker.stop().await
        });
        let report = done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // Stored though the broker did not say so: the same id is not stored twice while it waits.
        assert!((20..=40).contains(&report.received), "seed {seed}: {report:?}");
    }
}
