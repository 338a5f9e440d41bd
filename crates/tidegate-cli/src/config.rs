//! `tidegate.toml` and `TIDEGATE_*`: the same options as on the command line, from places that last longer.
//!
//! The first of these that has an option counts: the command line, the environment, the file named with `--config`; without
//! `--config` the file in the current directory, then the one in the user's configuration directory; the default. A file's
//! options are inserted before the command's own arguments, so they are parsed, checked and explained by the same rules.
//!
//! The file in the current directory may set harmless options only (`trust.rs`), and what it has set is reported.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _};
use rustix::fs::OFlags;
use serde_json::json;
use toml::{Table, Value};

use crate::args::Args;
use crate::{secret_args, terminal, trust};

/// Looked for in the current directory and in the user's configuration directory.
const FILE: &str = "tidegate.toml";

/// The one in the current directory, as messages name it.
const HERE: &str = "./tidegate.toml";

/// The most bytes that a configuration file may have.
const LEN_MAX: u64 = 1024 * 1024;

/// The command line, completed from the environment and the files. Ends the process where clap does: for `--help`, and for
/// arguments that do not parse.
pub(crate) fn parse() -> anyhow::Result<Args> {
    let mut words: Vec<OsString> = env::args_os().collect();
    let program = command();
    let parse = |words: &[OsString]| program.clone().try_get_matches_from(words).map_err(secret_args::without_secret);
    let mut matches = parse(&words).unwrap_or_else(|error| terminal::leave(&error, ""));
    let files = File::find(matches.get_one::<PathBuf>("config"))?;
    let paths: Vec<String> = files.iter().map(|file| file.path.display().to_string()).collect();
    let mut run = Run::new(&program, &matches, &words);
    for file in &files {
        file.check(&program)?;
        run.take(file)?;
    }
    let Run { at, options, mut notices, from_here, .. } = run;
    if !from_here.is_empty() {
        notices.insert(0, format!("options from {HERE}: {}", from_here.join(", ")));
    }
    let insert = |words: &mut Vec<OsString>, options: Vec<OsString>| {
        words.splice(at..at, options);
        parse(words).unwrap_or_else(|error| {
            let origin = format!("some options came from {}", paths.join(" and "));
            terminal::leave(&error, if paths.is_empty() { "" } else { &origin })
        })
    };
    matches = insert(&mut words, options);
    let (found, about) = secret_args::resolve(leaf(&program, &matches).0, leaf(&program, &matches).1)?;
    notices.extend(about.into_iter().map(|notice| format!("warning: {notice}")));
    if !found.is_empty() {
        matches = insert(&mut words, found.into_iter().map(OsString::from).collect());
    }
    let (command, of_command) = leaf(&program, &matches);
    notices.extend(secret_args::exposed(command, of_command).into_iter().map(|notice| format!("warning: {notice}")));
    report(&notices, &matches);
    Ok(Args::from_arg_matches(&matches).unwrap_or_else(|error| terminal::leave(&error, "")))
}

/// The command that runs, and what it was given.
fn leaf<'a>(mut command: &'a Command, mut matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, inner)) = matches.subcommand() {
        command = command.find_subcommand(name).expect("clap matched it");
        matches = inner;
    }
    (command, matches)
}

/// The whole command line, with the options that are derived from others.
pub(crate) fn command() -> Command {
    with_environment(secret_args::with_sources(Args::command()), true)
}

/// Reports on standard error. Readers of `--progress json` get an event.
fn report(notices: &[String], matches: &ArgMatches) {
    let is_json = |(_, sub): (&str, &ArgMatches)| {
        let mut progress = sub.try_get_raw("progress").ok().flatten()?;
        Some(progress.next()? == "json")
    };
    let is_json = matches.subcommand().and_then(is_json).unwrap_or(false);
    for text in notices {
        match is_json {
            true => terminal::say_json(&json!({"event": "message", "text": text}).to_string()),
            false => terminal::say(format!("tidegate: {text}")),
        }
    }
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
    /// Whether the user has chosen it: named with `--config`, or in the user's own directory. Another one may set harmless
    /// options only.
    trusted: bool,
}

/// Says where a file is wrong. Its lines are not quoted: they may hold passwords.
fn position_and_message(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let before = &text[..text.floor_char_boundary(at)];
    let (line, column) = (before.matches('\n').count(), before.rsplit('\n').next().unwrap_or_default().chars().count());
    let key = text.lines().nth(line).and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
    let option = key.map(|key| format!(" ({key})")).unwrap_or_default();
    format!("line {}, column {}{option}: {}", line + 1, column + 1, error.message())
}

impl File {
    /// The one that was named, which must exist, or those of the usual ones that do, the most important first.
    fn find(named: Option<&PathBuf>) -> anyhow::Result<Vec<File>> {
        if let Some(path) = named {
            return Ok(vec![File::read(path, true)?]);
        }
        let own = own_file();
        // Run from the configuration directory itself, it is one file, and the user's own.
        let here = match (fs::canonicalize(HERE), own.as_ref().map(fs::canonicalize)) {
            (Ok(here), Some(Ok(own))) if here == own => None,
            _ => Some(PathBuf::from(HERE)),
        };
        let mut files = Vec::new();
        for (path, trusted) in here.map(|path| (path, false)).into_iter().chain(own.map(|path| (path, true))) {
            let exists = match path.symlink_metadata() {
                Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                Ok(_) => true,
            };
            if exists {
                files.push(File::read(&path, trusted)?);
            }
        }
        Ok(files)
    }

