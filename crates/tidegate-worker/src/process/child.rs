//! One child and everything that is heard of it: its socket, its two pipes, its end, its time. Decisions are the overseer's;
//! here they are carried out. One task polls all of it, so what a child wrote before an answer is logged before that answer
//! counts.

use std::os::unix::process::ExitStatusExt;
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tidegate_loop::net::UnixStream;
use tidegate_loop::pipe::PipeReader;
use tidegate_loop::process::{Child as Process, Command, ProcessError, Stdio};
use tidegate_loop::{LoopHandle, Sleep, sleep_until};

use super::ProcessOptions;
use super::lines::{LastWords, LineRate, Lines};
use super::memory::Memory;
use super::overseer::{Action, Overseer};
use super::slot::Slot;
use super::ticket::Ticket;

/// Where a child finds the number of its socket's descriptor.
pub const SOCKET_VARIABLE: &str = "TIDEGATE_SOCKET";

/// Where a child finds which of its siblings it is, counted from 1.
pub const CHILD_VARIABLE: &str = "TIDEGATE_CHILD";

/// Bytes that are asked for in one go.
const CHUNK: usize = 64 << 10;

/// Reads of the socket in one round. A pipe is read once per round: that takes all that its buffer holds, so everything that was
/// written before a message is logged before the message is handled.
const READS_PER_ROUND: usize = 16;

/// Rounds of one poll; then the loop's other tasks run. A child that writes without end must not keep them waiting.
const ROUNDS_PER_POLL: usize = 4;

/// Logged with the number of lines that were left out.
pub(super) const TOO_MANY_LINES: &str = "lines were left out: too many per second";

/// A child that lives, and what it was given.
pub(super) struct Child {
    slot: Rc<Slot>,
    overseer: Overseer<Rc<Ticket>>,
    process: Process,
    pid: u32,
    /// `None`: it or we have closed it.
    socket: Option<UnixStream>,
    stdout: Output,
    stderr: Output,
    last_words: LastWords,
    memory: Option<Memory>,
    max_rss: Option<u64>,
    /// To be sent when everything is written.
    poke: bool,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
    /// It has ended; what it has written is still to be read.
    status: Option<Result<ExitStatus, ProcessError>>,
    /// Its end is not waited for.
    abandoned: bool,
    chunk: Box<[u8; CHUNK]>,
}

/// How a child's life went.
#[derive(Debug)]
pub(super) struct End {
    /// It said that it was ready.
    pub(super) was_ready: bool,
    /// Tasks it has answered.
    pub(super) served: u64,
    /// How it ended, in words, with its last ones.
    pub(super) story: String,
    /// It ended because it was told to.
    pub(super) as_told: bool,
    /// Somebody else sent it SIGKILL.
    pub(super) killed: bool,
}

/// What no program sends itself by mistake.
const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();

/// One of a process's two outputs, by the line.
pub(super) struct Output {
    name: &'static str,
    pipe: Option<PipeReader>,
    lines: Lines,
    rate: LineRate,
}

/// What came out of an [`Output`].
pub(super) enum Written<'a> {
    /// A line to log.
    Line(&'a str),
    /// A line beyond the rate, which is not logged.
    Unlogged(&'a str),
    /// The number of unlogged lines before this point.
    LeftOut(u64),
}

impl Output {
    pub(super) fn new(name: &'static str, pipe: Option<PipeReader>) -> Output {
        Output { name, pipe, lines: Lines::default(), rate: LineRate::default() }
    }

    /// Reads once and hands on each line. Returns `true` if there may be more.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut [u8],
        mut take: impl FnMut(&'static str, Written<'_>),
    ) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        match pipe.poll_read(cx, chunk) {
            Poll::Ready(Ok(count)) if count > 0 => {
                let (name, rate) = (self.name, &mut self.rate);
                let now = LoopHandle::current().time();
                self.lines.push(&chunk[..count], |text| {
                    if !rate.admits(now) {
                        return take(name, Written::Unlogged(text));
                    }
                    rate.take_left_out().into_iter().for_each(|count| take(name, Written::LeftOut(count)));
                    take(name, Written::Line(text));
                });
                true
            }
            // The child has closed it, which is allowed.
            Poll::Ready(_) => {
                self.finish(take);
                self.pipe = None;
                false
            }
            Poll::Pending => false,
        }
    }

    /// Hands on the last line, which has no end, and the number of lines that were left out: no more will come.
    pub(super) fn finish(&mut self, mut take: impl FnMut(&'static str, Written<'_>)) {
        self.rate.take_left_out().into_iter().for_each(|count| take(self.name, Written::LeftOut(count)));
        self.lines.end(|text| take(self.name, Written::Line(text)));
    }
}

