//! The child, seen from the parent: asked one thing at a time, within a time limit, and ended when it does not answer.

use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tidegate_loop::net::UnixStream;
use tidegate_loop::process::{Child, Command, ProcessError, Stdio};
use tidegate_loop::timeout;

use crate::child::MARK;
use crate::error::Fault;
use crate::files;
use crate::reader::{Limits, Reader};
use crate::run_queue::RunQueue;
use crate::source::Source;
use crate::wire::{self, PREFIX_BYTES, Reply, Request};

/// How much is read of what the child has to say about its end.
const LAST_WORDS_BYTES_MAX: usize = 4096;

/// A running child and the way to talk to it. Dropped, it is killed.
pub(crate) struct Worker {
    child: Child,
    socket: UnixStream,
    queue: RunQueue,
}

/// Why there is no answer. What it means is known when the child has ended.
#[derive(Debug)]
pub(crate) enum Trouble {
    TimedOut(Duration),
    /// It said so itself.
    Said(Fault),
    /// The connection ended, or what came over it makes no sense.
    Lost(io::Error),
}

impl Trouble {
    pub(crate) fn out_of_turn() -> Trouble {
        Trouble::Lost(io::Error::new(io::ErrorKind::InvalidData, "it answered what was not asked"))
    }
}

impl Worker {
    pub(crate) fn start(reader: &Reader, source: Source) -> Result<Worker, ProcessError> {
        let (program, args) = reader.command();
        let failed = |source| ProcessError::Io { program: program.display().to_string(), action: "talk to", source };
        // A child that does not know it is one would start the next, and so on.
        if env::var_os(MARK).is_some() {
            return Err(failed(io::Error::other("main must begin with tidegate_pdf::child::main_if_asked()")));
        }
        let (near, far) = StdUnixStream::pair().map_err(failed)?;
        // Into an empty socket: this does not block.
        files::send(&near, &source).map_err(failed)?;
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(env::vars_os().filter(|(name, _)| is_needed(name)))
            .env(MARK, "1")
            // Each arena would reserve address space, which is what is limited.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Whatever the program that started us has left open is nothing to a reader of PDFs.
            .close_others()
            // Ctrl-C is for the parent, who ends its children in order.
            .own_group(true)
            .kill_on_drop(true)
            .spawn()?;
        let queue = RunQueue::of(child.id());
        Ok(Worker { child, socket: UnixStream::from_std(near).map_err(failed)?, queue })
    }

    /// Asks one thing. After anything but an answer, [`end`](Self::end) it. The time is added to `busy`, also when this is
    /// dropped. Time in which the child waits for a processor counts neither for the limit nor as busy: a page does not fail
    /// because other programs keep the machine busy.
    pub(crate) async fn ask(
        &mut self,
        request: &Request,
        limit: Duration,
        busy: &Cell<Duration>,
    ) -> Result<(Reply, Vec<u8>), Trouble> {
        let busy = Busy { since: Instant::now(), queued: self.queue.time(), queue: &self.queue, total: busy };
        let mut exchange = pin!(exchange(&mut self.socket, request));
        while let Some(left) = limit.checked_sub(busy.spent()).filter(|left| !left.is_zero()) {
            match timeout(left, exchange.as_mut()).await {
                Ok(Ok((Reply::Fault(fault), _))) => return Err(Trouble::Said(fault)),
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error)) => return Err(Trouble::Lost(error)),
                Err(_) => {}
            }
        }
        Err(Trouble::TimedOut(limit))
    }

    /// Ends the child and finds out what was the matter with it.
    pub(crate) async fn end(mut self, trouble: Trouble, limits: &Limits) -> Fault {
        // Where the connection has ended the child ends, too, and says why. What lives on is killed.
        let how = match trouble {
            Trouble::Lost(error) if error.kind() != io::ErrorKind::InvalidData => None,
            other => Some(other),
        };
        if how.is_some() {
            let _ = self.child.kill();
        }
        let ended = timeout(limits.page_time, self.child.wait()).await;
        match (how, ended) {
            (Some(Trouble::TimedOut(limit)), _) => Fault::TimedOut { limit },
            (Some(Trouble::Said(fault)), _) => fault,
            (Some(Trouble::Lost(error)), _) => Fault::Ended { how: error.to_string() },
            (None, Ok(Ok(status))) => {
                let words = self.last_words().await;
                fault_of(status, &words, limits)
            }
            (None, Ok(Err(error))) => Fault::Ended { how: error.to_string() },
            // Dropped here, it is killed.
            (None, Err(_)) => Fault::TimedOut { limit: limits.page_time },
        }
    }

    /// What is in the pipe of a child that has ended.
    async fn last_words(&mut self) -> String {
        let Some(stderr) = &self.child.stderr else { return String::new() };
        let (mut words, mut chunk) = (Vec::new(), [0; 1024]);
        while words.len() < LAST_WORDS_BYTES_MAX {
            match poll_fn(|cx| stderr.poll_read(cx, &mut chunk)).await {
                Ok(0) | Err(_) => break,
                Ok(count) => words.extend_from_slice(&chunk[..count]),
            }
        }
        String::from_utf8_lossy(&words).into_owned()
    }
}

