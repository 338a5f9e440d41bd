use std::future::Future;

use serde_json::{Value, json};
use tidegate_http::{Body, Client};
use tidegate_loop::run;
use tidegate_rehearsal::Handle;

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
