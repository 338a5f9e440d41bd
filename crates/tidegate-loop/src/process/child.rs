//! A running child.

use std::fmt;
use std::io;
use std::process::{ExitStatus, Output};
use std::task::{Context as PollContext, Poll, Waker};
use std::time::Duration;

use super::error::ProcessError;
use super::exit::{self, Living};
use super::orphan;
use super::stdin::ChildStdin;
use crate::pipe::PipeReader;
use crate::signal::SignalKind;
use crate::time::timeout::timeout;

/// A child process. Belongs to the loop it was started on.
///
/// Dropped while it runs, it goes on (or is killed, see [`Command::kill_on_drop`](super::Command::kill_on_drop)), and is
/// reaped in the background when it ends: no zombie is left, whether the loop is still there then or not.
///
/// ```
/// use tidegate_loop::{process::{Command, Stdio}, run, stream::StreamReader};
/// run(async {
///     let mut child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn().unwrap();
///     let mut lines = StreamReader::new(child.stdout.take().unwrap());
///     assert_eq!(lines.read_line().await.unwrap().unwrap(), b"hello");
///     assert!(child.wait().await.unwrap().success());
/// })
/// .unwrap();
/// ```
pub struct Child {
    /// Its standard input, if that is a pipe and was not taken.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if that is a pipe and was not taken.
    pub stdout: Option<PipeReader>,
    /// Its standard error, if that is a pipe and was not taken.
    pub stderr: Option<PipeReader>,
    program: String,
    process: Process,
    kill_on_drop: bool,
    /// It leads a process group: signals go to all of that.
    group: bool,
    limit: Option<Limit>,
}

enum Process {
    Living(Living),
    Ended(ExitStatus),
    /// Not ours any more: other code has reaped it, or it was handed to the reaper just before.
    Gone,
}

/// How long a child is given, and how long between being asked to end and being killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) time: Duration,
    pub(super) grace: Duration,
}

/// What a command said about the child.
pub(super) struct Setup {
    pub(super) program: String,
    pub(super) kill_on_drop: bool,
    pub(super) group: bool,
    pub(super) sweep: bool,
    pub(super) limit: Option<Limit>,
}

