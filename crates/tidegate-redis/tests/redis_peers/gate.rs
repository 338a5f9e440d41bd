//! The shared gate on one machine, or on two in one process: what it decides.

use std::time::Duration;

use tidegate_limit::{Cost, EnterError, Limit, Start, Window};
use tidegate_loop::{LoopHandle, gather_all, spawn, timeout};
use tidegate_redis::{Client, Command, OnLoss, SharedGate, Value};

use crate::server::{Server, quick};
use crate::{Test, on_loop};

pub(crate) const TESTS: &[Test] = &[
    ("a_lease_is_counted_settled_refunded_and_given_back", lease),
    ("all_limits_or_none", all_or_none),
    ("what_waits_goes_at_the_instant_redis_told", exact),
    ("machines_see_each_others_use_and_take_turns_for_slots", turns),
    ("a_future_that_is_dropped_leaves_no_trace", dropped),
    ("first_come_first_served", fifo),
    ("a_flushed_script_cache_is_filled_again", flushed),
    ("a_refusal_widens_the_margin_of_all_machines", refused),
    ("memory_in_redis_is_bounded", bounded),
    ("keys_that_are_made_again_expire_too", made_again),
    ("a_bucket_flows_and_a_day_is_counted_in_its_zone", windows),
    ("an_idle_gate_makes_no_calls", idle),
    ("a_user_with_the_documented_rights_is_enough", rights),
    ("a_wrong_password_shuts_the_gate_by_name", shut),
];

fn gate(client: &Client, name: &str, limits: impl IntoIterator<Item = Limit>) -> SharedGate {
    let lease = Duration::from_millis(500);
    let builder = SharedGate::builder(client.clone(), name).limits(limits).lease(lease);
    builder.margin(Duration::from_millis(10)).build().unwrap()
}

fn used(gate: &SharedGate, limit: &str) -> u64 {
    gate.stats().limit(limit).unwrap().used
}

/// Until Redis has been told everything there is to tell.
async fn told(gate: &SharedGate) {
    let probe = gate.enter(Cost::nothing()).await.unwrap();
    drop(probe);
    gate.enter(Cost::nothing()).await.unwrap().sent();
}

fn lease() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = gate(&server.client(), "g", [Limit::concurrency("slots", 5), Limit::rpm(100), Limit::tpm(1_000)]);
        let mut first = gate.enter(Cost::tokens(400)).await.unwrap();
        first.sent();
        let second = gate.enter(Cost::tokens(500)).await.unwrap();
        assert_eq!((used(&gate, "tpm"), used(&gate, "rpm"), used(&gate, "slots")), (900, 2, 2));
        first.settle(Cost::tokens(150));
        told(&gate).await;
        assert_eq!((used(&gate, "tpm"), used(&gate, "rpm")), (650, 2));
        // Not sent: taken back.
        drop(second);
        told(&gate).await;
        assert_eq!((used(&gate, "tpm"), used(&gate, "rpm"), gate.stats().current), (150, 1, 1));
        // More than declared is booked as well.
        first.settle(Cost::tokens(1_100));
        told(&gate).await;
        assert_eq!(used(&gate, "tpm"), 1_100);
        first.refund();
        told(&gate).await;
        assert_eq!((used(&gate, "tpm"), used(&gate, "rpm"), gate.stats().current), (0, 0, 0));
        let never = gate.enter(Cost::tokens(1_001)).await.unwrap_err();
        assert!(matches!(never, EnterError::TooLarge { cost: 1_001, capacity: 1_000, .. }));
        gate.close().await;
        assert!(matches!(gate.enter(Cost::request()).await, Err(EnterError::Closed)));
    });
}

