//! Which options a `tidegate.toml` in the current directory may set. Such a file may come with a clone or an unpacked archive,
//! so it may tune a run, but not decide what is run, read, deleted or paid for, where it is sent, or with which secret.
//!
//! Each option has a class in one table. A test walks the options of every command and fails for one without a class.

use std::fs;
use std::path::{Component, Path};

/// Where the value of an option may come from. The command line, the environment, `--config` and the file in the user's
/// configuration directory may set every option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Harmless in a file of any origin: a number, a limit, a format.
    Anyone,
    /// Harmless unless it names a file to read: a text without `@FILE`.
    AnyonesText,
    /// Harmless below the current directory: where a command writes.
    OutputBelow,
    /// Decides what runs, what is read, deleted or sent, where to, or with which secret: not from the current directory.
    UserOnly,
}

use Trust::{Anyone, AnyonesText, OutputBelow, UserOnly};

/// Option, without its dashes → class. One name has one class in all commands that have it.
const CLASSES: &[(&str, Trust)] = &[
    // Limits, sizes and times.
    ("rpm", Anyone),
    ("tpm", Anyone),
    ("itpm", Anyone),
    ("otpm", Anyone),
    ("rpd", Anyone),
    ("window", Anyone),
    ("minute", Anyone),
    ("day-zone", Anyone),
    ("global-concurrency", Anyone),
    ("page-concurrency", Anyone),
    ("picture-concurrency", Anyone),
    ("file-concurrency", Anyone),
    ("max-concurrency", Anyone),
    ("max-in-flight", Anyone),
    ("limits-lost", Anyone),
    ("retries", Anyone),
    ("timeout", Anyone),
    ("outage-limit", Anyone),
    ("max-tokens", Anyone),
    ("temperature", Anyone),
    ("context-pages", Anyone),
    ("pages", Anyone),
    ("text-only", Anyone),
    ("picture-px", Anyone),
    ("skip-bad-lines", Anyone),
    // Workers and queues: how much, how long.
    ("concurrency", Anyone),
    ("high-water", Anyone),
    ("low-water", Anyone),
    ("prefetch", Anyone),
    ("pipeline", Anyone),
    ("max-tasks", Anyone),
    ("max-memory", Anyone),
    ("max-body", Anyone),
    ("mode", Anyone),
    ("soft-limit", Anyone),
    ("hard-limit", Anyone),
    ("warm-timeout", Anyone),
    ("backoff", Anyone),
    ("crashes", Anyone),
    ("task", Anyone),
    ("limit", Anyone),
    ("result-ttl", Anyone),
    ("result-expires", Anyone),
    ("no-remote-control", Anyone),
    ("countdown", Anyone),
    ("eta", Anyone),
    ("expires", Anyone),
    ("priority", Anyone),
    ("unique-for", Anyone),
    ("wait", Anyone),
    // Plans, rehearsals and traces.
    ("requests", Anyone),
    ("tokens-per-request", Anyone),
    ("answer-tokens", Anyone),
    ("price-in", Anyone),
    ("price-out", Anyone),
    ("latency", Anyone),
    ("seed", Anyone),
    ("fail", Anyone),
    ("refusals", Anyone),
    ("count-refused", Anyone),
    ("count-tokens", Anyone),
    ("no-rate-headers", Anyone),
    ("known-model", Anyone),
    ("strict", Anyone),
    ("relaxed", Anyone),
    // What is shown.
    ("progress", Anyone),
    ("json", Anyone),
    ("format", Anyone),
    ("log", Anyone),
    ("log-format", Anyone),
    ("traceback", Anyone),
    ("list", Anyone),
    ("read-only", Anyone),
    ("code", Anyone),
    // What is asked.
    ("prompt", AnyonesText),
    ("language", AnyonesText),
    // Where a command writes.
    ("out", OutputBelow),
    ("output", OutputBelow),
    // Where things are sent, and with which secret.
    ("config", UserOnly),
    ("provider", UserOnly),
    ("base-url", UserOnly),
    ("insecure-http", UserOnly),
    ("model", UserOnly),
    ("api-key-env", UserOnly),
    ("api-key-file", UserOnly),
    ("limits", UserOnly),
    ("limits-name", UserOnly),
    ("broker", UserOnly),
    ("queue", UserOnly),
    ("queue-kind", UserOnly),
    ("codec", UserOnly),
    ("result-backend", UserOnly),
    ("management", UserOnly),
    ("name", UserOnly),
    ("events", UserOnly),
    ("track-started", UserOnly),
    ("dashboard", UserOnly),
    ("dashboard-token-file", UserOnly),
    ("dashboard-host", UserOnly),
    ("dashboard-read-only", UserOnly),
    ("metrics", UserOnly),
    ("metrics-token-file", UserOnly),
    ("metrics-token-env", UserOnly),
    ("listen", UserOnly),
    ("host", UserOnly),
    ("token-file", UserOnly),
    ("upstream", UserOnly),
    ("accept-key", UserOnly),
    ("pdf-password", UserOnly),
    ("broker-file", UserOnly),
    ("broker-env", UserOnly),
    ("limits-file", UserOnly),
    ("limits-env", UserOnly),
    ("result-backend-file", UserOnly),
    ("result-backend-env", UserOnly),
    ("management-file", UserOnly),
    ("management-env", UserOnly),
    ("base-url-file", UserOnly),
    ("base-url-env", UserOnly),
    ("pdf-password-file", UserOnly),
    ("pdf-password-env", UserOnly),
    ("accept-key-file", UserOnly),
    ("accept-key-env", UserOnly),
    // What is run, published, read, deleted or paid for again.
    ("handler", UserOnly),
    ("allow-model", UserOnly),
    ("allow-max-tokens", UserOnly),
    ("handler-env", UserOnly),
    ("cron", UserOnly),
    ("args", UserOnly),
    ("kwargs", UserOnly),
    ("id", UserOnly),
    ("unique", UserOnly),
    ("pdf", UserOnly),
    ("fresh", UserOnly),
    ("retry-failed", UserOnly),
    ("of", UserOnly),
    ("all", UserOnly),
    ("yes", UserOnly),
    ("repair", UserOnly),
    ("dir", UserOnly),
    ("max-upload", UserOnly),
    ("max-disk", UserOnly),
    ("keep", UserOnly),
];