impl Child {
    pub(super) fn new(mut child: std::process::Child, setup: Setup) -> io::Result<Child> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let Setup { program, kill_on_drop, group, sweep, limit } = setup;
        // First, so that it is reaped whatever happens next.
        let process = Process::Living(Living::new(child, sweep));
        let mut child = Child { stdin: None, stdout: None, stderr: None, program, process, kill_on_drop, group, limit };
        child.stdin = stdin.map(ChildStdin::new).transpose()?;
        child.stdout = stdout.map(|pipe| PipeReader::from_fd(pipe.into())).transpose()?;
        child.stderr = stderr.map(|pipe| PipeReader::from_fd(pipe.into())).transpose()?;
        Ok(child)
    }

    /// Its process id, until its end has been seen: afterwards the number may be another process's.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let mut child = Command::new("true").spawn().unwrap();
    ///     assert!(child.id().unwrap() > 1);
    ///     child.wait().await.unwrap();
    /// })
    /// .unwrap();
    /// ```
    pub fn id(&self) -> Option<u32> {
        match &self.process {
            Process::Living(living) => Some(living.child.id()),
            _ => None,
        }
    }

    /// The program, as it was given.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async { assert_eq!(Command::new("true").spawn().unwrap().program(), "true") }).unwrap();
    /// ```
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Waits for its end, having closed its standard input if that is still here. May be called again: the status stays.
    ///
    /// # Errors
    /// When the status is gone, because the program ignores SIGCHLD or reaps children that are not its own.
    ///
    /// # Cancel safety
    /// Safe: the child goes on.
    ///
    /// ```
    /// use std::os::unix::process::ExitStatusExt;
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let mut child = Command::new("sh").args(["-c", "kill -9 $$"]).spawn().unwrap();
    ///     assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    /// })
    /// .unwrap();
    /// ```
    pub async fn wait(&mut self) -> Result<ExitStatus, ProcessError> {
        self.stdin = None;
        std::future::poll_fn(|cx| self.poll_exit(cx)).await
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use tidegate_loop::{process::{Command, Stdio}, run};
    /// run(async {
    ///     let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    ///     assert!(child.try_wait().unwrap().is_none());
    ///     assert!(child.wait().await.unwrap().success()); // its input ends here
    /// })
    /// .unwrap();
    /// ```
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        match &mut self.process {
            Process::Living(living) => match living.try_wait() {
                Ok(status) => Ok(status.map(|status| self.ended(status))),
                Err(error) => Err(self.wait_failed(error)),
            },
            Process::Ended(status) => Ok(Some(*status)),
            Process::Gone => Err(self.error("wait for", exit::lost())),
        }
    }

    /// Sends it a signal, or its whole group if it has one of its own. Nothing happens if its end has been seen.
    ///
    /// # Errors
    /// When the signal is none, or may not be sent because the child runs as another user.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run, signal::SignalKind};
    /// run(async {
    ///     let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    ///     child.signal(SignalKind::TERMINATE).unwrap();
    ///     assert!(!child.wait().await.unwrap().success());
    /// })
    /// .unwrap();
    /// ```
    pub fn signal(&mut self, signal: SignalKind) -> Result<(), ProcessError> {
        let Some(id) = self.id() else { return Ok(()) };
        let id = id as libc::pid_t;
        let target = if self.group { -id } else { id };
        // SAFETY: numbers only. The child has not been reaped, so the number is its own.
        if unsafe { libc::kill(target, signal.as_raw()) } != 0 {
            return Err(self.error("send a signal to", io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Asks it to end (SIGTERM).
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    ///     child.terminate().unwrap();
    ///     child.wait().await.unwrap();
    /// })
    /// .unwrap();
    /// ```
    pub fn terminate(&mut self) -> Result<(), ProcessError> {
        self.signal(SignalKind::TERMINATE)
    }

    /// Ends it (SIGKILL).
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    ///     child.kill().unwrap();
    ///     child.wait().await.unwrap();
    /// })
    /// .unwrap();
    /// ```
    pub fn kill(&mut self) -> Result<(), ProcessError> {
        self.signal(SignalKind::KILL)
    }

    /// Asks it to end, kills it if it has not done so after `grace`, and waits for its end. Its pipes are not touched: what
    /// it says last can be read afterwards.
    ///
    /// # Errors
    /// As [`signal`](Self::signal) and [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// Safe: the child has been asked, and perhaps killed; call it again to go on.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run, Duration};
    /// run(async {
    ///     let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    ///     let status = child.stop(Duration::from_secs(5)).await.unwrap();
    ///     assert!(!status.success());
    /// })
    /// .unwrap();
    /// ```
    pub async fn stop(&mut self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        self.stop_capturing(grace, None).await
    }

    async fn stop_capturing(
        &mut self,
        grace: Duration,
        mut text: Option<&mut Captured>,
    ) -> Result<ExitStatus, ProcessError> {
        self.terminate()?;
        if let Ok(ended) = timeout(grace, self.exit_capturing(text.as_deref_mut())).await {
            return ended;
        }
        self.kill()?;
        self.exit_capturing(text).await
    }

    /// Waits for its end and meanwhile reads what it writes, if that is wanted, so that it can come to its end.
    async fn exit_capturing(&mut self, mut text: Option<&mut Captured>) -> Result<ExitStatus, ProcessError> {
        std::future::poll_fn(|cx| {
            if let Some(text) = &mut text {
                // Both ended or not: it is the child that is waited for.
                let _ = text.poll(self, cx)?;
            }
            self.poll_exit(cx)
        })
        .await
    }

    /// Waits for its end and meanwhile reads what it writes to its pipes, both at once, so that neither can fill up. If
    /// the command has a [`time_limit`](super::Command::time_limit), it is ended when that is over.
    ///
    /// # Errors
    /// [`ProcessError::TimedOut`], with what it had written. Otherwise as [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// Dropped, the child goes on (or is killed, see [`Command::kill_on_drop`](super::Command::kill_on_drop)); what was
    /// read is lost.
    ///
    /// ```
    /// use tidegate_loop::{process::{Command, Stdio}, run};
    /// run(async {
    ///     let child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn().unwrap();
    ///     assert_eq!(child.wait_with_output().await.unwrap().stdout, b"hello\n");
    /// })
    /// .unwrap();
    /// ```
    pub async fn wait_with_output(mut self) -> Result<Output, ProcessError> {
        self.stdin = None;
        let mut text = Captured::default();
        let Some(limit) = self.limit else {
            let status = self.end_capturing(&mut text).await?;
            return Ok(text.into_output(status));
        };
        if let Ok(ended) = timeout(limit.time, self.end_capturing(&mut text)).await {
            return Ok(text.into_output(ended?));
        }
        let status = self.stop_capturing(limit.grace, Some(&mut text)).await?;
        // What is in the pipes by now; others may hold them open, and their end is not waited for.
        let _ = text.poll(&mut self, &mut PollContext::from_waker(Waker::noop()))?;
        let (program, output) = (self.program.clone(), text.into_output(status));
        Err(ProcessError::TimedOut { program, limit: limit.time, output })
    }

    /// Until its pipes and it have ended.
    async fn end_capturing(&mut self, text: &mut Captured) -> Result<ExitStatus, ProcessError> {
        std::future::poll_fn(|cx| text.poll(self, cx)).await?;
        std::future::poll_fn(|cx| self.poll_exit(cx)).await
    }

    fn poll_exit(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ExitStatus, ProcessError>> {
        match &mut self.process {
            Process::Ended(status) => Poll::Ready(Ok(*status)),
            Process::Living(living) => match living.poll(cx) {
                Poll::Ready(Ok(status)) => Poll::Ready(Ok(self.ended(status))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(self.wait_failed(error))),
                Poll::Pending => Poll::Pending,
            },
            Process::Gone => Poll::Ready(Err(self.error("wait for", exit::lost()))),
        }
    }

    fn ended(&mut self, status: ExitStatus) -> ExitStatus {
        self.process = Process::Ended(status);
        status
    }

    fn wait_failed(&mut self, error: io::Error) -> ProcessError {
        if exit::is_lost(&error) {
            self.process = Process::Gone;
            return self.error("wait for", exit::lost());
        }
        self.error("wait for", error)
    }

    fn error(&self, action: &'static str, source: io::Error) -> ProcessError {
        ProcessError::io(&self.program, action, source)
    }
}

/// Bytes a read is given.
const CHUNK: usize = 16 * 1024;

/// Appends what there is to `text`, as long as it keeps coming. Ready: it has ended.
fn poll_to_end(pipe: &PipeReader, cx: &mut PollContext<'_>, text: &mut Vec<u8>) -> Poll<io::Result<()>> {
    let mut chunk = [0; CHUNK];
    loop {
        match pipe.poll_read(cx, &mut chunk) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(count)) => text.extend_from_slice(&chunk[..count]),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// What a child has written to its pipes.
#[derive(Default)]
struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Captured {
    /// Reads what there is. Ready: both pipes have ended, or were not there.
    fn poll(&mut self, child: &mut Child, cx: &mut PollContext<'_>) -> Poll<Result<(), ProcessError>> {
        let mut open = false;
        for (pipe, text) in [(&mut child.stdout, &mut self.stdout), (&mut child.stderr, &mut self.stderr)] {
            let Some(output) = pipe else { continue };
            match poll_to_end(output, cx, text) {
                Poll::Ready(Ok(())) => *pipe = None,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(ProcessError::io(&child.program, "read the output of", error)));
                }
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn into_output(self, status: ExitStatus) -> Output {
        Output { status, stdout: self.stdout, stderr: self.stderr }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process, Process::Living(_)) && self.kill_on_drop {
            let _ = self.kill();
        }
        if let Process::Living(living) = std::mem::replace(&mut self.process, Process::Gone) {
            orphan::adopt(living.child);
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("program", &self.program).field("id", &self.id()).finish_non_exhaustive()
    }
}