fn all_or_none() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = gate(&server.client(), "g", [Limit::concurrency("slots", 9), Limit::rpm(100), Limit::tpm(1_000)]);
        let mut first = gate.enter(Cost::tokens(900)).await.unwrap();
        first.sent();
        let refused = timeout(Duration::from_millis(50), gate.enter(Cost::tokens(200))).await;
        assert!(refused.is_err());
        told(&gate).await;
        let stats = gate.stats();
        assert_eq!((used(&gate, "tpm"), used(&gate, "rpm"), stats.current), (900, 1, 1), "a refusal counts nothing");
        assert!(stats.limit("tpm").unwrap().blocked >= 1 && stats.limit("rpm").unwrap().blocked == 0);
    });
}

fn exact() {
    // What is late on a busy machine makes more calls: an answer (the next alarm is early by as much), a request (it is booked
    // once more). A gate that polls makes them in every round.
    let quiet = (0..10).any(|round| {
        let calls = on_loop(exact_round());
        let quiet = calls <= 25 + 12;
        if !quiet {
            println!("    round {round}: {calls} calls");
        }
        quiet
    });
    assert!(quiet, "it polls");
}

/// 25 entries of 10 in any 300 ms; how many calls that took.
async fn exact_round() -> u64 {
    let server = Server::start(&[]);
    let limit = Limit::rpm(10).window(Window::strict(Duration::from_millis(300)));
    let gate = gate(&server.client(), "g", [limit]);
    let begun = LoopHandle::current().time();
    for _ in 0..25 {
        gate.enter(Cost::request()).await.unwrap().sent();
    }
    let took = LoopHandle::current().time() - begun;
    assert!(took >= Duration::from_millis(600), "25 of 10 in 300 ms took {took:?}");
    let stats = gate.stats();
    // Each call has its reason: an entry, an instant that was waited for, something to tell.
    assert!(stats.calls <= 2 * 25 + stats.alarms + stats.restamped, "{stats:?}");
    assert!(stats.alarms >= 2, "{stats:?}");
    stats.calls
}

fn turns() {
    on_loop(async {
        let server = Server::start(&[]);
        let limits = || [Limit::concurrency("slots", 2)];
        let (one, two) = (gate(&server.client(), "g", limits()), gate(&server.client(), "g", limits()));
        let held = [one.enter(Cost::request()).await.unwrap(), one.enter(Cost::request()).await.unwrap()];
        let waiting = spawn({
            let two = two.clone();
            async move { two.enter(Cost::request()).await.unwrap() }
        });
        while two.stats().denials == 0 {
            tidegate_loop::yield_now().await;
        }
        assert_eq!(two.stats().blocked_by.as_deref(), Some("slots"));
        // The other machine wants more itself, but came later.
        let more = spawn({
            let one = one.clone();
            async move { one.enter(Cost::request()).await.unwrap() }
        });
        while one.stats().denials == 0 {
            tidegate_loop::yield_now().await;
        }
        let [first, second] = held;
        drop(first);
        let got = waiting.await.unwrap();
        assert!(two.stats().notifications >= 1, "told, not found out");
        assert_eq!(one.stats().waiting, 1);
        drop(second);
        drop((got, more.await.unwrap()));
    });
}

fn dropped() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = gate(&server.client(), "g", [Limit::concurrency("slots", 3), Limit::rpm(1_000)]);
        told(&gate).await;
        for polls in 0..40 {
            let mut entering = Box::pin(gate.enter(Cost::request()));
            // Dropped before it is asked for, while it is, or when it is granted and not fetched.
            for _ in 0..polls {
                let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(entering.as_mut().poll(cx).is_ready()));
                if polled.await {
                    entering = Box::pin(gate.enter(Cost::request()));
                }
                tidegate_loop::yield_now().await;
            }
            drop(entering);
        }
        told(&gate).await;
        told(&gate).await;
        assert_eq!((used(&gate, "rpm"), gate.stats().current, gate.stats().waiting), (0, 0, 0));
    });
}

