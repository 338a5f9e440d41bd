//! Sockets, servers and streams: what they promise whichever selector is below. What depends on it is in the suite of
//! the selectors.

mod connecting;
mod descriptors;
mod dumps;
mod errors;
mod events;
mod server;
mod streams;
mod support;
