//! tidegate's worker: tasks in coroutines, acknowledged after their run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{sleep, spawn};
use tidegate_sync::Event;
use tidegate_worker::codec::{celery, dramatiq, native};
use tidegate_worker::rabbit::{Options, QueueKind, RabbitBroker};
use tidegate_worker::{
    Broker, Coroutines, Envelope, HandlerError, Handlers, Master, Middleware, Policies, Policy, Settings, Settled,
    Stop, Task, TaskInfo, Verdict,
};

use super::tidegate::{Outcome, on_loop};
use super::{Cost, PREFETCH, Watch};

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Nothing,
    /// Waits for five milliseconds, without a thread of its own where the contestant can.
    Wait,
}

impl Work {
    /// The task's name with every contestant.
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Nothing => "nothing",
            Work::Wait => "wait",
        }
    }
}

/// In whose form tasks are written.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Native,
    Celery,
    Dramatiq,
}

async fn open(host: &str, kind: QueueKind) -> Outcome<RabbitBroker> {
    let mut options = Options::default();
    options.kind = kind;
    Ok(RabbitBroker::open(&format!("amqp://{host}"), options).await?)
}

/// So many tasks and nothing else in a queue.
pub(super) fn fill(host: &str, queue: &str, form: Form, work: Work, count: u32) -> Result<(), String> {
    let (host, queue) = (host.to_owned(), queue.to_owned());
    on_loop(async move {
        // Durable queues without priorities for all, and persistent messages.
        let kind = if matches!(form, Form::Dramatiq) { QueueKind::Dramatiq } else { QueueKind::Plain };
        let broker = open(&host, kind).await?;
        broker.purge(&queue).await?;
        let now = broker.now();
        let mut left = count;
        while left > 0 {
            let batch = left.min(1_000);
            let tasks = (0..batch).map(|_| {
                let task = Task::new(work.name());
                match form {
                    Form::Native => Envelope::of(&task, &queue, native::encode(&task)),
                    Form::Celery => celery::encode(&task, &queue, &celery::Extras::default()),
                    Form::Dramatiq => dramatiq::encode(&task, &queue, None, now),
                }
            });
            broker.publish(tasks.collect()).await?;
            left -= batch;
        }
        broker.close().await?;
        Ok(())
    })
}

/// Counts from the first task's run to the last one's acknowledgement.
struct Stopwatch {
    left: Cell<u32>,
    begun: RefCell<Option<Watch>>,
    took: Cell<Option<Cost>>,
    over: Event,
}

impl Middleware for Stopwatch {
    fn received(&self, _: &TaskInfo) -> Result<(), tidegate_worker::Outcome> {
        self.begun.borrow_mut().get_or_insert_with(Watch::start);
        Ok(())
    }

    fn settled(&self, _: &TaskInfo, _: &Verdict, _: Settled) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.took.set(self.begun.borrow().as_ref().map(Watch::stop));
            self.over.set();
        }
    }
}

/// Works off a queue that was filled.
pub(super) fn run(host: &str, queue: &str, count: u32) -> Result<Cost, String> {
    let (host, queue) = (host.to_owned(), queue.to_owned());
    on_loop(async move {
        let broker = Rc::new(open(&host, QueueKind::Plain).await?);
        let handlers = Handlers::new().task("nothing", || async { Ok::<_, HandlerError>(()) }).task("wait", || async {
            sleep(Duration::from_millis(5)).await;
            Ok::<_, HandlerError>(())
        });
        let watch = Rc::new(Stopwatch {
            left: Cell::new(count),
            begun: RefCell::default(),
            took: Cell::default(),
            over: Event::new(),
        });
        let mut settings = Settings::new([queue]);
        settings.prefetch = Some(PREFETCH.into());
        // As the others are: nobody asks for results.
        settings.policies = Policies::new(Policy { result_ttl: Duration::ZERO, ..Policy::default() });
        settings.middleware.push(watch.clone());
        let mode = Coroutines::new(handlers).with_slots(PREFETCH.into());
        let master = Master::new(broker, Rc::new(mode), settings);
        let handle = master.handle();
        let running = spawn(master.run());
        watch.over.wait().await;
        handle.stop(Stop::Warm);
        running.await??;
        watch.took.get().ok_or_else(|| "no task was run".into())
    })
}
