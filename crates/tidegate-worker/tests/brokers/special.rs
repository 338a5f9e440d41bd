//! What is special to the broker in a file.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tidegate_loop::{EventLoop, Runner, spawn, timeout, yield_now};
use tidegate_worker::{Broker as _, BrokerError, Envelope, Incoming, SqliteBroker, Subscription, TaskId, sqlite};

fn what(prefetch: usize) -> Subscription {
    Subscription { queues: vec!["q".into()], prefetch, consumer: "special".into() }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(sqlite::Options) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = sqlite::Options::new(directory.path().join("queue.db"));
    options.ballast_bytes = 0;
    let test = test(options);
    Runner::new(EventLoop::simulated(7))
        .run(async move { timeout(Duration::from_secs(600), test).await.expect("the test hangs") })
        .unwrap();
}

#[test]
fn a_subscribe_that_was_given_up_keeps_no_task() {
    run(|options| async move {
        let broker = SqliteBroker::open_with(options).await.unwrap();
        broker.publish(vec![Envelope::new("q", b"a".to_vec())]).await.unwrap();
        {
            let mut given_up = pin!(broker.subscribe(what(10)));
            poll_fn(|cx| {
                assert!(given_up.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            // Sent, and its answer is dropped.
        }
        yield_now().await;
        let other = broker.connect().await.unwrap();
        let consumer = other.subscribe(what(10)).await.unwrap();
        let got = consumer.recv_all().await.unwrap();
        assert!(matches!(&got[..], [Incoming::Delivery(_)]), "{got:?}");
    });
}

#[test]
fn whoever_waits_for_a_result_learns_that_the_broker_was_closed() {
    run(|options| async move {
        let broker = Rc::new(SqliteBroker::open_with(options).await.unwrap());
        let waiting = {
            let broker = Rc::clone(&broker);
            spawn(async move { broker.wait_result(&TaskId::from("never")).await })
        };
        yield_now().await;
        broker.close().await.unwrap();
        assert!(matches!(waiting.await.unwrap(), Err(BrokerError::Closed)));
    });
}

#[test]
fn a_consumer_that_lives_keeps_its_lease_however_long_a_task_runs() {
    run(|options| async move {
        let broker = SqliteBroker::open_with(options).await.unwrap();
        let other = broker.connect().await.unwrap();
        broker.publish(vec![Envelope::new("q", b"long".to_vec())]).await.unwrap();
        let consumer = broker.subscribe(what(1)).await.unwrap();
        assert_eq!(consumer.recv_all().await.unwrap().len(), 1);
        let vulture = other.subscribe(what(1)).await.unwrap();
        let nothing = timeout(Duration::from_secs(300), vulture.recv_all()).await;
        assert!(nothing.is_err(), "the lease of 30 s was renewed ten times over: {nothing:?}");
        assert_eq!(broker.inspect().await.unwrap()[0].running, 1);
    });
}

/// In real time, where a thread owns the file.
#[test]
fn a_broker_that_says_it_is_closed_has_let_go_of_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queue.db");
    for _ in 0..10 {
        let path = path.clone();
        tidegate_loop::run(async move {
            let broker = SqliteBroker::open(&path).await.unwrap();
            broker.publish(vec![Envelope::new("q", vec![0; 100_000])]).await.unwrap();
            broker.close().await.unwrap();
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let ours =
                |file: &std::path::Path| file.as_os_str().to_string_lossy().starts_with(&*path.to_string_lossy());
            let left: Vec<_> =
                open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter(|file| ours(file)).collect();
            assert_eq!(left, Vec::<std::path::PathBuf>::new());
        })
        .unwrap();
    }
}
