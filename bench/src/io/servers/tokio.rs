//! tokio's two runtimes of one thread, everything enabled.

use axum::Router;
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};

use super::{BUFFER_BYTES, HELLO};
use crate::io::process::announce;

pub(super) fn echo_current() -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        // In a task of its own, as everything is under tidegate: `block_on` polls its future in another way.
        tokio::spawn(accept(|stream| drop(tokio::spawn(serve(stream))))).await?
    })
}

pub(super) fn echo_local() -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?.block_on(async {
        tokio::task::spawn_local(accept(|stream| drop(tokio::task::spawn_local(serve(stream))))).await?
    })
}

async fn accept(start: impl Fn(TcpStream)) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        start(stream);
    }
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

pub(super) fn http() -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        announce(listener.local_addr()?.port());
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let router = Router::new().route("/", get(|| async { HELLO }));
        axum::serve(listener, router).await?;
        Ok(())
    })
}
