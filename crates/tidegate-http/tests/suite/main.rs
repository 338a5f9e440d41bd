//! The client and the server against each other, and against peers that misbehave.

mod bodies;
mod client;
mod pool;
mod proxy;
mod redirect;
mod retry;
mod server;
mod stop;
mod support;
mod timeouts;
mod tls;
