//! Sites of the tests, and a client that sends exactly the bytes it is given.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use maud::html;
use tidegate_loop::net::TcpStream;
use tidegate_loop::{JoinHandle, run, spawn, timeout};
use tidegate_web::{Answer, NavEntry, Options, Page, Request, Site, Stopper};

/// Runs a test on a loop; one that hangs fails.
pub(crate) fn on_loop<F: Future + 'static>(test: F) -> F::Output {
    run(async { timeout(Duration::from_secs(60), test).await.expect("the test ends") }).unwrap()
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: Stopper,
    pub(crate) task: JoinHandle<std::io::Result<tidegate_http::Stopped>>,
}

pub(crate) fn loopback() -> Options {
    Options::new("127.0.0.1:0".parse().unwrap())
}

pub(crate) async fn serve(site: Site, options: Options) -> Running {
    let server = site.bind(options).await.unwrap();
    Running { address: server.address(), stopper: server.stopper(), task: spawn(server.run()) }
}

/// A site with a page that repeats a name from its address and takes a form.
pub(crate) fn small_site() -> Site {
    let mut site = Site::new();
    site.nav(NavEntry { group: "Documents", title: "Names", href: "/names", count: None });
    site.get("/names", |_| async { Ok(Page::new("Names", html! { h1 { "Names" } })) });
    site.get("/names/{name}", |request: Request| async move {
        let name = request.path("name").to_owned();
        Ok(Page::new(name.clone(), html! { h1 { (name) } @if request.may_act() { button { "Act" } } }))
    });
    site.post("/names", "add a name", |mut request: Request| async move {
        let form = request.form().await?;
        request.audit(format!("name {}", form.get("name").unwrap_or_default()));
        Ok(Answer::see_other("/names"))
    });
    site
}

/// An answer, with its head as text.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

/// A connection that sends raw bytes.
pub(crate) struct Wire(TcpStream);

impl Wire {
    pub(crate) async fn open(address: SocketAddr) -> Wire {
        Wire(TcpStream::connect(address).await.unwrap())
    }

    /// Whether all of it could be sent.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let stream = &mut self.0;
            match std::future::poll_fn(|cx| std::pin::Pin::new(&mut *stream).poll_write(cx, rest)).await {
                Ok(count) if count > 0 => sent += count,
                _ => return false,
            }
        }
        true
    }

    /// What has come; empty at the end.
    pub(crate) async fn read(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 64 << 10];
        let stream = &mut self.0;
        let read = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *stream).poll_read(cx, &mut buffer)).await;
        buffer.truncate(read.unwrap_or(0));
        buffer
    }

    /// Reads until `done` is content with the text so far, or the peer ends.
    pub(crate) async fn read_until(&mut self, done: impl Fn(&str) -> bool) -> String {
        let mut all = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&all).into_owned();
            if done(&text) {
                return text;
            }
            let more = self.read().await;
            if more.is_empty() {
                return text;
            }
            all.extend(more);
        }
    }
}

/// Sends one request of these lines and reads the whole answer.
pub(crate) async fn ask(address: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut wire = Wire::open(address).await;
    let mut text = format!("{line} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str(&format!("host: {address}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    wire.send(text.as_bytes()).await;
    reply(&wire.read_until(|_| false).await)
}

pub(crate) fn reply(text: &str) -> Reply {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}
