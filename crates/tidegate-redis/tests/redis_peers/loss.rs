//! Redis lost, silent, forgetful, full: what holds all the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_limit::{Cost, Dimension, Limit, Window};
use tidegate_loop::{LoopHandle, gather_all, sleep, spawn, timeout, yield_now};
use tidegate_redis::{Client, Command, OnLoss, SharedBuilder, SharedGate};

use crate::server::{Server, quick};
use crate::windows::{Request, most_at_once, most_in_a_window, now_ns, read_log};
use crate::worker::{Job, Worker};
use crate::{Test, on_loop};

pub(crate) const TESTS: &[Test] = &[
    ("a_call_that_was_not_answered_is_not_decided_twice", cut),
    ("redis_killed_and_restarted_without_memory_is_never_exceeded", killed),
    ("a_redis_with_an_older_memory_is_never_exceeded", older),
    ("a_stopped_gate_goes_on_when_redis_is_back", stop),
    ("a_local_share_bridges_the_loss_and_is_told_afterwards", local_share),
    ("a_full_redis_lets_nobody_in_and_counts_nothing", full),
    ("random_programs_never_exceed_anything", random),
];

fn builder(client: &Client, window: Duration, requests: u64) -> SharedBuilder {
    SharedGate::builder(client.clone(), "g")
        .limit(Limit::rpm(requests).window(Window::strict(window)))
        .lease(Duration::from_millis(300))
        .margin(Duration::from_millis(20))
}

/// Enters and notes when.
async fn request(gate: &SharedGate, seen: &RefCell<Vec<Request>>) {
    let mut lease = gate.enter(Cost::request()).await.unwrap();
    let sent = now_ns();
    lease.sent();
    seen.borrow_mut().push(Request { sent, ended: Some(sent) });
}

fn cut() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let gate = builder(&client, Duration::from_secs(60), 1_000_000).build().unwrap();
        let knife = server.client();
        knife.ready().await.unwrap();
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                spawn(async move {
                    for _ in 0..40 {
                        gate.enter(Cost::request()).await.unwrap().sent();
                    }
                })
            })
            .collect();
        let mut cuts = 0;
        while tasks.iter().any(|task| !task.is_finished()) {
            // Those who listen for their turn: all but its own.
            knife.call(Command::new("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
            cuts += 1;
            for _ in 0..20 {
                yield_now().await;
            }
        }
        gather_all(tasks).await;
        let stats = gate.stats();
        let unanswered = client.stats().unanswered;
        println!("    {cuts} cuts, {unanswered} calls unanswered");
        assert!(unanswered > 0, "{cuts} cuts and none hit a call");
        assert_eq!((stats.granted, stats.limit("rpm").unwrap().used), (2_000, 2_000), "after {cuts} cuts");
        assert_eq!(stats.memory_losses, 0);
    });
}

fn killed() {
    let mut server = Server::start(&[]);
    let logs = tempfile::tempdir().unwrap();
    let job = Job {
        url: server.url(),
        gate: "g".to_owned(),
        requests: 100,
        window: Duration::from_millis(400),
        slots: 8,
        lease: Duration::from_millis(400),
        request: Duration::from_millis(4),
        // Until they are killed.
        for_: Duration::from_secs(600),
        tasks: 20,
    };
    let paths = ["0", "1"].map(|n| logs.path().join(n));
    let workers = paths.each_ref().map(|path| job.start(path, &[]));
    let sent =
        || paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|log| log.lines().count()).sum();
    let go_on = || {
        let before: usize = sent();
        while sent() < before + 250 {
            std::thread::yield_now();
        }
    };
    let mut restarts = 0;
    for _ in 0..4 {
        go_on();
        server.kill();
        server.start_again();
        restarts += 1;
    }
    let restarted_at = now_ns();
    go_on();
    let ends = workers.map(Worker::kill);
    let mut all = Vec::new();
    for (path, killed_at) in paths.iter().zip(ends) {
        let ended = |request: Request| Request { ended: request.ended.or(Some(killed_at)), ..request };
        all.extend(read_log(path).into_iter().map(ended));
    }
    let (window, slots) = (most_in_a_window(&all, job.window), most_at_once(&all, now_ns()));
    println!("    {} requests, {restarts} restarts: at most {window} in a window, {slots} at once", all.len());
    assert!(window <= 100, "{window} in a window");
    assert!(slots <= 8, "{slots} at once");
    assert!(all.iter().any(|request| request.sent > restarted_at), "none went on");
}