fn fifo() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = gate(&server.client(), "g", [Limit::concurrency("slots", 1), Limit::tpm(1_000_000)]);
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks = (0..300).map(|n| {
            let (gate, order) = (gate.clone(), order.clone());
            spawn(async move {
                let mut lease = gate.enter(Cost::tokens(n % 7)).await.unwrap();
                order.borrow_mut().push(n);
                lease.sent();
            })
        });
        gather_all(tasks).await;
        assert!(order.borrow().iter().copied().eq(0..300), "{:?}", order.borrow());
    });
}

fn flushed() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let gate = gate(&client, "g", [Limit::rpm(100)]);
        for n in 1..=5 {
            gate.enter(Cost::request()).await.unwrap().sent();
            assert_eq!(used(&gate, "rpm"), n);
            client.call(Command::new("SCRIPT").arg("FLUSH")).await.unwrap();
        }
    });
}

/// The margin of the machine that was refused holds for all machines.
fn refused() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let limit = || Limit::rpm(1).window(Window::strict(Duration::from_millis(300)));
        let (here, there) = (gate(&client, "g", [limit()]), gate(&client, "g", [limit()]));
        // 20, 40, and no more than four times the 10 ms it was set to.
        (0..3).for_each(|_| here.refused());
        let begun = LoopHandle::current().time();
        here.enter(Cost::request()).await.unwrap().sent();
        there.enter(Cost::request()).await.unwrap().sent();
        let apart = LoopHandle::current().time() - begun;
        assert!(apart >= Duration::from_millis(340), "{apart:?}");
        let margin = client.call(Command::new("HGET").arg("tidegate:{g}").arg("margin")).await.unwrap();
        assert_eq!(margin.as_int().unwrap(), 40_000);
    });
}

fn bounded() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let window = Window::strict(Duration::from_millis(100));
        let gate = gate(&client, "g", [Limit::rpm(1_000_000).window(window)]);
        let begun = LoopHandle::current().time();
        while LoopHandle::current().time() - begun < Duration::from_millis(400) {
            gate.enter(Cost::request()).await.unwrap().sent();
        }
        let keys = client.call(Command::new("KEYS").arg("*")).await.unwrap();
        let Value::Array(keys) = keys else { panic!() };
        assert_eq!(keys.len(), 4, "{keys:?}");
        let length = client.call(Command::new("LLEN").arg("tidegate:{g}:rpm:s100000:queue")).await.unwrap();
        let length = length.as_int().unwrap();
        // The window and its margin of a tenth, in buckets of 98 µs.
        assert!((1..=1024 * 11 / 10 + 2).contains(&length), "{length} buckets");
        let mut bytes = 0;
        for key in &keys {
            let ttl = client.call(Command::new("PTTL").arg(key.as_bytes().unwrap())).await.unwrap();
            assert!(ttl.as_int().unwrap() > 0, "{key:?} stays for ever");
            let usage = Command::new("MEMORY").arg("USAGE").arg(key.as_bytes().unwrap());
            bytes += client.call(usage).await.unwrap().as_int().unwrap();
        }
        println!("    {length} buckets, {bytes} bytes");
        assert!(bytes < 150_000, "{bytes} bytes");
    });
}

fn made_again() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let window = Duration::from_millis(50);
        let gate = gate(&client, "g", [Limit::rpm(5).window(Window::strict(window))]);
        gate.enter(Cost::request()).await.unwrap().sent();
        // The window is empty by now: the next entry removes the last bucket, and makes the keys again.
        tidegate_loop::sleep(3 * window).await;
        gate.enter(Cost::request()).await.unwrap().sent();
        for key in ["tidegate:{g}:rpm:s50000:queue", "tidegate:{g}:rpm:s50000:sums"] {
            let ttl = client.call(Command::new("PTTL").arg(key)).await.unwrap();
            assert!(ttl.as_int().unwrap() > 0, "{key}: {ttl:?}");
        }
    });
}

