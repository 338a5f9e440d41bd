//! HTTP/1.1 on tidegate's loop, without another runtime: a [`Client`] that keeps its connections, a [server](serve) for
//! axum's `Router`, TLS by rustls under both, and hyper's runtime traits ([`rt`]) for programs that use hyper directly.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tidegate_http::{Client, serve};
//! use tidegate_loop::{net::TcpListener, run, spawn};
//!
//! run(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
//!     let url = format!("http://{}/", listener.local_addr().unwrap());
//!     let server = serve(listener, Router::new().route("/", get(|| async { "hello" })));
//!     let handle = server.handle();
//!     let running = spawn(server.run());
//!
//!     let response = Client::new().get(&url).await.unwrap();
//!     assert_eq!(response.into_body().text().await.unwrap(), "hello");
//!     handle.stop();
//!     running.await.unwrap().unwrap();
//! })
//! .unwrap();
//! ```
//!
//! Used by the crates that call LLM APIs and by those that serve web pages. HTTP/2, upgrades (WebSockets), cookies and
//! caching are left out.
//!
//! # Dependencies
//! hyper needs tokio's channels (its `sync` feature), and axum needs tower. Neither needs a tokio runtime, and none is
//! started. The parts of axum that do need one (`axum::serve`, `Sse::keep_alive`) panic here.
//!
//! # Where to read
//! - A request: `client/exchange.rs` sends it and receives the response, `client/pool.rs` assigns it a connection,
//!   `client/connect.rs` opens one, `client/link.rs` is the stream under it, `body/answer.rs` the response's body.
//! - A served connection: `server/mod.rs` accepts and stops, `server/connection.rs` connects hyper and the router,
//!   `server/watch.rs` has the time-outs.
//! - Decisions without I/O: `client/proxy.rs`, `client/redirect.rs`, `client/target.rs`, `body/gunzip.rs`.

#![forbid(unsafe_code)]

mod body;
mod client;
mod deadline;
mod error;
mod local;
mod server;
mod tls;

pub mod rt;

pub use body::{Body, COLLECTED_BYTES_MAX};
pub use client::{Client, ClientBuilder, ClientStats, Proxies, Timeouts};
pub use error::{Error, Wait};
pub use local::{Local, local};
pub use server::{ConnectInfo, NoConnectInfo, Server, ServerHandle, ServerStats, Stopped, serve};
pub use tls::{Roots, TlsFault, server_config};
