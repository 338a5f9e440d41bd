//! Opens a connection: name lookup, socket, proxy, TLS.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use rustls::pki_types::ServerName;
use tidegate_loop::net::{TcpStream, lookup_host};

use super::link::Link;
use super::proxy::Proxy;
use super::target::{Target, address};
use crate::error::Error;
use crate::tls::{TlsFault, Trust};

/// The longest response head accepted from a proxy.
const PROXY_HEAD_BYTES_MAX: usize = 16 * 1024;

/// Connects to `target`, ready for HTTP.
///
/// # Cancel safety
/// Safe: dropping the future closes the connection.
pub(crate) async fn connect(target: &Target, proxy: Option<&Proxy>, trust: &Trust) -> Result<Link, Error> {
    let link = match proxy {
        None => dial(&target.host, target.port).await?,
        Some(proxy) => {
            let mut link = dial(&proxy.host, proxy.port).await?;
            if proxy.tls {
                link = secure(link, &proxy.host, trust).await?;
            }
            if target.tls {
                tunnel(&mut link, target, proxy).await?;
            }
            link
        }
    };
    if target.tls { secure(link, &target.host, trust).await } else { Ok(link) }
}

async fn dial(host: &str, port: u16) -> Result<Link, Error> {
    let addresses =
        lookup_host((host, port)).await.map_err(|source| Error::Resolve { host: host.to_owned(), source })?;
    let refuse = |source| Error::Connect { address: address(host, port), source };
    let stream = TcpStream::connect(addresses).await.map_err(refuse)?;
    // hyper writes a request in one piece, so waiting for more data to fill a segment would only delay it.
    stream.set_nodelay(true).map_err(refuse)?;
    Ok(Link::Plain(stream))
}

async fn secure(link: Link, host: &str, trust: &Trust) -> Result<Link, Error> {
    let config = trust.config()?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Tls {
        host: host.to_owned(),
        fault: TlsFault::Other("a certificate cannot contain this name".to_owned()),
    })?;
    match TlsConnector::from(config).connect(name, link).await {
        Ok(stream) => Ok(Link::Tls(Box::new(stream))),
        Err(error) => Err(match TlsFault::of(error) {
            Ok(fault) => Error::Tls { host: host.to_owned(), fault },
            Err(source) => Error::Connect { address: host.to_owned(), source },
        }),
    }
}

/// Requests a tunnel to `target` from the proxy.
async fn tunnel(link: &mut Link, target: &Target, proxy: &Proxy) -> Result<(), Error> {
    let refuse = |reason: String| Error::Proxy { host: target.authority(), proxy: proxy.shown(), reason };
    let address = target.address();
    let mut request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    let broken = |error: io::Error| refuse(format!("the connection to it broke off: {error}"));
    write_all(link, &request).await.map_err(broken)?;
    let head = read_head(link).await.map_err(broken)?;
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let complete = matches!(response.parse(&head), Ok(httparse::Status::Complete(length)) if length == head.len());
    match response.code {
        Some(200..=299) if complete => Ok(()),
        Some(407) if proxy.authorization.is_some() => {
            Err(refuse("it refused the user name and password (407)".to_owned()))
        }
        Some(407) => {
            Err(refuse("it requires a user name and password (407); put them into the proxy's URL".to_owned()))
        }
        Some(code) if complete => {
            let reason = proxy.redactor.redact(response.reason.unwrap_or_default());
            Err(refuse(format!("it refused to connect: {code} {reason}")))
        }
        _ => Err(refuse("its answer is not HTTP".to_owned())),
    }
}

async fn write_all(link: &mut Link, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match poll_fn(|cx| Pin::new(&mut *link).poll_write(cx, data)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => data = &data[n..],
        }
    }
    poll_fn(|cx| Pin::new(&mut *link).poll_flush(cx)).await
}

/// Reads up to the empty line and no further: the bytes after it belong to the tunnel.
async fn read_head(link: &mut Link) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == PROXY_HEAD_BYTES_MAX {
            return Err(io::Error::other(format!("its answer is longer than {PROXY_HEAD_BYTES_MAX} bytes")));
        }
        match poll_fn(|cx| Pin::new(&mut *link).poll_read(cx, &mut byte)).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => head.push(byte[0]),
        }
    }
    Ok(head)
}
