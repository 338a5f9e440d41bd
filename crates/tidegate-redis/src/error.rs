//! Errors of the client, named by the caller's next move.

use std::fmt;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// No answer from the address. The client tries again.
    Unreachable {
        /// The address.
        address: String,
        /// The reason, from the operating system.
        reason: String,
    },
    /// Redis answers but is not ready: it loads its data, or has too many clients. The client tries again.
    NotReady {
        /// The address.
        address: String,
        /// The message of Redis.
        reason: String,
    },
    /// Redis refused the login.
    Login {
        /// The address.
        address: String,
        /// The user name.
        user: String,
        /// The message of Redis.
        reason: String,
    },
    /// The database does not exist, or the user has no access to it.
    Database {
        /// The address.
        address: String,
        /// The message of Redis.
        reason: String,
    },
    /// The server is older than Redis 6, or is not a Redis.
    NoRedis {
        /// The address.
        address: String,
        /// What it answered.
        reason: String,
    },
    /// The certificate, or the authorities that should confirm it, cannot be used.
    Tls {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

impl ConnectError {
    /// Returns `true` if trying again may help without a change of configuration.
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
    /// The command was sent, and the connection broke before the answer. It may or may not have taken effect.
    Unanswered {
        /// The address.
        address: String,
        /// How the connection broke.
        reason: String,
    },
    /// Redis refused the command; it had no effect.
    Refused(Refusal),
    /// There is no connection, and there will be none without a change of configuration.
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
                    "the connection to {address} broke before the answer, so it may or may not have taken effect: {reason}"
                )
            }
            CallError::Refused(refusal) => refusal.fmt(f),
            CallError::Unusable(error) => error.fmt(f),
            CallError::Closed => f.write_str("the client is closed"),
        }
    }
}

impl std::error::Error for CallError {}

/// An error reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The address.
    pub address: String,
    /// Its kind.
    pub kind: RefusalKind,
    /// The message of Redis.
    pub reason: String,
}

/// The kind of a refusal, by what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Redis loads its data, a script runs for too long, or the master is away: try again later.
    NotReady,
    /// Redis is out of memory: raise `maxmemory`, or delete data.
    OutOfMemory,
    /// The server is a replica: use the address of the master.
    ReadOnly,
    /// The server is a node of a cluster, and the key is on another node.
    Moved,
    /// The user has no permission for the command.
    Forbidden,
    /// Redis does not have the script; the client sends it again.
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
            // An error of a call within a script is wrapped in another error.
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
