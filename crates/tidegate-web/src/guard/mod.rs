//! Access control: decides about a request from its head alone, before any handler runs.
//!
//! Pure: time is an argument, nothing is sent. `site.rs` asks here for every request and writes the answer. In this order:
//! the host (DNS rebinding), requests of other sites, the token, and for what changes state the origin and read-only mode.
//! `attempts.rs` slows down guessing, `token.rs` compares, `headers.rs` is what every answer carries.

mod attempts;
mod headers;
mod token;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::{HeaderMap, Method, StatusCode, header};

use crate::answer::Failure;
use attempts::Attempts;
pub(crate) use headers::secure;
pub use token::{Token, TokenError};

/// By what right a request is answered; written to the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// No token is needed: the server listens on the loopback interface.
    Local,
    /// A browser that has signed in.
    Session,
    /// A program that sent the token with its request.
    Bearer,
    /// Not signed in: sees style, script and the sign-in page.
    Anonymous,
}

impl Who {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Local => "local",
            Who::Session => "session",
            Who::Bearer => "bearer",
            Who::Anonymous => "anonymous",
        }
    }
}

/// A request's head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: IpAddr,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is handled.
    Pass { who: Who, may_act: bool },
    /// It brought the token in its link: set this cookie and go on to the same page without the token.
    SignIn { cookie: String, to: String },
    /// It is refused.
    Refuse(Failure),
}

#[derive(Debug)]
pub(crate) struct Guard {
    /// Where the server listens.
    address: SocketAddr,
    /// Names the server answers to besides those of its address.
    hosts: Vec<String>,
    token: Option<Token>,
    read_only: bool,
    attempts: Mutex<Attempts>,
}

/// Reached without a token: style, script, the form's target.
fn is_open(path: &str) -> bool {
    path.starts_with("/assets/") || path == "/login" || path == "/theme"
}

/// Changes nothing but the visitor's own cookies.
fn is_own_cookie(path: &str) -> bool {
    path == "/login" || path == "/theme"
}

impl Guard {
    pub(crate) fn new(address: SocketAddr, hosts: Vec<String>, token: Option<Token>, read_only: bool) -> Guard {
        Guard { address, hosts, token, read_only, attempts: Mutex::new(Attempts::default()) }
    }

    pub(crate) fn decide(&self, head: &Head<'_>, now: Instant) -> Verdict {
        match self.judge(head, now) {
            Ok(verdict) => verdict,
            Err(failure) => Verdict::Refuse(failure),
        }
    }

    fn judge(&self, head: &Head<'_>, now: Instant) -> Result<Verdict, Failure> {
        let host = self.check_host(head.headers)?;
        let reads = *head.method == Method::GET || *head.method == Method::HEAD;
        check_site(head.headers, host, reads)?;
        let who = match self.identify(head, now)? {
            Identity::Known(who) => who,
            Identity::Link { cookie, to } if reads => return Ok(Verdict::SignIn { cookie, to }),
            Identity::Link { .. } | Identity::Unknown if is_open(head.path) => Who::Anonymous,
            Identity::Link { .. } | Identity::Unknown => return Err(unauthorized()),
        };
        if !reads && self.read_only && !is_own_cookie(head.path) {
            return Err(Failure::new(
                StatusCode::FORBIDDEN,
                "This server is read-only: it was started with --read-only.",
            ));
        }
        Ok(Verdict::Pass { who, may_act: !self.read_only })
    }

    /// Compares a token from the sign-in form; returns the cookie to set.
    pub(crate) fn sign_in(&self, given: &str, peer: IpAddr, now: Instant) -> Result<String, Failure> {
        let Some(token) = &self.token else { return Err(Failure::not_found("This server needs no token.")) };
        self.check_token(token, given, peer, now)?;
        Ok(token.cookie(self.address.port()))
    }

