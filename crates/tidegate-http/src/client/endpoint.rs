//! The values that follow from a URL's scheme and authority alone. Those of the last request are kept, so that a thousand
//! requests to one server compute them once.

use std::rc::Rc;

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};

use super::ClientInner;
use super::pool::PoolKey;
use super::proxy::Proxy;
use super::target::Target;
use crate::error::Error;

pub(crate) struct Endpoint {
    /// As in the request's URL.
    scheme: Scheme,
    authority: Authority,
    pub(crate) key: Rc<PoolKey>,
    /// For messages.
    pub(crate) host: Rc<str>,
    /// The `Host` header.
    pub(crate) header: HeaderValue,
}

impl Endpoint {
    /// Returns the endpoint of `uri`, and its proxy.
    pub(super) fn of<'a>(client: &'a ClientInner, uri: &Uri) -> Result<(Rc<Endpoint>, Option<&'a Proxy>), Error> {
        let last = client.last.borrow().clone();
        if let Some(last) = last.filter(|last| last.is_for(uri)) {
            let proxy = proxy(client, &last.key.target)?;
            return Ok((last, proxy));
        }
        let target = Target::of(uri)?;
        let proxy = proxy(client, &target)?;
        let authority = target.authority();
        let header = HeaderValue::from_str(&authority)
            .map_err(|error| Error::BadUrl { url: authority.clone(), reason: error.to_string() })?;
        let (Some(scheme), Some(written)) = (uri.scheme().cloned(), uri.authority().cloned()) else {
            unreachable!("a target has both")
        };
        let key = Rc::new(PoolKey { target, proxy: proxy.map(Proxy::shown) });
        let endpoint = Rc::new(Endpoint { scheme, authority: written, key, host: authority.into(), header });
        *client.last.borrow_mut() = Some(endpoint.clone());
        Ok((endpoint, proxy))
    }

    fn is_for(&self, uri: &Uri) -> bool {
        uri.scheme() == Some(&self.scheme) && uri.authority() == Some(&self.authority)
    }
}

fn proxy<'a>(client: &'a ClientInner, target: &Target) -> Result<Option<&'a Proxy>, Error> {
    client.proxies.choose(target).map_err(|bad| Error::Proxy {
        host: target.authority(),
        proxy: bad.proxy,
        reason: bad.reason.to_owned(),
    })
}
