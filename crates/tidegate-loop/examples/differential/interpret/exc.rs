//! Python's exceptions as values, by the names the transcript has for them.

use std::fmt::{self, Display, Formatter};

use tidegate_loop::{FutureError, JoinError};

use crate::program::Kind;

/// What a statement raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exc {
    Cancelled,
    Timeout,
    /// The programs' own.
    Error(i64),
    Group(Vec<Exc>),
    AwaitsItself,
    EmptyWait,
}

impl Exc {
    /// Whether `except kind` catches it.
    pub(crate) fn is_a(&self, kind: Kind) -> bool {
        match kind {
            Kind::Cancelled => *self == Exc::Cancelled,
            Kind::Timeout => *self == Exc::Timeout,
            Kind::Error => matches!(self, Exc::Error(_)),
            Kind::Group => matches!(self, Exc::Group(_)),
            Kind::Exception => *self != Exc::Cancelled,
            Kind::Everything => true,
        }
    }
}

impl Display for Exc {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Exc::Cancelled => f.write_str("Cancelled"),
            Exc::Timeout => f.write_str("Timeout"),
            Exc::Error(number) => write!(f, "Error({number})"),
            Exc::Group(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                write!(f, "Group[{}]", errors.join(", "))
            }
            Exc::AwaitsItself => f.write_str("AwaitsItself"),
            Exc::EmptyWait => f.write_str("EmptyWait"),
        }
    }
}

impl std::error::Error for Exc {}

impl From<JoinError> for Exc {
    fn from(error: JoinError) -> Exc {
        match error {
            JoinError::Cancelled => Exc::Cancelled,
            JoinError::AwaitsItself => Exc::AwaitsItself,
            other => panic!("no program does this: {other}"),
        }
    }
}

impl From<FutureError> for Exc {
    fn from(error: FutureError) -> Exc {
        match error {
            FutureError::Cancelled => Exc::Cancelled,
            FutureError::Failed(error) => match error.downcast_ref::<Exc>() {
                Some(error) => error.clone(),
                None => panic!("no program sets such an error: {error}"),
            },
            other => panic!("no program does this: {other}"),
        }
    }
}

/// The outcome of a task or future as the transcript has it.
pub(crate) fn show(outcome: &Result<i64, Exc>) -> String {
    match outcome {
        Ok(value) => format!("={value}"),
        Err(Exc::Cancelled) => "!Cancelled".into(),
        Err(error) => format!("!{error}"),
    }
}

/// As Python prints it.
pub(crate) fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
