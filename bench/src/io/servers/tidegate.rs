//! tidegate's loop, with the selector asked for.

use anyhow::{anyhow, ensure};
use axum::Router;
use axum::routing::get;
use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{EventLoop, SelectorKind, spawn};

use super::{BUFFER_BYTES, HELLO};
use crate::io::process::announce;

pub(super) fn echo(selector: SelectorKind) -> anyhow::Result<()> {
    let event_loop = EventLoop::builder().selector(selector).build()?;
    let got = event_loop.selector();
    ensure!(got == selector, "the loop uses {got} instead of {selector} here");
    let ended = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        announce(listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            spawn(serve(stream));
        }
    });
    ended.map_err(|error| anyhow!("{error}"))?
}

async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

pub(super) fn http() -> anyhow::Result<()> {
    let event_loop = EventLoop::builder().selector(SelectorKind::Epoll).build()?;
    let ended = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        announce(listener.local_addr()?.port());
        let router = Router::new().route("/", get(|| async { HELLO }));
        tidegate_http::serve(listener, router).run().await?;
        Ok(())
    });
    ended.map_err(|error| anyhow!("{error}"))?
}
