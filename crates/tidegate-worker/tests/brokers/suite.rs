//! One suite, three subjects: memory and SQLite in virtual time, SQLite with its thread in real time.

use std::cell::OnceCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tidegate_loop::{EventLoop, Runner};
use tidegate_worker::conformance::{Case, Subject};
use tidegate_worker::{Broker, Local, MemoryBroker, SqliteBroker, sqlite};

/// Long enough for any case on a busy machine; a case that hangs is a failure, not a hang.
const CASE_LIMIT: Duration = Duration::from_secs(60);

async fn bounded(case: impl Future<Output = ()>) {
    tidegate_loop::timeout(CASE_LIMIT, case).await.expect("the case hangs");
}

struct Memory(MemoryBroker);

impl Subject for Memory {
    fn connect(&self) -> Local<'_, Rc<dyn Broker>> {
        let broker: Rc<dyn Broker> = Rc::new(self.0.connect());
        Box::pin(std::future::ready(broker))
    }

    fn lose_leases(&self) -> Local<'_, ()> {
        self.0.lose_leases();
        Box::pin(std::future::ready(()))
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }
}

struct Sqlite {
    options: sqlite::Options,
    first: OnceCell<SqliteBroker>,
    unit: Duration,
}

impl Sqlite {
    async fn handle(&self) -> &SqliteBroker {
        if self.first.get().is_none() {
            let _ = self.first.set(SqliteBroker::open_with(self.options.clone()).await.unwrap());
        }
        self.first.get().unwrap()
    }
}

impl Subject for Sqlite {
    fn connect(&self) -> Local<'_, Rc<dyn Broker>> {
        Box::pin(async { Rc::new(self.handle().await.connect().await.unwrap()) as Rc<dyn Broker> })
    }

    fn lose_leases(&self) -> Local<'_, ()> {
        Box::pin(async {
            self.handle().await.expire_leases().await.unwrap();
        })
    }

    fn unit(&self) -> Duration {
        self.unit
    }
}

fn run_sqlite(event_loop: EventLoop, lease: Duration, unit: Duration, case: Case) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = sqlite::Options::new(directory.path().join("queue.db"));
    options.lease = lease;
    options.ballast_bytes = 0;
    let checked = options.clone();
    let subject = Rc::new(Sqlite { options, first: OnceCell::new(), unit });
    Runner::new(event_loop)
        .run(bounded(async move {
            case(subject).await;
            let broker = SqliteBroker::open_with(checked).await.unwrap();
            assert_eq!(broker.check().await.unwrap(), Vec::<String>::new());
            broker.close().await.unwrap();
        }))
        .unwrap();
}

mod memory {
    use super::*;

    fn run(case: Case) {
        Runner::new(EventLoop::simulated(1))
            .run(bounded(async move { case(Rc::new(Memory(MemoryBroker::new()))).await }))
            .unwrap();
    }

    tidegate_worker::broker_conformance!(run);
}

mod sqlite_in_virtual_time {
    use super::*;

    fn run(case: Case) {
        run_sqlite(EventLoop::simulated(1), Duration::from_secs(30), Duration::from_secs(1), case);
    }

    tidegate_worker::broker_conformance!(run);
}

mod sqlite_with_its_thread {
    use super::*;

    fn run(case: Case) {
        let event_loop = EventLoop::new().unwrap();
        // A publish takes less than two units, on a busy machine too: what is due then is due in the order of the case.
        // And no consumer that lives is away for as long as its lease.
        run_sqlite(event_loop, Duration::from_secs(5), Duration::from_millis(200), case);
    }

    tidegate_worker::broker_conformance!(run);
}
