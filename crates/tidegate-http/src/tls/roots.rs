//! The certificate authorities that a client trusts.

use std::cell::OnceCell;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::provider;
use crate::error::Error;

/// Which authorities a client trusts, before those of [`ca_file`](crate::ClientBuilder::ca_file) are added.
///
/// ```
/// use tidegate_http::{Client, Roots};
/// let client = Client::builder().roots(Roots::Webpki).build().unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Roots {
    /// The machine's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR` if set. On a machine without any, Mozilla's
    /// list, which is compiled in.
    #[default]
    Platform,
    /// Mozilla's list, which is compiled in: the same on every machine.
    Webpki,
    /// Only the authorities of `ca_file`.
    None,
}

/// The client's TLS configuration, created for the first `https` request: reading the machine's authorities takes time that
/// plain HTTP does not need.
pub(crate) struct Trust {
    roots: Roots,
    extra: Vec<CertificateDer<'static>>,
    config: OnceCell<Arc<ClientConfig>>,
}

impl Trust {
    pub(crate) fn new(roots: Roots, ca_files: &[PathBuf]) -> Result<Trust, Error> {
        let mut extra = Vec::new();
        for file in ca_files {
            extra.extend(certificates_of(file)?);
        }
        Ok(Trust { roots, extra, config: OnceCell::new() })
    }

    pub(crate) fn of(config: Arc<ClientConfig>) -> Trust {
        Trust { roots: Roots::None, extra: Vec::new(), config: OnceCell::from(config) }
    }

    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let mut store = RootCertStore::empty();
        match self.roots {
            Roots::Platform => add_platform(&mut store)?,
            Roots::Webpki => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Roots::None => {}
        }
        for certificate in &self.extra {
            store.add(certificate.clone()).map_err(|error| Error::Setup {
                what: "a certificate of the CA file".to_owned(),
                reason: error.to_string(),
            })?;
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Setup { what: "TLS".to_owned(), reason: error.to_string() })?
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(self.config.get_or_init(|| Arc::new(config)).clone())
    }
}

fn certificates_of(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let refuse = |reason: String| Error::Setup { what: format!("the certificate file {}", file.display()), reason };
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refuse(error.to_string()))?;
    if certificates.is_empty() {
        return Err(refuse("it holds no certificate in PEM form".to_owned()));
    }
    Ok(certificates)
}

fn add_platform(store: &mut RootCertStore) -> Result<(), Error> {
    let mut named = false;
    // A file that is set but cannot be used is an error: going on without it would trust other authorities than stated.
    for (variable, is_file) in [("SSL_CERT_FILE", true), ("SSL_CERT_DIR", false)] {
        let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) else { continue };
        named = true;
        let path = Path::new(&path);
        let (file, dir) = if is_file { (Some(path), None) } else { (None, Some(path)) };
        let found = rustls_native_certs::load_certs_from_paths(file, dir);
        let (added, _ignored) = store.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = found.errors.first().map_or("no certificate in it".to_owned(), ToString::to_string);
            return Err(Error::Setup { what: format!("{variable}={}", path.display()), reason });
        }
    }
    if named {
        return Ok(());
    }
    let native = rustls_native_certs::load_native_certs();
    let (added, _ignored) = store.add_parsable_certificates(native.certs);
    if added == 0 {
        log::info!("this machine has no certificate authorities, trusting Mozilla's as compiled in");
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(())
}
