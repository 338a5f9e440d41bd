//! Which variables of the worker's environment its handlers see. The worker's has keys and the broker's address; a handler that
//! is tricked, or writes its environment into a log, must not have them to give away.

use std::ffi::{OsStr, OsString};

use tidegate_loop::process::Command;

/// How programs, libraries, files and texts are found, and whose they are.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TZDIR",
    "TERM",
    "TMPDIR",
    "TMP",
    "TEMP",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];

/// The same for groups of variables.
const PREFIXES: &[&str] = &["LC_", "PYTHON", "XDG_"];

/// The worker's queue, for handlers that enqueue tasks: inherited while it is a file, which has no password.
const BROKER: &str = "TIDEGATE_BROKER";

/// Which variables children inherit: a list of harmless ones, and those that are named.
///
/// The list: `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `PWD`, `HOSTNAME`, `LANG`, `LANGUAGE`, `LC_*`, `TZ`, `TZDIR`, `TERM`,
/// `TMPDIR`, `TMP`, `TEMP`, `LD_LIBRARY_PATH`, `SSL_CERT_FILE`, `SSL_CERT_DIR`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `PYTHON*`,
/// `XDG_*`, and `TIDEGATE_BROKER` if it names a file.
///
/// ```
/// use tidegate_worker::Inherited;
///
/// let inherited = Inherited::harmless().and("DATABASE_URL").and("MYAPP_*");
/// assert!(inherited.allows("PATH", "/bin") && inherited.allows("MYAPP_MODE", "fast"));
/// assert!(!inherited.allows("OPENAI_API_KEY", "sk-x"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Names, or beginnings of names with a `*` behind.
    more: Vec<String>,
}

impl Inherited {
    /// The list alone.
    #[must_use]
    pub fn harmless() -> Inherited {
        Inherited::default()
    }

    /// The same and `pattern`: a name, a beginning of names such as `MYAPP_*`, or `*` for all.
    #[must_use]
    pub fn and(mut self, pattern: impl Into<String>) -> Inherited {
        self.more.push(pattern.into());
        self
    }

    /// Returns `true` if children inherit this variable.
    #[must_use]
    pub fn allows(&self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> bool {
        let (name, value) = (name.as_ref(), value.as_ref());
        let bytes = name.as_encoded_bytes();
        NAMES.iter().any(|harmless| name == *harmless)
            || PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()))
            || (name == BROKER && value.as_encoded_bytes().starts_with(b"sqlite:"))
            || self.more.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => bytes.starts_with(prefix.as_bytes()),
                None => name == pattern.as_str(),
            })
    }

    /// Gives `command` these variables of `environment`, and no other.
    pub(super) fn give(&self, command: &mut Command, environment: impl Iterator<Item = (OsString, OsString)>) {
        command.env_clear().envs(environment.filter(|(name, value)| self.allows(name, value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_inherited_unless_they_are_named() {
        let harmless = Inherited::harmless();
        for name in ["PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TZ", "TMPDIR"] {
            assert!(harmless.allows(name, "x"), "{name}");
        }
        let secrets =
            ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "TIDEGATE_LIMITS", "TIDEGATE_API_KEY_FILE", "https_proxy"];
        for name in secrets {
            assert!(!harmless.allows(name, "x"), "{name}");
            assert!(harmless.clone().and(name).allows(name, "x"), "{name}");
            assert!(harmless.clone().and("*").allows(name, "x"), "{name}");
        }
        assert!(harmless.clone().and("AWS_*").allows("AWS_REGION", "x"));
        assert!(!harmless.clone().and("AWS").allows("AWS_REGION", "x"));
    }

    #[test]
    fn a_queue_in_a_file_is_inherited_and_one_behind_a_password_is_not() {
        assert!(Inherited::harmless().allows("TIDEGATE_BROKER", "sqlite:/var/lib/queue.db"));
        assert!(!Inherited::harmless().allows("TIDEGATE_BROKER", "amqp://shop:hunter2@rabbit"));
    }
}