fn older() {
    on_loop(async {
        let mut server = Server::start(&[]);
        let client = server.client();
        let window = Duration::from_millis(500);
        let gate = builder(&client, window, 10).build().unwrap();
        let seen = RefCell::new(Vec::new());
        request(&gate, &seen).await;
        client.call(Command::new("SAVE")).await.unwrap();
        for _ in 0..9 {
            request(&gate, &seen).await;
        }
        server.kill();
        server.start_again();
        for _ in 0..15 {
            request(&gate, &seen).await;
        }
        let most = most_in_a_window(&seen.borrow(), window);
        assert!(most <= 10, "{most} in a window");
        assert_eq!(gate.stats().memory_losses, 1);
    });
}

fn stop() {
    on_loop(async {
        let mut server = Server::start(&[]);
        let gate = builder(&server.client(), Duration::from_millis(200), 100).build().unwrap();
        gate.enter(Cost::request()).await.unwrap().sent();
        server.kill();
        let waiting = spawn({
            let gate = gate.clone();
            async move { gate.enter(Cost::request()).await }
        });
        while gate.stats().losses == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let stats = gate.stats();
        assert!(stats.fault.as_ref().is_some_and(|fault| fault.contains("redis.sock")), "{:?}", stats.fault);
        assert!(!waiting.is_finished());
        server.start_again();
        drop(waiting.await.unwrap().unwrap());
        assert_eq!(gate.stats().fault, None);
    });
}

fn local_share() {
    on_loop(async {
        let mut server = Server::start(&[]);
        let window = Duration::from_millis(400);
        let gate = builder(&server.client(), window, 20)
            .limit(Limit::concurrency("slots", 8))
            .on_loss(OnLoss::LocalShare { share: 0.5 })
            .build()
            .unwrap();
        let seen = RefCell::new(Vec::new());
        for _ in 0..20 {
            request(&gate, &seen).await;
        }
        // Three slots are held across the loss.
        let held = gather_all((0..3).map(|_| spawn(gate.enter(Cost::nothing())))).await;
        server.kill();
        let mut lease = gate.enter(Cost::request()).await.unwrap();
        assert!(lease.is_local());
        seen.borrow_mut().push(Request { sent: now_ns(), ended: None });
        lease.sent();
        // Half of the slots, and three of those are held; one more is this one.
        let refused = timeout(Duration::from_millis(50), gate.enter(Cost::nothing())).await;
        assert!(refused.is_err(), "over its share of the slots");
        drop(held);
        let second = gate.enter(Cost::nothing()).await.unwrap();
        assert!(second.is_local());
        drop((lease, second));
        for _ in 0..12 {
            request(&gate, &seen).await;
        }
        assert_eq!(gate.stats().granted_locally, 14);
        let lost: Vec<Request> = seen.borrow()[20..].to_vec();
        assert!(most_in_a_window(&lost, window) <= 10, "over its share");
        assert!(most_in_a_window(&seen.borrow(), window) <= 20, "over the limit");
        server.start_again();
        while gate.stats().fault.is_some() {
            let lease = gate.enter(Cost::nothing()).await.unwrap();
            drop(lease);
        }
        let locally = gate.stats().granted_locally;
        for _ in 0..30 {
            request(&gate, &seen).await;
        }
        assert_eq!(gate.stats().granted_locally, locally, "Redis decides again");
        assert!(most_in_a_window(&seen.borrow(), window) <= 20, "over the limit after it came back");
        assert_eq!(gate.stats().current, 0);
    });
}

