//! A reader with a buffer of its own.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use futures_io::AsyncRead;

/// How long a line may be unless [`StreamReader::with_limit`] says otherwise: 64 KiB.
pub const READ_LIMIT: usize = 64 << 10;

/// What is asked for in one go.
const CHUNK: usize = 8 << 10;

/// Reads by the line, by the delimiter, by the count. What was read and not yet asked for stays in its buffer, so all of
/// it is cancel-safe, and an error loses nothing.
///
/// ```
/// use tidegate_loop::{pipe::pipe, run, stream::{ReadError, StreamReader}};
/// run(async {
///     let (writer, reader) = pipe().unwrap();
///     let mut reader = StreamReader::with_limit(reader, 8);
///     writer.write_all(b"short\nmuch too long\n").await.unwrap();
///     assert_eq!(reader.read_line().await.unwrap().unwrap(), b"short");
///     assert!(matches!(reader.read_line().await, Err(ReadError::TooLong { limit: 8 })));
///     // Nothing is lost: it can be read some other way.
///     let mut head = [0; 5];
///     reader.read_exact(&mut head).await.unwrap();
///     assert_eq!(&head, b"much ");
/// })
/// .unwrap();
/// ```
pub struct StreamReader<R> {
    inner: R,
    buffer: Vec<u8>,
    /// What lies before this has been handed out.
    start: usize,
    limit: usize,
    ended: bool,
}

