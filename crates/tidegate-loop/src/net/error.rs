//! Errors that say which address, and what to do about it. They stay `io::Error`s and keep their kind; what is added is
//! the message.

use std::error::Error;
use std::fmt;
use std::io;

/// What was tried, with which address, and why it failed: the payload of the `io::Error`s of this module that have an address.
///
/// ```
/// use tidegate_loop::{net::{AddressError, TcpStream}, run};
/// let error = run(async { TcpStream::connect("127.0.0.1:1").await }).unwrap().unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
/// let address = error.get_ref().unwrap().downcast_ref::<AddressError>().unwrap();
/// assert_eq!(address.address(), "127.0.0.1:1");
/// assert_eq!(
///     error.to_string(),
///     "cannot connect to 127.0.0.1:1: connection refused (is a server listening there?)"
/// );
/// ```
#[derive(Debug)]
pub struct AddressError {
    tried: &'static str,
    address: String,
    cause: io::Error,
}

impl AddressError {
    /// The address, as it was given or as it was looked up.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Adds what was tried with which address.
    pub(crate) fn wrap(tried: &'static str, address: impl fmt::Display, cause: io::Error) -> io::Error {
        let kind = cause.kind();
        io::Error::new(kind, AddressError { tried, address: address.to_string(), cause })
    }

    /// What the system's own words leave out.
    fn hint(&self) -> Option<&'static str> {
        use io::ErrorKind::*;
        self.cause.raw_os_error()?;
        Some(match self.cause.kind() {
            ConnectionRefused => "connection refused (is a server listening there?)",
            AddrInUse => "the address is in use (does another process listen there? port 0 picks a free one)",
            AddrNotAvailable => "the address is not one of this machine's",
            PermissionDenied => "permission denied (ports below 1,024 need a privilege)",
            TimedOut => "no answer (is the host up, and does a firewall let this through?)",
            NetworkUnreachable | HostUnreachable => "unreachable (no route to it; is the network up?)",
            _ if is_out_of_descriptors(&self.cause) => {
                "too many open descriptors (raise `ulimit -n`, or keep fewer connections open)"
            }
            _ => return None,
        })
    }
}

/// The process, or the machine, has no descriptor or memory left for another socket; it may have later.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: ", self.tried, self.address)?;
        match self.hint() {
            Some(hint) => f.write_str(hint),
            None => self.cause.fmt(f),
        }
    }
}

impl Error for AddressError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}
