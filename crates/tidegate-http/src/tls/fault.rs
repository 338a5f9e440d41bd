//! Errors about a peer's certificate.

use std::fmt;
use std::io;

use rustls::CertificateError;

/// Why a peer's TLS was refused.
///
/// ```
/// use tidegate_http::TlsFault;
/// assert_eq!(TlsFault::Expired.to_string(), "its certificate has expired");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsFault {
    /// The certificate has expired: its owner must renew it, or this machine's clock is wrong.
    Expired,
    /// The certificate is not valid yet: this machine's clock is wrong, most likely.
    NotYetValid,
    /// The certificate is for another name.
    WrongName {
        /// The names it is for.
        presented: Vec<String>,
    },
    /// The certificate was not issued by a trusted authority. Add a private authority with
    /// [`ca_file`](crate::ClientBuilder::ca_file) or `SSL_CERT_FILE`.
    UnknownIssuer,
    /// The certificate was revoked.
    Revoked,
    /// Another fault, with rustls' message.
    Other(String),
}

impl TlsFault {
    /// Returns the error unchanged if it is about the connection and not about TLS.
    pub(crate) fn of(error: io::Error) -> Result<TlsFault, io::Error> {
        let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return match error.kind() {
                io::ErrorKind::InvalidData => Ok(TlsFault::Other(error.to_string())),
                _ => Err(error),
            };
        };
        Ok(match inner {
            rustls::Error::InvalidCertificate(certificate) => TlsFault::of_certificate(certificate),
            // This is the error if a server answers in plain HTTP on that port.
            rustls::Error::InvalidMessage(_) => {
                TlsFault::Other(format!("it does not speak TLS on this port ({inner})"))
            }
            other => TlsFault::Other(other.to_string()),
        })
    }

    fn of_certificate(error: &CertificateError) -> TlsFault {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFault::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => TlsFault::NotYetValid,
            CertificateError::NotValidForName => TlsFault::WrongName { presented: Vec::new() },
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsFault::WrongName { presented: presented.iter().map(|name| plain_name(name)).collect() }
            }
            // The other two: the certificate names a trusted authority that did not sign it, most likely because another
            // authority has the same name.
            CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => TlsFault::UnknownIssuer,
            CertificateError::Revoked => TlsFault::Revoked,
            other => TlsFault::Other(other.to_string()),
        }
    }
}

/// webpki writes `DnsName("a.example")`.
fn plain_name(presented: &str) -> String {
    presented.split('"').nth(1).unwrap_or(presented).to_owned()
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsFault::Expired => f.write_str("its certificate has expired"),
            TlsFault::NotYetValid => {
                f.write_str("its certificate is not valid yet; is the clock of this machine right?")
            }
            TlsFault::WrongName { presented } if presented.is_empty() => {
                f.write_str("its certificate is for another name")
            }
            TlsFault::WrongName { presented } => {
                write!(f, "its certificate is for another name ({})", presented.join(", "))
            }
            TlsFault::UnknownIssuer => f.write_str(
                "its certificate was not issued by a trusted authority; add a private one with ca_file or SSL_CERT_FILE",
            ),
            TlsFault::Revoked => f.write_str("its certificate was revoked"),
            TlsFault::Other(text) => f.write_str(text),
        }
    }
}
