//! Child processes: started like the standard library's, waited for on the loop.
//!
//! ```
//! use tidegate_loop::{process::Command, run, Duration};
//! run(async {
//!     let output = Command::new("echo").arg("hello").time_limit(Duration::from_secs(60)).output().await.unwrap();
//!     assert!(output.status.success());
//!     assert_eq!(output.stdout, b"hello\n");
//! })
//! .unwrap();
//! ```
//!
//! The end of a child is noticed through a pidfd and the loop's selector (Linux 5.3 and newer; elsewhere, or with
//! `TIDEGATE_PIDFD=0`, by a thread a child). SIGCHLD is not touched: a program may handle it as it likes, but must
//! not ignore it or reap children that it has not started, because their status would be gone. No child stays a zombie:
//! one that is dropped while it runs is reaped in the background.
//!
//! On a loop in virtual time the clock does not wait for a child: the clock jumps on.
//!
//! Where to read: `child.rs`, then `exit.rs` (how an end is noticed), `orphan.rs` (who reaps what was dropped), `stdin.rs`,
//! `inherit.rs` (what is done in the child before the program starts).

mod child;
mod error;
mod exit;
mod inherit;
mod orphan;
mod stdin;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::time::Duration;

pub use std::process::Stdio;

pub use child::Child;
use child::{Limit, Setup};
pub use error::ProcessError;
pub use stdin::ChildStdin;

/// How long a child that was asked to end is given before it is killed, unless told otherwise.
const GRACE: Duration = Duration::from_secs(5);

/// A program to run, and how: the standard library's builder with an asynchronous end.
///
/// ```
/// use tidegate_loop::{process::Command, run};
/// run(async {
///     let status = Command::new("sh").args(["-c", "exit 3"]).status().await.unwrap();
///     assert_eq!(status.code(), Some(3));
/// })
/// .unwrap();
/// ```
pub struct Command {
    command: std::process::Command,
    /// Which of the three standard streams were set.
    stdin: bool,
    stdout: bool,
    stderr: bool,
    kill_on_drop: bool,
    group: bool,
    sweep: bool,
    time: Option<Duration>,
    grace: Duration,
}

