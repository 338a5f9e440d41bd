//! A command that is started anew for every task: the task as JSON on its standard input, the result as JSON from its
//! standard output.

use std::ffi::OsString;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::task::{Context, Poll};

use serde_json::{Value, json};
use tidegate_loop::process::{Child, ChildStdin, Command, ProcessError, Stdio};

use super::child::{Output, TOO_MANY_LINES, Written, describe};
use super::inherited::Inherited;
use super::lines::LastWords;
use crate::broker::{Local, TaskError};
use crate::context::TaskContext;
use crate::handlers::{Handler, HandlerError};
use crate::json as exact;
use crate::task::Task;

/// The exit code by which a command asks to be run again later: `EX_TEMPFAIL` of `sysexits.h`.
pub const EXIT_RETRY: i32 = 75;

/// What a command may write to its standard output unless told otherwise: 32 MiB.
const MAX_OUTPUT: usize = 32 << 20;

/// A handler that starts a command for every task.
///
/// The command reads `{"id", "task", "args", "kwargs", "retries"}` and writes its result, both as JSON; nothing at all is
/// `null`. It fails by its exit code, and what it wrote to standard error is kept: 75 asks for another try, any other but 0
/// is a failure. It leads a process group, which gets SIGTERM when the soft limit is over, and killed as a whole at
/// the hard one, when the task is revoked, and when the worker stops.
///
/// ```
/// use tidegate_loop::LoopHandle;
/// use tidegate_worker::{Exec, Handler, Task, TaskContext};
///
/// tidegate_loop::run(async {
///     let task = Task::new("echo").arg("hi");
///     let context = TaskContext::new(&task, None, None, LoopHandle::current().time());
///     let value = Exec::shell("cat").call(task, context).await.unwrap();
///     assert_eq!(value["args"][0], "hi");
/// })
/// .unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Exec {
    command: Vec<OsString>,
    inherited: Inherited,
    max_output: usize,
}

impl Exec {
    /// A program and its arguments.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Exec {
        Exec {
            command: command.into_iter().map(Into::into).collect(),
            inherited: Inherited::harmless(),
            max_output: MAX_OUTPUT,
        }
    }

    /// A line for `/bin/sh`.
    pub fn shell(line: impl Into<OsString>) -> Exec {
        Exec::new(["/bin/sh".into(), "-c".into(), line.into()])
    }

    /// What the command inherits of the environment; [`Inherited::harmless`] unless set.
    #[must_use]
    pub fn inherited(mut self, inherited: Inherited) -> Exec {
        self.inherited = inherited;
        self
    }

    /// More on standard output than this is a failure.
    #[must_use]
    pub fn max_output(mut self, bytes: usize) -> Exec {
        self.max_output = bytes;
        self
    }

    fn spawn(&self, task: &Task) -> Result<Child, HandlerError> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| HandlerError::rejected("there is no command to run"))?;
        let mut command = Command::new(program);
        self.inherited.give(&mut command, std::env::vars_os());
        command
            .args(arguments)
            .env("TIDEGATE_TASK_ID", task.id.as_str())
            .env("TIDEGATE_TASK", &task.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .sweep_group(true)
            .kill_on_drop(true)
            .die_with_parent()
            .spawn()
            .map_err(|error| match error {
                // It may pass.
                ProcessError::Exhausted { .. } => HandlerError::retry(error.to_string()),
                error => HandlerError::failed(error.to_string()),
            })
    }
}

impl Handler for Exec {
    fn call(&self, task: Task, context: TaskContext) -> Local<'static, Result<Value, HandlerError>> {
        let (child, max_output) = (self.spawn(&task), self.max_output);
        Box::pin(async move {
            let mut run = Run::new(child?, task, max_output);
            let mut soft_limit = pin!(context.soft_limit());
            let mut told = context.soft_deadline().is_none();
            let status = poll_fn(|cx| {
                if !told && soft_limit.as_mut().poll(cx).is_ready() {
                    told = true;
                    if let Err(error) = run.child.terminate() {
                        tracing::warn!(task = run.task.id.as_str(), "{error}");
                    }
                }
                run.poll(cx)
            })
            .await?;
            run.result(status, context.soft_limit_passed())
        })
    }
}

/// A command at work.
struct Run {
    child: Child,
    task: Task,
    /// `None`: all of it is written, or the command does not want it.
    stdin: Option<ChildStdin>,
    input: Vec<u8>,
    written: usize,
    stdout: Option<tidegate_loop::pipe::PipeReader>,
    result: Vec<u8>,
    max_output: usize,
    stderr: Output,
    last_words: LastWords,
    chunk: Vec<u8>,
}

