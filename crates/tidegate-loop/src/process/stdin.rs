//! The end of the pipe to a child's standard input. What a child writes is read from a
//! [`PipeReader`](crate::pipe::PipeReader).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context as PollContext, Poll};

use futures_io::AsyncWrite;

use crate::reactor::{Direction, Source};

/// Where a child's standard input comes from. Dropped or closed, the child reads its end. A child that has closed its
/// side makes writes fail with [`BrokenPipe`](io::ErrorKind::BrokenPipe).
///
/// ```
/// use tidegate_loop::{process::{Command, Stdio}, run};
/// run(async {
///     let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
///     let mut stdin = cat.stdin.take().unwrap();
///     stdin.write_all(b"to and fro").await.unwrap();
///     drop(stdin);
///     assert_eq!(cat.wait_with_output().await.unwrap().stdout, b"to and fro");
/// })
/// .unwrap();
/// ```
pub struct ChildStdin {
    /// `None`: closed.
    source: Option<Source>,
}

impl ChildStdin {
    pub(super) fn new(pipe: impl Into<OwnedFd>) -> io::Result<ChildStdin> {
        let pipe = pipe.into();
        // The child's end is another description: it goes on blocking, as programs expect.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(ChildStdin { source: Some(Source::new(pipe)) })
    }

    /// Writes some of `data`; how much.
    ///
    /// # Errors
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) when the child does not read any more.
    ///
    /// # Cancel safety
    /// Safe: nothing was written if it did not return.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    /// let mut stdin = cat.stdin.take().unwrap();
    /// assert_eq!(stdin.write(b"abc").await.unwrap(), 3);
    /// # }).unwrap();
    /// ```
    pub async fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_write(cx, data)).await
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Not safe: some may have been written, and it is not known how much.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    /// let mut stdin = cat.stdin.take().unwrap();
    /// stdin.write_all(b"abc").await.unwrap();
    /// # }).unwrap();
    /// ```
    pub async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        Ok(())
    }

    /// Closes it: the child reads its end.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    /// let mut stdin = cat.stdin.take().unwrap();
    /// stdin.close();
    /// assert!(cat.wait().await.unwrap().success());
    /// # }).unwrap();
    /// ```
    pub fn close(&mut self) {
        self.source = None;
    }
}

impl AsyncWrite for ChildStdin {
    fn poll_write(self: Pin<&mut Self>, cx: &mut PollContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match &self.source {
            Some(source) => source.poll_io(cx, Direction::Write, |fd| rustix::io::write(fd, data)),
            None => Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "the child's input was closed here"))),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
        // What was written is in the pipe.
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for ChildStdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildStdin").field("open", &self.source.is_some()).finish_non_exhaustive()
    }
}
