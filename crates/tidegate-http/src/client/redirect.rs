//! Follows redirections, for clients that enable it.

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, LOCATION, TRANSFER_ENCODING,
};
use http::{Method, Request, Response, StatusCode, Uri};

use super::ClientInner;
use super::builder::Timeouts;
use super::exchange::{copy_of, exchange};
use super::target::Target;
use crate::body::Body;
use crate::deadline::now;
use crate::error::Error;

/// Sends `request` and follows redirections. Apart from [`exchange`], so that other requests' futures do not contain this
/// one's state.
pub(crate) async fn follow(client: &ClientInner, mut request: Box<Request<Body>>) -> Result<Response<Body>, Error> {
    let timeouts = request.extensions().get().copied().unwrap_or(client.timeouts);
    let deadline = timeouts.total.map(|limit| now() + limit);
    for _ in 0..=client.redirects {
        // The total time-out covers all requests of the chain.
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
        request.extensions_mut().insert(Timeouts { total: left, ..timeouts });
        let from = request.uri().clone();
        let mut copy = copy_of(&request);
        let plain = Request::from_parts(head_of(&request), ());
        let response = exchange(client, request).await?;
        let Some(to) = destination(&from, &response)? else { return Ok(response) };
        let host = Target::of(&from)?.authority();
        let refuse = |reason: &str| Error::Redirect { host: host.clone(), reason: reason.to_owned() };
        let (old, new) = (Target::of(&from)?, Target::of(&to)?);
        if old.tls && !new.tls {
            return Err(refuse("it leads from https to http"));
        }
        let keeps = matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        // With its body read, the connection can serve the next request. A long body is not read.
        let _ = response.into_body().bytes_up_to(16 * 1024).await;
        let mut next = if keeps {
            copy.take().ok_or_else(|| refuse("the request's body was a stream and cannot be sent again"))?
        } else {
            let mut next = plain.map(|()| Body::empty());
            if *next.method() != Method::HEAD {
                *next.method_mut() = Method::GET;
            }
            for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
                next.headers_mut().remove(name);
            }
            next
        };
        next.headers_mut().remove(HOST);
        if old != new {
            for name in [AUTHORIZATION, COOKIE].into_iter().chain(super::exchange::API_KEYS.iter().cloned()) {
                next.headers_mut().remove(name);
            }
        }
        *next.uri_mut() = to;
        request = Box::new(next);
    }
    let host = Target::of(request.uri())?.authority();
    Err(Error::Redirect { host, reason: format!("more than {} in a row", client.redirects) })
}

fn head_of(request: &Request<Body>) -> http::request::Parts {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    copy.into_parts().0
}

/// Returns the destination of a redirection, or `None` if `response` is not one.
fn destination(from: &Uri, response: &Response<Body>) -> Result<Option<Uri>, Error> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let bad = |reason: &str| Error::Redirect {
        host: from.authority().map(|authority| authority.host().to_owned()).unwrap_or_default(),
        reason: reason.to_owned(),
    };
    let location = location.to_str().map_err(|_| bad("its destination is not a URL"))?;
    resolve(from, location).map(Some).ok_or_else(|| bad("its destination is not a URL"))
}

/// Resolves a reference as in RFC 3986, section 5.2, as far as HTTP servers use it.
fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next()?;
    let scheme = base.scheme_str()?;
    let authority = base.authority()?.as_str().rsplit('@').next()?;
    let absolute = if reference.contains("://") && !reference.starts_with(['/', '?']) {
        reference.to_owned()
    } else if let Some(rest) = reference.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{}", without_dots(reference))
    } else if reference.starts_with('?') {
        format!("{scheme}://{authority}{}{reference}", base.path())
    } else if reference.is_empty() {
        base.to_string()
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{}", without_dots(&format!("{folder}/{reference}")))
    };
    absolute.parse().ok()
}

fn without_dots(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.trim_start_matches('/').split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    let path = format!("/{}", kept.join("/"));
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_browsers_do() {
        let base: Uri = "https://me:secret@a.example:8443/one/two?x=1".parse().unwrap();
        let to = |reference: &str| resolve(&base, reference).unwrap().to_string();
        assert_eq!(to("http://b.example/"), "http://b.example/");
        assert_eq!(to("//b.example/x"), "https://b.example/x");
        assert_eq!(to("/x/../y?q=1#part"), "https://a.example:8443/y?q=1");
        assert_eq!(to("three"), "https://a.example:8443/one/three");
        assert_eq!(to("../three/."), "https://a.example:8443/three/");
        assert_eq!(to("?y=2"), "https://a.example:8443/one/two?y=2");
        assert_eq!(to("/u?next=http://c/"), "https://a.example:8443/u?next=http://c/");
    }
}