/// Reads of standard error after the command's end.
const READS_AT_END: usize = 16;

/// Bytes that are asked for in one go.
const CHUNK: usize = 64 << 10;

impl Run {
    fn new(mut child: Child, task: Task, max_output: usize) -> Run {
        let Task { id, name, args, kwargs, retries, .. } = &task;
        let input = json!({ "id": id.as_str(), "task": name, "args": args, "kwargs": kwargs, "retries": retries });
        Run {
            input: exact::to_string(&input).into_bytes(),
            written: 0,
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            result: Vec::new(),
            max_output,
            stderr: Output::new("stderr", child.stderr.take()),
            last_words: LastWords::default(),
            chunk: vec![0; CHUNK],
            child,
            task,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ExitStatus, HandlerError>> {
        self.write(cx);
        self.read(cx)?;
        let ended = pin!(self.child.wait()).poll(cx);
        let Poll::Ready(status) = ended else { return Poll::Pending };
        let status = status.map_err(|error| HandlerError::failed(error.to_string()))?;
        // What it had written by then; others may hold its pipes open, and their end is not waited for.
        self.read(cx)?;
        // What its pipe still holds; a pipe's buffer can be set to 1 MiB.
        for _ in 0..READS_AT_END {
            if !self.hear_stderr(cx) {
                break;
            }
        }
        let (task, words) = (self.task.id.as_str(), &mut self.last_words);
        self.stderr.finish(|stream, written| log(task, words, stream, written));
        Poll::Ready(Ok(status))
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        while let Some(stdin) = &mut self.stdin {
            match futures_io::AsyncWrite::poll_write(Pin::new(stdin), cx, &self.input[self.written..]) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => self.written += count,
                // A command need not read what it does not want.
                Poll::Ready(Err(_)) => self.stdin = None,
            }
            if self.written == self.input.len() {
                self.stdin = None;
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), HandlerError> {
        while let Some(stdout) = &self.stdout {
            match stdout.poll_read(cx, &mut self.chunk) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.result.extend_from_slice(&self.chunk[..count]);
                    if self.result.len() > self.max_output {
                        let message = format!("it wrote more than {} bytes to its standard output", self.max_output);
                        return Err(failed("OutputTooLarge", message, None));
                    }
                }
                Poll::Ready(_) => self.stdout = None,
            }
        }
        // A command that writes without end must not keep the loop's other tasks waiting.
        if self.hear_stderr(cx) {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Reads standard error once; returns `true` if there may be more.
    fn hear_stderr(&mut self, cx: &mut Context<'_>) -> bool {
        let (task, words) = (self.task.id.as_str(), &mut self.last_words);
        self.stderr.poll(cx, &mut self.chunk, |stream, written| log(task, words, stream, written))
    }

    /// What follows from its end.
    fn result(self, status: ExitStatus, soft_limit_passed: bool) -> Result<Value, HandlerError> {
        let words = self.last_words.text();
        if !status.success() {
            if soft_limit_passed {
                return Err(HandlerError::SoftLimit);
            }
            let how = describe(status);
            let message = match words.lines().last() {
                Some(line) => format!("the command {how}: {line}"),
                None => format!("the command {how}"),
            };
            let kind = if status.code().is_some() { "ExitCode" } else { "Signal" };
            let error = TaskError { kind: kind.into(), message, traceback: (!words.is_empty()).then_some(words) };
            return Err(match status.code() {
                Some(EXIT_RETRY) => HandlerError::Retry { after: None, error },
                _ => HandlerError::Failed(error),
            });
        }
        if self.result.trim_ascii().is_empty() {
            return Ok(Value::Null);
        }
        exact::from_slice(&self.result).map_err(|error| {
            let shown = super::protocol::start_of(&self.result);
            failed("UnreadableResult", format!("what the command wrote is no JSON ({error}): {shown:?}"), Some(words))
        })
    }
}

fn log(task: &str, words: &mut LastWords, stream: &'static str, written: Written<'_>) {
    match written {
        Written::Line(line) => {
            tracing::info!(target: "tidegate::child", task, stream, "{line}");
            words.push(line);
        }
        Written::Unlogged(line) => words.push(line),
        Written::LeftOut(lines) => tracing::warn!(target: "tidegate::child", task, stream, lines, "{TOO_MANY_LINES}"),
    }
}

fn failed(kind: &str, message: String, words: Option<String>) -> HandlerError {
    let traceback = words.filter(|words| !words.is_empty());
    HandlerError::Failed(TaskError { kind: kind.into(), message, traceback })
}