impl Command {
    /// To run `program`: a path, or a name that is looked for in `PATH`.
    ///
    /// ```
    /// let command = tidegate_loop::process::Command::new("ls");
    /// ```
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        Command {
            command: std::process::Command::new(program),
            stdin: false,
            stdout: false,
            stderr: false,
            kill_on_drop: false,
            group: false,
            sweep: false,
            time: None,
            grace: GRACE,
        }
    }

    /// One more argument.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("echo").arg("a b").output().await.unwrap();
    /// assert_eq!(output.stdout, b"a b\n");
    /// # }).unwrap();
    /// ```
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Command {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("echo").args(["a", "b"]).output().await.unwrap();
    /// assert_eq!(output.stdout, b"a b\n");
    /// # }).unwrap();
    /// ```
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Command {
        self.command.args(args);
        self
    }

    /// Sets an environment variable for the child.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("printenv").arg("COLOUR").env("COLOUR", "green").output().await.unwrap();
    /// assert_eq!(output.stdout, b"green\n");
    /// # }).unwrap();
    /// ```
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.command.env(key, value);
        self
    }

    /// Sets several.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("printenv").arg("A").envs([("A", "1"), ("B", "2")]).output().await.unwrap();
    /// assert_eq!(output.stdout, b"1\n");
    /// # }).unwrap();
    /// ```
    pub fn envs<K, V>(&mut self, variables: impl IntoIterator<Item = (K, V)>) -> &mut Command
    where
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        self.command.envs(variables);
        self
    }

    /// The child does not inherit this environment variable.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let status = Command::new("printenv").arg("HOME").env_remove("HOME").status().await.unwrap();
    /// assert!(!status.success());
    /// # }).unwrap();
    /// ```
    pub fn env_remove(&mut self, key: impl AsRef<OsStr>) -> &mut Command {
        self.command.env_remove(key);
        self
    }

    /// The child inherits no environment variable at all.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("/usr/bin/env").env_clear().output().await.unwrap();
    /// assert!(output.stdout.is_empty());
    /// # }).unwrap();
    /// ```
    pub fn env_clear(&mut self) -> &mut Command {
        self.command.env_clear();
        self
    }

    /// Where the child runs.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("pwd").current_dir("/").output().await.unwrap();
    /// assert_eq!(output.stdout, b"/\n");
    /// # }).unwrap();
    /// ```
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Command {
        self.command.current_dir(directory);
        self
    }

    /// Its standard input. Inherited unless set; nothing at all for [`output`](Self::output).
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let status = Command::new("cat").stdin(Stdio::null()).status().await.unwrap();
    /// assert!(status.success());
    /// # }).unwrap();
    /// ```
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.command.stdin(stdin);
        self.stdin = true;
        self
    }

    /// Its standard output. Inherited unless set; a pipe for [`output`](Self::output).
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn().unwrap();
    /// assert!(child.stdout.is_some());
    /// # }).unwrap();
    /// ```
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.command.stdout(stdout);
        self.stdout = true;
        self
    }

    /// Its standard error. Inherited unless set; a pipe for [`output`](Self::output).
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let output = Command::new("echo").arg("hello").stderr(Stdio::null()).output().await.unwrap();
    /// assert!(output.stderr.is_empty());
    /// # }).unwrap();
    /// ```
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.command.stderr(stderr);
        self.stderr = true;
        self
    }

    /// Whether the child is killed when its [`Child`], or the future that waits for it, is dropped before its end. Off
    /// unless set.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// drop(Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap());
    /// # }).unwrap();
    /// ```
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Command {
        self.kill_on_drop = kill;
        self
    }

    /// Whether the child leads a process group of its own: then signals, also those of time limits and of
    /// `kill_on_drop`, go to it and to all that it has started and that has stayed in the group; and Ctrl-C at the terminal
    /// does not reach it. Off unless set.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let mut child = Command::new("sh").args(["-c", "sleep 1000 & wait"]).own_group(true).spawn().unwrap();
    /// child.kill().unwrap(); // the shell and what it has started
    /// child.wait().await.unwrap();
    /// # }).unwrap();
    /// ```
    pub fn own_group(&mut self, group: bool) -> &mut Command {
        self.group = group;
        self
    }

    /// Whether what the child leaves behind in its group is killed when its end is noticed, before its number can become
    /// another program's. Gives it a group of its own. Off unless set.
    ///
    /// ```
    /// # use tidegate_loop::{process::Command, run};
    /// # run(async {
    /// let mut child = Command::new("sh").args(["-c", "sleep 1000 &"]).sweep_group(true).spawn().unwrap();
    /// child.wait().await.unwrap(); // the sleeper is killed with it
    /// # }).unwrap();
    /// ```
    pub fn sweep_group(&mut self, sweep: bool) -> &mut Command {
        self.group |= sweep;
        self.sweep = sweep;
        self
    }

    /// How long the child may take in [`status`](Self::status), [`output`](Self::output) and
    /// [`Child::wait_with_output`], counted from when that is awaited. Then it is asked to end, and killed after the
    /// [`grace`](Self::grace). No limit unless set.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// use tidegate_loop::process::ProcessError;
    /// let ended = Command::new("sleep").arg("1000").time_limit(Duration::from_millis(1)).status().await;
    /// assert!(matches!(ended, Err(ProcessError::TimedOut { .. })));
    /// # }).unwrap();
    /// ```
    pub fn time_limit(&mut self, limit: Duration) -> &mut Command {
        self.time = Some(limit);
        self
    }

    /// How long a child whose time is over may take to end by itself before it is killed; 5 s unless set.
    ///
    /// ```
    /// # use tidegate_loop::{Duration, process::{Command, Stdio}, run};
    /// # run(async {
    /// let mut command = Command::new("sleep");
    /// command.arg("1000").time_limit(Duration::from_millis(1)).grace(Duration::from_millis(1));
    /// assert!(command.status().await.is_err());
    /// # }).unwrap();
    /// ```
    pub fn grace(&mut self, grace: Duration) -> &mut Command {
        self.grace = grace;
        self
    }

    /// The standard library's command beneath, for what is not here.
    ///
    /// ```
    /// use std::os::unix::process::CommandExt;
    /// let mut command = tidegate_loop::process::Command::new("sh");
    /// command.as_std_mut().arg0("-sh");
    /// ```
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.command
    }

    /// Starts the child. Its pipes are in the [`Child`], where they were asked for. Starting one takes a moment in which
    /// the loop does nothing else.
    ///
    /// # Errors
    /// See [`ProcessError`]; all of them name the program.
    ///
    /// # Panics
    /// Outside of a running loop.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async { assert!(Command::new("true").spawn().unwrap().wait().await.unwrap().success()) }).unwrap();
    /// ```
    pub fn spawn(&mut self) -> Result<Child, ProcessError> {
        assert!(
            crate::LoopHandle::try_current().is_some(),
            "a child process needs a running loop: start it inside run(...)"
        );
        if self.group {
            self.command.process_group(0);
        }
        let setup = Setup {
            program: error::name_of(&self.command),
            kill_on_drop: self.kill_on_drop,
            group: self.group,
            sweep: self.sweep,
            limit: self.time.map(|time| Limit { time, grace: self.grace }),
        };
        let child = self.command.spawn().map_err(|error| ProcessError::spawn(&self.command, error))?;
        Child::new(child, setup).map_err(|source| ProcessError::io(&error::name_of(&self.command), "talk to", source))
    }

    /// Runs the child to its end; how it ended.
    ///
    /// # Errors
    /// See [`ProcessError`].
    ///
    /// # Cancel safety
    /// Dropped, the child goes on and is reaped in the background, or is killed, see
    /// [`kill_on_drop`](Self::kill_on_drop).
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async { assert!(!Command::new("false").status().await.unwrap().success()) }).unwrap();
    /// ```
    pub async fn status(&mut self) -> Result<ExitStatus, ProcessError> {
        let child = self.spawn()?;
        Ok(child.wait_with_output().await?.status)
    }

    /// Runs the child to its end and captures what it writes; it has nothing to read. Streams that were set stay as they
    /// were set.
    ///
    /// # Errors
    /// See [`ProcessError`]. How the child ended is not among them: look at the status.
    ///
    /// # Cancel safety
    /// As [`status`](Self::status); what was captured is lost.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let output = Command::new("sh").args(["-c", "echo out; echo err >&2"]).output().await.unwrap();
    ///     assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    /// })
    /// .unwrap();
    /// ```
    pub async fn output(&mut self) -> Result<Output, ProcessError> {
        if !self.stdin {
            self.stdin(Stdio::null());
        }
        if !self.stdout {
            self.stdout(Stdio::piped());
        }
        if !self.stderr {
            self.stderr(Stdio::piped());
        }
        self.spawn()?.wait_with_output().await
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}
