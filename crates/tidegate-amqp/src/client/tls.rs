//! Whom we trust, and who we are.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::ConnectError;
use crate::uri::Uri;

fn setup(what: impl Into<String>, reason: impl ToString) -> ConnectError {
    ConnectError::Setup { what: what.into(), reason: reason.to_string() }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let what = || format!("the certificate file {}", file.display());
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| setup(what(), error))?;
    match found.is_empty() {
        true => Err(setup(what(), "it holds no certificate in PEM form")),
        false => Ok(found),
    }
}

/// A `cacertfile` is trusted alone, as RabbitMQ's clients have it; without one, the machine's authorities are (or those of
/// `SSL_CERT_FILE` and `SSL_CERT_DIR`).
pub(super) fn config(uri: &Uri) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut roots = RootCertStore::empty();
    match &uri.ca_file {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| setup(file.display().to_string(), error))?;
            }
        }
        None => {
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(setup(
                    "TLS",
                    "this machine has no certificate authorities; name a cacertfile in the address",
                ));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| setup("TLS", error))?
        .with_root_certificates(roots);
    let config = match &uri.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let what = format!("the key file {}", key.display());
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| setup(what.clone(), error))?;
            let chain = certificates(certificate)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| setup(what, error))?
        }
    };
    Ok(Arc::new(config))
}
