//! Options from `tidegate.toml` and the environment, as a user meets them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Place(PathBuf);

impl Place {
    /// A directory of its own with this `tidegate.toml`.
    fn with(name: &str, config: &str) -> Place {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{name}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("tidegate.toml"), config).unwrap();
        Place(directory)
    }

    fn run(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words)
            .current_dir(&self.0)
            .env("XDG_CONFIG_HOME", self.0.join("none"))
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_file_stands_below_the_environment_and_the_command_line() {
    let place = Place::with("order", "[trace]\nformat = \"chrome\"\n");
    assert!(out(&place.run(&["trace", "sleep"], &[])).starts_with("{\"traceEvents\""));
    let text = out(&place.run(&["trace", "sleep"], &[("TIDEGATE_FORMAT", "text")]));
    assert!(text.starts_with("sleep: "), "{text}");
    let page = out(&place.run(&["trace", "sleep", "--format", "html"], &[("TIDEGATE_FORMAT", "text")]));
    assert!(page.starts_with("<!doctype html>"), "{page}");
}

#[test]
fn a_top_level_option_holds_for_the_commands_that_have_it() {
    let place = Place::with("top", "format = \"chrome\"\n");
    assert!(out(&place.run(&["trace", "sleep"], &[])).starts_with("{\"traceEvents\""));
    assert!(place.run(&["completions", "bash"], &[]).status.success());
}

#[test]
fn a_flag_in_the_file_gives_way_to_what_it_contradicts() {
    let place = Place::with("flags", "[trace]\nformat = \"chrome\"\nrelaxed = true\n");
    let listed = place.run(&["trace", "--list"], &[]);
    assert!(listed.status.success(), "{}", err(&listed));
}

#[test]
fn a_misspelt_option_stops_the_run_and_names_the_nearest() {
    let place = Place::with("misspelt", "[trace]\nformt = \"chrome\"\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(err(&output), "tidegate: tidegate.toml: there is no option 'trace.formt'; did you mean 'format'?\n");
}

#[test]
fn a_value_that_does_not_fit_says_where_it_came_from() {
    let place = Place::with("value", "[trace]\nformat = \"crome\"\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("invalid value 'crome' for '--format <FORMAT>'"), "{}", err(&output));
    assert!(err(&output).ends_with("some options came from tidegate.toml\n"), "{}", err(&output));
}

#[test]
fn a_file_that_is_no_toml_and_one_that_is_missing_are_named() {
    let place = Place::with("broken", "[trace\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).starts_with("tidegate: tidegate.toml is not valid TOML"), "{}", err(&output));
    let output = place.run(&["--config", "none.toml", "trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("none.toml"), "{}", err(&output));
}
