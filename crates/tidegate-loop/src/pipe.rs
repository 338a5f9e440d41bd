//! Pipes: bytes from one end to the other, within a process or between two.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context as PollContext, Poll};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::reactor::methods::{descriptor, read_methods, write_methods};
use crate::reactor::{Direction, Source};

/// A new pipe.
///
/// # Errors
/// When there are no descriptors left.
///
/// # Panics
/// Outside of a running loop.
///
/// ```
/// use tidegate_loop::{pipe::pipe, run};
/// run(async {
///     let (writer, reader) = pipe()?;
///     writer.write_all(b"hello").await?;
///     drop(writer);
///     let mut buffer = [0; 16];
///     assert_eq!(reader.read(&mut buffer).await?, 5);
///     assert_eq!(reader.read(&mut buffer).await?, 0);
///     Ok::<(), std::io::Error>(())
/// })
/// .unwrap()
/// .unwrap();
/// ```
pub fn pipe() -> io::Result<(PipeWriter, PipeReader)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((PipeWriter { source: Source::new(writer) }, PipeReader { source: Source::new(reader) }))
}

/// The end of a pipe that is read. Dropped, the writer gets [`BrokenPipe`](io::ErrorKind::BrokenPipe).
///
/// See [`pipe`] for an example.
pub struct PipeReader {
    source: Source,
}

/// The end of a pipe that is written. Dropped, the reader finds the end.
///
/// See [`pipe`] for an example.
pub struct PipeWriter {
    source: Source,
}

impl PipeReader {
    /// Takes over the reading end of a pipe, or another descriptor that can be waited for: a terminal, a FIFO.
    ///
    /// # Errors
    /// When it cannot be made non-blocking. A regular file is refused by the first read that would wait.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use tidegate_loop::{pipe::PipeReader, run};
    /// run(async {
    ///     let (reader, writer) = std::io::pipe()?;
    ///     drop(writer);
    ///     assert_eq!(PipeReader::from_fd(OwnedFd::from(reader))?.read(&mut [0; 8]).await?, 0);
    ///     Ok::<(), std::io::Error>(())
    /// })
    /// .unwrap()
    /// .unwrap();
    /// ```
    pub fn from_fd(fd: OwnedFd) -> io::Result<PipeReader> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let source = Source::new(fd);
        // It may be a pipe of packets, of which a read takes one.
        source.distrust_short_reads();
        Ok(PipeReader { source })
    }

    /// [`read`](Self::read) for those who write futures by hand.
    #[inline]
    pub fn poll_read(&self, cx: &mut PollContext<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.source.poll_bytes(cx, Direction::Read, buffer.len(), |fd| rustix::io::read(fd, &mut *buffer))
    }

    /// Fails everything that is or will be waiting here.
    pub fn close(&self) {
        self.source.close();
    }
}

impl PipeWriter {
    /// Takes over the writing end of a pipe, or another descriptor that can be waited for.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    ///
    /// # Panics
    /// Outside of a running loop.
    pub fn from_fd(fd: OwnedFd) -> io::Result<PipeWriter> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(PipeWriter { source: Source::new(fd) })
    }

    /// [`write`](Self::write) for those who write futures by hand.
    #[inline]
    pub fn poll_write(&self, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        // A write of up to 4 KiB is taken whole or not at all, so a pipe with a little room left refuses without being
        // full: only a refusal says so.
        self.source.poll_io(cx, Direction::Write, |fd| rustix::io::write(fd, data))
    }

    /// The reader finds the end when the writer is dropped; until then there is nothing to do.
    fn end_writing(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fails everything that is or will be waiting here.
    pub fn close(&self) {
        self.source.close();
    }
}

read_methods!(PipeReader);
write_methods!(PipeWriter);
descriptor!(PipeReader PipeWriter);