    fn check_token(&self, token: &Token, given: &str, peer: IpAddr, now: Instant) -> Result<(), Failure> {
        // First: wrong tokens must not lock out a visitor with the right one, because all visitors behind a proxy share an
        // address. A token is too long to be found by guessing, however often the server can be asked.
        if token.is(given) {
            return Ok(());
        }
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = attempts.locked_for(peer, now) {
            let mut failure = Failure::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("Too many wrong tokens; the next attempt is possible in {} s.", wait.as_secs() + 1),
            );
            failure.retry_after = Some(wait.as_secs() + 1);
            return Err(failure);
        }
        attempts.failed(peer, now);
        log::warn!("web: wrong token from {peer}");
        Err(Failure::new(StatusCode::UNAUTHORIZED, "This token is wrong."))
    }

    /// The `Host` header must name this server: a page of a name that was rebound to this address carries its own name.
    fn check_host<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str, Failure> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            _ => "",
        };
        if self.answers_to(host) {
            return Ok(host);
        }
        log::warn!("web: refused a request for the host {:?}", crate::format::shortened(host, 100));
        Err(Failure::new(
            StatusCode::FORBIDDEN,
            "This server does not answer to the host name of the request; start it with --host NAME to allow one.",
        ))
    }

    fn answers_to(&self, host: &str) -> bool {
        let name = host_name(host);
        if name.is_empty() {
            return false;
        }
        if self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return true;
        }
        // An address cannot be rebound: a page with this host was loaded from this address.
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(ip) if self.address.ip().is_loopback() => ip.is_loopback(),
            Ok(_) => true,
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    fn identify(&self, head: &Head<'_>, now: Instant) -> Result<Identity, Failure> {
        let Some(token) = &self.token else { return Ok(Identity::Known(Who::Local)) };
        // A session's cookie cannot be guessed, so it is not counted, and guessing by others does not lock its owner out.
        let name = Token::cookie_name(self.address.port());
        if cookies(head.headers).any(|(key, value)| key == name && token.is_session(value)) {
            return Ok(Identity::Known(Who::Session));
        }
        if let Some(value) = head.headers.get(header::AUTHORIZATION) {
            let given = value.to_str().ok().and_then(|value| value.split_once(' '));
            let given =
                given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given.trim());
            self.check_token(token, given.unwrap_or_default(), head.peer, now)?;
            return Ok(Identity::Known(Who::Bearer));
        }
        let link = head.query.split('&').find_map(|field| field.strip_prefix("token="));
        if let Some(given) = link {
            self.check_token(token, given, head.peer, now)?;
            let rest: Vec<&str> = head.query.split('&').filter(|field| !field.starts_with("token=")).collect();
            let to = if rest.iter().all(|field| field.is_empty()) {
                head.path.to_owned()
            } else {
                format!("{}?{}", head.path, rest.join("&"))
            };
            return Ok(Identity::Link { cookie: token.cookie(self.address.port()), to });
        }
        Ok(Identity::Unknown)
    }
}

enum Identity {
    Known(Who),
    Link { cookie: String, to: String },
    Unknown,
}

fn unauthorized() -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, "This server needs its token.")
}

/// Refuses what another site's page sends: everything that changes state, and what it would embed or fetch. Links from
/// elsewhere to a page work. Programs that are not browsers send neither header.
fn check_site(headers: &HeaderMap, host: &str, reads: bool) -> Result<(), Failure> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let refused = || {
        let text = "The request came from another site; it was refused, and nothing was changed.";
        Err(Failure::new(StatusCode::FORBIDDEN, text))
    };
    match text("sec-fetch-site") {
        None | Some("same-origin") => {}
        // Typed, or opened from a bookmark.
        Some("none") if reads => {}
        Some(_)
            if reads && text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document") => {}
        Some(_) => return refused(),
    }
    match text("origin") {
        None => Ok(()),
        Some(origin) => {
            let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            if authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) { Ok(()) } else { refused() }
        }
    }
}

/// The name in `name:port`, with the brackets of an IPv6 address; empty if it is not one.
fn host_name(host: &str) -> &str {
    let (name, port) = match host.rfind(']') {
        Some(end) if host.starts_with('[') => (&host[..=end], &host[end + 1..]),
        Some(_) => return "",
        None => host.find(':').map_or((host, ""), |colon| host.split_at(colon)),
    };
    let port_is_fine = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if port_is_fine { name } else { "" }
}

/// The cookies of a request.
pub(crate) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests;
