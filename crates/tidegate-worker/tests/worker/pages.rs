//! What goes over HTTP: handlers that post, `/metrics`, `/healthz`.

use std::rc::Rc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use tidegate_http::{Client, Proxies, serve};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{LoopHandle, spawn};
use tidegate_worker::{Handler, Handlers, HttpHandler, Stop, Task, TaskContext, TaskState};

use crate::support::{Yard, handlers, live, until};

async fn listen(router: Router) -> (String, tidegate_http::ServerHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = serve(listener, router);
    let handle = server.handle();
    spawn(server.run());
    (url, handle)
}

#[test]
fn a_task_is_posted_and_the_answer_decides() {
    live(async {
        let router = Router::new()
            .route("/echo", post(|body: String| async move { body }))
            .route("/gone", post(|| async { (StatusCode::GONE, "moved to the moon") }))
            .route("/busy", post(|| async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "0")], "later") }));
        let (url, server) = listen(router).await;
        let to = |path: &str| Rc::new(HttpHandler::new(&format!("{url}{path}")));
        let handlers = Handlers::new()
            .handler("echo", to("/echo"))
            .handler("gone", to("/gone"))
            .handler("busy", to("/busy"))
            .handler("nowhere", Rc::new(HttpHandler::new("http://127.0.0.1:1/")));
        let yard = Yard::new(handlers, |settings| {
            let policy = tidegate_worker::Policy { retries_max: 1, ..tidegate_worker::Policy::default() };
            let once = tidegate_worker::Policy { retries_max: 0, ..policy.clone() };
            settings.policies = tidegate_worker::Policies::new(policy).task("nowhere", once);
        });

        let task = Task::new("echo").arg(7).kwarg("k", "v");
        let expected = json!({"id": task.id.as_str(), "task": "echo", "args": [7], "kwargs": {"k": "v"}, "retries": 0});
        assert_eq!(yard.run(task).await.value, expected);

        let gone = yard.run(Task::new("gone")).await;
        assert_eq!(gone.error.unwrap().message, "the handler answered 410: moved to the moon");
        let busy = yard.run(Task::new("busy")).await;
        assert_eq!((busy.state, busy.error.unwrap().kind.as_str()), (TaskState::Failed, "Http503"));
        assert_eq!(yard.worker.stats().retried, 1);
        let nowhere = yard.run(Task::new("nowhere")).await.error.unwrap();
        assert!(nowhere.message.contains("127.0.0.1:1"), "{}", nowhere.message);
        yard.stop(Stop::Warm).await;
        server.stop();
    });
}

#[test]
fn a_handler_that_repeats_its_request_gives_the_password_away_to_no_result() {
    live(async {
        // The head of the request behind 190 characters: a message ends within the password.
        let head = |headers: axum::http::HeaderMap| {
            format!("{} {} hunter2-and-more", "x".repeat(190), headers["authorization"].to_str().unwrap())
        };
        let router = Router::new()
            .route("/text", post(move |headers| async move { head(headers) }))
            .route("/json", post(move |headers| async move { json!({"said": head(headers)}).to_string() }))
            .route("/gone", post(move |headers| async move { (StatusCode::GONE, head(headers)) }));
        let (url, server) = listen(router).await;
        let to = |path: &str| HttpHandler::new(&format!("{}{path}", url.replace("//", "//joe:hunter2-and-more@")));
        assert!(!format!("{:?}", to("/text")).contains("hunter2"));
        let handlers = ["text", "json", "gone"]
            .into_iter()
            .fold(Handlers::new(), |handlers, name| handlers.handler(name, Rc::new(to(&format!("/{name}")))));
        let yard = Yard::new(handlers, |settings| {
            let once = tidegate_worker::Policy { retries_max: 0, ..tidegate_worker::Policy::default() };
            settings.policies = tidegate_worker::Policies::new(once);
        });
        for name in ["text", "json", "gone"] {
            let result = format!("{:?}", yard.run(Task::new(name)).await);
            assert!(result.contains("xxx Basic (s"), "{result}");
            // In base64: `hunt`, as it stands behind `joe:`.
            assert!(!result.contains("hunt") && !result.contains("Omh1bnR"), "{result}");
        }
        yard.stop(Stop::Warm).await;
        server.stop();
    });
}

