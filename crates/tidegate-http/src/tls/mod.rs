//! TLS by rustls, with ring's cryptography: the authorities that a client trusts, a server's certificate, and errors about
//! a peer's certificate.

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
