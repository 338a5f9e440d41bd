//! Options whose value is a secret or may have one in it. Each has two siblings, `--X-file` and `--X-env`, so that no secret
//! must stand on the command line, where every user of the machine can read it. Also what is reported about such options:
//! files that others can read, passwords that are sent unencrypted.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{env, fs};

use anyhow::{Context as _, bail};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use tidegate_secret::{UserInfo, is_loopback, masked};

/// The options, without their dashes.
const SECRETS: &[&str] =
    &["broker", "limits", "result-backend", "management", "base-url", "pdf-password", "accept-key"];

/// Of these the value is an address, and only a password in it is a secret.
const ADDRESSES: &[&str] = &["broker", "limits", "result-backend", "management", "base-url"];

/// Where a secret may come from: the suffix of the option, the name of its value.
const SOURCES: [(&str, &str); 2] = [("-file", "FILE"), ("-env", "VAR")];

/// Adds the siblings to every command that has one of the options.
pub(crate) fn with_sources(mut command: Command) -> Command {
    for long in SECRETS {
        let Some(heading) = find(&command, long).map(|arg| arg.get_help_heading().map(str::to_owned)) else { continue };
        for (suffix, value) in SOURCES {
            let name = format!("{long}{suffix}");
            let help = match suffix {
                "-file" => format!("Read --{long} from this file"),
                _ => format!("Read --{long} from this environment variable"),
            };
            let arg = Arg::new(name.clone()).long(name).value_name(value).help(help).hide_short_help(true);
            command = command.arg(match &heading {
                Some(heading) => arg.help_heading(heading.clone()),
                None => arg,
            });
        }
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_sources))
}

fn find<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// Returns `true` if two options are two ways to give one value.
pub(crate) fn are_one(a: &Arg, b: &Arg) -> bool {
    let base = |arg: &Arg| arg.get_long().and_then(|long| SECRETS.iter().find(|base| is_way(base, long)));
    base(a).is_some_and(|of_a| base(b) == Some(of_a))
}

fn is_way(base: &str, long: &str) -> bool {
    long.strip_prefix(base).is_some_and(|rest| rest.is_empty() || SOURCES.iter().any(|(suffix, _)| *suffix == rest))
}

/// Reads the values that are in files and variables. Returns them as arguments, to be parsed like all others, and what there is
/// to report.
pub(crate) fn resolve(command: &Command, matches: &ArgMatches) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let (mut words, mut notices) = (Vec::new(), Vec::new());
    for (long, what) in [
        ("api-key-file", "the key"),
        ("metrics-token-file", "the token of --metrics"),
        ("dashboard-token-file", "the token of --dashboard"),
    ] {
        let path = value(matches, command, long);
        notices.extend(path.and_then(|path| readable_by_others(Path::new(&path), what)));
    }
    for base in SECRETS {
        let given = |source: ValueSource| -> Vec<&str> {
            let ways = command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| is_way(base, long)));
            let given = ways.filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(source));
            given.filter_map(Arg::get_long).collect()
        };
        let mut ways = given(ValueSource::CommandLine);
        if ways.is_empty() {
            ways = given(ValueSource::EnvVariable);
        }
        if let [one, other, ..] = ways[..] {
            bail!("--{one} and --{other} are two ways to give one value; use one");
        }
        let Some(long) = ways.first().filter(|long| *long != base) else { continue };
        let place = value(matches, command, long).with_context(|| format!("--{long} has no value"))?;
        let text = if long.ends_with("-file") {
            notices.extend(readable_by_others(Path::new(&place), &format!("--{base}")));
            fs::read_to_string(&place).with_context(|| format!("--{long}: cannot read {place}"))?
        } else {
            env::var(&place).ok().with_context(|| format!("--{long}: the environment variable {place} is not set"))?
        };
        // A newline at the end is the editor's; other space may be part of a password.
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            bail!("--{long}: {place} is empty");
        }
        words.push(format!("--{base}={text}"));
    }
    Ok((words, notices))
}

/// What is reported about the values that a command is run with: passwords that are sent where others can read them.
pub(crate) fn exposed(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let addresses = ["broker", "limits", "result-backend", "management"].into_iter();
    let plain = |long: &str| {
        let address = value(matches, command, long)?;
        let host = plain_host(&address)?;
        Some(format!("the password of --{long} is sent to {host} unencrypted; use {}", encrypted(&address)))
    };
    addresses.filter_map(plain).collect()
}

/// The first host of another machine that `address` sends its password to unencrypted.
fn plain_host(address: &str) -> Option<String> {
    let (scheme, _) = address.split_once("://").filter(|(scheme, _)| matches!(*scheme, "amqp" | "redis" | "http"))?;
    let (bare, user) = UserInfo::split(address);
    user?;
    let hosts = bare[scheme.len() + 3..].split(['/', '?']).next()?;
    let name = |host: &str| match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest).to_owned(),
        None => host.split(':').next().unwrap_or(host).to_owned(),
    };
    hosts.split(',').map(name).find(|host| !is_loopback(host))
}

fn encrypted(address: &str) -> &'static str {
    match address.split(':').next() {
        Some("amqp") => "amqps://",
        Some("http") => "https://",
        _ => "rediss://",
    }
}

/// Returns a warning if other users of the machine can read a file with `what` in it.
pub(crate) fn readable_by_others(path: &Path, what: &str) -> Option<String> {
    // A pipe or a device, such as /dev/stdin or the <(…) of a shell, is not readable by others.
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mode = found.permissions().mode() & 0o777;
    let path = path.display();
    (mode & 0o044 != 0)
        .then(|| format!("other users can read {path}, which has {what} (mode {mode:04o}); chmod 600 {path}"))
}

/// Returns `true` if `value` of the option `long` has a secret in it.
pub(crate) fn is_secret(long: &str, value: &str) -> bool {
    match ADDRESSES.contains(&long) {
        true => UserInfo::split(value).1.is_some(),
        false => SECRETS.contains(&long),
    }
}

fn value(matches: &ArgMatches, command: &Command, long: &str) -> Option<String> {
    let arg = find(command, long)?;
    let value = matches.get_raw(arg.get_id().as_str())?.next()?;
    Some(value.to_string_lossy().into_owned())
}

/// Takes the password out of an error about a value that does not parse: clap shows the value.
pub(crate) fn without_secret(mut error: clap::Error) -> clap::Error {
    let is_secret = |arg: &str| SECRETS.iter().any(|long| arg.split([' ', '=']).next() == Some(&format!("--{long}")));
    let (Some(ContextValue::String(arg)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return error;
    };
    if is_secret(arg) {
        let shown = masked(value).into_owned();
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_exposed_by_plain_addresses_of_other_machines_alone() {
        for (address, host) in [
            ("amqp://u:p@rabbit/x", Some("rabbit")),
            ("amqp://u:p@localhost,rabbit:5672", Some("rabbit")),
            ("redis://:p@10.0.0.1:6379/0", Some("10.0.0.1")),
            ("redis://:p@[fd00::1]:6379/0", Some("fd00::1")),
            ("redis://:p@[::1]:6379/0", None),
            ("amqp://u:p@127.0.0.1", None),
            ("amqp://rabbit", None),
            ("amqps://u:p@rabbit", None),
            ("rediss://:p@cache", None),
            ("http://u:p@rabbit:15672", Some("rabbit")),
            ("http://u:p@localhost:15672/x", None),
            ("https://u:p@rabbit:15671", None),
            ("sqlite:a@b", None),
            ("unix://u:p@/run/redis.sock", None),
        ] {
            assert_eq!(plain_host(address).as_deref(), host, "{address}");
        }
    }
}
