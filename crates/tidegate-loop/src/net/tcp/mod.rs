//! TCP: the listener, the stream, and its halves.

mod listener;
mod options;
mod split;
mod stream;

pub use listener::{TcpListener, TcpOptions};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
