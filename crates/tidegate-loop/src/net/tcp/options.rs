//! A connection's options and addresses.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::stream::TcpStream;
use crate::net::socket;

/// Options and addresses.
impl TcpStream {
    /// Sends small writes at once instead of waiting for more (`TCP_NODELAY`).
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run, Duration};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_nodelay(true)?;
    /// assert!(stream.nodelay()?);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self.as_fd(), nodelay)?)
    }

    /// See [`set_nodelay`](Self::set_nodelay).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(self.as_fd())?)
    }

    /// Asks a silent peer whether it is still there: first after `idle`, then at the same interval. `None`: never.
    ///
    /// # Errors
    /// When the kernel refuses; it counts whole seconds, and at least one.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run, Duration};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_keepalive(Some(Duration::from_secs(60)))?;
    /// assert_eq!(stream.keepalive()?, Some(Duration::from_secs(60)));
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        if let Some(idle) = idle {
            sockopt::set_tcp_keepidle(self.as_fd(), idle)?;
            sockopt::set_tcp_keepintvl(self.as_fd(), idle)?;
        }
        Ok(sockopt::set_socket_keepalive(self.as_fd(), idle.is_some())?)
    }

    /// See [`set_keepalive`](Self::set_keepalive).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        Ok(match sockopt::socket_keepalive(self.as_fd())? {
            true => Some(sockopt::tcp_keepidle(self.as_fd())?),
            false => None,
        })
    }

    /// What closing does with data that is still to be sent: `None` sends it in the background, zero throws it away and
    /// resets the connection. Anything else would make closing block for that long, which a loop cannot afford.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run, Duration};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_linger(Some(Duration::ZERO))?;
    /// assert_eq!(stream.linger()?, Some(Duration::ZERO));
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self.as_fd(), linger)?)
    }

    /// See [`set_linger`](Self::set_linger).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(self.as_fd())?)
    }

    /// A read that waits is woken only when this many bytes are there, or the peer has ended its side (`SO_RCVLOWAT`); 1
    /// unless set. For readers of a flood that can wait for more than its first bytes; set back to 1, it wakes the reader at
    /// once if anything is there.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// ```
    /// # use tidegate_loop::{net::{TcpListener, TcpStream}, run};
    /// # run(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// # let (peer, _) = listener.accept().await?;
    /// stream.set_receive_mark(1000)?;
    /// peer.write_all(&[1; 1000]).await?;
    /// let mut buffer = [0; 2000];
    /// assert_eq!(stream.read(&mut buffer).await?, 1000);
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn set_receive_mark(&self, bytes: u32) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let length = size_of_val(&bytes) as libc::socklen_t;
        let value = std::ptr::from_ref(&bytes).cast();
        // SAFETY: an open descriptor, and an integer that lives through the call, with its own length.
        match unsafe { libc::setsockopt(self.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, length) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    /// When it is not connected any more.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        socket::peer_addr(self.as_fd())
    }

    /// This side's address.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local_addr(self.as_fd())
    }
}