fn full() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let gate = builder(&client, Duration::from_secs(60), 100).build().unwrap();
        gate.enter(Cost::request()).await.unwrap().sent();
        let set = |to: &str| client.call(Command::new("CONFIG").arg("SET").arg("maxmemory").arg(to));
        set("1").await.unwrap();
        let waiting = spawn({
            let gate = gate.clone();
            async move { gate.enter(Cost::request()).await.unwrap().sent() }
        });
        while gate.stats().fault.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(gate.stats().fault.unwrap().contains("maxmemory"));
        assert!(!waiting.is_finished());
        set("0").await.unwrap();
        waiting.await.unwrap();
        assert_eq!((gate.stats().limit("rpm").unwrap().used, gate.stats().fault), (2, None));
    });
}

/// Three machines that enter, settle below their estimates, refund, drop entries and are cut off, at random.
fn random() {
    for seed in 0..4 {
        let (used, running) = on_loop(random_program(seed));
        assert!(used <= 3_000, "seed {seed}: {used} tokens in a window");
        assert!(running <= 7, "seed {seed}: {running} at once");
    }
}

async fn random_program(seed: u64) -> (u64, i64) {
    let server = Server::start(&[]);
    let window = Duration::from_millis(200);
    // What counted, and what ran: from when it was sent.
    let tokens: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
    let ran: Rc<RefCell<Vec<Request>>> = Rc::default();
    let until = LoopHandle::current().time() + Duration::from_millis(1_500);
    let mut tasks = Vec::new();
    for machine in 0..3 {
        let gate = SharedGate::builder(Client::open(server.address(), quick()), "g")
            .limit(Limit::concurrency("slots", 7))
            .limit(Limit::tpm(3_000).window(Window::strict(window)))
            .lease(Duration::from_secs(1))
            .margin(Duration::from_millis(20))
            .build()
            .unwrap();
        for task in 0..6 {
            let (gate, tokens, ran) = (gate.clone(), tokens.clone(), ran.clone());
            let mut random = fastrand::Rng::with_seed(seed * 100 + machine * 10 + task);
            tasks.push(spawn(async move {
                while LoopHandle::current().time() < until {
                    let declared = random.u64(1..600);
                    let entering = gate.enter(Cost::tokens(declared));
                    // Some lose their patience.
                    let patience = if random.u8(..5) == 0 { 5 } else { 60_000 };
                    let Ok(entered) = timeout(Duration::from_millis(patience), entering).await else { continue };
                    let mut lease = entered.unwrap();
                    if random.u8(..5) == 0 {
                        continue;
                    }
                    let sent = now_ns();
                    lease.sent();
                    sleep(Duration::from_micros(random.u64(..3_000))).await;
                    let actual = if random.bool() { random.u64(..=declared) } else { declared };
                    lease.settle(Cost::tokens(actual));
                    assert_eq!(lease.cost().of(Dimension::TOKENS), actual);
                    tokens.borrow_mut().push((sent, actual));
                    ran.borrow_mut().push(Request { sent, ended: Some(now_ns()) });
                }
            }));
        }
    }
    let knife = server.client();
    while LoopHandle::current().time() < until {
        knife.call(Command::new("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    for outcome in gather_all(tasks).await {
        outcome.unwrap();
    }
    let mut tokens = tokens.take();
    tokens.sort_unstable();
    let (mut from, mut sum, mut most) = (0, 0, 0);
    for (at, cost) in &tokens {
        sum += cost;
        while at - tokens[from].0 >= window.as_nanos() as u64 {
            sum -= tokens[from].1;
            from += 1;
        }
        most = most.max(sum);
    }
    let running = most_at_once(&ran.take(), now_ns());
    println!("    seed {seed}: {} requests, at most {most} tokens in a window, {running} at once", tokens.len());
    (most, running)
}
