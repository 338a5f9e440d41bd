//! `tidegate.toml` and `TIDEGATE_*`: the same options as on the command line, from places that last longer.
//!
//! What is said closest to the run counts: the command line, then the environment, then the file, then the default. The
//! file's options are put in front of the command's own words, so they are parsed, checked and explained by the same rules.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _};
use toml::{Table, Value};

use crate::args::Args;
use crate::terminal;

/// Looked for in the current directory, then in the user's configuration directory.
const FILE: &str = "tidegate.toml";

/// The command line, completed from the environment and the file. Ends the process where clap does: for `--help`, and for
/// words that make no sense.
pub(crate) fn parse() -> anyhow::Result<Args> {
    let words: Vec<OsString> = env::args_os().collect();
    let command = with_environment(Args::command(), true);
    let matches = command.clone().try_get_matches_from(&words).unwrap_or_else(|error| terminal::leave(&error, ""));
    let Some(file) = File::find(matches.get_one::<PathBuf>("config"))? else {
        return Ok(Args::from_arg_matches(&matches).unwrap_or_else(|error| terminal::leave(&error, "")));
    };
    file.check(&command)?;
    let words = file.complete(&command, &matches, words);
    let matches = command
        .try_get_matches_from(words)
        .unwrap_or_else(|error| terminal::leave(&error, &format!("some options came from {}", file.path.display())));
    Ok(Args::from_arg_matches(&matches).unwrap_or_else(|error| terminal::leave(&error, "")))
}

/// Gives every option its variable: `--rpm` is `TIDEGATE_RPM`. Hidden in the help, where forty of them would drown the rest.
fn with_environment(command: Command, top: bool) -> Command {
    let command = command.mut_args(|arg| match arg.get_long() {
        // Help and version are questions, and a configuration file may be named for every command at once.
        Some("help" | "version") | None => arg,
        Some(long) => {
            let name = format!("TIDEGATE_{}", long.replace('-', "_").to_uppercase());
            arg.env(name).hide_env(!top).hide_env_values(true)
        }
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, |sub| with_environment(sub, false)))
}

/// A configuration file: options at the top hold for every command that has them, those in `[explain]` for that one, those
/// in `[queue.ls]` for `queue ls`.
struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// The one that was named, which must exist, or the first of the usual ones that does.
    fn find(named: Option<&PathBuf>) -> anyhow::Result<Option<File>> {
        if let Some(path) = named {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
            return File::parse(path, &text).map(Some);
        }
        for path in usual_places() {
            match fs::read_to_string(&path) {
                Ok(text) => return File::parse(&path, &text).map(Some),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot read the configuration file {}", path.display()));
                }
            }
        }
        Ok(None)
    }

    fn parse(path: &Path, text: &str) -> anyhow::Result<File> {
        let table = text.parse().with_context(|| format!("{} is not valid TOML", path.display()))?;
        Ok(File { path: path.to_owned(), table })
    }

    /// An option that nobody has is a mistake worth stopping for: a limit that is misspelt would not hold.
    fn check(&self, command: &Command) -> anyhow::Result<()> {
        self.check_table(&self.table, command, "")
    }

    fn check_table(&self, table: &Table, command: &Command, place: &str) -> anyhow::Result<()> {
        for (key, value) in table {
            let name = key.replace('_', "-");
            if let Some(sub) = command.find_subcommand(&name) {
                let Value::Table(inner) = value else {
                    bail!(
                        "{}: '{place}{key}' is a command; write its options below [{place}{key}]",
                        self.path.display()
                    );
                };
                // Hidden: a command that this build leaves out. Its options are not known here, and do no harm.
                if sub.is_hide_set() {
                    continue;
                }
                self.check_table(inner, sub, &format!("{place}{key}."))?;
                continue;
            }
            let known = options_below(command);
            if !known.contains(name.as_str()) {
                let near = known.iter().min_by_key(|known| distance(known, &name));
                let hint = near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
                bail!("{}: there is no option '{place}{key}'{hint}", self.path.display());
            }
            if matches!(value, Value::Table(_) | Value::Datetime(_)) {
                bail!("{}: '{place}{key}' must be a string, a number, true or false, or a list", self.path.display());
            }
        }
        Ok(())
    }

    /// The words of the command line with the file's options behind the command's name, except those already given.
    fn complete(&self, command: &Command, matches: &ArgMatches, mut words: Vec<OsString>) -> Vec<OsString> {
        let (mut command, mut matches, mut at) = (command, matches, 1);
        let mut tables = vec![&self.table];
        while let Some((name, inner)) = matches.subcommand() {
            at = position(&words, at, name) + 1;
            if let Some(Value::Table(table)) = tables.last().and_then(|table| table.get(name)) {
                tables.push(table);
            }
            command = command.find_subcommand(name).expect("clap matched it");
            matches = inner;
        }
        let options: Vec<OsString> = command
            .get_arguments()
            .filter(|arg| !is_given(matches, arg) && !conflicts_with_given(command, matches, arg))
            .filter_map(|arg| {
                let long = arg.get_long()?;
                let value = tables.iter().rev().find_map(|table| lookup(table, long))?;
                Some(as_words(arg, long, value))
            })
            .flatten()
            .collect();
        words.splice(at..at, options);
        words
    }
}

fn usual_places() -> impl Iterator<Item = PathBuf> {
    let home = env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    [Some(PathBuf::from(FILE)), home.map(|home| home.join("tidegate").join(FILE))].into_iter().flatten()
}

/// Where the command's name stands; the value of `--config` may look like one.
fn position(words: &[OsString], from: usize, name: &str) -> usize {
    (from..words.len())
        .find(|&at| words[at] == name && words[at - 1] != "--config")
        .expect("clap found the command among these words")
}

fn lookup<'a>(table: &'a Table, long: &str) -> Option<&'a Value> {
    table.get(long).or_else(|| table.get(&long.replace('-', "_"))).filter(|value| !value.is_table())
}

fn is_given(matches: &ArgMatches, arg: &Arg) -> bool {
    matches!(matches.value_source(arg.get_id().as_str()), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// The file must not forbid what was asked for on the command line. Either of two may have said that they conflict.
fn conflicts_with_given(command: &Command, matches: &ArgMatches, arg: &Arg) -> bool {
    let forbids =
        |one: &Arg, other: &Arg| command.get_arg_conflicts_with(one).iter().any(|it| it.get_id() == other.get_id());
    command.get_arguments().any(|given| is_given(matches, given) && (forbids(given, arg) || forbids(arg, given)))
}

fn as_words(arg: &Arg, long: &str, value: &Value) -> Vec<OsString> {
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(on)) => {
            if *on {
                vec![format!("--{long}").into()]
            } else {
                Vec::new()
            }
        }
        (_, Value::Array(items)) => items.iter().map(|item| format!("--{long}={}", text(item)).into()).collect(),
        (_, value) => vec![format!("--{long}={}", text(value)).into()],
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The long names of a command's options and of those of the commands below it.
fn options_below(command: &Command) -> BTreeSet<&str> {
    let own = command.get_arguments().filter_map(Arg::get_long);
    let below = command.get_subcommands().flat_map(|sub| options_below(sub));
    own.chain(below).collect()
}

/// How many letters differ, roughly: enough to point at a slip of the finger.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let change = corner + usize::from(left != right);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
