//! A shared gate behind a local one, what servers say told to all machines, and limits that all have to mean.

use std::rc::Rc;
use std::time::Duration;

use tidegate_limit::feedback::{Listener, Provider};
use tidegate_limit::{Admission, Cost, EnterError, Gate, Limit};
use tidegate_loop::{spawn, yield_now};
use tidegate_redis::{AgreeError, Client, SharedGate};

use crate::server::{Server, quick};
use crate::{Test, on_loop};

pub(crate) const TESTS: &[Test] = &[
    ("behind_a_local_gate_both_count_and_scopes_stay_local", counted),
    ("a_refusal_on_one_machine_pauses_all_until_it_is_over", refused),
    ("who_waits_behind_the_gate_is_told_when_it_is_shut_or_closed", ended),
    ("other_limits_under_the_same_name_are_refused_in_words", other_limits),
    ("no_redis_and_a_wrong_password_are_said_in_words", unusable),
];

const PATIENCE: Duration = Duration::from_secs(5);

fn limits() -> [Limit; 3] {
    [Limit::concurrency("global", 3), Limit::rpm(100), Limit::tpm(10_000)]
}

/// One machine's.
fn machine(server: &Server) -> (Admission, SharedGate) {
    let shared = SharedGate::builder(server.client(), "front").limits(limits()).build().unwrap();
    let gate = Gate::builder().limits(limits()).build().unwrap();
    (Admission::in_front_of(gate, Rc::new(shared.clone())), shared)
}

fn counted() {
    on_loop(async {
        let server = Server::start(&[]);
        let ((one, _), (two, beside)) = (machine(&server), machine(&server));
        let file = one.scope("a.pdf", 2);
        let mut first = one.enter(&file, Cost::tokens(500)).await.unwrap();
        first.sent();
        let second = one.enter(&file, Cost::tokens(700)).await.unwrap();
        let mut third = two.enter(two.unscoped(), Cost::tokens(1_000)).await.unwrap();
        third.sent();
        let stats = two.stats();
        let used = |name: &str| stats.limit(name).unwrap().used;
        assert_eq!((used("global"), used("rpm"), used("tpm")), (3, 3, 2_200), "of both machines");
        assert_eq!((stats.current, stats.limit("tpm").unwrap().remaining), (1, 7_800));
        assert_eq!(file.current(), 2);

        // Both together hold all slots: what waits behind the gate is not in flight.
        let fourth = spawn({
            let two = two.clone();
            async move { two.enter(two.unscoped(), Cost::tokens(10)).await.map(drop) }
        });
        while beside.stats().denials == 0 {
            yield_now().await;
        }
        let stats = two.stats();
        assert_eq!((stats.current, stats.waiting, stats.blocked_by.as_deref()), (1, 1, Some("global")));

        // Not sent, so nothing of it stays; and its slot goes to the other machine.
        drop(second);
        fourth.await.unwrap().unwrap();
        first.answered();
        first.settle(Cost::tokens(100));
        drop(first);
        third.refund();
        beside.look();
        while two.stats().limit("tpm").unwrap().used != 100 {
            yield_now().await;
            beside.look();
        }
        assert_eq!(file.current(), 0);
    });
}

fn refused() {
    on_loop(async {
        let server = Server::start(&[]);
        let ((one, at_one), (two, beside)) = (machine(&server), machine(&server));
        two.enter(two.unscoped(), Cost::tokens(1)).await.unwrap().sent();
        let listener = Listener::new(one.gate(), Provider::OpenAi);
        let headers = [("retry-after", "900")];
        let body = br#"{"error":{"type":"tokens","message":"Rate limit reached on tokens per min (TPM)."}}"#;
        one.on_answer(&listener, listener.now(), 429, &headers, body);
        while at_one.stats().calls == 0 {
            yield_now().await;
        }

        // The other machine receives the pause, and its end long before a quarter of an hour.
        let waiting = spawn({
            let two = two.clone();
            async move { two.enter(two.unscoped(), Cost::tokens(1)).await.map(drop) }
        });
        while beside.stats().limit("tpm").unwrap().blocked == 0 {
            yield_now().await;
        }
        assert_eq!(two.stats().blocked_by.as_deref(), Some("tpm"));
        let sent = listener.now();
        one.on_answer(&listener, sent, 200, &[("x", "y")], b"{}");
        waiting.await.unwrap().unwrap();
        assert!(beside.stats().notifications > 0, "it was notified, it did not ask");
    });
}

fn ended() {
    on_loop(async {
        let server = Server::start(&[]);
        let ((one, at_one), (two, at_two)) = (machine(&server), machine(&server));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(one.enter(one.unscoped(), Cost::request()).await.unwrap());
        }
        let wait = |gate: &Admission| {
            let gate = gate.clone();
            spawn(async move { gate.enter(gate.unscoped(), Cost::request()).await.map(drop) })
        };
        let (shut, closed) = (wait(&one), wait(&two));
        while at_two.stats().denials == 0 {
            yield_now().await;
        }
        one.shut("global", "the key is wrong").unwrap();
        assert!(matches!(shut.await.unwrap(), Err(EnterError::Shut { reason, .. }) if &*reason == "the key is wrong"));
        two.close();
        assert_eq!(closed.await.unwrap().unwrap_err(), EnterError::Closed);
        assert!(matches!(one.enter(one.unscoped(), Cost::request()).await, Err(EnterError::Shut { .. })));
        drop(held);
        at_one.close().await;
        assert_eq!(at_one.stats().current, 0);
    });
}

fn other_limits() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = |rpm: u64| {
            let limits = [Limit::concurrency("global", 3), Limit::rpm(rpm)];
            SharedGate::builder(server.client(), "agreed").limits(limits).build().unwrap()
        };
        let first = gate(100);
        first.agree(PATIENCE).await.unwrap();
        // The order does not matter, and neither does how often it is asked.
        let limits = [Limit::rpm(100), Limit::concurrency("global", 3)];
        let same = SharedGate::builder(server.client(), "agreed").limits(limits).build().unwrap();
        same.agree(PATIENCE).await.unwrap();
        let error = gate(200).agree(PATIENCE).await.unwrap_err();
        let AgreeError::OtherLimits { gate: name, .. } = &error else { panic!("{error:?}") };
        assert_eq!(&**name, "agreed");
        let text = error.to_string();
        assert!(text.contains("There: global 3 at once, rpm 100 in any 60s") && text.contains("rpm 200"), "{text}");
        let elsewhere = SharedGate::builder(server.client(), "another").limit(Limit::rpm(200)).build().unwrap();
        elsewhere.agree(PATIENCE).await.unwrap();
    });
}

fn unusable() {
    on_loop(async {
        let server = Server::start(&["--requirepass", "secret"]);
        let limits = || [Limit::rpm(1)];
        let locked = SharedGate::builder(server.client(), "g").limits(limits()).build().unwrap();
        let text = locked.agree(PATIENCE).await.unwrap_err().to_string();
        assert!(text.contains("redis.sock") && !text.contains("secret"), "{text}");
        let nobody = Client::open("redis://127.0.0.1:1".parse().unwrap(), quick());
        let away = SharedGate::builder(nobody, "g").limits(limits()).build().unwrap();
        let text = away.agree(Duration::from_millis(300)).await.unwrap_err().to_string();
        assert!(text.contains("redis://127.0.0.1:1 does not answer") && text.contains("is Redis running"), "{text}");
    });
}
