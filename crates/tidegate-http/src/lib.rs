//! HTTP/1.1 on tidegate's loop, without another runtime: a [`Client`] that keeps its connections, axum's `Router`
//! [served](serve), TLS by rustls under both, and hyper's runtime traits ([`rt`]) for those who want hyper itself.
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
//! Called by whatever speaks to an LLM API and by whatever has a page to show. It leaves out HTTP/2, upgrades
//! (WebSockets), cookies and caching.
//!
//! # What comes with it
//! hyper needs tokio's channels (its `sync` feature) and axum needs tower; neither needs a tokio runtime, and none is
//! started. What of axum does want one (`axum::serve`, `Sse::keep_alive`) panics here as it would anywhere without.
//!
//! # Where to read
//! A request: `client/exchange.rs` is its way out and back, `client/pool.rs` who gets which connection, `client/connect.rs`
//! how one is made, `client/link.rs` the bytes under it, `body/answer.rs` the response's body. A connection served:
//! `server/mod.rs` accepts and stops, `server/connection.rs` joins hyper and the router, `server/watch.rs` has the
//! time-outs. Decisions without I/O: `client/proxy.rs`, `client/redirect.rs`, `client/target.rs`, `body/gunzip.rs`.

#![forbid(unsafe_code)]

mod body;
mod client;
mod error;
mod limit;
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
