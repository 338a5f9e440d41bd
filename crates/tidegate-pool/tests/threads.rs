//! A pool between two threads: a million submissions, changes to the limits and cancelled submitters, all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate_pool::{JoinError, Pool, Tokio, Watermarks};
use tokio::sync::oneshot;

const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = is_send_and_sync::<Pool<Tokio>>();
const _: () = is_send_and_sync::<JoinError>();

const CAP_MAX: usize = 8;
const PRODUCERS: usize = 4;
const EACH: usize = 250_000;

fn on_two_threads(main: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async { tokio::spawn(main).await.unwrap() });
}

#[derive(Default)]
struct Seen {
    inside: AtomicUsize,
    worst: AtomicUsize,
    done: AtomicUsize,
}

/// Counts itself inside for as long as it exists.
struct Inside(Arc<Seen>);

impl Inside {
    fn new(seen: &Arc<Seen>) -> Inside {
        seen.worst.fetch_max(seen.inside.fetch_add(1, SeqCst) + 1, SeqCst);
        Inside(Arc::clone(seen))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
        self.0.done.fetch_add(1, SeqCst);
    }
}

/// Changes one of the limits, and never for good in a way that stops all tasks.
async fn adjust(pool: &Pool<Tokio>, round: usize) {
    match round % 4 {
        0 => {
            pool.pause();
            tokio::task::yield_now().await;
            pool.resume();
        }
        1 => pool.resize(1 + round / 4 % CAP_MAX),
        2 => pool.set_watermarks(Some(Watermarks { high: 1 + round % 5, low: 0 })),
        _ => pool.set_watermarks(None),
    }
}

async fn produce(pool: Pool<Tokio>, seen: Arc<Seen>, producer: usize) -> usize {
    let mut submitted = 0;
    for n in 0..EACH {
        if n % 20 == 0 {
            adjust(&pool, n / 20 + producer).await;
        }
        let seen = Arc::clone(&seen);
        let task = async move {
            let _inside = Inside::new(&seen);
            if n % 3 == 0 {
                tokio::task::yield_now().await;
            }
        };
        if (n + producer).is_multiple_of(5) {
            // Gives up unless it is served at its first or second look.
            let submission = pool.submit(task);
            tokio::select! {
                biased;
                handle = submission => {
                    handle.unwrap().detach();
                    submitted += 1;
                }
                () = tokio::task::yield_now() => {}
            }
        } else {
            let handle = pool.submit(task).await.unwrap();
            submitted += 1;
            // Cancelled before it began, it never counts itself; wait for it to know.
            if n % 11 == 0 {
                handle.cancel();
            }
        }
    }
    submitted
}

#[test]
fn whatever_threads_do_at_once_the_bound_holds_and_every_task_is_accounted_for() {
    on_two_threads(async {
        let pool = Pool::on(Tokio, CAP_MAX);
        let seen = Arc::new(Seen::default());
        let producers: Vec<_> =
            (0..PRODUCERS).map(|n| tokio::spawn(produce(pool.clone(), Arc::clone(&seen), n))).collect();
        let mut submitted = 0;
        for producer in producers {
            submitted += producer.await.unwrap();
        }
        assert!(submitted > PRODUCERS * EACH / 2, "most get through");
        pool.close().await;
        let stats = pool.stats();
        assert!(seen.worst.load(SeqCst) <= CAP_MAX, "{} at once", seen.worst.load(SeqCst));
        assert!(stats.peak <= CAP_MAX, "{stats:?}");
        assert_eq!((stats.running, stats.waiting, stats.submitted), (0, 0, submitted as u64), "{stats:?}");
        assert_eq!(stats.submitted, stats.completed + stats.cancelled, "{stats:?}");
        assert!(seen.done.load(SeqCst) as u64 >= stats.completed);
        assert_eq!(seen.inside.load(SeqCst), 0);
    });
}

#[test]
fn aborting_from_another_thread_misses_no_task() {
    on_two_threads(async {
        for round in 0..300 {
            let pool = Pool::on(Tokio, 16);
            let producer = tokio::spawn({
                let pool = pool.clone();
                async move { while pool.submit(std::future::pending::<()>()).await.is_ok() {} }
            });
            for _ in 0..round % 7 {
                tokio::task::yield_now().await;
            }
            pool.abort().await; // would not return if a task had slipped in
            producer.await.unwrap();
            let stats = pool.stats();
            assert_eq!((stats.running, stats.waiting, stats.cancelled), (0, 0, stats.submitted), "{stats:?}");
        }
    });
}

#[test]
fn a_oneshot_is_a_promise() {
    on_two_threads(async {
        let pool = Pool::on(Tokio, 1);
        let (promise, result) = oneshot::channel();
        pool.submit_to(promise, async { 7 }).await.unwrap().detach();
        assert_eq!(result.await.unwrap().unwrap(), 7);
        assert!(pool.try_submit(async {}).is_ok(), "its slot was free before it was settled");

        let (promise, result) = oneshot::channel::<Result<(), JoinError>>();
        pool.submit_to(promise, async { panic!("no") }).await.unwrap().detach();
        assert!(matches!(result.await.unwrap(), Err(JoinError::Panicked(_))));
    });
}