impl Child {
    /// Starts one.
    ///
    /// # Errors
    /// When the program cannot be started at all, or there are no descriptors left.
    pub(super) fn spawn(options: &ProcessOptions, slot: &Rc<Slot>) -> Result<Child, String> {
        let (near, far) = std::os::unix::net::UnixStream::pair()
            .map_err(|error| format!("cannot make a socket for a child: {error}"))?;
        let socket = UnixStream::from_std(near).map_err(|error| format!("cannot talk to a child: {error}"))?;
        let (program, arguments) = options.command.split_first().ok_or("there is no command to start children from")?;
        let mut command = Command::new(program);
        let number =
            command.inherit(far.into()).map_err(|error| format!("cannot hand a socket to a child: {error}"))?;
        options.inherited.give(&mut command, std::env::vars_os());
        command
            .args(arguments)
            .envs(options.environment.iter().map(|(key, value)| (key, value)))
            .env(SOCKET_VARIABLE, number.to_string())
            .env(CHILD_VARIABLE, (slot.index + 1).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .sweep_group(true)
            .kill_on_drop(true)
            .die_with_parent();
        let mut process = command.spawn().map_err(|error| match error {
            ProcessError::NotFound { .. } | ProcessError::NotAllowed { .. } => {
                format!("{error}; the command for children was given as `{}`", options.command_line())
            }
            error => error.to_string(),
        })?;
        let now = LoopHandle::current().time();
        let pid = process.id().expect("it was just started");
        Ok(Child {
            slot: slot.clone(),
            overseer: Overseer::new(options.rules(), now),
            pid,
            socket: Some(socket),
            stdout: Output::new("stdout", process.stdout.take()),
            stderr: Output::new("stderr", process.stderr.take()),
            process,
            last_words: LastWords::default(),
            memory: options.max_rss.and_then(|_| Memory::of(pid)),
            max_rss: options.max_rss,
            poke: false,
            timer: None,
            status: None,
            abandoned: false,
            chunk: Box::new([0; CHUNK]),
        })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lives its life; ready when it is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..ROUNDS_PER_POLL {
            let now = LoopHandle::current().time();
            self.hear_slot(now);
            let mut more = self.read(cx, now);
            self.act(now);
            self.write(cx);
            if let Some(status) = self.status.take() {
                let killed = status.as_ref().is_ok_and(|status| status.signal() == Some(SIGKILL));
                let how = status.map_or_else(|error| error.to_string(), describe);
                return Poll::Ready(self.exited(how, killed));
            }
            if self.abandoned {
                // Dropped, it is reaped whenever it ends.
                return Poll::Ready(self.exited("does not end though it was killed, and is left alone".into(), false));
            }
            if let Poll::Ready(status) = self.poll_exit(cx) {
                // What it has written is read in another turn, which is not cut short by what was read in this one.
                self.status = Some(status);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            more |= self.poll_timer(cx, now);
            self.slot.offer(self.overseer.room(), self.overseer.open());
            more |= self.slot.has_work();
            if !more {
                self.slot.sleep(cx);
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// What was left for it in its slot: tasks, and requests to end.
    fn hear_slot(&mut self, now: Instant) {
        if self.slot.shut.get() {
            self.overseer.shut(now);
        } else if self.slot.retire.replace(false) {
            self.overseer.retire(now);
        }
        while let Some(ticket) = self.slot.take() {
            if self.overseer.room() == 0 {
                self.slot.give_back(ticket);
                continue;
            }
            let limits = (ticket.soft_limit, ticket.hard_limit);
            match self.overseer.assign(ticket.clone(), &ticket.task, limits, now) {
                Ok(run) => ticket.run.set(Some(run)),
                Err((ticket, outcome)) => self.slot.finish(&ticket, outcome),
            }
        }
        while let Some((run, reason)) = self.slot.take_stop() {
            self.overseer.stop_run(run, reason, now);
        }
    }

    /// Reads socket and pipes; returns `true` if there may be more.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut more = false;
        for _ in 0..READS_PER_ROUND {
            let Some(socket) = &self.socket else { break };
            match socket.poll_read(cx, &mut self.chunk[..]) {
                Poll::Pending => {
                    more = false;
                    break;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.overseer.receive(&self.chunk[..count]);
                    more = true;
                    self.hear_messages(cx, now);
                }
                Poll::Ready(_) => {
                    self.socket = None;
                    self.overseer.input_ended(now);
                    more = false;
                }
            }
        }
        self.hear_pipes(cx) | more
    }

    fn hear_messages(&mut self, cx: &mut Context<'_>, now: Instant) {
        // First what it wrote before.
        self.hear_pipes(cx);
        let was_ready = self.overseer.ready().is_some();
        while self.overseer.next_message(now) {
            self.act(now);
        }
        if !was_ready && let Some(ready) = self.overseer.ready() {
            tracing::info!(child = self.slot.index + 1, pid = self.pid, name = %ready.name, "a child is ready");
            self.slot.is_ready(ready.handlers.clone());
        }
    }

    fn hear_pipes(&mut self, cx: &mut Context<'_>) -> bool {
        let (child, pid) = (self.slot.index + 1, self.pid);
        let task = self.overseer.current().map_or("-", |ticket| ticket.task.id.as_str());
        let words = &mut self.last_words;
        let mut log = |stream: &'static str, written: Written<'_>| {
            match written {
                Written::Line(line) => tracing::info!(target: "tidegate::child", child, pid, task, stream, "{line}"),
                Written::LeftOut(lines) => {
                    tracing::warn!(target: "tidegate::child", child, pid, task, stream, lines, "{TOO_MANY_LINES}");
                }
                Written::Unlogged(_) => {}
            }
            if let ("stderr", Written::Line(line) | Written::Unlogged(line)) = (stream, written) {
                words.push(line);
            }
        };
        let more = self.stdout.poll(cx, &mut self.chunk[..], &mut log);
        self.stderr.poll(cx, &mut self.chunk[..], &mut log) | more
    }

    /// Does what the overseer wants done.
    fn act(&mut self, now: Instant) {
        while let Some(action) = self.overseer.next_action() {
            let done = match action {
                Action::Finish(ticket, outcome) => {
                    self.last_words.clear();
                    self.slot.finish(&ticket, outcome);
                    self.weigh(now);
                    Ok(())
                }
                Action::GiveBack(ticket) => {
                    self.slot.give_back(ticket);
                    Ok(())
                }
                Action::Poke => {
                    self.poke = true;
                    Ok(())
                }
                Action::CloseInput => {
                    self.socket = None;
                    Ok(())
                }
                Action::Terminate => {
                    tracing::debug!(child = self.slot.index + 1, pid = self.pid, "a child is asked to end");
                    self.process.terminate()
                }
                Action::Abandon => {
                    self.abandoned = true;
                    Ok(())
                }
                Action::Kill => {
                    tracing::warn!(child = self.slot.index + 1, pid = self.pid, "a child does not end: it is killed");
                    self.process.kill()
                }
            };
            if let Err(error) = done {
                tracing::warn!(child = self.slot.index + 1, pid = self.pid, "{error}");
            }
        }
    }

    /// Retires it when it has grown too large.
    fn weigh(&mut self, now: Instant) {
        let (Some(memory), Some(max)) = (&self.memory, self.max_rss) else { return };
        if let Some(resident) = memory.resident().filter(|resident| *resident > max) {
            tracing::info!(
                child = self.slot.index + 1,
                pid = self.pid,
                resident,
                max,
                "a child has grown: it is replaced"
            );
            self.memory = None;
            self.overseer.retire(now);
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        while let Some(socket) = self.socket.as_ref().filter(|_| !self.overseer.output().is_empty()) {
            match socket.poll_write(cx, self.overseer.output()) {
                Poll::Ready(Ok(count)) => self.overseer.wrote(count),
                // Its end will be read.
                Poll::Ready(Err(_)) => return,
                Poll::Pending => return,
            }
        }
        if std::mem::replace(&mut self.poke, false) && self.process.id().is_some() {
            let pid = rustix::process::Pid::from_raw(self.pid as i32).expect("a process has a number above 0");
            // It has not been reaped, so the number is its own. The group must not hear this: most programs end by it.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::USR1);
        }
    }

    fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<Result<ExitStatus, ProcessError>> {
        pin!(self.process.wait()).poll(cx)
    }

    /// Whether its time has come.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(deadline) = self.overseer.deadline() else { return false };
        if deadline <= now {
            self.overseer.tick(now);
            return true;
        }
        // One that is armed for earlier is left: tasks are shorter than their limits, and it costs less to look in vain.
        if self.timer.as_ref().is_none_or(|(at, _)| *at > deadline) {
            self.timer = Some((deadline, Box::pin(sleep_until(deadline))));
        }
        let (_, timer) = self.timer.as_mut().expect("just armed");
        let due = timer.as_mut().poll(cx).is_ready();
        if due {
            self.timer = None;
        }
        due
    }

    /// Tells how it ended, to those who wait for its runs, too.
    fn exited(&mut self, how: String, killed: bool) -> End {
        let now = LoopHandle::current().time();
        let (child, pid) = (self.slot.index + 1, self.pid);
        let mut last = std::mem::take(&mut self.last_words);
        for output in [&mut self.stdout, &mut self.stderr] {
            output.finish(|stream, written| match written {
                Written::Line(line) | Written::Unlogged(line) => {
                    tracing::info!(target: "tidegate::child", child, pid, stream, "{line}");
                    if stream == "stderr" {
                        last.push(line);
                    }
                }
                Written::LeftOut(lines) => {
                    tracing::warn!(target: "tidegate::child", child, pid, stream, lines, "{TOO_MANY_LINES}");
                }
            });
        }
        let words = last.text();
        let as_told = self.overseer.is_ending() && self.overseer.fault().is_none();
        self.overseer.exited(&how, &words);
        self.act(now);
        let mut story = match self.overseer.fault() {
            Some(fault) => format!("{fault} (it {how})"),
            None => how,
        };
        if !words.is_empty() {
            story = format!("{story}; its last words:\n{words}");
        }
        let killed = killed && !as_told && self.overseer.fault().is_none();
        End { was_ready: self.overseer.ready().is_some(), served: self.overseer.served(), story, as_told, killed }
    }
}

/// How a process ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("was killed by signal {signal} ({name})"),
            None => format!("was killed by signal {signal}"),
        },
        (None, None) => format!("ended: {status}"),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child").field("pid", &self.pid).field("overseer", &self.overseer).finish_non_exhaustive()
    }
}
