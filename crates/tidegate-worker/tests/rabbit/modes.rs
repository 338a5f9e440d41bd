//! Whole workers, in each of their modes, through a restart of the broker.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate_loop::{JoinHandle, sleep, spawn};
use tidegate_worker::codec::native;
use tidegate_worker::rabbit::{Options, RabbitBroker};
use tidegate_worker::{
    BlockingHandlers, Broker, Coroutines, Envelope, HandlerError, Handlers, Master, MasterError, MasterHandle, Mode,
    ProcessMode, ProcessOptions, Report, Settings, Stop, Task, Threads,
};

use crate::support::{host, name, node, on_loop, soak};

struct Worker {
    what: &'static str,
    queue: String,
    handle: MasterHandle,
    running: JoinHandle<Result<Report, MasterError>>,
}

impl Worker {
    async fn start(what: &'static str, mode: Rc<dyn Mode>) -> Worker {
        let broker = Rc::new(RabbitBroker::open(&format!("amqp://{}", host()), Options::default()).await.unwrap());
        let queue = name(what);
        let master = Master::new(broker, mode, Settings::new([&queue]));
        let handle = master.handle();
        Worker { what, queue, handle, running: spawn(master.run()) }
    }

    /// Runs tasks until so many more have ended, and the broker knows.
    async fn runs(&self, client: &RabbitBroker, count: u64) -> Instant {
        let before = self.handle.stats().settled;
        let task = |_| {
            let task = Task::new("add").arg(1).arg(2);
            Envelope::of(&task, &self.queue, native::encode(&task))
        };
        client.publish((0..count).map(task).collect()).await.unwrap();
        while self.handle.stats().settled < before + count {
            sleep(Duration::from_millis(10)).await;
        }
        Instant::now()
    }
}

fn python() -> ProcessOptions {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = std::env::join_paths([tests.join("../../clients/python"), tests.join("tests/process")]).unwrap();
    let mut options = ProcessOptions::new(["python3", "-S", "-m", "tidegate", "worker", "handlers"]);
    options.environment.push(("PYTHONPATH".into(), path));
    options.environment.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
    options.children = 2;
    options
}

#[test]
fn every_mode_goes_on_after_the_broker_came_back() {
    on_loop(async {
        let handlers = Handlers::new().task("add", |x: i64, y: i64| async move { Ok::<_, HandlerError>(x + y) });
        let blocking = BlockingHandlers::new().task("add", |x: i64, y: i64| Ok::<_, HandlerError>(x + y));
        let workers = [
            Worker::start("coroutine", Rc::new(Coroutines::new(handlers))).await,
            Worker::start("thread", Rc::new(Threads::new(blocking))).await,
            Worker::start("process", Rc::new(ProcessMode::new(python()))).await,
        ];
        let mut options = Options::default();
        options.publish_patience = Duration::from_secs(120);
        let client = RabbitBroker::open(&format!("amqp://{}", host()), options).await.unwrap();
        for worker in &workers {
            worker.runs(&client, 10).await;
        }
        for round in 0..if soak() { 10 } else { 1 } {
            node(if round % 2 == 0 { "stop" } else { "kill" }).await;
            node("start").await;
            let back = Instant::now();
            for worker in &workers {
                let took = worker.runs(&client, 10).await - back;
                println!("{}: 10 tasks published, run and settled {took:?} after the broker was back", worker.what);
            }
        }
        for worker in workers {
            worker.handle.stop(Stop::Warm);
            worker.running.await.unwrap().unwrap();
        }
        client.close().await.unwrap();
    });
}
