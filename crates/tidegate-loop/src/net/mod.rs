//! Sockets on the loop.
//!
//! ```
//! use tidegate_loop::{net::{TcpListener, TcpStream}, run, spawn};
//!
//! run(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     spawn(async move {
//!         let (stream, _peer) = listener.accept().await.unwrap();
//!         let mut buffer = [0; 64];
//!         let count = stream.read(&mut buffer).await.unwrap();
//!         stream.write_all(&buffer[..count]).await.unwrap();
//!     });
//!     let stream = TcpStream::connect(address).await?;
//!     stream.write_all(b"hello").await?;
//!     let mut reply = [0; 5];
//!     stream.read_exact(&mut reply).await?;
//!     assert_eq!(&reply, b"hello");
//!     Ok::<(), std::io::Error>(())
//! })
//! .unwrap()
//! .unwrap();
//! ```
//!
//! Everything here belongs to the loop it was made on, and to its thread: it is not `Send`. Reading and writing take
//! `&self`, so a stream can be read by one task and written by another at the same time without being split.
//!
//! # What each function waits for
//! Every function tries first. Only when the kernel answers that it would block does the task wait, for this:
//!
//! | function | event | told by epoll as | then |
//! |---|---|---|---|
//! | [`TcpListener::accept`] | a connection is complete and in the backlog: readable | `EPOLLIN` | `accept4` until it would block |
//! | [`TcpStream::connect`] | the handshake is over, well or badly: writable | `EPOLLOUT`, with `EPOLLERR` and `EPOLLHUP` if it failed | `SO_ERROR` tells which |
//! | [`TcpStream::read`] | data, or the end of the peer's side: readable | `EPOLLIN`, `EPOLLRDHUP`, `EPOLLHUP` | `recv`; 0 is the end |
//! | [`TcpStream::write`] | room in the send buffer: writable | `EPOLLOUT` | `send`; fewer than asked means that it is full |
//!
//! # Fairness
//! A socket that is always ready does not keep its task running for ever: after 128 operations in one step the task's
//! turn is over, the loop looks at its timers and at the other descriptors, and the task goes on behind the others.

mod address;
mod completing;
mod connect;
mod error;
mod pause;
mod resolve;
mod server;
mod socket;
mod tcp;
mod udp;
mod unix;

pub use address::ToAddrs;
pub use connect::TcpConnector;
pub use error::AddressError;
pub use resolve::lookup_host;
pub use server::{Server, ServerBuilder, ServerStats, Stopped};
pub use tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpListener, TcpOptions, TcpStream, WriteHalf};
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};
