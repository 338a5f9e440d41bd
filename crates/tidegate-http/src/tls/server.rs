//! A server's certificate and key.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::provider;
use crate::error::Error;

/// TLS for [`Server::tls`](crate::Server::tls) from two PEM files: the certificate with the chain behind it, and its key.
///
/// # Errors
/// [`Error::Setup`] names the file that cannot be used.
///
/// ```
/// use tidegate_http::server_config;
/// let error = server_config("/nowhere/cert.pem", "/nowhere/key.pem").unwrap_err();
/// assert!(error.to_string().starts_with("the certificate file /nowhere/cert.pem cannot be used"));
/// ```
pub fn server_config(certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Arc<ServerConfig>, Error> {
    let (certificate, key) = (certificate.as_ref(), key.as_ref());
    let refuse = |kind: &str, file: &Path, reason: String| Error::Setup {
        what: format!("the {kind} file {}", file.display()),
        reason,
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refuse("certificate", certificate, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse("key", key, error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| refuse("certificate", certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