/// Why nothing was read. What had come in stays in the reader's buffer, but for `Ended`, which carries it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading failed.
    Io(io::Error),
    /// The stream ended before what was asked for was complete.
    Ended {
        /// What came before the end.
        partial: Vec<u8>,
    },
    /// The delimiter did not come within the limit. Read what is there some other way, or drop the connection.
    TooLong {
        /// The reader's limit.
        limit: usize,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(error) => error.fmt(f),
            ReadError::Ended { partial } => {
                write!(f, "the stream ended in the middle: {} bytes of what was asked for came", partial.len())
            }
            ReadError::TooLong { limit } => {
                write!(
                    f,
                    "no end of the line within {limit} bytes; raise the limit (StreamReader::with_limit) if that is fine"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        match error {
            ReadError::Io(error) => error,
            ReadError::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, error),
            ReadError::TooLong { .. } => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

impl<R: AsyncRead + Unpin> StreamReader<R> {
    /// Reads from `inner`, lines up to [`READ_LIMIT`].
    pub fn new(inner: R) -> StreamReader<R> {
        StreamReader::with_limit(inner, READ_LIMIT)
    }

    /// Reads from `inner`, lines up to `limit` bytes, the delimiter included.
    ///
    /// # Panics
    /// When the limit is 0.
    pub fn with_limit(inner: R, limit: usize) -> StreamReader<R> {
        assert!(limit > 0, "a limit of 0 would refuse everything");
        StreamReader { inner, buffer: Vec::new(), start: 0, limit, ended: false }
    }

    /// What has come in and was not asked for yet.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// What it reads from; what is in the buffer is not in there any more.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Takes `count` bytes out of the buffer.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.buffer[self.start..self.start + count].to_vec();
        self.consume(count);
        taken
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // What one long message needed is not kept for ever.
            self.buffer.shrink_to(2 * CHUNK);
        }
    }

    /// Reads more into the buffer; false at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if self.start >= CHUNK {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let filled = self.buffer.len();
        self.buffer.resize(filled + CHUNK, 0);
        // Cut back when this is dropped half-way, too.
        let mut cut = Cut { buffer: &mut self.buffer, filled };
        let inner = &mut self.inner;
        let count = poll_fn(|cx| Pin::new(&mut *inner).poll_read(cx, &mut cut.buffer[filled..])).await?;
        cut.filled += count;
        drop(cut);
        self.ended = count == 0;
        Ok(count > 0)
    }

    /// Reads what is there, up to the length of `buffer`; 0 at the end.
    ///
    /// # Errors
    /// When reading fails.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() && !self.fill().await? {
            return Ok(0);
        }
        let count = buffer.len().min(self.buffered().len());
        buffer[..count].copy_from_slice(&self.buffered()[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Reads until `buffer` is full. Not bounded by the limit: the caller chose the size of its buffer.
    ///
    /// # Errors
    /// [`ReadError::Ended`] with what came before the end.
    ///
    /// # Cancel safety
    /// Safe: what was read stays in the reader until it is complete.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ReadError> {
        while self.buffered().len() < buffer.len() {
            if !self.fill().await? {
                return Err(ReadError::Ended { partial: self.take(self.buffered().len()) });
            }
        }
        buffer.copy_from_slice(&self.buffered()[..buffer.len()]);
        self.consume(buffer.len());
        Ok(())
    }

    /// Reads up to and with `delimiter`.
    ///
    /// # Errors
    /// [`ReadError::TooLong`] when it does not come within the limit; [`ReadError::Ended`] with what came before the end.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Panics
    /// When the delimiter is empty.
    ///
    /// ```
    /// use tidegate_loop::{pipe::pipe, run, stream::StreamReader};
    /// run(async {
    ///     let (writer, reader) = pipe().unwrap();
    ///     let mut reader = StreamReader::new(reader);
    ///     writer.write_all(b"GET / HTTP/1.1\r\n\r\nbody").await.unwrap();
    ///     assert_eq!(reader.read_until(b"\r\n\r\n").await.unwrap(), b"GET / HTTP/1.1\r\n\r\n");
    ///     assert_eq!(reader.buffered(), b"body");
    /// })
    /// .unwrap();
    /// ```
    pub async fn read_until(&mut self, delimiter: &[u8]) -> Result<Vec<u8>, ReadError> {
        assert!(!delimiter.is_empty(), "an empty delimiter is everywhere");
        match self.find(delimiter).await? {
            Some(end) => Ok(self.take(end)),
            None => Err(ReadError::Ended { partial: self.take(self.buffered().len()) }),
        }
    }

    /// The next line without its end (`\n` or `\r\n`); `None` at the end. A last line that has no end is a line, too.
    ///
    /// # Errors
    /// [`ReadError::TooLong`] when it does not end within the limit.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// See [`StreamReader`] for an example.
    pub async fn read_line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let end = match self.find(b"\n").await? {
            Some(end) => end,
            None if self.buffered().is_empty() => return Ok(None),
            None => return Ok(Some(self.take(self.buffered().len()))),
        };
        let mut line = self.take(end);
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }

    /// Where the delimiter ends, from the start of what is buffered; `None`: it does not come any more.
    async fn find(&mut self, delimiter: &[u8]) -> Result<Option<usize>, ReadError> {
        // Without a delimiter before this; the next search need not look there again.
        let mut searched = 0;
        loop {
            let buffered = self.buffered();
            let found = position(&buffered[searched..], delimiter).map(|at| searched + at + delimiter.len());
            match found {
                Some(end) if end <= self.limit => return Ok(Some(end)),
                Some(_) => return Err(ReadError::TooLong { limit: self.limit }),
                None if buffered.len() >= self.limit => return Err(ReadError::TooLong { limit: self.limit }),
                None => searched = buffered.len().saturating_sub(delimiter.len() - 1),
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Everything until the end. Bounded by nothing but memory.
    ///
    /// # Errors
    /// When reading fails.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.fill().await? {}
        Ok(self.take(self.buffered().len()))
    }
}

/// Where `what` begins.
fn position(text: &[u8], what: &[u8]) -> Option<usize> {
    let (first, rest) = what.split_first()?;
    let mut from = 0;
    loop {
        let at = from + text[from..].iter().position(|byte| byte == first)?;
        if text[at + 1..].starts_with(rest) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Takes back the room that was made for reading and not used.
struct Cut<'a> {
    buffer: &'a mut Vec<u8>,
    filled: usize,
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.buffer.truncate(self.filled);
    }
}

impl<R> fmt::Debug for StreamReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("buffered", &(self.buffer.len() - self.start))
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
