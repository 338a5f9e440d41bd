//! A producer that is faster than its consumers, and a pool that holds it back.
//!
//! `cargo run -p tidegate-pool --example backpressure`
//!
//! The producer makes readings as fast as it can, and each takes 2 ms to store. Four are stored at a time, so the producer
//! goes on every half millisecond, and at most four readings are in memory. The clock is virtual: the second that this
//! takes passes at once, and exactly.

use tidegate_loop::{Duration, EventLoop, Instant, LoopHandle, Runner, sleep};
use tidegate_pool::{Pool, Stats, Watermarks};

const READINGS: usize = 2_000;
const STORING: Duration = Duration::from_millis(2);
const AT_ONCE: usize = 4;

struct Outcome {
    took: Duration,
    /// When each reading was made, since the start.
    made: Vec<Duration>,
    stats: Stats,
}

async fn store(_reading: usize) {
    sleep(STORING).await;
}

async fn produce(pool: Pool) -> Outcome {
    let since = |begun: Instant| LoopHandle::current().time() - begun;
    let begun = LoopHandle::current().time();
    let mut made = Vec::new();
    for reading in 0..READINGS {
        made.push(since(begun));
        // Waits until the reading begins to be stored, not until it is stored.
        pool.submit(store(reading)).await.expect("the pool is open").detach();
    }
    pool.close().await;
    Outcome { took: since(begun), made, stats: pool.stats() }
}

fn simulate(watermarks: Option<Watermarks>) -> Outcome {
    let event_loop = EventLoop::builder().virtual_time().build().expect("a loop in virtual time opens nothing");
    let pool = Pool::new(AT_ONCE);
    pool.set_watermarks(watermarks);
    Runner::new(event_loop).run(produce(pool)).expect("it ends by itself")
}

fn main() {
    run();
}

pub(crate) fn run() {
    let steady = simulate(None);
    println!("{READINGS} readings, {STORING:?} each to store, {AT_ONCE} at once: {:?}", steady.took);
    println!("  the last was made after {:?}: the producer kept pace", steady.made[READINGS - 1]);
    println!("  at most {} in memory, {:?} spent waiting", steady.stats.peak, steady.stats.waited);
    assert_eq!(steady.took, STORING * (READINGS / AT_ONCE) as u32);
    assert_eq!(steady.stats.peak, AT_ONCE);

    // In batches: when four are being stored, none is begun until all of them are.
    let batches = simulate(Some(Watermarks { high: AT_ONCE, low: 0 }));
    println!("with watermarks, high {AT_ONCE}, low 0: {:?}", batches.took);
    assert_eq!(batches.stats.completed, READINGS as u64);
}
