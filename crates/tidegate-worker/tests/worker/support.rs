//! A worker on a broker in memory, and what tests ask of it.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{EventLoop, JoinHandle, LoopHandle, sleep, spawn};
use tidegate_worker::codec::native;
use tidegate_worker::{
    Broker, Coroutines, Envelope, HandlerError, Handlers, Master, MasterError, MasterHandle, MemoryBroker, Mode,
    Policies, Policy, Report, Settings, Stop, Task, TaskId, TaskResult,
};

pub(crate) const QUEUE: &str = "default";

/// Runs in virtual time, in several orders of equally ready tasks.
pub(crate) fn simulate<F: Future<Output = ()> + 'static>(make: impl Fn() -> F) {
    tidegate_loop::explore(0..5, |_| make());
}

/// Runs in real time.
pub(crate) fn live<F: Future<Output = ()> + 'static>(future: F) {
    EventLoop::new().unwrap().run_until_complete(future).unwrap();
}

/// A worker, and a client of the same broker.
pub(crate) struct Yard {
    pub(crate) broker: Rc<MemoryBroker>,
    pub(crate) worker: MasterHandle,
    pub(crate) running: JoinHandle<Result<Report, MasterError>>,
}

impl Yard {
    pub(crate) fn new(handlers: Handlers, change: impl FnOnce(&mut Settings)) -> Yard {
        Yard::with_mode(Rc::new(Coroutines::new(handlers)), change)
    }

    pub(crate) fn with_mode(mode: Rc<dyn Mode>, change: impl FnOnce(&mut Settings)) -> Yard {
        Yard::on(&MemoryBroker::new(), mode, change)
    }

    /// A worker with a connection of its own.
    pub(crate) fn on(broker: &MemoryBroker, mode: Rc<dyn Mode>, change: impl FnOnce(&mut Settings)) -> Yard {
        let mut settings = Settings::new([QUEUE]);
        settings.policies = Policies::new(quick());
        change(&mut settings);
        let master = Master::new(Rc::new(broker.connect()), mode, settings);
        let worker = master.handle();
        Yard { broker: Rc::new(broker.connect()), worker, running: spawn(master.run()) }
    }

    pub(crate) async fn publish(&self, task: Task) -> TaskId {
        publish(&*self.broker, QUEUE, task).await
    }

    pub(crate) async fn result(&self, id: &TaskId) -> TaskResult {
        self.broker.wait_result(id).await.unwrap()
    }

    /// What is known of it so far.
    pub(crate) async fn broker_result(&self, id: &TaskId) -> Option<TaskResult> {
        self.broker.result(id).await.unwrap()
    }

    pub(crate) async fn run(&self, task: Task) -> TaskResult {
        let id = self.publish(task).await;
        self.result(&id).await
    }

    pub(crate) async fn stop(self, how: Stop) -> Report {
        self.worker.stop(how);
        self.running.await.unwrap().unwrap()
    }
}

pub(crate) async fn publish(broker: &dyn Broker, queue: &str, task: Task) -> TaskId {
    let envelope = Envelope::of(&task, queue, native::encode(&task));
    broker.publish(vec![envelope]).await.unwrap();
    task.id
}

/// Two retries, after exactly a second and two.
pub(crate) fn quick() -> Policy {
    let mut policy = Policy { retries_max: 2, ..Policy::default() };
    policy.backoff.min = Duration::from_secs(1);
    policy
}

pub(crate) fn handlers() -> Handlers {
    Handlers::new()
        .task("add", |a: i64, b: i64| async move { Ok::<_, HandlerError>(a + b) })
        .task("sleep", |millis: u64| async move {
            sleep(Duration::from_millis(millis)).await;
            Ok::<_, HandlerError>(millis)
        })
        .task("hang", || async { std::future::pending::<Result<(), HandlerError>>().await })
        .task("fail", || async { Err::<(), _>(HandlerError::failed("no luck")) })
        .task("panic", || async {
            if true {
                panic!("a bug");
            }
            Ok::<_, HandlerError>(())
        })
}

pub(crate) fn nap(millis: u64) -> Task {
    Task::new("sleep").arg(millis)
}

pub(crate) fn now() -> std::time::Instant {
    LoopHandle::current().time()
}

/// Waits until a worker's figures are as wanted; nothing but other tasks' steps has to happen for that.
pub(crate) async fn until(mut wanted: impl FnMut() -> bool) {
    for turn in 0.. {
        if wanted() {
            return;
        }
        assert!(turn < 1_000_000, "what was waited for does not happen");
        sleep(Duration::from_micros(100)).await;
    }
}

/// Methods of a broker that wraps another, `inner`, and leaves these to it.
macro_rules! pass {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $output { self.inner.$name($($argument),*) })*
    };
}
pub(crate) use pass;
