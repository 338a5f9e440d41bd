//! A whole worker and its producers in one process: a task is published by a call of its own, received, run by its handler,
//! settled, and that confirmed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_loop::{sleep, spawn, yield_now};
use tidegate_worker::{
    Broker, Coroutines, HandlerError, Handlers, Master, MasterHandle, Mode, Phase, Policies, Policy, ProcessMode,
    ProcessOptions, Settings, SqliteBroker, Stop,
};

use crate::harness::Sample;

use super::queue::{NOTHING, PAUSE, envelope, run, scratch};

/// How long a task that waits does so.
pub(super) const PAUSE_TIME: Duration = Duration::from_millis(5);

/// Calls of `publish` under way at a time, and tasks in hand.
const IN_FLIGHT: usize = 1_000;

/// Runs that a child of Python has at a time: one, unless told otherwise. `TIDEGATE_BENCH_PIPELINE` tells.
pub(super) fn pipeline() -> usize {
    std::env::var("TIDEGATE_BENCH_PIPELINE").ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// What the bodies that are published say.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Nothing,
    /// Sleeps for [`PAUSE_TIME`].
    Pause,
}

impl Work {
    fn body(self) -> &'static [u8] {
        match self {
            Work::Nothing => NOTHING,
            Work::Pause => PAUSE,
        }
    }
}

/// Handlers on the loop, a thousand at a time.
pub(super) fn coroutines() -> Rc<dyn Mode> {
    let handlers = Handlers::new()
        .task("nothing", |_: u32, _: u32, _: u32, _: serde_json::Value| async { Ok::<_, HandlerError>(()) })
        .task("pause", |_: u32, _: u32, _: u32, _: serde_json::Value| async {
            sleep(PAUSE_TIME).await;
            Ok::<_, HandlerError>(())
        });
    Rc::new(Coroutines::new(handlers).with_slots(IN_FLIGHT))
}

/// Children of CPython with the module in `clients/python`.
pub(super) fn python(interpreter: PathBuf, children: usize, pipeline: usize) -> Result<Rc<dyn Mode>, String> {
    let directory = scratch("tidegate-python")?;
    let tasks = directory.join("tidegate_tasks.py");
    std::fs::write(tasks, include_str!("tidegate_tasks.py")).map_err(|error| error.to_string())?;
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python");
    let mut paths = OsString::from(client);
    paths.push(":");
    paths.push(&directory);
    let command = ["-m", "tidegate", "worker", "tidegate_tasks", "--log-level", "WARNING"];
    let mut options =
        ProcessOptions::new([interpreter.into_os_string()].into_iter().chain(command.map(OsString::from)));
    options.environment.push(("PYTHONPATH".into(), paths));
    options.children = children;
    options.pipeline = pipeline;
    Ok(Rc::new(ProcessMode::new(options)))
}

/// Microseconds a task, from the first publish until the last settlement is confirmed.
pub(super) fn flow(count: usize, mode: Rc<dyn Mode>, work: Work) -> Sample {
    let directory = scratch("whole")?;
    let path = directory.join("queue.db");
    let took = run(async move {
        let broker = Rc::new(SqliteBroker::open(&path).await.map_err(|error| error.to_string())?);
        let client = Rc::new(broker.connect().await.map_err(|error| error.to_string())?);
        let master = Master::new(Rc::clone(&broker) as Rc<dyn Broker>, mode, settings());
        let worker = master.handle();
        let running = spawn(master.run());
        while worker.phase() != Phase::Running {
            if running.is_finished() {
                return Err("the worker did not start".to_owned());
            }
            sleep(Duration::from_millis(1)).await;
        }
        let began = Instant::now();
        let producers: Vec<_> = (0..IN_FLIGHT)
            .map(|_| {
                let client = Rc::clone(&client);
                spawn(async move {
                    for _ in 0..count / IN_FLIGHT {
                        client.publish(vec![envelope(work.body())]).await.expect("the disk has room");
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await.expect("it has published");
        }
        settled(&worker, (count / IN_FLIGHT * IN_FLIGHT) as u64).await;
        let took = began.elapsed();
        worker.stop(Stop::Warm);
        running.await.expect("it ends").map_err(|error| error.to_string())?;
        // Before the next sample's files have the same names.
        for broker in [&client, &broker] {
            broker.close().await.map_err(|error| error.to_string())?;
        }
        Ok(took)
    })??;
    let _ = std::fs::remove_dir_all(&directory);
    Ok(took.as_secs_f64() * 1e6 / (count / IN_FLIGHT * IN_FLIGHT) as f64)
}

async fn settled(worker: &MasterHandle, count: u64) {
    while worker.stats().settled < count {
        sleep(Duration::from_micros(200)).await;
    }
    yield_now().await;
}

/// The usual ones; results are not kept, as the peers don't keep them either.
pub(super) fn settings() -> Settings {
    let mut settings = Settings::new(["q"]);
    settings.policies = Policies::new(Policy { result_ttl: Duration::ZERO, ..Policy::default() });
    settings
}