/// Returns the class of an option; one without a class is treated as [`Trust::UserOnly`].
pub(crate) fn of(long: &str) -> Trust {
    CLASSES.iter().find(|(name, _)| *name == long).map_or(UserOnly, |(_, trust)| *trust)
}

impl Trust {
    /// Returns why a file in the current directory may not set this option to `value`, or `None` if it may.
    pub(crate) fn refusal(self, value: &str) -> Option<&'static str> {
        match self {
            Anyone => None,
            AnyonesText if value.starts_with('@') => {
                Some("a file in the current directory may set a text, but not name a file to read")
            }
            AnyonesText => None,
            OutputBelow if is_below_here(Path::new(value)) => None,
            OutputBelow => Some(
                "a file in the current directory may only name an output below it, without '..', hidden names or links \
                 that lead elsewhere",
            ),
            UserOnly => Some("a file in the current directory may not set it"),
        }
    }
}

/// Returns `true` if writing to `path` stays below the current directory: relative, without `..`, no hidden name (`.git`,
/// `.bashrc`), and no symbolic link among the parts that exist.
fn is_below_here(path: &Path) -> bool {
    let plain = |component: Component<'_>| match component {
        Component::CurDir => true,
        Component::Normal(name) => !name.as_encoded_bytes().starts_with(b"."),
        _ => false,
    };
    path.components().all(plain)
        && path
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
            .all(|part| !fs::symlink_metadata(part).is_ok_and(|found| found.is_symlink()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Command;

    use super::*;

    /// The options of `command` and of the commands below it, aliases included, each with the command that has it.
    fn options(command: &Command, place: &str, found: &mut Vec<(String, String)>) {
        for arg in command.get_arguments() {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            for long in arg.get_long().into_iter().chain(aliases).filter(|long| !matches!(*long, "help" | "version")) {
                found.push((place.to_owned(), long.to_owned()));
            }
        }
        for sub in command.get_subcommands() {
            options(sub, &format!("{place} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn every_option_of_every_command_has_a_class_and_every_class_an_option() {
        let mut found = Vec::new();
        options(&crate::config::command(), "tidegate", &mut found);
        assert!(found.len() > 200, "only {} options were found", found.len());
        let without: Vec<_> = found.iter().filter(|(_, long)| !CLASSES.iter().any(|(name, _)| name == long)).collect();
        assert!(without.is_empty(), "give these options a class in trust.rs: {without:?}");
        let names: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "an option has two classes");
        // A build without the PDF reader lacks the options that only its commands have.
        if cfg!(feature = "pdf") {
            for name in names {
                assert!(found.iter().any(|(_, long)| long == name), "there is no option --{name} any more");
            }
        }
    }

    #[test]
    fn outputs_stay_below_the_current_directory() {
        for path in ["out", "a/b/c.jsonl", "./out", "-"] {
            assert_eq!(OutputBelow.refusal(path), None, "{path}");
        }
        for path in ["/etc/passwd", "..", "a/../../b", ".git/hooks", ".bashrc", "a/.ssh/x"] {
            assert!(OutputBelow.refusal(path).is_some(), "{path}");
        }
    }
}
