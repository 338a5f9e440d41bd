//! Which selector a loop uses, and how it is named.

use std::fmt;
use std::io;
use std::str::FromStr;

/// The ways a loop can wait for its descriptors. Chosen with [`Builder::selector`](crate::Builder::selector), or with
/// the environment variable `TIDEGATE_SELECTOR`, which takes the names that [`Display`](fmt::Display) writes.
///
/// ```
/// use tidegate_loop::{EventLoop, SelectorKind};
/// let event_loop = EventLoop::builder().selector(SelectorKind::Select).build().unwrap();
/// assert_eq!(event_loop.selector(), SelectorKind::Select);
/// assert_eq!("epoll-lt".parse(), Ok(SelectorKind::EpollLevel));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SelectorKind {
    /// The best there is: `epoll`.
    #[default]
    Auto,
    /// `select`: works everywhere, looks at every descriptor in every wait, and knows those below 1,024 only.
    Select,
    /// `epoll`, level-triggered: tells of a descriptor for as long as it is ready.
    EpollLevel,
    /// `epoll`, edge-triggered: tells when a descriptor becomes ready. One registration a socket, none a wait.
    Epoll,
    /// `io_uring`, where the kernel has it and allows it; otherwise `epoll`, and the log says why.
    IoUring,
}

/// The variable that chooses the selector of loops whose builder did not.
pub(crate) const VARIABLE: &str = "TIDEGATE_SELECTOR";

impl SelectorKind {
    const ALL: [SelectorKind; 5] = [
        SelectorKind::Select,
        SelectorKind::EpollLevel,
        SelectorKind::Epoll,
        SelectorKind::IoUring,
        SelectorKind::Auto,
    ];

    /// What the environment asks for.
    pub(crate) fn from_env() -> io::Result<SelectorKind> {
        match std::env::var_os(VARIABLE) {
            None => Ok(SelectorKind::Auto),
            Some(value) => value.to_string_lossy().parse().map_err(|error: UnknownSelector| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("the environment variable {VARIABLE}: {error}"))
            }),
        }
    }
}

impl fmt::Display for SelectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SelectorKind::Auto => "auto",
            SelectorKind::Select => "select",
            SelectorKind::EpollLevel => "epoll-lt",
            SelectorKind::Epoll => "epoll",
            SelectorKind::IoUring => "io_uring",
        })
    }
}

impl FromStr for SelectorKind {
    type Err = UnknownSelector;

    fn from_str(name: &str) -> Result<SelectorKind, UnknownSelector> {
        let known = SelectorKind::ALL.into_iter().find(|kind| kind.to_string() == name);
        known.ok_or_else(|| UnknownSelector { name: name.to_owned() })
    }
}

/// A name that is not a selector's.
///
/// ```
/// let error = "kqueue".parse::<tidegate_loop::SelectorKind>().unwrap_err();
/// assert_eq!(error.to_string(), "there is no selector \"kqueue\"; choose select, epoll-lt, epoll, io_uring or auto");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSelector {
    name: String,
}

impl fmt::Display for UnknownSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no selector {:?}; choose ", self.name)?;
        let (last, others) = SelectorKind::ALL.split_last().expect("there are some");
        let others: Vec<String> = others.iter().map(SelectorKind::to_string).collect();
        write!(f, "{} or {last}", others.join(", "))
    }
}

impl std::error::Error for UnknownSelector {}