fn windows() {
    on_loop(async {
        let server = Server::start(&[]);
        let client = server.client();
        let bucket = Window::Bucket { per: Duration::from_secs(1), burst: Some(5), start: Start::Full };
        let limits = [
            Limit::rpm(50).window(bucket).named("bucket"),
            Limit::rpd(1_000, "Pacific/Auckland"),
            Limit::rpm(500).window(Window::clock_minute()).named("minute"),
        ];
        let gate = gate(&client, "g", limits);
        let begun = LoopHandle::current().time();
        for _ in 0..15 {
            gate.enter(Cost::request()).await.unwrap().sent();
        }
        let took = LoopHandle::current().time() - begun;
        assert!(took >= Duration::from_millis(200), "5 at once and 10 at 50 a second took {took:?}");
        assert_eq!(used(&gate, "rpd"), 15);
        let day = client.call(Command::new("HGET").arg("tidegate:{g}").arg("rpd:d:at")).await.unwrap();
        let day = jiff::Timestamp::from_microsecond(day.as_int().unwrap()).unwrap();
        let local = day.to_zoned(jiff::tz::TimeZone::get("Pacific/Auckland").unwrap());
        assert_eq!((local.hour(), local.minute(), local.second()), (0, 0, 0), "{local}");
    });
}

fn idle() {
    on_loop(async {
        let server = Server::start(&[]);
        let gate = gate(&server.client(), "g", [Limit::concurrency("slots", 1)]);
        told(&gate).await;
        let lease = gate.enter(Cost::request()).await.unwrap();
        // Held for two leases: it is renewed all the time, so no other machine gets it.
        let other = self::gate(&server.client(), "g", [Limit::concurrency("slots", 1)]);
        let waited = timeout(Duration::from_millis(1_000), other.enter(Cost::request())).await;
        assert!(waited.is_err(), "the lease of a holder that lives does not expire");
        drop(lease);
        let got = other.enter(Cost::request()).await.unwrap();
        drop(got);
        told(&gate).await;
        let before = gate.stats();
        tidegate_loop::sleep(Duration::from_millis(600)).await;
        assert_eq!((gate.stats().calls, gate.stats().alarms), (before.calls + 1, before.alarms));
    });
}

/// Those that docs/shared-limits.md names.
fn rights() {
    on_loop(async {
        let rights = "~tidegate:* &tidegate:* +@hash +@list +@scripting +@pubsub +@connection +time +pexpire";
        let guide = include_str!("../../../../docs/shared-limits.md");
        assert!(guide.contains(rights), "the guide says something else");
        let user: Vec<&str> = "--user limits on >pw".split(' ').chain(rights.split(' ')).collect();
        let server = Server::start(&user);
        let url = format!("unix://limits:pw@{}", server.socket().display());
        let client = Client::open(url.parse().unwrap(), quick());
        let limits = || [Limit::concurrency("slots", 1), Limit::rpm(100), Limit::rpd(100, "UTC")];
        let (one, two) = (gate(&client, "g", limits()), gate(&client, "g", limits()));
        let lease = one.enter(Cost::request()).await.unwrap();
        let waiting = spawn(two.enter(Cost::request()));
        while two.stats().denials == 0 {
            tidegate_loop::yield_now().await;
        }
        drop(lease);
        drop(waiting.await.unwrap().unwrap());
        assert!(two.stats().notifications >= 1);
    });
}

fn shut() {
    on_loop(async {
        let server = Server::start(&["--requirepass", "right"]);
        let client = Client::open(server.address(), quick());
        let gate = SharedGate::builder(client, "llm").limit(Limit::rpm(5)).on_loss(OnLoss::Stop).build().unwrap();
        let error = gate.enter(Cost::request()).await.unwrap_err();
        assert!(matches!(error, EnterError::Shut { .. }), "{error:?}");
        let told = error.to_string();
        assert!(told.contains("llm") && told.contains("redis.sock") && told.contains("password"), "{told}");
    });
}
