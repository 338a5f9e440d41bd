//! What can go wrong with a child process, with the program's name in it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Why a program could not be run, or not to its end.
///
/// ```
/// use tidegate_loop::{process::{Command, ProcessError}, run};
/// run(async {
///     let error = Command::new("no-such-program").status().await.unwrap_err();
///     assert!(matches!(error, ProcessError::NotFound { .. }));
///     assert_eq!(error.to_string(), "cannot run `no-such-program`: not found in PATH");
/// })
/// .unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such program, or what it needs to start (its interpreter, its working directory) is not there.
    NotFound {
        /// The program.
        program: String,
        /// What is missing.
        reason: String,
    },
    /// The program is there but may not be run: it is not executable, or not for this user.
    NotAllowed {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// There are too many processes or open descriptors, or too little memory. Try again when there are fewer.
    Exhausted {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It did not end within its limit, and was ended.
    TimedOut {
        /// The program.
        program: String,
        /// How long it was given.
        limit: Duration,
        /// How it ended, and what it had written by then, where that was captured.
        output: Output,
    },
    /// Something else failed.
    Io {
        /// The program.
        program: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ProcessError {
    pub(super) fn io(program: &str, action: &'static str, source: io::Error) -> ProcessError {
        ProcessError::Io { program: program.to_owned(), action, source }
    }

    /// Why a program did not start.
    pub(super) fn spawn(command: &Command, source: io::Error) -> ProcessError {
        let program = name_of(command);
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => ProcessError::NotFound { reason: missing(command), program },
            Some(libc::EACCES | libc::EPERM | libc::ENOEXEC) => ProcessError::NotAllowed { program, source },
            Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
                ProcessError::Exhausted { program, source }
            }
            _ => ProcessError::Io { program, action: "run", source },
        }
    }

    /// The program it is about.
    ///
    /// ```
    /// use tidegate_loop::{process::Command, run};
    /// run(async {
    ///     let error = Command::new("no-such-program").status().await.unwrap_err();
    ///     assert_eq!(error.program(), "no-such-program");
    /// })
    /// .unwrap();
    /// ```
    pub fn program(&self) -> &str {
        match self {
            ProcessError::NotFound { program, .. }
            | ProcessError::NotAllowed { program, .. }
            | ProcessError::Exhausted { program, .. }
            | ProcessError::TimedOut { program, .. }
            | ProcessError::Io { program, .. } => program,
        }
    }
}

pub(super) fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// The system says the same of a program, its interpreter and its directory.
fn missing(command: &Command) -> String {
    if let Some(directory) = command.get_current_dir()
        && !directory.is_dir()
    {
        return format!("its working directory {} is not there", directory.display());
    }
    let program = command.get_program();
    if !is_path(program) {
        return "not found in PATH".to_owned();
    }
    let path = command.get_current_dir().unwrap_or(Path::new("")).join(program);
    if path.exists() { "its interpreter is not there".to_owned() } else { "there is no such file".to_owned() }
}

fn is_path(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessError::NotFound { program, reason } => write!(f, "cannot run `{program}`: {reason}"),
            ProcessError::NotAllowed { program, source } => write!(f, "cannot run `{program}`: not allowed: {source}"),
            ProcessError::Exhausted { program, source } => {
                write!(f, "cannot run `{program}` for now: {source}; try again when fewer processes run")
            }
            ProcessError::TimedOut { program, limit, output } => {
                write!(f, "`{program}` did not end within {limit:?} and was ended ({})", output.status)
            }
            ProcessError::Io { program, action, source } => write!(f, "cannot {action} `{program}`: {source}"),
        }
    }
}

impl std::error::Error for ProcessError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ProcessError::NotAllowed { source, .. }
            | ProcessError::Exhausted { source, .. }
            | ProcessError::Io { source, .. } => Some(source),
            ProcessError::NotFound { .. } | ProcessError::TimedOut { .. } => None,
        }
    }
}

impl From<ProcessError> for io::Error {
    fn from(error: ProcessError) -> io::Error {
        let kind = match &error {
            ProcessError::NotFound { .. } => io::ErrorKind::NotFound,
            ProcessError::TimedOut { .. } => io::ErrorKind::TimedOut,
            ProcessError::NotAllowed { source, .. }
            | ProcessError::Exhausted { source, .. }
            | ProcessError::Io { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}
