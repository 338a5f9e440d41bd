//! Signals by name.

use std::fmt;
use std::io;

/// A signal.
///
/// ```
/// use tidegate_loop::signal::SignalKind;
/// assert_eq!(SignalKind::TERMINATE.to_string(), "SIGTERM");
/// assert_eq!(SignalKind::from_raw(15), SignalKind::TERMINATE);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignalKind(i32);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)*) => {
        impl SignalKind {
            $($(#[$doc])* pub const $name: SignalKind = SignalKind(libc::$number);)*

            fn name(self) -> Option<&'static str> {
                match self {
                    $(SignalKind::$name => Some(stringify!($number)),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// SIGINT: Ctrl-C.
    INTERRUPT = SIGINT;
    /// SIGTERM: please end.
    TERMINATE = SIGTERM;
    /// SIGHUP: the terminal is gone; for daemons, read the configuration again.
    HANGUP = SIGHUP;
    /// SIGQUIT: Ctrl-\.
    QUIT = SIGQUIT;
    /// SIGUSR1.
    USER1 = SIGUSR1;
    /// SIGUSR2.
    USER2 = SIGUSR2;
    /// SIGCHLD: a child has ended. This crate never takes it by itself; its own children are waited for by other means.
    CHILD = SIGCHLD;
    /// SIGALRM.
    ALARM = SIGALRM;
    /// SIGPIPE.
    PIPE = SIGPIPE;
    /// SIGIO.
    IO = SIGIO;
    /// SIGCONT: stopped before, going on.
    CONTINUE = SIGCONT;
    /// SIGTSTP: Ctrl-Z.
    TERMINAL_STOP = SIGTSTP;
    /// SIGWINCH: the terminal has another size.
    WINDOW_CHANGE = SIGWINCH;
    /// SIGKILL: cannot be handled, but sent.
    KILL = SIGKILL;
    /// SIGSTOP: cannot be handled, but sent.
    STOP = SIGSTOP;
}

impl SignalKind {
    /// The signal of that number.
    ///
    /// ```
    /// use tidegate_loop::signal::SignalKind;
    /// assert_eq!(SignalKind::from_raw(2), SignalKind::INTERRUPT);
    /// ```
    #[must_use]
    pub const fn from_raw(number: i32) -> SignalKind {
        SignalKind(number)
    }

    /// Its number.
    ///
    /// ```
    /// use tidegate_loop::signal::SignalKind;
    /// assert_eq!(SignalKind::INTERRUPT.as_raw(), 2);
    /// ```
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// Whether a program can listen for it.
    pub(super) fn check(self) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{self} {why}")));
        match self.0 {
            libc::SIGKILL | libc::SIGSTOP => refused("cannot be handled by a program; take SIGTERM or SIGUSR1"),
            libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => {
                refused("tells of a fault at the place where it happened and cannot be awaited")
            }
            number if number <= 0 || number > libc::SIGRTMAX() => refused("is not a signal"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SignalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}
