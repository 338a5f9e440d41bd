//! What goes wrong between us and a Redis; named by what to do next.

use std::fmt;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody answered: it is tried again.
    Unreachable {
        /// Where.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// It answers, but is not ready: loading its data, or full of clients. It is tried again.
    NotReady {
        /// Where.
        address: String,
        /// In Redis' words.
        reason: String,
    },
    /// Redis does not let us in.
    Login {
        /// Where.
        address: String,
        /// Who we said we were.
        user: String,
        /// In Redis' words.
        reason: String,
    },
    /// There is no such database, or it is not for us.
    Database {
        /// Where.
        address: String,
        /// In Redis' words.
        reason: String,
    },
    /// Older than Redis 6, or no Redis.
    NoRedis {
        /// Where.
        address: String,
        /// What it said.
        reason: String,
    },
    /// Its certificate, or the authorities to check it with.
    Tls {
        /// Where.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

impl ConnectError {
    /// Whether trying again may help without anybody doing something.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, ConnectError::Unreachable { .. } | ConnectError::NotReady { .. })
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Unreachable { address, reason } => {
                write!(f, "{address} does not answer: {reason}; is Redis running, and is the address right?")
            }
            ConnectError::NotReady { address, reason } => {
                write!(f, "{address} is not ready yet: {reason}; it is tried again by itself")
            }
            ConnectError::Login { address, user, reason } => write!(
                f,
                "{address} refused to log in {user}: {reason}; check the name and the password in the address \
                 (redis://user:password@host, or redis://:password@host for the default user)"
            ),
            ConnectError::Database { address, reason } => {
                write!(f, "{address} has no such database for us: {reason}; name another one behind the host's slash")
            }
            ConnectError::NoRedis { address, reason } => {
                write!(f, "{address} does not speak RESP3: {reason}; Redis 6 or newer is needed")
            }
            ConnectError::Tls { address, reason } => write!(f, "{address} cannot be trusted: {reason}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// It was sent, and the connection broke before the answer: it may or may not have taken effect.
    Unanswered {
        /// Where.
        address: String,
        /// How the connection broke.
        reason: String,
    },
    /// Redis refused it: nothing happened.
    Refused(Refusal),
    /// There is no connection, and without somebody doing something there will be none.
    Unusable(ConnectError),
    /// The client was closed.
    Closed,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unanswered { address, reason } => {
                write!(
                    f,
                    "the connection to {address} broke before the answer, so it is not known what happened: {reason}"
                )
            }
            CallError::Refused(refusal) => refusal.fmt(f),
            CallError::Unusable(error) => error.fmt(f),
            CallError::Closed => f.write_str("the client is closed"),
        }
    }
}

impl std::error::Error for CallError {}

/// A refusal of Redis'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where.
    pub address: String,
    /// What kind.
    pub kind: RefusalKind,
    /// In Redis' words.
    pub reason: String,
}

/// What a refusal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// It loads its data, a script runs for too long, its master is away: try again later.
    NotReady,
    /// It is out of memory: raise `maxmemory`, or delete something.
    OutOfMemory,
    /// It is a replica: the address should be the master's.
    ReadOnly,
    /// It is a node of a cluster, and the key is on another one.
    Moved,
    /// The user may not do that.
    Forbidden,
    /// It does not know the script; it is sent again by itself.
    NoScript,
    /// The command is wrong.
    Wrong,
}

impl Refusal {
    pub(crate) fn new(address: &str, reason: String) -> Refusal {
        let kind = match reason.split(' ').next().unwrap_or_default() {
            "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" => RefusalKind::NotReady,
            "OOM" => RefusalKind::OutOfMemory,
            "READONLY" => RefusalKind::ReadOnly,
            "MOVED" | "ASK" | "CROSSSLOT" => RefusalKind::Moved,
            "NOPERM" | "NOAUTH" => RefusalKind::Forbidden,
            "NOSCRIPT" => RefusalKind::NoScript,
            // A script's own calls are refused inside of another refusal.
            _ if reason.contains("OOM command not allowed") => RefusalKind::OutOfMemory,
            _ => RefusalKind::Wrong,
        };
        Refusal { address: address.to_owned(), kind, reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { address, kind, reason } = self;
        write!(f, "{address} refused: {reason}")?;
        f.write_str(match kind {
            RefusalKind::NotReady => "; try again later",
            RefusalKind::OutOfMemory => "; raise its maxmemory, or delete something",
            RefusalKind::ReadOnly => "; it is a replica: name the master's address",
            RefusalKind::Moved => "; it is a node of a cluster: name the one that has the key",
            RefusalKind::Forbidden => "; grant it to the user (ACL SETUSER)",
            RefusalKind::NoScript | RefusalKind::Wrong => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_and_say_the_way_out() {
        for (reason, kind, way_out) in [
            ("LOADING Redis is loading the dataset in memory", RefusalKind::NotReady, "try again later"),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                RefusalKind::OutOfMemory,
                "raise its maxmemory",
            ),
            ("ERR OOM command not allowed when used memory", RefusalKind::OutOfMemory, "raise its maxmemory"),
            ("READONLY You can't write against a read only replica.", RefusalKind::ReadOnly, "master's address"),
            ("NOSCRIPT No matching script.", RefusalKind::NoScript, ""),
            ("MOVED 3999 127.0.0.1:6381", RefusalKind::Moved, "cluster"),
            ("ERR unknown command", RefusalKind::Wrong, ""),
        ] {
            let refusal = Refusal::new("redis://h:1", reason.to_owned());
            assert_eq!(refusal.kind, kind, "{reason}");
            let told = refusal.to_string();
            assert!(told.contains("redis://h:1") && told.contains(reason) && told.contains(way_out), "{told}");
        }
    }
}
