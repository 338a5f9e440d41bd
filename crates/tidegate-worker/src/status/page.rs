//! A page for Prometheus that its owner sets now and then: requests are answered from what was set last.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::{METRICS_TYPE, StatusToken, refusal};

/// A `/metrics` page that is answered from the text set last, whatever the number of requests. Clones are the same.
///
/// ```
/// use tidegate_worker::{MetricsPage, MetricsText};
///
/// let mut text = MetricsText::new("jobs_");
/// text.gauge("in_flight", "Requests in flight.", 3.0);
/// let page = MetricsPage::new(text.finish());
/// let router = page.router(None); // serve it with `tidegate_http::serve`
/// page.set("jobs_in_flight 4\n".to_owned());
/// # drop(router);
/// ```
#[derive(Clone)]
pub struct MetricsPage(Arc<Mutex<Arc<str>>>);

impl MetricsPage {
    /// Connections that a server of figures should have at once: enough for every scraper, too few to use up the descriptors of
    /// the process that it tells about.
    pub const CONNECTIONS_MAX: usize = 64;

    /// A page with `text` on it.
    #[must_use]
    pub fn new(text: String) -> MetricsPage {
        MetricsPage(Arc::new(Mutex::new(text.into())))
    }

    /// Replaces the text.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }

    fn get(&self) -> Arc<str> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the routes `/metrics` and `/healthz`, the latter with status 200. With a token, requests that do not bring
    /// it get status 401.
    pub fn router(&self, token: Option<StatusToken>) -> Router {
        let (page, token) = (self.clone(), Arc::new(token));
        let health = Arc::clone(&token);
        let metrics = move |headers: HeaderMap| {
            let answer: Response = refusal(token.as_ref().as_ref(), &headers)
                .unwrap_or_else(|| ([(header::CONTENT_TYPE, METRICS_TYPE)], page.get().to_string()).into_response());
            std::future::ready(answer)
        };
        let healthz = move |headers: HeaderMap| {
            let answer: Response = refusal(health.as_ref().as_ref(), &headers).unwrap_or_else(|| {
                ([(header::CONTENT_TYPE, "application/json")], r#"{"status":"ok"}"#).into_response()
            });
            std::future::ready(answer)
        };
        Router::new().route("/metrics", get(metrics)).route("/healthz", get(healthz))
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsPage(…)")
    }
}