#[test]
fn the_pages_say_what_the_worker_does() {
    live(async {
        let yard = Yard::new(handlers(), |_| {});
        let (url, server) = listen(yard.worker.router()).await;
        let client = Client::new();
        until(|| yard.worker.phase() == tidegate_worker::Phase::Running).await;

        let response = client.get(&format!("{url}/healthz")).await.unwrap();
        assert_eq!(response.status(), 200);
        let health: Value = response.into_body().json().await.unwrap();
        assert_eq!((&health["status"], &health["last_received_ms_ago"]), (&json!("ok"), &Value::Null));

        yard.run(Task::new("add").arg(1).arg(1)).await;
        yard.run(Task::new("nobody")).await;
        yard.publish(Task::new("hang")).await;
        until(|| yard.worker.stats().running == 1 && yard.worker.stats().settled == 2).await;
        // Pages of their own: their snapshot of the queues is not one from before these tasks.
        let (fresh, second) = listen(yard.worker.router()).await;
        let response = client.get(&format!("{fresh}/metrics")).await.unwrap();
        let text = response.into_body().text().await.unwrap();
        for line in [
            "tidegate_worker_tasks_received_total 3",
            "tidegate_worker_tasks_running 1",
            "tidegate_worker_tasks_settled_total{task=\"add\",outcome=\"success\"} 1",
            "tidegate_worker_tasks_settled_total{task=\"nobody\",outcome=\"rejected\"} 1",
            "tidegate_worker_tasks_dead_total 1",
            "tidegate_worker_queue_running{queue=\"default\"} 1",
            "tidegate_worker_queue_dead{queue=\"default\"} 1",
            "tidegate_worker_task_run_seconds_count 1",
            "tidegate_worker_task_queued_seconds_count 2",
            "tidegate_worker_broker_up 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        assert!(text.contains("tidegate_worker_loop_lag_max_seconds "), "{text}");

        let health: Value = client.get(&format!("{url}/healthz")).await.unwrap().into_body().json().await.unwrap();
        assert!(health["last_received_ms_ago"].is_u64(), "{health}");
        let worker = yard.worker.clone();
        yard.stop(Stop::Cold).await;
        let response = client.get(&format!("{url}/healthz")).await.unwrap();
        assert_eq!((response.status().as_u16(), worker.phase().as_str()), (503, "stopped"));
        server.stop();
        second.stop();
    });
}

#[test]
fn a_password_of_a_proxy_that_the_answer_repeats_is_not_shown() {
    live(async {
        // The proxy answers itself.
        let repeats = |headers: HeaderMap| async move {
            let sent = headers["proxy-authorization"].to_str().unwrap().to_owned();
            (StatusCode::INTERNAL_SERVER_ERROR, format!("sent {sent}, that is hun/ter2"))
        };
        let (url, server) = listen(Router::new().route("/x", post(repeats))).await;
        let proxy = url.replace("://", "://joe:hun%2Fter2@");
        let proxies = Proxies::from_vars(|name| (name == "http_proxy").then(|| proxy.clone()));
        let client = Client::builder().proxies(proxies).build().unwrap();
        let handler = HttpHandler::with_client("http://handler.example/x", client);
        let task = Task::new("x");
        let context = TaskContext::new(&task, None, None, LoopHandle::current().time());
        let told = format!("{:?}", handler.call(task, context).await.unwrap_err());
        assert!(told.contains("sent Basic (secret), that is (secret)"), "{told}");
        server.stop();
    });
}