async fn exchange(socket: &mut UnixStream, request: &Request) -> io::Result<(Reply, Vec<u8>)> {
    socket.write_all(&wire::head(request, 0)?).await?;
    let mut prefix = [0; PREFIX_BYTES];
    socket.read_exact(&mut prefix).await?;
    let (head_bytes, body_bytes) = wire::lengths(prefix)?;
    let mut head = vec![0; head_bytes];
    socket.read_exact(&mut head).await?;
    let mut body = vec![0; body_bytes];
    socket.read_exact(&mut body).await?;
    Ok((wire::parse(&head)?, body))
}

/// What of the environment is of use to the child. Keys and passwords are not: it reads files from anywhere.
fn is_needed(variable: &OsStr) -> bool {
    // How libraries are found, and how an example of the documentation knows which one it is.
    variable == "LD_LIBRARY_PATH" || variable.as_encoded_bytes().starts_with(b"RUSTDOC_DOCTEST_")
}

/// What an end means. The messages are those of Rust's runtime, which says them before it aborts.
fn fault_of(status: ExitStatus, last_words: &str, limits: &Limits) -> Fault {
    const KILLED: i32 = 9;
    const CPU_TIME: i32 = 24;
    const BAD_CALL: i32 = 31;
    if last_words.contains("memory allocation of") {
        return Fault::Memory { limit: limits.memory_bytes };
    }
    if last_words.contains("overflowed its stack") {
        return Fault::Nesting;
    }
    match (status.signal(), status.code()) {
        (Some(CPU_TIME), _) => Fault::TimedOut { limit: limits.document_time },
        (Some(BAD_CALL), _) => Fault::Forbidden,
        (Some(KILLED), _) => Fault::Ended { how: "it was killed; perhaps the system is out of memory".to_owned() },
        (Some(signal), _) => Fault::Ended { how: format!("by signal {signal}; {}", first_line(last_words)) },
        (None, Some(0)) => Fault::Ended {
            how: "it did not answer; does its main begin with tidegate_pdf::child::main_if_asked()?".to_owned(),
        },
        (None, code) => Fault::Ended { how: format!("with code {}; {}", code.unwrap_or(-1), first_line(last_words)) },
    }
}

fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing")
}

/// Adds the time that passes until it is dropped, without the time in which the child waited for a processor.
struct Busy<'a> {
    since: Instant,
    /// The child's run queue then.
    queued: Duration,
    queue: &'a RunQueue,
    total: &'a Cell<Duration>,
}

impl Busy<'_> {
    fn spent(&self) -> Duration {
        let queued = self.queue.time().saturating_sub(self.queued);
        self.since.elapsed().saturating_sub(queued)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.total.set(self.total.get() + self.spent());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_last_words_say_what_was_the_matter() {
        let (abort, limits) = (ExitStatus::from_raw(6), Limits::default());
        let memory = fault_of(abort, "memory allocation of 99 bytes failed\n", &limits);
        assert_eq!(memory, Fault::Memory { limit: limits.memory_bytes });
        let nesting = fault_of(abort, "\nthread 'pdf' (7) has overflowed its stack\n", &limits);
        assert_eq!(nesting, Fault::Nesting);
        assert_eq!(fault_of(ExitStatus::from_raw(24), "", &limits), Fault::TimedOut { limit: limits.document_time });
        assert_eq!(fault_of(ExitStatus::from_raw(31), "", &limits), Fault::Forbidden);
        let other = fault_of(ExitStatus::from_raw(11), "", &limits);
        assert_eq!(other, Fault::Ended { how: "by signal 11; it said nothing".to_owned() });
    }
}
