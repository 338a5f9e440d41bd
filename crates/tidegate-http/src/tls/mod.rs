//! TLS by rustls, with ring's cryptography: whom a client trusts, what a server shows, and what was wrong with a
//! certificate.

mod fault;
mod roots;
mod server;

pub use fault::TlsFault;
pub use roots::Roots;
pub(crate) use roots::Trust;
pub use server::server_config;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
