//! A flood of tasks that do nothing, through a queue in a SQLite file, producer and worker in one process: how many a
//! second, from publish to settled.
//!
//! `cargo run --release -p tidegate-worker --example flood -- [TASKS] [IN_FLIGHT]`

use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{LoopHandle, run, spawn};
use tidegate_worker::codec::native;
use tidegate_worker::{
    Broker, Coroutines, Envelope, HandlerError, Handlers, Master, Policies, Policy, Settings, SqliteBroker, Stop, Task,
};

/// A publish is a call; as many go into one as a producer has at hand.
const BATCH: usize = 100;

async fn noop() -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a whole number"));
    let (tasks, in_flight) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(1_000));
    run(async move {
        let directory = tempfile::tempdir().unwrap();
        let broker = Rc::new(SqliteBroker::open(directory.path().join("queue.db")).await.unwrap());
        let mut settings = Settings::new(["flood"]);
        settings.prefetch = Some(in_flight);
        settings.policies = Policies::new(Policy { result_ttl: Duration::ZERO, ..Policy::default() });
        let mode = Coroutines::new(Handlers::new().task("noop", noop)).with_slots(in_flight);
        let client = broker.connect().await.unwrap();
        let master = Master::new(broker, Rc::new(mode), settings);
        let worker = master.handle();
        let running = spawn(master.run());

        let begun = LoopHandle::current().time();
        for first in (0..tasks).step_by(BATCH) {
            let batch = (first..tasks.min(first + BATCH)).map(|_| {
                let task = Task::new("noop");
                Envelope::of(&task, "flood", native::encode(&task))
            });
            client.publish(batch.collect()).await.unwrap();
        }
        let published = LoopHandle::current().time() - begun;
        while worker.stats().settled < tasks as u64 {
            tidegate_loop::sleep(Duration::from_millis(1)).await;
        }
        let settled = LoopHandle::current().time() - begun;
        let stats = worker.stats();
        let rate = |time: Duration| tasks as f64 / time.as_secs_f64();
        println!(
            "{tasks} tasks, {in_flight} in flight: {:.0}/s published, {:.0}/s settled",
            rate(published),
            rate(settled)
        );
        println!("{} receives, {} settles", stats.receives, stats.settles);
        worker.stop(Stop::Warm);
        let report = running.await.unwrap().unwrap();
        println!("stopped in {:?}, {} unsettled", report.stop_took, report.unsettled);
    })
    .unwrap();
}
