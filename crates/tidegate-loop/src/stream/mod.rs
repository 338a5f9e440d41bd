//! Streams with flow control, over anything that reads or writes: a reader with a buffer and limits, and a writer that
//! takes data at once and says when to wait.
//!
//! ```
//! use tidegate_loop::{net::{TcpListener, TcpStream}, run, spawn};
//! run(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     spawn(async move {
//!         let (mut reader, writer) = listener.accept().await.unwrap().0.into_streams();
//!         while let Ok(Some(line)) = reader.read_line().await {
//!             writer.write(b"> ");
//!             writer.write(&line);
//!             writer.write(b"\n");
//!             writer.drain().await.unwrap();
//!         }
//!     });
//!     let (mut reader, writer) = TcpStream::connect(address).await?.into_streams();
//!     writer.write(b"hello\n");
//!     assert_eq!(reader.read_line().await.unwrap().unwrap(), b"> hello");
//!     Ok::<(), std::io::Error>(())
//! })
//! .unwrap()
//! .unwrap();
//! ```

mod reader;
mod writer;

pub use reader::{READ_LIMIT, ReadError, StreamReader};
pub use writer::{HIGH_MARK, StreamWriter};
