//! The peer's address for handlers.

use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

/// An extractor for the address of a request's peer. axum's extractor of that name depends on tokio's network stack.
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_http::ConnectInfo;
///
/// let router: Router = Router::new().route("/", get(|ConnectInfo(peer): ConnectInfo| async move { peer.to_string() }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectInfo(pub SocketAddr);

/// The request did not come through [`serve`](crate::serve).
///
/// ```
/// use axum::response::IntoResponse;
/// assert_eq!(tidegate_http::NoConnectInfo.into_response().status(), 500);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoConnectInfo;

impl IntoResponse for NoConnectInfo {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, "the peer's address is known only to requests served by tidegate")
            .into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for ConnectInfo {
    type Rejection = NoConnectInfo;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ConnectInfo, NoConnectInfo> {
        parts.extensions.get::<ConnectInfo>().copied().ok_or(NoConnectInfo)
    }
}
