//! The bytes under a connection: TCP, a Unix socket, or TLS.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tidegate_loop::net::{TcpStream, UnixStream};

use crate::address::{Address, Place};
use crate::error::ConnectError;

pub(super) enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Link {
    pub(super) async fn open(address: &Address) -> Result<Link, ConnectError> {
        let unreachable =
            |error: io::Error| ConnectError::Unreachable { address: address.to_string(), reason: error.to_string() };
        match &address.place {
            Place::Unix(path) => UnixStream::connect(path).await.map(Link::Unix).map_err(unreachable),
            Place::Tcp { host, port, tls } => {
                let connector = TcpStream::connector().nodelay(true);
                let stream = connector.connect((host.as_str(), *port)).await.map_err(unreachable)?;
                if !tls {
                    return Ok(Link::Tcp(stream));
                }
                let distrust = |reason: String| ConnectError::Tls { address: address.to_string(), reason };
                let config = config(address).map_err(distrust)?;
                let name = ServerName::try_from(host.clone()).map_err(|error| distrust(error.to_string()))?;
                let secured = TlsConnector::from(config).connect(name, stream).await;
                Ok(Link::Tls(Box::new(secured.map_err(|error| match error.get_ref() {
                    Some(inner) if inner.is::<rustls::Error>() => distrust(inner.to_string()),
                    _ => unreachable(error),
                })?)))
            }
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Link::Tcp(stream) => stream.poll_read(cx, buffer),
            Link::Unix(stream) => stream.poll_read(cx, buffer),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Link::Tcp(stream) => stream.poll_write(cx, data),
            Link::Unix(stream) => stream.poll_write(cx, data),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, data),
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Link::Tcp(_) | Link::Unix(_) => Poll::Ready(Ok(())),
            Link::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    pub(super) async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match poll_fn(|cx| self.poll_write(cx, data)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => data = &data[count..],
            }
        }
        poll_fn(|cx| self.poll_flush(cx)).await
    }
}

/// A `cacertfile` is trusted alone; without one, the machine's authorities are.
fn config(address: &Address) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &address.ca_file {
        Some(file) => {
            let unusable = |error: &dyn std::fmt::Display| format!("cacertfile {}: {error}", file.display());
            let found = CertificateDer::pem_file_iter(file).map_err(|error| unusable(&error))?;
            for certificate in found {
                let certificate = certificate.map_err(|error| unusable(&error))?;
                roots.add(certificate).map_err(|error| unusable(&error))?;
            }
            if roots.is_empty() {
                return Err(unusable(&"it holds no certificate in PEM form"));
            }
        }
        None => {
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err("this machine has no certificate authorities; name a cacertfile in the address".to_owned());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
