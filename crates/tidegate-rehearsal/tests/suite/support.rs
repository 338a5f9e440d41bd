use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_http::{Body, Client};
use tidegate_loop::{EventLoop, LoopHandle, run, yield_now};
use tidegate_rehearsal::{Handle, Stats};

pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Value,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

pub(crate) fn on_loop(test: impl Future<Output = ()> + 'static) {
    run(test).unwrap();
}

/// Runs a test on a loop whose clock stands still until the test moves it: nothing is late because the machine is busy.
pub(crate) fn with_still_clock(test: impl Future<Output = ()> + 'static) {
    let event_loop = EventLoop::builder().manual_clock().build().unwrap();
    // A loop in virtual time ends with an error when nothing is ready, and bytes in the kernel are not ready yet.
    event_loop.spawn(async {
        loop {
            yield_now().await;
        }
    });
    event_loop.run_until_complete(test).unwrap();
}

/// Moves the clock once the server has counted what `condition` describes.
pub(crate) async fn advance_when(server: &Handle, condition: impl Fn(&Stats) -> bool, by: Duration) {
    while !condition(&server.stats()) {
        yield_now().await;
    }
    LoopHandle::current().advance(by);
}

pub(crate) async fn post(server: &Handle, path: &str, headers: &[(&str, &str)], body: &Value) -> Got {
    let mut request = http::Request::post(format!("{}{path}", server.base_url()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_string())).unwrap();
    let response = Client::new().request(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Got { status, headers, body: response.into_body().json().await.unwrap_or(Value::Null) }
}

pub(crate) fn question(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]})
}

pub(crate) async fn ask(server: &Handle, text: &str) -> Got {
    post(server, "/v1/chat/completions", &[], &question(text)).await
}
