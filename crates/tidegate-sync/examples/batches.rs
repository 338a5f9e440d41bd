//! Two producers, a queue that holds them back, and a consumer that takes whatever has come.
//!
//! `cargo run -p tidegate-sync --example batches [readings of each producer]`
//!
//! The producers are threads; the consumer is a task on tidegate's loop. Writing costs the same however much is written,
//! so it takes all there is each time: the busier the producers, the larger the batches. With the queue full, `push`
//! waits, so what lies in memory is bounded whatever their pace.

use std::sync::Arc;
use std::thread;

use futures_lite::future::block_on;
use tidegate_loop::yield_now;
use tidegate_sync::{Queue, Stats};

const PRODUCERS: usize = 2;
const AT_MOST: usize = 64;

#[derive(Clone, Copy)]
struct Reading {
    producer: usize,
    number: usize,
}

struct Written {
    /// By producer, the number of the next reading.
    next: [usize; PRODUCERS],
    batches: usize,
    largest: usize,
}

fn produce(queue: &Queue<Reading>, producer: usize, count: usize) {
    block_on(async {
        for number in 0..count {
            // Here the producer waits while the queue is full.
            queue.push(Reading { producer, number }).await.expect("closed only after the last reading");
        }
    });
}

async fn write_down(queue: Arc<Queue<Reading>>) -> Written {
    let mut written = Written { next: [0; PRODUCERS], batches: 0, largest: 0 };
    while let Ok(batch) = queue.recv_all().await {
        written.batches += 1;
        written.largest = written.largest.max(batch.len());
        for Reading { producer, number } in batch {
            assert_eq!(number, written.next[producer], "a producer's readings keep their order");
            written.next[producer] += 1;
        }
        yield_now().await; // the write itself; meanwhile the next batch gathers
    }
    written
}

fn main() {
    let count = std::env::args().nth(1).map_or(10_000, |count| count.parse().expect("a number of readings"));
    run(count);
}

pub(crate) fn run(count: usize) {
    let queue = Arc::new(Queue::bounded(AT_MOST));
    let producers = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            thread::scope(|scope| {
                for producer in 0..PRODUCERS {
                    let queue = &queue;
                    scope.spawn(move || produce(queue, producer, count));
                }
            });
            queue.close(); // the consumer still gets what is inside
        }
    });
    let written = tidegate_loop::run(write_down(Arc::clone(&queue))).expect("the loop runs to its end");
    producers.join().expect("producers do not panic");

    let Stats { peak, total, blocked, .. } = queue.stats();
    println!("{total} readings in {} batches, the largest of {}", written.batches, written.largest);
    println!("at most {peak} in memory; {blocked} pushes and receives had to wait");
    assert_eq!(written.next, [count; PRODUCERS]);
    assert!(peak <= AT_MOST && written.largest <= AT_MOST);
}