    fn read(path: &Path, trusted: bool) -> anyhow::Result<File> {
        let text = read_bounded(path, trusted)
            .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
        let table = text.parse().map_err(|error| {
            anyhow!("{} is not valid TOML: {}", path.display(), position_and_message(&text, &error))
        })?;
        Ok(File { path: path.to_owned(), table, trusted })
    }

    /// Refuses unknown options: a limit with a misspelt name would not hold.
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

    /// Refuses a value that a file in the current directory may not set.
    fn allow(&self, long: &str, value: &Value) -> anyhow::Result<()> {
        if self.trusted {
            return Ok(());
        }
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let Some(why) = values.iter().find_map(|value| trust::of(long).refusal(&text(value))) else { return Ok(()) };
        let own = own_file().map(|path| format!(", or move the option to {}", path.display())).unwrap_or_default();
        bail!(
            "{path} sets '{long}': {why}; if you trust this file, name it (tidegate --config {path} …){own}",
            path = self.path.display()
        )
    }
}

/// Reads the whole file if it is no larger than [`LEN_MAX`].
///
/// A file that came with a folder may be a link to another file, whose lines an error would quote, or a pipe without
/// a writer. Unless the user has chosen the file, only regular files are read.
fn read_bounded(path: &Path, trusted: bool) -> anyhow::Result<String> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    if !trusted {
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let kind = path.symlink_metadata()?.file_type();
        if !kind.is_file() {
            let kind = if kind.is_symlink() { "a symbolic link" } else { "not a regular file" };
            bail!("it is {kind}; if you trust it, name it (tidegate --config {} …)", path.display());
        }
    }
    let mut text = String::new();
    options.open(path)?.take(LEN_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LEN_MAX {
        bail!("it is larger than {} KiB", LEN_MAX / 1024);
    }
    Ok(text)
}

/// The command that is about to run, and the options that the files add to it.
struct Run<'a> {
    /// From the whole program down to the command that runs.
    names: Vec<String>,
    command: &'a Command,
    /// Options that have a value: from the command line, the environment, or a file that was taken before.
    given: BTreeSet<&'a str>,
    /// Where options can be inserted: behind the command's name.
    at: usize,
    options: Vec<OsString>,
    /// The options that the file in the current directory has set.
    from_here: Vec<String>,
    notices: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(mut command: &'a Command, mut matches: &ArgMatches, words: &[OsString]) -> Run<'a> {
        let (mut names, mut at) = (Vec::new(), 1);
        while let Some((name, inner)) = matches.subcommand() {
            at = position(words, at, name) + 1;
            names.push(name.to_owned());
            command = command.find_subcommand(name).expect("clap matched it");
            matches = inner;
        }
        let given = command.get_arguments().filter(|arg| is_given(matches, arg)).map(|arg| arg.get_id().as_str());
        Run {
            names,
            command,
            given: given.collect(),
            at,
            options: Vec::new(),
            from_here: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Adds the options of `file` that have no value yet.
    fn take(&mut self, file: &File) -> anyhow::Result<()> {
        let mut tables = vec![&file.table];
        for name in &self.names {
            match tables[tables.len() - 1].get(name) {
                Some(Value::Table(table)) => tables.push(table),
                _ => break,
            }
        }
        let before = self.given.clone();
        let mut has_secret = false;
        for arg in self.command.get_arguments() {
            let (Some(long), id) = (arg.get_long(), arg.get_id().as_str()) else { continue };
            let Some(value) = tables.iter().rev().find_map(|table| lookup(table, long)) else { continue };
            if before.contains(id) || self.conflicts(arg, &before) {
                continue;
            }
            file.allow(long, value)?;
            has_secret |= secret_args::is_secret(long, &text(value));
            self.options.extend(as_words(arg, long, value));
            self.given.insert(id);
            if !file.trusted {
                self.from_here.push(long.to_owned());
            }
        }
        let readable = || secret_args::readable_by_others(&file.path, "a password");
        self.notices.extend(has_secret.then(readable).flatten().map(|notice| format!("warning: {notice}")));
        Ok(())
    }

    /// A file must not forbid what was asked for before. Either of two may have said that they conflict.
    fn conflicts(&self, arg: &Arg, given: &BTreeSet<&str>) -> bool {
        let forbids = |one: &Arg, other: &Arg| {
            secret_args::are_one(one, other)
                || self.command.get_arg_conflicts_with(one).iter().any(|it| it.get_id() == other.get_id())
        };
        let mut given = self.command.get_arguments().filter(|other| given.contains(other.get_id().as_str()));
        given.any(|given| forbids(given, arg) || forbids(arg, given))
    }
}

/// The file in the user's configuration directory. A variable that is empty or relative names no directory of the user's: it
/// would lead into the current one.
fn own_file() -> Option<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = directory("XDG_CONFIG_HOME").or_else(|| directory("HOME").map(|home| home.join(".config")))?;
    Some(config.join("tidegate").join(FILE))
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
