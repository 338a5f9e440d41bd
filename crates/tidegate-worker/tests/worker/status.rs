//! What requests for `/metrics` and `/healthz` cost the broker, and the token that protects them.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use tidegate_loop::{JoinHandle, sleep, spawn, yield_now};
use tidegate_worker::{
    Broker, BrokerError, Consumer, Coroutines, Local, Master, MasterHandle, MemoryBroker, QueueStats, Settings,
    StatusToken, Stop, Subscription,
};
use tower_service::Service as _;

use crate::support::{QUEUE, handlers, pass, simulate, until};

/// A broker that counts how often it is inspected.
struct Counted {
    inner: MemoryBroker,
    inspections: Cell<u32>,
    hangs: Cell<bool>,
}

impl Broker for Counted {
    pass! {
        describe() -> String;
        now() -> jiff::Timestamp;
        publish(batch: Vec<tidegate_worker::Envelope>) -> Local<'_, Result<Vec<tidegate_worker::Published>, BrokerError>>;
        subscribe(what: Subscription) -> Local<'_, Result<Rc<dyn Consumer>, BrokerError>>;
        peek(queue: &str, limit: usize) -> Local<'_, Result<Vec<tidegate_worker::Envelope>, BrokerError>>;
        purge(queue: &str) -> Local<'_, Result<u64, BrokerError>>;
        dead(queue: Option<&str>, limit: usize) -> Local<'_, Result<Vec<tidegate_worker::DeadLetter>, BrokerError>>;
        dead_retry(which: tidegate_worker::Selection) -> Local<'_, Result<u64, BrokerError>>;
        dead_drop(which: tidegate_worker::Selection) -> Local<'_, Result<u64, BrokerError>>;
        revoke(id: &tidegate_worker::TaskId) -> Local<'_, Result<(), BrokerError>>;
        result(id: &tidegate_worker::TaskId) -> Local<'_, Result<Option<tidegate_worker::TaskResult>, BrokerError>>;
        wait_result(id: &tidegate_worker::TaskId) -> Local<'_, Result<tidegate_worker::TaskResult, BrokerError>>;
        close() -> Local<'_, Result<(), BrokerError>>;
    }

    fn inspect(&self) -> Local<'_, Result<Vec<QueueStats>, BrokerError>> {
        self.inspections.set(self.inspections.get() + 1);
        if self.hangs.get() { Box::pin(pending()) } else { self.inner.inspect() }
    }
}

/// A worker that runs on such a broker.
async fn worker() -> (Rc<Counted>, MasterHandle, JoinHandle<()>) {
    let broker = Rc::new(Counted { inner: MemoryBroker::new(), inspections: Cell::new(0), hangs: Cell::new(false) });
    let mode = Rc::new(Coroutines::new(handlers()));
    let master = Master::new(Rc::clone(&broker) as Rc<dyn Broker>, mode, Settings::new([QUEUE]));
    let worker = master.handle();
    let running = spawn(async move {
        master.run().await.unwrap();
    });
    until(|| worker.phase() == tidegate_worker::Phase::Running).await;
    (broker, worker, running)
}

async fn get(mut router: Router, path: &str, authorization: Option<&str>) -> StatusCode {
    let mut request = Request::get(path);
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    router.call(request.body(Body::empty()).unwrap()).await.unwrap().status()
}

/// Both pages in turn, all at once.
fn flood(router: &Router, count: usize) -> Vec<JoinHandle<StatusCode>> {
    let paths = ["/metrics", "/healthz"].into_iter().cycle().take(count);
    paths.map(|path| spawn(get(router.clone(), path, None))).collect()
}

#[test]
fn sixty_requests_share_one_inspection_of_the_broker() {
    simulate(|| async {
        let (broker, worker, running) = worker().await;
        let router = worker.router();
        for request in flood(&router, 60) {
            assert_eq!(request.await.unwrap(), StatusCode::OK);
        }
        assert_eq!(broker.inspections.get(), 1);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(get(router.clone(), "/metrics", None).await, StatusCode::OK);
        assert_eq!(broker.inspections.get(), 1, "a snapshot is good for five seconds");
        sleep(Duration::from_secs(2)).await;
        for request in flood(&router, 60) {
            assert_eq!(request.await.unwrap(), StatusCode::OK);
        }
        assert_eq!(broker.inspections.get(), 2);
        worker.stop(Stop::Warm);
        running.await.unwrap();
    });
}

#[test]
fn requests_that_are_dropped_start_no_further_inspection() {
    simulate(|| async {
        let (broker, worker, running) = worker().await;
        let router = worker.router();
        broker.hangs.set(true);
        for _ in 0..60 {
            let requests = flood(&router, 2);
            yield_now().await;
            for request in requests {
                request.cancel();
                assert!(request.await.is_err());
            }
        }
        assert_eq!(broker.inspections.get(), 1);
        // Both are answered from the inspection that was started first, once it has timed out.
        assert_eq!(get(router.clone(), "/healthz", None).await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(get(router.clone(), "/metrics", None).await, StatusCode::OK);
        assert_eq!(broker.inspections.get(), 1, "a broker that does not answer is not asked again at once");
        broker.hangs.set(false);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(get(router.clone(), "/healthz", None).await, StatusCode::OK);
        assert_eq!(broker.inspections.get(), 2);
        worker.stop(Stop::Warm);
        running.await.unwrap();
    });
}

#[test]
fn without_the_token_nothing_is_said_and_the_broker_is_not_asked() {
    simulate(|| async {
        let (broker, worker, running) = worker().await;
        let router = worker.router_with_token(StatusToken::new("s3cret").unwrap());
        for path in ["/metrics", "/healthz"] {
            for authorization in [None, Some("Bearer s3cre"), Some("Basic s3cret")] {
                assert_eq!(get(router.clone(), path, authorization).await, StatusCode::UNAUTHORIZED);
            }
        }
        assert_eq!(broker.inspections.get(), 0);
        for path in ["/metrics", "/healthz"] {
            assert_eq!(get(router.clone(), path, Some("Bearer s3cret")).await, StatusCode::OK);
        }
        worker.stop(Stop::Warm);
        running.await.unwrap();
    });
}
