//! axum on the loop. A line on standard input, or its end, stops it in order.
//!   cargo run -p tidegate-http --example hello -- [--listen 127.0.0.1:8080] [--tls CERT.pem KEY.pem]
//! Then: curl http://127.0.0.1:8080/, /peer, /count; curl -T file .../echo; curl .../zeros/100000000

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use bytes::Bytes;
use futures_core::Stream;
use tidegate_http::{ConnectInfo, local, serve, server_config};
use tidegate_loop::net::TcpListener;
use tidegate_loop::{OnLoop, run};

/// As many zeros as asked for, made while they are sent.
struct Zeros(usize);

const PIECE: &[u8] = &[0; 64 * 1024];

impl Stream for Zeros {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let length = self.0.min(PIECE.len());
        self.0 -= length;
        Poll::Ready((length > 0).then(|| Ok(Bytes::from_static(&PIECE[..length]))))
    }
}

fn router() -> Router {
    // What is not `Send` stays on the loop; handlers get at it through a stand-in, inside of `local`.
    let visits = Arc::new(OnLoop::new(Rc::new(Cell::new(0u64))));
    let count = move || {
        let visits = visits.with(Rc::clone).expect("served on the loop it was made on");
        local(async move {
            visits.set(visits.get() + 1);
            format!("{}\n", visits.get())
        })
    };
    let echo = |body: Body| async { body };
    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/peer", get(|ConnectInfo(peer): ConnectInfo| async move { format!("{peer}\n") }))
        .route("/count", get(count))
        .route("/echo", get(|| async { "send me something\n" }).post(echo).put(echo))
        .route("/zeros/{length}", get(|Path(length): Path<usize>| async move { Body::from_stream(Zeros(length)) }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut listen = "127.0.0.1:8080".to_owned();
    let mut tls = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--listen" => listen = value()?,
            "--tls" => tls = Some(server_config(value()?, value()?)?),
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    let report = run(async move {
        let listener = TcpListener::bind(listen.as_str()).await?;
        println!("listening on {}", listener.local_addr()?);
        let mut server = serve(listener, router());
        if let Some(config) = tls {
            server = server.tls(config);
        }
        let handle = server.handle();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            handle.stop();
        });
        server.run().await
    })??;
    println!("{report:?}");
    Ok(())
}
